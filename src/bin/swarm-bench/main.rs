//! `swarm-bench`: how fast a disk and a running manager are.
//!
//! Figures of a manager are printed beside the disk's own sync rate, measured in the same run.

mod failover;

use anyhow::Context as _;
use clap::{CommandFactory, Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use swarm_manager::api::ids::new_id;
use swarm_manager::api::types::control_client::ControlClient;
use swarm_manager::api::types::*;
use swarm_manager::cli::calibrate::{Calibration, sync_rate};
use swarm_manager::cli::connect::{self, DEFAULT_SOCKET};
use swarm_manager::cli::output::{Format, print_json, print_text};

/// How long the disk is measured before a run.
const CALIBRATION: Duration = Duration::from_secs(2);

/// Most callers at once; each is a task with one call in flight on one connection.
const CALLERS_MAX: usize = 4096;

const EXAMPLES: &str = "\
Examples:
  swarm-bench disk /var/lib/swarmd
  swarm-bench writes --callers 64 --count 20000
  swarm-bench failover --managers 3 --runs 20";

#[derive(Parser)]
#[command(name = "swarm-bench", version, about = "Measures a disk or a running manager", after_help = EXAMPLES)]
struct Cli {
    /// How to print the result
    #[arg(long, global = true, value_enum, default_value_t)]
    format: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Appends of 4 KiB with a sync per second, on the file system of a directory
    Disk {
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// How long to measure
        #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
        length: Duration,
    },
    /// Acknowledged writes per second through the control socket: configs are created and removed again
    Writes {
        /// Control socket of the manager
        #[arg(short, long, env = "SWARM_SOCKET", default_value = DEFAULT_SOCKET)]
        socket: PathBuf,
        /// Calls in flight at a time
        #[arg(long, default_value_t = 64)]
        callers: usize,
        /// Writes altogether
        #[arg(long, default_value_t = 10_000)]
        count: usize,
        /// Payload of one write
        #[arg(long, default_value_t = 1024)]
        bytes: usize,
        /// Directory whose file system is measured for comparison: the manager's state directory
        #[arg(long, default_value = ".")]
        disk: PathBuf,
    },
    /// Time without acknowledged writes after the leader of a throw-away group on this machine is killed
    Failover {
        /// Managers of the group
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(3..=7))]
        managers: u64,
        /// How often the leader is killed
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
        runs: u64,
        /// The program to start [default: the one beside this program]
        #[arg(long)]
        swarmd: Option<PathBuf>,
        /// Where to keep the state directories meanwhile
        #[arg(long, default_value = ".")]
        dir: PathBuf,
        /// Further flags of the managers, after `--`
        #[arg(last = true)]
        flags: Vec<String>,
    },
    /// Print a completion script for a shell
    Completion { shell: clap_complete::Shell },
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Disk { dir, length } => {
            let found = calibrate(&dir, length)?;
            match cli.format {
                Format::Json => print_json(&calibration_json(&found))?,
                Format::Table => print_text(&calibration_text(&found))?,
            }
        }
        Command::Writes {
            socket,
            callers,
            count,
            bytes,
            disk,
        } => {
            anyhow::ensure!(
                (1..=CALLERS_MAX).contains(&callers),
                "--callers must be 1 to {CALLERS_MAX}"
            );
            anyhow::ensure!(count >= callers, "--count must be at least --callers");
            let found = calibrate(&disk, CALIBRATION)?;
            let channel = connect::control_socket(&socket).await?;
            let result = writes(ControlClient::new(channel), callers, count, bytes).await?;
            print_writes(cli.format, &found, callers, &result)?;
        }
        Command::Failover {
            managers,
            runs,
            swarmd,
            dir,
            flags,
        } => {
            let swarmd = match swarmd {
                Some(swarmd) => swarmd,
                None => std::env::current_exe()
                    .context("cannot tell where this program is; use --swarmd")?
                    .with_file_name("swarmd"),
            };
            let found = calibrate(&dir, CALIBRATION)?;
            let plan = failover::Plan {
                managers: managers as usize,
                runs: runs as usize,
                swarmd,
                dir,
                flags,
            };
            let times = failover::measure(&plan, |run, time| {
                eprintln!("run {} of {runs}: {time:.2?}", run + 1);
            })
            .await?;
            print_failover(cli.format, &found, managers, times)?;
        }
        Command::Completion { shell } => {
            clap_complete::generate(
                shell,
                &mut Cli::command(),
                "swarm-bench",
                &mut std::io::stdout(),
            );
        }
    }
    Ok(())
}

fn calibrate(dir: &Path, length: Duration) -> anyhow::Result<Calibration> {
    sync_rate(dir, length)
        .with_context(|| format!("cannot measure the disk under {}", dir.display()))
}

fn calibration_text(found: &Calibration) -> String {
    format!(
        "disk: F = {:.0} appends of 4 KiB with fdatasync per second (median {:?}, p99 {:?})\n",
        found.syncs_per_second, found.median, found.p99
    )
}

fn calibration_json(found: &Calibration) -> serde_json::Value {
    serde_json::json!({
        "syncs_per_second": found.syncs_per_second,
        "median_us": found.median.as_micros() as u64,
        "p99_us": found.p99.as_micros() as u64,
    })
}

/// Times of all acknowledged writes, sorted, and of the whole run.
struct Writes {
    times: Vec<Duration>,
    total: Duration,
}

/// A percentile of sorted times.
fn percentile(times: &[Duration], percent: usize) -> Duration {
    let at = times.len() * percent / 100;
    times
        .get(at.min(times.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

async fn writes(
    client: ControlClient<tonic::transport::Channel>,
    callers: usize,
    count: usize,
    bytes: usize,
) -> anyhow::Result<Writes> {
    let run = new_id();
    let next = Arc::new(AtomicUsize::new(0));
    let begin = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            tokio::spawn(create_some(
                client.clone(),
                run.clone(),
                next.clone(),
                count,
                bytes,
            ))
        })
        .collect();
    let mut times = Vec::with_capacity(count);
    let mut ids = Vec::with_capacity(count);
    for task in tasks {
        let (some_times, some_ids) = task.await??;
        times.extend(some_times);
        ids.extend(some_ids);
    }
    let total = begin.elapsed();
    remove(client, ids).await?;
    times.sort_unstable();
    Ok(Writes { times, total })
}

/// One caller: takes the next number until all are taken, one call at a time.
async fn create_some(
    mut client: ControlClient<tonic::transport::Channel>,
    run: String,
    next: Arc<AtomicUsize>,
    count: usize,
    bytes: usize,
) -> anyhow::Result<(Vec<Duration>, Vec<String>)> {
    let (mut times, mut ids) = (Vec::new(), Vec::new());
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= count {
            return Ok((times, ids));
        }
        let request = CreateConfigRequest {
            spec: Some(ConfigSpec {
                annotations: Some(Annotations {
                    name: format!("bench-{run}-{number}"),
                    ..Default::default()
                }),
                data: vec![b'x'; bytes],
                ..Default::default()
            }),
        };
        let one = Instant::now();
        let created = client.create_config(request).await?.into_inner().config;
        times.push(one.elapsed());
        ids.push(created.unwrap_or_default().id);
    }
}

/// Removes what the run created, many at a time.
async fn remove(
    client: ControlClient<tonic::transport::Channel>,
    ids: Vec<String>,
) -> anyhow::Result<()> {
    const AT_ONCE: usize = 64;
    for some in ids.chunks(AT_ONCE) {
        let removals = some.iter().map(|id| {
            let mut client = client.clone();
            let request = RemoveConfigRequest {
                config_id: id.clone(),
            };
            async move { client.remove_config(request).await }
        });
        futures::future::try_join_all(removals).await?;
    }
    Ok(())
}

fn print_failover(
    format: Format,
    found: &Calibration,
    managers: u64,
    mut times: Vec<Duration>,
) -> anyhow::Result<()> {
    times.sort_unstable();
    let [min, median, max] = [0, 50, 100].map(|percent| percentile(&times, percent));
    match format {
        Format::Json => print_json(&serde_json::json!({
            "disk": calibration_json(found),
            "managers": managers,
            "runs": times.len(),
            "min_ms": min.as_millis() as u64,
            "median_ms": median.as_millis() as u64,
            "max_ms": max.as_millis() as u64,
        }))?,
        Format::Table => print_text(&format!(
            "{}{managers} managers, leader killed {} times: next acknowledged write after min {min:.2?}, median {median:.2?}, max {max:.2?}\n",
            calibration_text(found),
            times.len(),
        ))?,
    }
    Ok(())
}

fn print_writes(
    format: Format,
    found: &Calibration,
    callers: usize,
    result: &Writes,
) -> anyhow::Result<()> {
    let rate = result.times.len() as f64 / result.total.as_secs_f64();
    let ratio = rate / found.syncs_per_second;
    let [p50, p90, p99] = [50, 90, 99].map(|percent| percentile(&result.times, percent));
    match format {
        Format::Json => print_json(&serde_json::json!({
            "disk": calibration_json(found),
            "callers": callers,
            "writes": result.times.len(),
            "writes_per_second": rate,
            "ratio_to_disk": ratio,
            "p50_us": p50.as_micros() as u64,
            "p90_us": p90.as_micros() as u64,
            "p99_us": p99.as_micros() as u64,
        }))?,
        Format::Table => print_text(&format!(
            "{}{callers} callers: {rate:.0} acknowledged writes/s = {ratio:.2} F (p50 {p50:.1?}, p90 {p90:.1?}, p99 {p99:.1?})\n",
            calibration_text(found)
        ))?,
    }
    Ok(())
}
