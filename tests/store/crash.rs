//! A process that is killed while it writes loses nothing that it acknowledged.

use crate::member::{Member, node_key, scaled, service};
use rand::Rng;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use swarm_manager::api::types::Service;
use swarm_manager::storage::Table;
use swarm_manager::storage::seal::{Dek, DekRing};
use swarm_manager::storage::state_dir::StateDir;

/// Directory of the child that writes until it is killed.
const CHILD_DIR: &str = "SWARM_TEST_CRASH_DIR";
/// Entries that a child writes at most.
const ENTRIES_MAX: u64 = 10_000;
/// Entries between two compactions of the child.
const COMPACT_EVERY: u64 = 200;

fn ring() -> DekRing {
    DekRing::single(Dek::from_bytes(&[9; 32]).expect("32 bytes"))
}

/// Not a test: what the child process runs. It prints each index once it is acknowledged.
#[test]
fn writing_child() {
    let Ok(dir) = std::env::var(CHILD_DIR) else {
        return;
    };
    let mut member = Member::open(StateDir::open(dir).expect("the directory"), &ring());
    let mut out = std::io::stdout().lock();
    for _ in 0..ENTRIES_MAX {
        let index = member.create();
        writeln!(out, "acknowledged {index}").expect("a pipe");
        out.flush().expect("a pipe");
        if index.is_multiple_of(COMPACT_EVERY) {
            member.engines.db.sync_wal().expect("a sync");
            member
                .engines
                .log
                .compact(index - COMPACT_EVERY / 2)
                .expect("a compaction");
            member.engines.log.purge().expect("a purge");
            member.engines.log.mark().expect("a mark");
        }
    }
}

/// Starts a child, kills it after a random acknowledgement, and returns the last one it gave.
fn write_and_kill(dir: &Path) -> u64 {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "crash::writing_child", "--nocapture"])
        .env(CHILD_DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a child");
    let stop_after = rand::rng().random_range(1..400);
    let (mut last, mut seen) = (0, 0);
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    for line in lines.map_while(Result::ok) {
        // The test runner writes in front of the first one.
        let Some((_, index)) = line.split_once("acknowledged ") else {
            continue;
        };
        last = index.trim().parse().expect("an index");
        seen += 1;
        if seen == stop_after {
            child.kill().expect("a kill");
        }
    }
    child.wait().expect("an end");
    last
}

// 01-A11 04-A34
#[test]
fn every_acknowledged_entry_survives_a_kill() {
    let temp = tempfile::tempdir().expect("a directory");
    let mut acknowledged = 0;
    for round in 0..scaled(20).max(3) {
        let last = write_and_kill(temp.path());
        assert!(
            last > acknowledged,
            "round {round}: {last} after {acknowledged}"
        );
        acknowledged = last;
        let member = Member::open(StateDir::open(temp.path()).expect("the directory"), &ring());
        assert!(member.engines.applied.index <= member.engines.log.last_index());
        assert!(member.store.applied() >= acknowledged, "round {round}");
        let report = member.store.check().expect("a check");
        assert!(report.is_clean(), "round {round}: {report:?}");
        member.store.view(|view| {
            for index in 2..=acknowledged {
                let expected = service(index);
                let found = view.get::<Service>(&expected.id).expect("a read");
                assert_eq!(found.as_deref(), Some(&expected), "round {round}");
            }
        });
        assert_eq!(member.store.len(Table::Service), member.store.applied() - 1);
    }
}

// 01-A22
#[test]
fn a_second_process_is_refused_at_once() {
    let temp = tempfile::tempdir().expect("a directory");
    let dir = StateDir::open(temp.path()).expect("the directory");
    node_key(&dir, None);
    let start = std::time::Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_swarm-db"))
        .arg("inspect")
        .arg(temp.path())
        .output()
        .expect("swarm-db runs");
    assert!(start.elapsed() < std::time::Duration::from_secs(1));
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    let wanted = format!("is in use by process {}", std::process::id());
    assert!(text.contains(&wanted), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}
