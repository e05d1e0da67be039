//! Acknowledged writes per second of one manager: a 1 KiB object per write, all indexes and encryption,
//! through the store in the same process and through gRPC on the control socket.
//!
//! F, the disk's 4 KiB append + fdatasync rate, is measured first; the summary at the end prints every
//! rate as a ratio to it. Goals: 0.6 / 5 / 9 / 15 F in-process at 1 / 16 / 64 / 256 callers, and 3 F
//! through gRPC at 256 callers with p99 below 60 ms.

use criterion::{BenchmarkId, Criterion, Throughput};
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use swarm_manager::agent::none::NoneExecutor;
use swarm_manager::api::ids::new_id;
use swarm_manager::api::types::control_client::ControlClient;
use swarm_manager::api::types::node_spec::Availability;
use swarm_manager::api::types::{Annotations, Config, ConfigSpec, CreateConfigRequest};
use swarm_manager::cli::calibrate::sync_rate;
use swarm_manager::cli::connect::control_socket;
use swarm_manager::node::{Node, NodeConfig};
use swarm_manager::storage::{Store, StoreError};
use tonic::transport::Channel;

const CALLERS: [u64; 4] = [1, 16, 64, 256];
const PAYLOAD_BYTES: usize = 1024;
const CALIBRATION: Duration = Duration::from_secs(3);

/// What the summary shows of one bench.
struct Seen {
    writes: u64,
    total: Duration,
    times_us: Histogram<u64>,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen {
            writes: 0,
            total: Duration::ZERO,
            times_us: Histogram::new(3).expect("three digits"),
        }
    }
}

type Summary = Arc<Mutex<BTreeMap<(u8, u64), Seen>>>;

/// Names of one process must differ over all benches.
static NEXT: AtomicU64 = AtomicU64::new(0);

fn spec() -> ConfigSpec {
    ConfigSpec {
        annotations: Some(Annotations {
            name: format!("bench-{}", NEXT.fetch_add(1, Ordering::Relaxed)),
            ..Default::default()
        }),
        data: vec![b'x'; PAYLOAD_BYTES],
        ..Default::default()
    }
}

#[derive(Clone)]
enum Path {
    Store(Store),
    Grpc(ControlClient<Channel>),
}

impl Path {
    async fn write(&mut self) {
        match self {
            Path::Store(store) => {
                let config = Config {
                    id: new_id(),
                    spec: Some(spec()),
                    ..Default::default()
                };
                let created = store.update::<_, StoreError>(|tx| tx.create(config)).await;
                black_box(created.expect("a write"));
            }
            Path::Grpc(client) => {
                let request = CreateConfigRequest { spec: Some(spec()) };
                black_box(client.create_config(request).await.expect("a write"));
            }
        }
    }
}

/// `writes` writes shared by `callers` tasks; the time from the first to the last.
async fn run(path: &Path, callers: u64, writes: u64, times: &Mutex<Histogram<u64>>) -> Duration {
    let left = Arc::new(AtomicU64::new(writes));
    let begin = Instant::now();
    let tasks: Vec<_> = (0..callers.min(writes))
        .map(|_| {
            let (mut path, left) = (path.clone(), left.clone());
            tokio::spawn(async move {
                let mut own = Vec::new();
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                        left.checked_sub(1)
                    })
                    .is_ok()
                {
                    let one = Instant::now();
                    path.write().await;
                    own.push(one.elapsed().as_micros() as u64);
                }
                own
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("a caller"));
    }
    let total = begin.elapsed();
    let mut times = times.lock();
    for time in all {
        times.record(time).expect("a histogram that grows");
    }
    total
}

fn bench(
    criterion: &mut Criterion,
    runtime: &tokio::runtime::Runtime,
    name: &str,
    order: u8,
    path: &Path,
    summary: &Summary,
) {
    let mut group = criterion.benchmark_group(name);
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(6))
        .throughput(Throughput::Elements(1));
    for callers in CALLERS {
        group.bench_with_input(
            BenchmarkId::from_parameter(callers),
            &callers,
            |bencher, &callers| {
                bencher.iter_custom(|writes| {
                    let times = Mutex::new(Histogram::new(3).expect("three digits"));
                    let total = runtime.block_on(run(path, callers, writes, &times));
                    // Runs shorter than the callers can share say nothing about them.
                    if writes >= callers * 4 {
                        let mut summary = summary.lock();
                        let seen = summary.entry((order, callers)).or_default();
                        seen.writes += writes;
                        seen.total += total;
                        seen.times_us
                            .add(times.into_inner())
                            .expect("equal precision");
                    }
                    total
                });
            },
        );
    }
    group.finish();
}

fn main() {
    let dir =
        tempfile::tempdir_in(std::env::var_os("SWARM_BENCH_DIR").unwrap_or_else(|| ".".into()))
            .expect("a directory");
    let disk = sync_rate(dir.path(), CALIBRATION).expect("a calibration");
    println!(
        "F = {:.0} appends of 4 KiB with fdatasync per second (median {:?}, p99 {:?})",
        disk.syncs_per_second, disk.median, disk.p99
    );
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let socket = dir.path().join("control.sock");
    let node = runtime
        .block_on(Node::start(NodeConfig {
            state_dir: dir.path().join("state"),
            join_addr: None,
            join_token: None,
            hostname: None,
            listen_remote: "127.0.0.1:0".parse().expect("an address"),
            advertise_remote: None,
            control_socket: socket.clone(),
            control_group: None,
            metrics: None,
            availability: Availability::Active,
            raft_tick: Duration::from_millis(100),
            heartbeat_ticks: 1,
            election_ticks: 10,
            accept_log_loss: false,
            force_new_cluster: false,
            executor: Box::new(|_| Ok(Arc::new(NoneExecutor))),
        }))
        .expect("a node");
    runtime.block_on(node.ready()).expect("a ready node");
    let store = node.manager().expect("a manager").store().clone();
    let client = ControlClient::new(
        runtime
            .block_on(control_socket(&socket))
            .expect("a connection"),
    );

    let summary = Summary::default();
    let mut criterion = Criterion::default().configure_from_args();
    bench(
        &mut criterion,
        &runtime,
        "store_write/in-process",
        0,
        &Path::Store(store),
        &summary,
    );
    bench(
        &mut criterion,
        &runtime,
        "store_write/grpc-unix",
        1,
        &Path::Grpc(client),
        &summary,
    );
    criterion.final_summary();
    let after = sync_rate(dir.path(), CALIBRATION).expect("a calibration");
    let f = (disk.syncs_per_second + after.syncs_per_second) / 2.0;
    println!(
        "\nF = {:.0} before, {:.0} after: ratios to {f:.0}",
        disk.syncs_per_second, after.syncs_per_second
    );
    println!("path        callers   writes/s       F    p50 ms    p99 ms");
    for ((order, callers), seen) in summary.lock().iter() {
        let rate = seen.writes as f64 / seen.total.as_secs_f64();
        println!(
            "{:<12}{callers:>6}{rate:>11.0}{:>8.2}{:>10.2}{:>10.2}",
            if *order == 0 { "in-process" } else { "grpc" },
            rate / f,
            seen.times_us.value_at_quantile(0.5) as f64 / 1e3,
            seen.times_us.value_at_quantile(0.99) as f64 / 1e3,
        );
    }
    runtime.block_on(node.stop()).expect("an orderly stop");
}
