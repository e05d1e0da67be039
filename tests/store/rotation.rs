//! The data key is exchanged while entries are written, and the process is killed at every step of it.

use crate::member::{self, Member, files_with, node_key, service};
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use swarm_manager::api::types::Service;
use swarm_manager::identity::{Kek, KeyFile};
use swarm_manager::storage::log::RaftLog;
use swarm_manager::storage::rotation::{LogKeys, Phase, RotationError, RotationProgress, rotate};
use swarm_manager::storage::seal::{Dek, DekRing, KeyId};
use swarm_manager::storage::state_dir::StateDir;
use swarm_manager::storage::{EngineOptions, Engines, Store};

/// Directory of the child, and after how many observations it kills itself.
const CHILD_DIR: &str = "SWARM_TEST_ROTATION_DIR";
const CHILD_END: &str = "SWARM_TEST_ROTATION_END";
/// Services that are there before the first exchange: more than one step seals anew.
const SERVICES: u64 = 300;

/// The log, shared by the one who writes and the one who exchanges its key.
#[derive(Clone)]
struct SharedLog(Arc<Mutex<RaftLog>>);

impl LogKeys for SharedLog {
    fn reseal(&self, ring: DekRing, durable: u64) -> Result<Option<u64>, RotationError> {
        let mut log = self.0.lock().expect("no panic");
        log.reseal(ring, &[durable])
            .map_err(|error| RotationError::Log(error.to_string()))
    }
}

/// The key file of a directory, read.
fn key_file(dir: &StateDir) -> KeyFile {
    let file = KeyFile::new(&dir.certificates(), Kek::default());
    // There is no certificate; the data keys are taken in all the same.
    let _ = file.read();
    assert!(file.dek().is_some(), "the key file lost its data key");
    file
}

fn open(path: &Path) -> (KeyFile, SharedLog, Store) {
    let dir = StateDir::open(path).expect("the directory");
    let keys = key_file(&dir);
    let member = Member::open(dir, &keys.data_keys().expect("data keys"));
    let Member { engines, store, .. } = member;
    (keys, SharedLog(Arc::new(Mutex::new(engines.log))), store)
}

/// Entries that are written beside one exchange at most.
const WRITES_MAX: usize = 20;

/// Writes entries until told to stop; calls `acknowledged` with each.
fn write_until(stop: &AtomicBool, log: &SharedLog, store: &Store, acknowledged: impl Fn(u64)) {
    for _ in 0..WRITES_MAX {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let index = {
            let mut log = log.0.lock().expect("no panic");
            member::append_to(&mut log)
        };
        member::apply_to(store, index, member::request(index));
        acknowledged(index);
    }
}

/// Exchanges the key with a writer beside it.
fn exchange(
    (keys, log, store): &(KeyFile, SharedLog, Store),
    acknowledged: impl Fn(u64) + Send,
    observe: &mut dyn FnMut(&RotationProgress) -> ControlFlow<()>,
) -> Result<RotationProgress, RotationError> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| write_until(&stop, log, store, acknowledged));
        let done = rotate(keys, store, log, observe);
        stop.store(true, Ordering::Release);
        done
    })
}

/// Not a test: what the child process runs. It prints each index once it is acknowledged, and ends
/// itself the hard way after some observations.
#[test]
fn rotating_child() {
    let Ok(dir) = std::env::var(CHILD_DIR) else {
        return;
    };
    let end: u64 = std::env::var(CHILD_END)
        .expect("a number")
        .parse()
        .expect("a number");
    let parts = open(Path::new(&dir));
    let say = |text: String| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{text}").expect("a pipe");
        out.flush().expect("a pipe");
    };
    let mut seen = 0;
    let done = exchange(
        &parts,
        |index| say(format!("acknowledged {index}")),
        &mut |progress| {
            if seen == end {
                say(format!("killed {}", progress.phase.name()));
                let own = rustix::process::getpid();
                let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
            }
            seen += 1;
            ControlFlow::Continue(())
        },
    );
    done.expect("an exchange");
}

/// Runs a child; returns the last entry it acknowledged, and the phase in which it was killed.
fn rotate_and_kill(dir: &Path, end: u64) -> (Option<u64>, Option<String>) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "rotation::rotating_child", "--nocapture"])
        .env(CHILD_DIR, dir)
        .env(CHILD_END, end.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a child");
    let (mut last, mut phase) = (None, None);
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    for line in lines.map_while(Result::ok) {
        if let Some((_, index)) = line.split_once("acknowledged ") {
            last = index.trim().parse().ok();
        }
        if let Some((_, name)) = line.split_once("killed ") {
            phase = Some(name.trim().to_owned());
        }
    }
    child.wait().expect("an end");
    (last, phase)
}

fn current(keys: &KeyFile) -> DekRing {
    let dek = keys.dek().expect("a data key");
    DekRing::single(Dek::from_bytes(dek.as_bytes()).expect("32 bytes"))
}

fn id(ring: &DekRing) -> KeyId {
    ring.current().id().expect("a name")
}

fn check_services(store: &Store, last: u64, place: &str) {
    assert!(store.applied() >= last, "{place}");
    store.view(|view| {
        for index in 2..=last {
            let expected = service(index);
            let found = view.get::<Service>(&expected.id).expect("a read");
            assert_eq!(found.as_deref(), Some(&expected), "{place}");
        }
    });
    let report = store.check().expect("a check");
    assert!(report.is_clean(), "{place}: {report:?}");
}

fn engines(path: &Path, ring: &DekRing) -> Result<Engines, swarm_manager::storage::OpenError> {
    let dir = StateDir::open(path).expect("the directory");
    Engines::open(&dir, ring, &EngineOptions::default())
}

/// What a directory looks like whose key was exchanged for good.
fn check_done(path: &Path, old: &DekRing) {
    let keys = key_file(&StateDir::open(path).expect("the directory"));
    let deks = keys.deks();
    assert!(deks.pending.is_none() && !deks.needs_rotation);
    let new = current(&keys);
    assert_ne!(id(&new), id(old));
    assert!(engines(path, old).is_err(), "the old key still opens it");
    let engines = engines(path, &new).expect("the new key opens everything");
    let (first, last) = (engines.log.first_index(), engines.log.last_index());
    let read = engines.log.entries(first, last + 1, u64::MAX);
    assert_eq!(read.expect("entries").len() as u64, last + 1 - first);
    let store = Store::open(engines.db.clone()).expect("a store");
    assert!(store.check().expect("a check").is_clean());
    drop((engines, store));
    // The clear part of a sealed record names its key behind a format byte.
    for format in [1, 2] {
        let mut mark = vec![format];
        mark.extend_from_slice(&id(old).0);
        let found = files_with(&path.join("raft/db"), &mark);
        assert!(found.is_empty(), "sealed with the old key: {found:?}");
    }
}

// 04-A36 01-A32 02-A26; of 03-A20 all but a key file that cannot be written
#[test]
fn a_kill_at_any_step_loses_nothing_and_ends_with_one_key() {
    let temp = tempfile::tempdir().expect("a directory");
    let first = node_key(&StateDir::open(temp.path()).expect("a directory"), None);
    {
        let dir = StateDir::open(temp.path()).expect("the directory");
        let mut member = Member::open(dir, &first);
        for _ in 0..SERVICES {
            member.create();
        }
    }
    let mut phases = Vec::new();
    let mut last = SERVICES;
    for end in 0.. {
        assert!(end < 100, "the exchange does not come to its end");
        let old = current(&key_file(
            &StateDir::open(temp.path()).expect("a directory"),
        ));
        let (acknowledged, phase) = rotate_and_kill(temp.path(), end);
        last = acknowledged.unwrap_or(last);
        let place = format!("observation {end}, {phase:?}");
        let parts = open(temp.path());
        check_services(&parts.2, last, &place);
        // The next start finishes what was begun.
        if parts.0.deks().rotation_due() {
            let done = exchange(&parts, |_| {}, &mut |_| ControlFlow::Continue(()));
            let done = done.expect("an exchange");
            assert_eq!((done.phase, done.damaged), (Phase::Done, 0));
            last = parts.2.applied();
        }
        check_services(&parts.2, last, &place);
        drop(parts);
        check_done(temp.path(), &old);
        match phase {
            Some(phase) => phases.push(phase),
            None => break,
        }
    }
    for wanted in [
        "pending",
        "switched",
        "rows",
        "merging",
        "finishing",
        "done",
    ] {
        assert!(phases.iter().any(|phase| phase == wanted), "{phases:?}");
    }
}

/// Everything is readable at every moment of an exchange, through old and new views.
// 04-A36
#[test]
fn rows_are_readable_throughout() {
    let temp = tempfile::tempdir().expect("a directory");
    let old = node_key(&StateDir::open(temp.path()).expect("a directory"), None);
    drop({
        let dir = StateDir::open(temp.path()).expect("the directory");
        let mut member = Member::open(dir, &old);
        for _ in 0..50 {
            member.create();
        }
        member
    });
    // Opened again, so that nothing is in memory.
    let parts = open(temp.path());
    let store = parts.2.clone();
    let before = service(2);
    store.view(|old_view| {
        let done = exchange(&parts, |_| {}, &mut |progress| {
            store.view(|view| {
                for index in 2..=50 {
                    let expected = service(index);
                    let found = view.get::<Service>(&expected.id).expect("a read");
                    assert_eq!(found.as_deref(), Some(&expected), "{progress:?}");
                }
            });
            ControlFlow::Continue(())
        });
        let done = done.expect("an exchange");
        assert!(done.rows_resealed >= 50 && done.rows_seen >= done.rows_resealed);
        assert!(done.entries >= 50);
        // A view from before the exchange.
        let found = old_view.get::<Service>(&before.id).expect("a read");
        assert_eq!(found.as_deref(), Some(&before));
    });
    drop((parts, store));
    assert!(engines(temp.path(), &old).is_err());
    let again = open(temp.path());
    assert!(again.0.deks().pending.is_none());
    check_services(&again.2, 51, "reopened");
}
