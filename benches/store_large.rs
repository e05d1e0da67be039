//! A store with many tasks: loading, opening, memory, and what single operations cost.
//!
//! Goals with 1,000,000 tasks on two cores: load through batches within 150 s; open to the first read
//! within 1.5 s; at most 700 MB resident (150 MB with 100,000 tasks, 25 MB empty); a cached get within
//! 3 us; 100 tasks of one node within 0.5 ms. Every size runs in processes of its own, so that one does
//! not see the memory of another. `SWARM_BENCH_TASKS` sets another number than a million.

use criterion::Criterion;
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use swarm_manager::api::types::task_spec::Runtime;
use swarm_manager::api::types::{
    Annotations, ContainerSpec, Service, ServiceSpec, Task, TaskSpec, TaskState, TaskStatus,
};
use swarm_manager::cli::calibrate::sync_rate;
use swarm_manager::raft::{self, Handle, NoPeers};
use swarm_manager::storage::seal::{Dek, DekRing};
use swarm_manager::storage::state_dir::StateDir;
use swarm_manager::storage::{By, EngineOptions, Engines, Store, StoreError};

/// Tasks of one node and of one service.
const TASKS_PER_NODE: u64 = 100;
const TASKS_PER_SERVICE: u64 = 1000;
/// Makes a process of this program do one part: `load DIR TASKS` or `open DIR TASKS`.
const PART: &str = "SWARM_BENCH_PART";

fn ring() -> DekRing {
    DekRing::single(Dek::from_bytes(&[5; 32]).expect("32 bytes"))
}

fn task_id(number: u64) -> String {
    format!("{number:025}")
}

fn node_id(number: u64) -> String {
    format!("node{number:021}")
}

fn service_id(number: u64) -> String {
    format!("service{number:018}")
}

/// A task as a service's spec makes it, about 600 bytes.
fn task(number: u64) -> Task {
    let container = ContainerSpec {
        image: "registry.example.com/team/application:1.2.3@sha256:0123456789abcdef".into(),
        env: (0..6)
            .map(|n| format!("SETTING_{n}=value-{number}-{n}"))
            .collect(),
        command: vec!["/usr/bin/application".into(), "--serve".into()],
        ..Default::default()
    };
    Task {
        id: task_id(number),
        service_id: service_id(number / TASKS_PER_SERVICE),
        node_id: node_id(number / TASKS_PER_NODE),
        slot: number % TASKS_PER_SERVICE + 1,
        desired_state: TaskState::Running as i32,
        status: Some(TaskStatus {
            state: TaskState::Running as i32,
            message: "started".into(),
            ..Default::default()
        }),
        spec: Some(TaskSpec {
            runtime: Some(Runtime::Container(container)),
            ..Default::default()
        }),
        service_annotations: Some(Annotations {
            name: format!("service-{}", number / TASKS_PER_SERVICE),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn service(number: u64) -> Service {
    Service {
        id: service_id(number),
        spec: Some(ServiceSpec {
            annotations: Some(Annotations {
                name: format!("service-{number}"),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A group of one member in `dir`, which leads.
async fn member(dir: &Path) -> (Handle, Store) {
    let state_dir = StateDir::open(dir).expect("the directory");
    let Engines { db, mut log, .. } =
        Engines::open(&state_dir, &ring(), &EngineOptions::default()).expect("engines");
    let raft_id = match log.identity() {
        Some(identity) => identity.raft_id,
        None => raft::bootstrap(&mut log, "node", "cluster", "127.0.0.1:2377").expect("a log"),
    };
    let store = Store::open(db.clone()).expect("a store");
    let config = raft::Config::new(raft_id, dir.to_owned());
    let member =
        Handle::start(config, log, db, store.clone(), Box::new(NoPeers)).expect("a member");
    let mut leadership = member.leadership();
    leadership
        .wait_for(|now| now.term().is_some())
        .await
        .expect("leadership");
    // The lock is held for as long as the process lives.
    std::mem::forget(state_dir);
    (member, store)
}

fn resident_mb() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb = line.and_then(|line| line.trim().strip_suffix("kB"));
    kb.and_then(|kb| kb.trim().parse::<f64>().ok())
        .unwrap_or(0.0)
        / 1024.0
}

async fn load(dir: &Path, tasks: u64) {
    let (member, store) = member(dir).await;
    let begin = Instant::now();
    let mut batch = store.batch();
    for number in 0..tasks.div_ceil(TASKS_PER_SERVICE) {
        let created = batch
            .update::<_, StoreError>(|tx| tx.create(service(number)))
            .await;
        created.expect("a service");
    }
    for number in 0..tasks {
        let object = task(number);
        let created = batch.update::<_, StoreError>(|tx| tx.create(object)).await;
        created.expect("a task");
    }
    batch.commit().await.expect("the last part");
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "load {tasks} tasks: {seconds:.1} s, {:.0}/s; resident {:.0} MB",
        tasks as f64 / seconds.max(1e-9),
        resident_mb()
    );
    member.stop().await.expect("an orderly end");
}

async fn open(dir: &Path, tasks: u64) {
    let begin = Instant::now();
    let state_dir = StateDir::open(dir).expect("the directory");
    let engines = Engines::open(&state_dir, &ring(), &EngineOptions::default()).expect("engines");
    let engines_ms = begin.elapsed().as_secs_f64() * 1e3;
    let store = Store::open(engines.db.clone()).expect("a store");
    if tasks > 0 {
        let found = store.view(|tx| tx.get::<Task>(&task_id(tasks / 2)));
        assert!(found.expect("a read").is_some());
    }
    let first_ms = begin.elapsed().as_secs_f64() * 1e3;
    println!(
        "open with {tasks} tasks: first read after {first_ms:.0} ms (engines {engines_ms:.0}); \
         resident {:.0} MB",
        resident_mb()
    );
    if tasks > 0 {
        operations(&store, tasks);
    }
}

/// Mean time of one call in microseconds.
fn mean_us(calls: u64, mut call: impl FnMut(u64)) -> f64 {
    let begin = Instant::now();
    (0..calls).for_each(&mut call);
    begin.elapsed().as_secs_f64() * 1e6 / calls as f64
}

fn operations(store: &Store, tasks: u64) {
    let get = |number: u64| {
        let found = store.view(|tx| tx.get::<Task>(&task_id(number)));
        black_box(found.expect("a read"));
    };
    // A stride that meets every task once, far apart.
    let uncached = mean_us(20_000.min(tasks), |n| get(n * 7919 % tasks));
    let cached = mean_us(200_000, |n| get(n % 100));
    let nodes = tasks.div_ceil(TASKS_PER_NODE);
    let by_node = |node: u64, expected: usize| {
        let found = store.view(|tx| tx.find::<Task>(By::NodeId(node_id(node))));
        assert_eq!(found.expect("a read").len(), expected);
    };
    let all = TASKS_PER_NODE.min(tasks) as usize;
    let node_cold = mean_us(200.min(nodes), |n| {
        by_node(n * 7 % (tasks / TASKS_PER_NODE).max(1), all)
    });
    let node_warm = mean_us(2000, |_| by_node(3 % nodes, all));
    // 04-A38: exact sets by every index.
    let count = |by: By| store.view(|tx| tx.count::<Task>(by)).expect("a count") as u64;
    let service_id = service_id(0);
    assert_eq!(
        count(By::ServiceId(service_id.clone())),
        TASKS_PER_SERVICE.min(tasks)
    );
    assert_eq!(
        count(By::Slot {
            service_id,
            slot: 7
        }),
        1
    );
    let by_state = Instant::now();
    assert_eq!(count(By::TaskState(TaskState::Running)), tasks);
    assert_eq!(count(By::TaskState(TaskState::Failed)), 0);
    let by_state = by_state.elapsed().as_secs_f64();
    let before = resident_mb();
    let scan = Instant::now();
    let mut seen = 0;
    let scanned = store.view(|tx| tx.each::<Task>(By::All, |_| seen += 1));
    scanned.expect("a scan");
    assert_eq!(seen, tasks);
    println!(
        "  get {cached:.2} us cached, {uncached:.1} us uncached; 100 tasks of a node {:.3} ms warm, \
         {:.3} ms cold; by state {by_state:.2} s; scan {:.2} s, {:+.0} MB; resident {:.0} MB",
        node_warm / 1e3,
        node_cold / 1e3,
        scan.elapsed().as_secs_f64(),
        resident_mb() - before,
        resident_mb()
    );
}

fn part(name: &str, dir: &Path, tasks: u64) {
    let program = std::env::current_exe().expect("this program");
    let status = Command::new(program)
        .env(PART, format!("{name} {tasks} {}", dir.display()))
        .stdin(Stdio::null())
        .status()
        .expect("a process");
    assert!(status.success(), "{name} {tasks}");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Single operations on a store of moderate size, measured with statistics.
fn criterion_part(dir: &Path, tasks: u64) {
    let runtime = runtime();
    let (member, store) = runtime.block_on(member(dir));
    let mut criterion = Criterion::default()
        .sample_size(20)
        .measurement_time(Duration::from_secs(2))
        .warm_up_time(Duration::from_secs(1));
    criterion.bench_function("store/get cached", |b| {
        let id = task_id(1);
        b.iter(|| store.view(|tx| tx.get::<Task>(black_box(&id))));
    });
    criterion.bench_function("store/find 100 tasks by node", |b| {
        b.iter(|| store.view(|tx| tx.find::<Task>(By::NodeId(node_id(2)))));
    });
    criterion.bench_function("store/update one task", |b| {
        let mut current: Arc<Task> = store
            .view(|tx| tx.get::<Task>(&task_id(5)))
            .expect("a read")
            .expect("a task");
        b.iter(|| {
            let update = store.update::<_, StoreError>(|tx| tx.update((*current).clone()));
            current = runtime.block_on(update).expect("an update");
        });
    });
    let mut next = tasks + 1;
    criterion.bench_function("store/create one task", |b| {
        b.iter(|| {
            next += 1;
            let object = task(next);
            let create = store.update::<_, StoreError>(|tx| tx.create(object));
            runtime.block_on(create).expect("a create")
        });
    });
    runtime.block_on(member.stop()).expect("an orderly end");
}

fn main() {
    if let Ok(part) = std::env::var(PART) {
        let mut words = part.splitn(3, ' ');
        let name = words.next().unwrap_or_default().to_owned();
        let tasks = words.next().and_then(|n| n.parse().ok()).unwrap_or(0);
        let dir = words.next().unwrap_or_default().to_owned();
        let runtime = runtime();
        return match name.as_str() {
            "load" => runtime.block_on(load(Path::new(&dir), tasks)),
            _ => runtime.block_on(open(Path::new(&dir), tasks)),
        };
    }
    let most = std::env::var("SWARM_BENCH_TASKS").ok();
    let most: u64 = most.and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let temp = tempfile::tempdir().expect("a directory");
    let rate = sync_rate(temp.path(), Duration::from_secs(2)).expect("a rate");
    println!(
        "F, 4 KiB append + fdatasync: {:.0}/s",
        rate.syncs_per_second
    );
    let mut sizes = vec![0, (most / 10).max(1), most];
    sizes.dedup();
    for tasks in sizes {
        let dir = temp.path().join(tasks.to_string());
        std::fs::create_dir(&dir).expect("a directory");
        part("load", &dir, tasks);
        part("open", &dir, tasks);
        if tasks == most / 10 {
            criterion_part(&dir, tasks);
        }
    }
}
