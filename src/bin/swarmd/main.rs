//! `swarmd`: a node of a Swarm cluster. Argument parsing, logging, signals; the node does the rest.

// Help texts write options as HOST[:PORT], which the documentation would take for a link.
#![allow(rustdoc::broken_intra_doc_links)]

mod args;
mod dev;
mod executor;
mod leave;

use anyhow::{Context as _, bail};
use args::{Cli, Command, LogLevel, NodeFlags};
use clap::{CommandFactory, Parser};
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use swarm_manager::api::types::node_spec::Availability;
use swarm_manager::node::addresses::parse_listen;
use swarm_manager::node::leave::LeaveAsk;
use swarm_manager::node::{Node, NodeConfig, NodeError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// The whole orderly stop may take this long; then the process ends anyway (spec 03 section 14.3).
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Threads for the network and the services. The raft member and the applier have threads of their own.
const WORKER_THREADS_MIN: usize = 2;

fn main() -> ExitCode {
    // The stores' engines create files with the default mode; nobody else is to read them. Whoever needs
    // another mode asks for it: the control socket, the processes of tasks.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let cli = Cli::parse();
    let result = match cli.unavailable() {
        Some(flag) => Err(anyhow::anyhow!("{flag} is not available yet")),
        None => dispatch(cli),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Some(Command::Shim { .. }) => Ok(swarm_manager::agent::process::shim_main()),
        Some(Command::Completion { shell }) => {
            clap_complete::generate(shell, &mut Cli::command(), "swarmd", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Leave { state_dir, force }) => {
            runtime()?.block_on(leave::run(&state_dir, force))?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Dev {
            state_dir,
            listen_control_api,
            log_level,
        }) => {
            start_logging(log_level, false)?;
            runtime()?.block_on(dev::run(state_dir, listen_control_api))?;
            Ok(ExitCode::SUCCESS)
        }
        None => {
            start_logging(cli.node.log_level, cli.node.log_json)?;
            runtime()?.block_on(run_node(cli.node))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The threads of the network and the services are named `net`. The runtime starts them first; those
/// that it starts later do what may block (long lists, small files) and are named so.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let threads = std::thread::available_parallelism().map_or(WORKER_THREADS_MIN, |n| n.get());
    let threads = threads.max(WORKER_THREADS_MIN);
    let started = AtomicUsize::new(0);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name_fn(move || {
            let is_worker = started.fetch_add(1, Ordering::Relaxed) < threads;
            if is_worker { "net" } else { "blocking" }.to_owned()
        })
        .enable_all()
        .build()
        .context("cannot start the network threads")
}

/// Logs go to standard error. `RUST_LOG` refines what the flag says.
fn start_logging(level: LogLevel, json: bool) -> anyhow::Result<()> {
    let filter = EnvFilter::builder()
        .with_default_directive(level.directive().parse()?)
        .from_env_lossy();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let result = if json {
        builder.json().try_init()
    } else {
        builder.try_init()
    };
    result.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}

async fn run_node(flags: NodeFlags) -> anyhow::Result<()> {
    let node = Node::start(config(flags)?).await?;
    run_until_signal(node).await
}

/// The node's configuration from the flags; everything that can be judged without starting is.
fn config(flags: NodeFlags) -> anyhow::Result<NodeConfig> {
    if flags.join_token.is_some() && flags.join_addr.is_none() {
        bail!("--join-token needs --join-addr: the address of a manager of the cluster");
    }
    if flags.raft_tick.is_zero() {
        bail!("--raft-tick must be longer than zero");
    }
    if flags.heartbeat_tick == 0 || flags.election_tick <= flags.heartbeat_tick {
        bail!("--election-tick must be larger than --heartbeat-tick, and that at least 1");
    }
    let control_group = flags.control_group.as_deref().map(group_id).transpose()?;
    Ok(NodeConfig {
        listen_remote: parse_listen("--listen-remote-api", &flags.listen_remote_api)?,
        availability: availability(&flags.availability)?,
        executor: executor::maker(&flags)?,
        state_dir: flags.state_dir,
        join_addr: flags.join_addr,
        join_token: flags.join_token,
        hostname: flags.hostname,
        advertise_remote: flags.advertise_remote_api,
        control_socket: flags.listen_control_api,
        control_group,
        metrics: flags.listen_metrics,
        raft_tick: flags.raft_tick,
        heartbeat_ticks: flags.heartbeat_tick,
        election_ticks: flags.election_tick,
        accept_log_loss: flags.accept_log_loss,
        force_new_cluster: flags.force_new_cluster,
    })
}

fn availability(text: &str) -> anyhow::Result<Availability> {
    match text {
        "active" => Ok(Availability::Active),
        "pause" => Ok(Availability::Pause),
        "drain" => Ok(Availability::Drain),
        other => bail!("invalid --availability {other:?}: active, pause or drain"),
    }
}

/// The numeric ID of a group that is given by name or number.
fn group_id(group: &str) -> anyhow::Result<u32> {
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    let groups = std::fs::read_to_string("/etc/group").context("cannot read /etc/group")?;
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?
        })
        .next()
        .with_context(|| format!("--control-group: this system has no group {group:?}"))
}

/// Why a node ends.
enum End {
    Signal,
    Failure(NodeError),
    Leave(LeaveAsk),
}

/// The signals that end the process in order.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Runs the node until SIGINT, SIGTERM, a failure or a wish that it leaves, then ends it in order.
pub async fn run_until_signal(node: Node) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let failure = match until_end(&node, &mut signals).await {
        End::Leave(ask) => {
            node.leave(ask).await?;
            tracing::info!("this node has left its cluster");
            return Ok(());
        }
        End::Signal => {
            tracing::info!("stopping; tasks go on running");
            None
        }
        End::Failure(error) => {
            tracing::error!(%error, "stopping after a failure");
            Some(error)
        }
    };
    let stopped = tokio::select! {
        stopped = tokio::time::timeout(STOP_TIMEOUT, node.stop()) => stopped,
        _ = signals.interrupt.recv() => bail!("interrupted while stopping"),
    };
    match (failure, stopped) {
        (Some(error), _) => Err(error.into()),
        (None, Ok(result)) => Ok(result?),
        (None, Err(_)) => bail!(
            "the orderly stop took longer than {} s",
            STOP_TIMEOUT.as_secs()
        ),
    }
}

/// Waits for the reason to end; says when the node can be used.
async fn until_end(node: &Node, signals: &mut Signals) -> End {
    let ready = async {
        match node.ready().await {
            Ok(()) => tracing::info!(
                node_id = node.security().current().node_id(),
                "node is ready"
            ),
            // The same failure is the result of `ended`.
            Err(error) => tracing::debug!(%error, "the node will not become ready"),
        }
        std::future::pending::<End>().await
    };
    tokio::pin!(ready);
    loop {
        let ask = tokio::select! {
            () = signals.any() => return End::Signal,
            end = &mut ready => return end,
            error = node.ended() => return End::Failure(error),
            ask = node.leave_asked() => ask,
        };
        tracing::info!(force = ask.force, "this node is to leave its cluster");
        let prepared = tokio::select! {
            () = signals.any() => return End::Signal,
            prepared = node.prepare_leave(&ask) => prepared,
        };
        match prepared {
            Ok(()) => return End::Leave(ask),
            Err(error) => {
                tracing::warn!(%error, "this node stays");
                ask.refuse(&error);
            }
        }
    }
}
