//! The member over the real stores, in real directories, up to the death of the process.

use super::*;
use crate::api::types::{Annotations, Config as ConfigObject, ConfigSpec};
use crate::raft::bootstrap;
use crate::storage::seal::{Dek, DekRing};
use crate::storage::state_dir::StateDir;
use crate::storage::{EngineOptions, Engines, Store, StoreError, Table};
use futures::StreamExt;
use rand::Rng;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A member with its store, in a directory that outlives it.
struct Manager {
    member: Handle,
    store: Store,
    _dir: StateDir,
}

impl Manager {
    fn start(path: &Path) -> Manager {
        let dir = StateDir::open(path).unwrap();
        let ring = DekRing::single(Dek::from_bytes(&[7; 32]).unwrap());
        let engines = Engines::open(&dir, &ring, &EngineOptions::default()).unwrap();
        let mut log = engines.log;
        let claimed = log.identity().map(|identity| identity.raft_id);
        let raft_id = match claimed {
            Some(raft_id) => raft_id,
            None => bootstrap(&mut log, "node", "cluster", "10.0.0.1:2377").unwrap(),
        };
        let store = Store::open(engines.db.clone()).unwrap();
        let config = Config::new(raft_id, path.to_owned());
        let outbox = Box::new(NoPeers);
        let member = Handle::start(config, log, engines.db, store.clone(), outbox).unwrap();
        Manager {
            member,
            store,
            _dir: dir,
        }
    }

    async fn leads(&self) -> u64 {
        let mut leadership = self.member.leadership();
        let leads = leadership.wait_for(|now| now.term().is_some()).await;
        leads.unwrap().term().unwrap()
    }

    async fn create(&self, name: &str) -> Result<(), StoreError> {
        let object = ConfigObject {
            id: name.to_owned(),
            spec: Some(ConfigSpec {
                annotations: Some(Annotations {
                    name: name.to_owned(),
                    ..Default::default()
                }),
                data: vec![7; 512],
                ..Default::default()
            }),
            ..Default::default()
        };
        self.store.update(|tx| tx.create(object)).await.map(drop)
    }

    fn has(&self, name: &str) -> bool {
        let found = self.store.view(|tx| tx.get::<ConfigObject>(name));
        found.unwrap().is_some()
    }

    /// Ends the member and closes the files.
    async fn stop(self) {
        self.member.stop().await.unwrap();
        self.store.close();
    }
}

fn scaled(full: u32) -> u32 {
    let scale = std::env::var("SWARM_TEST_SCALE").ok();
    let scale: f64 = scale.and_then(|text| text.parse().ok()).unwrap_or(0.1);
    ((f64::from(full) * scale) as u32).max(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_survive_an_orderly_restart() {
    // 03-A1
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::start(dir.path());
    assert_eq!(manager.leads().await, 2);
    manager.create("kept").await.unwrap();
    let before = manager.member.status();
    assert_eq!(before.members.len(), 1);
    assert_eq!(before.members[0].addr, "10.0.0.1:2377");
    manager.stop().await;

    let began = Instant::now();
    let manager = Manager::start(dir.path());
    let after = manager.member.status();
    assert_eq!(
        after.applied, after.commit,
        "an orderly stop leaves nothing to replay"
    );
    assert_eq!(manager.leads().await, 3);
    assert!(manager.has("kept"));
    manager.create("new").await.unwrap();
    println!("from start to first accepted write: {:?}", began.elapsed());
    let membership = manager.store.membership();
    assert_eq!(membership.members.len(), 1);
    assert_eq!(membership.conf_state.voters, [manager.member.raft_id()]);
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_comes_from_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::start(dir.path());
    manager.leads().await;
    let from = manager.store.applied();
    for number in 0..20 {
        manager.create(&format!("c{number}")).await.unwrap();
    }
    let to = manager.store.applied();
    let member = manager.member.clone();
    let read = tokio::task::spawn_blocking(move || member.changes_between(from, to));
    assert_eq!(read.await.unwrap().unwrap().len(), 20);
    manager.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_share_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Manager::start(dir.path());
    manager.leads().await;
    let count = 200u32;
    let began = Instant::now();
    for number in 0..count {
        manager.create(&format!("a{number}")).await.unwrap();
    }
    let alone = began.elapsed();
    let began = Instant::now();
    let names = (0..count * 10).map(|number| format!("b{number}"));
    let results: Vec<_> = futures::stream::iter(names)
        .map(|name| {
            let manager = &manager;
            async move { manager.create(&name).await }
        })
        .buffer_unordered(64)
        .collect()
        .await;
    let together = began.elapsed();
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(manager.store.len(Table::Config), u64::from(count) * 11);
    let gain = 10.0 * alone.as_secs_f64() / together.as_secs_f64();
    println!("one writer: {alone:?} for {count}; 64 writers: {gain:.1} times as many per second");
    assert!(gain > 2.0, "no group commit: gain {gain:.1}");
    manager.stop().await;
}

/// What the threads of this process are doing: name, number and first argument of the system call.
fn sample_threads() -> Vec<(String, u64, u64)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let sampled = tasks.filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let call = std::fs::read_to_string(task.path().join("syscall")).ok()?;
        let mut words = call.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let argument = words.next()?.trim_start_matches("0x");
        let argument = u64::from_str_radix(argument, 16).ok()?;
        Some((name.trim().to_owned(), number, argument))
    });
    sampled.collect()
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn no_worker_thread_waits_for_the_disk() {
    // 01-A19
    const WRITES: [u64; 4] = [1, 18, 20, 296]; // write, pwrite64, writev, pwritev
    const SYNCS: [u64; 3] = [74, 75, 277]; // fsync, fdatasync, sync_file_range
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("worker")
        .enable_all()
        .build()
        .unwrap();
    let manager = Arc::new(Manager::start(dir.path()));
    runtime.block_on(manager.leads());
    let done = Arc::new(AtomicBool::new(false));
    let writers = (0..16).map(|writer| {
        let (manager, done) = (manager.clone(), done.clone());
        runtime.spawn(async move {
            for number in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                manager
                    .create(&format!("w{writer}-{number}"))
                    .await
                    .unwrap();
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let until = Instant::now() + Duration::from_secs(10) * scaled(10) / 10;
    let (mut raft_syncs, mut worker_disk) = (0, Vec::new());
    while Instant::now() < until {
        for (name, call, argument) in sample_threads() {
            raft_syncs += u32::from(name == "raft" && SYNCS.contains(&call));
            let target = || std::fs::read_link(format!("/proc/self/fd/{argument}"));
            let on_disk = SYNCS.contains(&call)
                || (WRITES.contains(&call)
                    && target().is_ok_and(|target| target.starts_with(dir.path())));
            if name == "worker" && on_disk {
                worker_disk.push((name, call));
            }
        }
    }
    done.store(true, Ordering::Relaxed);
    runtime.block_on(async {
        for writer in writers {
            writer.await.unwrap();
        }
    });
    assert!(raft_syncs > 0, "the sample saw nothing");
    assert_eq!(worker_disk, []);
    block_on(manager.member.stop()).unwrap();
}

/// Directory of the process that is to be killed.
const CHILD_DIR: &str = "SWARM_TEST_RAFT_CHILD_DIR";
/// Entries that a child would write if it lived.
const CHILD_ENTRIES: u32 = 10_000;

/// Not a test of its own: what the child process of the next one does. Says "ok <name>" for everything
/// that was acknowledged.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else {
        return;
    };
    let round: u32 = std::env::var("SWARM_TEST_RAFT_CHILD_ROUND")
        .unwrap()
        .parse()
        .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let manager = Manager::start(Path::new(&dir));
        manager.leads().await;
        println!("\nready");
        let names = (0..CHILD_ENTRIES).map(|number| format!("r{round}-{number}"));
        futures::stream::iter(names)
            .map(|name| {
                let manager = &manager;
                async move {
                    manager.create(&name).await.unwrap();
                    println!("ok {name}");
                }
            })
            .buffer_unordered(32)
            .collect::<()>()
            .await;
    });
}

fn spawn_child(dir: &Path, round: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("raft::tests::real::child_that_writes_until_it_is_killed")
        .env(CHILD_DIR, dir)
        .env("SWARM_TEST_RAFT_CHILD_ROUND", round.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn acknowledged_writes_survive_sigkill() {
    // 01-A11, 01-A14
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = Vec::new();
    for round in 0..scaled(20).max(3) {
        let mut child = spawn_child(dir.path(), round);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // One round in three ends while the child is still starting.
        let die_after = match round % 3 {
            0 => 0,
            _ => rand::rng().random_range(1..CHILD_ENTRIES / 4),
        };
        let mut seen = 0;
        for line in lines.by_ref() {
            let Ok(line) = line else { break };
            if let Some(name) = line.strip_prefix("ok ") {
                acknowledged.push(name.to_owned());
                seen += 1;
            }
            if (line == "ready" || seen > 0) && seen >= die_after {
                break;
            }
        }
        child.kill().unwrap();
        // What it managed to say before it died counts as well.
        let rest = lines.map_while(Result::ok);
        let names = rest.filter_map(|line| line.strip_prefix("ok ").map(str::to_owned));
        acknowledged.extend(names);
        child.wait().unwrap();
        check_after_kill(dir.path(), &acknowledged);
    }
    println!("{} acknowledged writes, all present", acknowledged.len());
}

fn check_after_kill(dir: &Path, acknowledged: &[String]) {
    block_on(async {
        let manager = Manager::start(dir);
        manager.leads().await;
        for name in acknowledged {
            assert!(manager.has(name), "{name} was acknowledged and is gone");
        }
        let status = manager.member.status();
        assert_eq!(status.applied, status.commit);
        manager.stop().await;
    });
}

#[cfg(feature = "failpoints")]
#[test]
fn a_full_disk_on_the_real_log() {
    // 01-A17
    let scenario = fail::FailScenario::setup();
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let manager = Manager::start(dir.path());
        manager.leads().await;
        manager.create("before").await.unwrap();
        fail::cfg("log::write::no_space", "return").unwrap();
        let full = manager.create("unlucky").await.unwrap_err();
        assert!(
            matches!(full, StoreError::Propose(ProposeError::DiskFull(_))),
            "{full}"
        );
        assert!(manager.has("before"));
        fail::remove("log::write::no_space");
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = manager.create("after").await {
            assert!(Instant::now() < deadline, "{error}");
            tokio::task::yield_now().await;
        }
        manager.stop().await;
    });
    scenario.teardown();
}
