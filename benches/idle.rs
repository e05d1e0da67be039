//! What a manager costs when nothing happens, and how soon an empty one takes its first write.
//!
//! Goals: first accepted write within 500 ms of the start of the process; idle below 35 MB resident, 20 MB
//! of disk and 1 % of a core. Runs the real program; the disk's sync rate is printed beside the times.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use swarm_manager::api::types::control_client::ControlClient;
use swarm_manager::api::types::{Annotations, ConfigSpec, CreateConfigRequest};
use swarm_manager::cli::calibrate::sync_rate;
use swarm_manager::cli::connect::control_socket;

/// Starts measured; the median counts.
const STARTS: usize = 10;
/// How long the idle manager is watched.
const IDLE: Duration = Duration::from_secs(20);
/// Clock ticks per second of `/proc/<pid>/stat` on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

fn start(dir: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_swarmd"))
        .arg("--state-dir")
        .arg(dir.join("state"))
        .args([
            "--listen-remote-api",
            "127.0.0.1:0",
            "--executor",
            "none",
            "--listen-control-api",
        ])
        .arg(dir.join("control.sock"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("swarmd starts")
}

/// The time from the start of the process to its first acknowledged write.
async fn first_write(dir: &Path) -> (Child, Duration) {
    let begin = Instant::now();
    let child = start(dir);
    while !write(dir).await {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    (child, begin.elapsed())
}

/// Whether a write was acknowledged.
async fn write(dir: &Path) -> bool {
    let Ok(channel) = control_socket(&dir.join("control.sock")).await else {
        return false;
    };
    let spec = ConfigSpec {
        annotations: Some(Annotations {
            name: "first".to_owned(),
            ..Default::default()
        }),
        data: b"write".to_vec(),
        ..Default::default()
    };
    let request = CreateConfigRequest { spec: Some(spec) };
    ControlClient::new(channel)
        .create_config(request)
        .await
        .is_ok()
}

fn stop(mut child: Child) {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    child.wait().expect("an end");
}

fn resident_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("a size");
    line.split_whitespace()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("a number")
}

fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a stat");
    let after_name = stat.rsplit_once(") ").expect("a name").1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("ticks");
    (ticks(11) + ticks(12)) / TICKS_PER_SECOND
}

/// Bytes that the files of a directory occupy.
fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(dir).expect("a directory").flatten();
    entries
        .map(|entry| {
            let metadata = entry.metadata().expect("metadata");
            if metadata.is_dir() {
                disk_bytes(&entry.path())
            } else {
                metadata.blocks() * 512
            }
        })
        .sum()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let root =
        tempfile::tempdir_in(std::env::var_os("SWARM_BENCH_DIR").unwrap_or_else(|| ".".into()))
            .expect("a directory");
    let disk = sync_rate(root.path(), Duration::from_secs(2)).expect("a calibration");
    println!(
        "F = {:.0} appends of 4 KiB with fdatasync per second",
        disk.syncs_per_second
    );
    let mut times = Vec::new();
    for number in 0..STARTS {
        let dir = root.path().join(number.to_string());
        std::fs::create_dir(&dir).expect("a directory");
        let (child, time) = first_write(&dir).await;
        times.push(time);
        stop(child);
    }
    times.sort();
    println!(
        "start of an empty manager to its first acknowledged write: median {:?}, max {:?} ({STARTS} starts)",
        times[STARTS / 2],
        times[STARTS - 1]
    );
    let dir = root.path().join("idle");
    std::fs::create_dir(&dir).expect("a directory");
    let (child, _) = first_write(&dir).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = cpu_seconds(child.id());
    tokio::time::sleep(IDLE).await;
    let cpu = (cpu_seconds(child.id()) - before) / IDLE.as_secs_f64() * 100.0;
    println!(
        "idle: {:.1} MB resident, {:.1} MB of disk, {cpu:.2} % of a core",
        resident_kb(child.id()) as f64 / 1024.0,
        disk_bytes(&dir.join("state")) as f64 / (1 << 20) as f64,
    );
    stop(child);
}
