//! The flags of `swarmd`. A flag whose part does not exist yet is refused by name, never ignored.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use swarm_manager::cli::connect::DEFAULT_SOCKET;

const EXAMPLES: &str = "\
Examples:
  swarmd dev
      a throw-away cluster on this machine, to try things
  swarmd --state-dir /var/lib/swarmd --advertise-remote-api 10.0.0.5
      the first manager of a new cluster, or a restart of it
  swarmd --join-addr 10.0.0.5 --join-token SWMTKN-1-...
      a worker of that cluster";

#[derive(Parser)]
#[command(name = "swarmd", version, about = "A node of a Swarm cluster: worker, and manager when its role says so", after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(flatten)]
    pub node: NodeFlags,
    #[command(flatten)]
    pub later: LaterFlags,
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Start a throw-away one-node cluster on loopback addresses
    #[command(after_help = "Example:\n  swarmd dev --state-dir ./try")]
    Dev {
        /// Keep the state here instead of a temporary directory
        #[arg(short = 'd', long)]
        state_dir: Option<PathBuf>,
        /// Control socket; in the state directory unless given
        #[arg(long)]
        listen_control_api: Option<PathBuf>,
        #[arg(short, long, value_enum, default_value_t)]
        log_level: LogLevel,
    },
    /// Take the node out of its cluster: its tasks are removed, then everything it keeps
    #[command(
        after_help = "Example:\n  swarmd leave --state-dir /var/lib/swarmd\n\nRun it beside the running swarmd. The node stays listed as down until `swarmctl node rm`."
    )]
    Leave {
        /// State directory of the node
        #[arg(short = 'd', long, default_value = "/var/lib/swarmd")]
        state_dir: PathBuf,
        /// Also a manager that the others cannot do without, or tasks that cannot be removed
        #[arg(short, long)]
        force: bool,
    },
    /// Print a completion script for a shell
    Completion { shell: clap_complete::Shell },
    /// Supervises one task process; started by the agent only
    #[command(name = "__shim", hide = true)]
    Shim {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LogLevel {
    Trace,
    Debug,
    #[default]
    Info,
    Warn,
    #[value(alias = "fatal", alias = "panic")]
    Error,
}

impl LogLevel {
    pub fn directive(self) -> &'static str {
        match self {
            LogLevel::Trace => "trace",
            LogLevel::Debug => "debug",
            LogLevel::Info => "info",
            LogLevel::Warn => "warn",
            LogLevel::Error => "error",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ExecutorName {
    /// Tasks whose image is `host` run as supervised processes
    #[default]
    Process,
    /// This node runs no tasks
    None,
    /// Tasks run in a local container engine
    Docker,
    /// Tasks are simulated
    Sim,
}

#[derive(Args)]
pub struct NodeFlags {
    /// How much to log: to standard error
    #[arg(short, long, value_enum, default_value_t)]
    pub log_level: LogLevel,
    /// Log lines as JSON
    #[arg(long)]
    pub log_json: bool,
    /// Everything this node keeps
    #[arg(short = 'd', long, default_value = "/var/lib/swarmd")]
    pub state_dir: PathBuf,
    /// Manager to join through, HOST[:PORT]
    #[arg(long)]
    pub join_addr: Option<String>,
    /// Token that admits this node
    #[arg(long, env = "SWARM_JOIN_TOKEN", hide_env_values = true)]
    pub join_token: Option<String>,
    /// Host name to report instead of the machine's
    #[arg(long)]
    pub hostname: Option<String>,
    /// Address others reach this node at, an IP or an interface, with an optional port
    #[arg(long)]
    pub advertise_remote_api: Option<String>,
    /// Address to listen on for nodes of the cluster
    #[arg(long, default_value = "0.0.0.0:2377")]
    pub listen_remote_api: String,
    /// Control socket
    #[arg(long, default_value = DEFAULT_SOCKET)]
    pub listen_control_api: PathBuf,
    /// Group that may use the control socket
    #[arg(long)]
    pub control_group: Option<String>,
    /// Address of the metrics page, such as 127.0.0.1:9323
    #[arg(long)]
    pub listen_metrics: Option<std::net::SocketAddr>,
    /// What runs the tasks of this node
    #[arg(long, value_enum, default_value_t)]
    pub executor: ExecutorName,
    /// Memory file system for the files of tasks (default: /run/swarmd as root)
    #[arg(long)]
    pub task_tmpfs: Option<PathBuf>,
    /// Generic resources of this node, such as fpga=2,gpu=UUID1,gpu=UUID2
    #[arg(long)]
    pub generic_node_resources: Option<String>,
    /// Availability of this node when it is added: active, pause or drain
    #[arg(long, default_value = "active")]
    pub availability: String,
    /// Length of a raft tick
    #[arg(long, default_value = "100ms", value_parser = humantime::parse_duration)]
    pub raft_tick: Duration,
    /// Ticks between heartbeats of the leader
    #[arg(long, default_value_t = 1)]
    pub heartbeat_tick: u32,
    /// Ticks without a leader before an election
    #[arg(long, default_value_t = 10)]
    pub election_tick: u32,
    /// Start although the raft log lost entries (this manager must be alone); says how many
    #[arg(long)]
    pub accept_log_loss: bool,
    /// The other managers are lost for good: go on with this one alone. Acts once, even if it is left in
    /// place
    #[arg(long)]
    pub force_new_cluster: bool,
}

/// Flags of parts that do not exist yet.
#[derive(Args)]
pub struct LaterFlags {
    #[arg(long, hide = true)]
    rejoin: bool,
    #[arg(long, hide = true)]
    autolock: bool,
    #[arg(long, hide = true)]
    unlock_key: Option<String>,
    #[arg(long, hide = true)]
    external_ca: Vec<String>,
    #[arg(long, hide = true)]
    listen_debug: Option<String>,
    #[arg(long, hide = true)]
    engine_addr: Option<String>,
    #[arg(long, hide = true)]
    backup_dir: Option<PathBuf>,
}

impl Cli {
    /// The first flag that is given although its part does not exist yet.
    pub fn unavailable(&self) -> Option<&'static str> {
        let later = &self.later;
        let given = [
            (later.rejoin, "--rejoin"),
            (later.autolock, "--autolock"),
            (later.unlock_key.is_some(), "--unlock-key"),
            (!later.external_ca.is_empty(), "--external-ca"),
            (later.listen_debug.is_some(), "--listen-debug"),
            (later.engine_addr.is_some(), "--engine-addr"),
            (later.backup_dir.is_some(), "--backup-dir"),
            (
                self.node.executor == ExecutorName::Docker,
                "--executor docker",
            ),
            (self.node.executor == ExecutorName::Sim, "--executor sim"),
        ];
        given
            .into_iter()
            .find(|(given, _)| *given)
            .map(|(_, flag)| flag)
    }
}
