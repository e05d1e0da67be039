//! Measurements by hand: `cargo test --release measure_ -- --ignored --nocapture`.

use super::support::*;
use crate::api::types::*;
use crate::storage::testing::TestStore;
use crate::storage::{
    CommittedEntry, Payload, Position, Proposal, ProposeError, Proposer, StoreError,
    proposer::HistoryError,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// Commits everything at once, in runs, on a thread of its own; no log, no disk flush.
struct InstantLog {
    sender: mpsc::Sender<Proposal>,
    last: Arc<AtomicU64>,
}

impl InstantLog {
    fn start(store: &TestStore) -> std::thread::JoinHandle<u64> {
        let (sender, receiver) = mpsc::channel::<Proposal>();
        let last = Arc::new(AtomicU64::new(0));
        store.set_proposer(Arc::new(InstantLog {
            sender,
            last: last.clone(),
        }));
        store.begin_term(1);
        let store = store.store();
        std::thread::spawn(move || {
            let mut index = 0;
            let mut runs = 0;
            while let Ok(first) = receiver.recv() {
                let run: Vec<Proposal> =
                    std::iter::once(first).chain(receiver.try_iter()).collect();
                let entries = run.into_iter().map(|proposal| {
                    index += 1;
                    CommittedEntry {
                        index,
                        term: 1,
                        payload: Payload::Request(proposal.data),
                    }
                });
                let entries: Vec<_> = entries.collect();
                last.store(index, Ordering::SeqCst);
                store.apply(entries).unwrap();
                runs += 1;
            }
            runs
        })
    }
}

impl Proposer for InstantLog {
    fn propose(&self, proposal: Proposal) -> Result<(), ProposeError> {
        self.sender
            .send(proposal)
            .map_err(|_| ProposeError::Stopped)
    }
    fn position(&self) -> Option<Position> {
        let last = self.last.load(Ordering::SeqCst);
        Some(Position {
            leader_term: Some(1),
            commit: last,
            last,
        })
    }
    fn changes_between(&self, _: u64, _: u64) -> Result<Vec<(u64, Vec<u8>)>, HistoryError> {
        Err(HistoryError::NoVersioning)
    }
}

/// A task of the usual size, about 900 bytes encoded.
fn usual_task(number: u64) -> Task {
    let mut task = task(
        &format!("{number:025}"),
        "service0000000000000000001",
        number,
    );
    task.node_id = format!("node{:021}", number % 100);
    let env = (0..16)
        .map(|i| format!("VARIABLE_{i}=some value of it {i}"))
        .collect();
    task.spec = Some(TaskSpec {
        runtime: Some(task_spec::Runtime::Container(ContainerSpec {
            image: "registry.example.com/team/app:1.2.3".into(),
            env,
            ..Default::default()
        })),
        ..Default::default()
    });
    task.status = Some(TaskStatus::default());
    task
}

/// Processor time of this process so far, in microseconds.
fn cpu_micros() -> f64 {
    let usage = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = usage
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks * 10_000.0
}

fn measure(name: &str, count: u64, (start, cpu): (Instant, f64)) {
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{name}: {:.0}/s, {:.1} us of processor each",
        count as f64 / seconds,
        (cpu_micros() - cpu) / count as f64
    );
}

#[test]
#[ignore = "a measurement"]
fn measure_writes() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let store = TestStore::without_proposer();
    let _applier = InstantLog::start(&store);
    for callers in [1_u64, 16, 256] {
        let each = 50_000 / callers.max(4);
        let start = (Instant::now(), cpu_micros());
        runtime.block_on(async {
            let mut set = tokio::task::JoinSet::new();
            for caller in 0..callers {
                let store = store.store();
                set.spawn(async move {
                    for i in 0..each {
                        let task = usual_task(callers * 10_000_000 + caller * each + i);
                        store
                            .update::<_, StoreError>(|tx| tx.create(task))
                            .await
                            .unwrap();
                    }
                });
            }
            set.join_all().await;
        });
        measure(&format!("create, {callers} callers"), callers * each, start);
        let start = (Instant::now(), cpu_micros());
        runtime.block_on(async {
            let mut set = tokio::task::JoinSet::new();
            for caller in 0..callers {
                let store = store.store();
                set.spawn(async move {
                    for i in 0..each {
                        let id = format!("{:025}", callers * 10_000_000 + caller * each + i);
                        store
                            .update::<_, StoreError>(|tx| {
                                let task = tx.get::<Task>(&id)?.ok_or(StoreError::NotExist)?;
                                let mut task = (*task).clone();
                                task.status = Some(TaskStatus {
                                    state: 512,
                                    ..Default::default()
                                });
                                tx.update(task)
                            })
                            .await
                            .unwrap();
                    }
                });
            }
            set.join_all().await;
        });
        measure(&format!("update, {callers} callers"), callers * each, start);
    }
}
