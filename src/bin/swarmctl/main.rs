//! `swarmctl`: the day-to-day command line of a cluster, over the control socket of a manager.
//!
//! Argument parsing and printing only; every decision is the manager's.
// Help texts write options as NAME[:FILE], which the documentation would take for a link.
#![allow(rustdoc::broken_intra_doc_links)]

mod cluster;
mod data;
mod flags;
mod node;
mod resolve;
mod service;
mod task;
mod wait;

use anyhow::Context as _;
use clap::{CommandFactory, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use swarm_manager::api::admin::admin_client::AdminClient;
use swarm_manager::api::types::control_client::ControlClient;
use swarm_manager::cli::connect::{self, DEFAULT_SOCKET};
use swarm_manager::cli::output::Format;
use swarm_manager::services::control::error::{METADATA_VERSION_GIVEN, METADATA_VERSION_STORED};
use tonic::transport::Channel;

/// Answers with many objects are large; nothing between two processes of one machine needs a cap, but a
/// bound keeps a mistake from eating all memory.
const ANSWER_BYTES_MAX: usize = 1 << 30;

const EXAMPLES: &str = "\
Examples:
  swarmctl service create --name web --image host --replicas 3 --command sleep --args 1000 --wait
  swarmctl service ls
  swarmctl service scale web=5 --wait
  swarmctl service ps web
  swarmctl node drain worker-1
  swarmctl cluster tokens
  swarmctl task ls --format json";

#[derive(Parser)]
#[command(name = "swarmctl", version, about = "Runs a Swarm cluster from the command line", after_help = EXAMPLES)]
struct Cli {
    /// Control socket of a manager
    #[arg(short, long, global = true, env = "SWARM_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Show IDs instead of looking up names
    #[arg(short, long, global = true)]
    no_resolve: bool,
    /// How to print lists and objects
    #[arg(long, global = true, value_enum, default_value_t)]
    format: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The cluster: state, settings, join tokens
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Nodes: list, drain, label, remove
    #[command(subcommand)]
    Node(node::Command),
    /// Services: create, scale, list, remove
    #[command(subcommand, visible_alias = "svc")]
    Service(service::Command),
    /// Tasks: list, inspect, remove
    #[command(subcommand)]
    Task(task::Command),
    /// Secrets
    #[command(subcommand)]
    Secret(data::SecretCommand),
    /// Configs
    #[command(subcommand)]
    Config(data::ConfigCommand),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  swarmctl completion bash > /etc/bash_completion.d/swarmctl"
    )]
    Completion { shell: clap_complete::Shell },
}

/// What every command works with.
pub struct Context {
    pub control: ControlClient<Channel>,
    pub admin: AdminClient<Channel>,
    pub format: Format,
    pub no_resolve: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    if let Command::Completion { shell } = cli.command {
        clap_complete::generate(
            shell,
            &mut Cli::command(),
            "swarmctl",
            &mut std::io::stdout(),
        );
        return Ok(());
    }
    let channel = connect::control_socket(&cli.socket).await?;
    let mut context = Context {
        control: ControlClient::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX),
        admin: AdminClient::new(channel),
        format: cli.format,
        no_resolve: cli.no_resolve,
    };
    match cli.command {
        Command::Cluster(command) => cluster::run(&mut context, command).await,
        Command::Node(command) => node::run(&mut context, command).await,
        Command::Service(command) => service::run(&mut context, command).await,
        Command::Task(command) => task::run(&mut context, command).await,
        Command::Secret(command) => data::run_secret(&mut context, command).await,
        Command::Config(command) => data::run_config(&mut context, command).await,
        Command::Completion { .. } => Ok(()),
    }
    .with_context(String::new)
}

/// The error as one line: the message of the manager where there is one, else the chain of causes.
fn one_line(error: &anyhow::Error) -> String {
    let status = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<tonic::Status>());
    let text = match status {
        Some(status) if status.message().is_empty() => {
            format!("the manager answered {}", status.code())
        }
        Some(status) => status_text(status),
        None => error
            .chain()
            .map(|cause| cause.to_string())
            .filter(|text| !text.is_empty())
            .collect::<Vec<_>>()
            .join(": "),
    };
    text.replace(['\n', '\r'], " ")
}

/// A refused stale update also says which two versions met.
fn status_text(status: &tonic::Status) -> String {
    match stale_update(status) {
        Some((given, stored)) => format!(
            "{} (version {given} was changed, the stored one is {stored}; look again and retry)",
            status.message()
        ),
        None => status.message().to_string(),
    }
}

/// The version that was changed and the one that is stored, if that is why an update was refused.
fn stale_update(status: &tonic::Status) -> Option<(&str, &str)> {
    let version = |key| status.metadata().get(key)?.to_str().ok();
    Some((
        version(METADATA_VERSION_GIVEN)?,
        version(METADATA_VERSION_STORED)?,
    ))
}
