//! `swarmctl node`: list, change availability, label, promote, remove.

use crate::resolve::{self, Names, node_name, version};
use crate::{Context, task};
use anyhow::bail;
use clap::Subcommand;
use std::time::Duration;
use swarm_manager::api::admin::StatusRequest;
use swarm_manager::api::types::node_spec::Availability;
use swarm_manager::api::types::*;
use swarm_manager::cli::output::{Format, Row, message_json, print_json, print_rows, print_text};
use swarm_manager::services::control::{METADATA_APPLIED_INDEX, METADATA_READ};
use swarm_manager::services::proxy::READ_LOCAL;
use tokio::time::Instant;
use tonic::metadata::MetadataValue;

/// How often a node is looked at while waiting for its role.
const POLL: Duration = Duration::from_millis(200);

#[derive(Subcommand)]
pub enum Command {
    /// List nodes
    Ls {
        /// Only IDs
        #[arg(short, long)]
        quiet: bool,
        /// From this manager's own copy, which may be old: works without a leader
        #[arg(long)]
        stale: bool,
    },
    /// Show one node and its tasks (`self` is the node behind the socket)
    Inspect {
        node: String,
        /// Also tasks that should no longer run
        #[arg(short, long)]
        all: bool,
    },
    /// Tasks may be placed on the node
    Activate { node: String },
    /// No new tasks for the node; running ones stay
    Pause { node: String },
    /// Move all tasks away from the node
    Drain { node: String },
    /// Make nodes managers
    #[command(after_help = "Example:\n  swarmctl node promote --wait worker-1 worker-2")]
    Promote(RoleArgs),
    /// Make nodes workers; refused if too few managers would be left
    Demote(RoleArgs),
    /// Replace the labels of a node
    Update {
        node: String,
        /// KEY=VALUE; all labels together replace the present ones
        #[arg(long, required = true)]
        label: Vec<String>,
    },
    /// Remove a node that has left
    #[command(visible_alias = "remove")]
    Rm {
        #[arg(required = true)]
        nodes: Vec<String>,
        /// Also a node that is not down
        #[arg(short, long)]
        force: bool,
    },
}

#[derive(clap::Args)]
pub struct RoleArgs {
    #[arg(required = true)]
    nodes: Vec<String>,
    /// Wait until the nodes have taken the role
    #[arg(short, long)]
    wait: bool,
    /// Longest wait
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

#[derive(serde::Serialize)]
struct NodeRow {
    id: String,
    name: String,
    membership: String,
    status: String,
    availability: String,
    manager_status: String,
    leader: bool,
    address: String,
    engine: String,
    message: String,
}

impl Row for NodeRow {
    const COLUMNS: &'static [&'static str] = &[
        "ID",
        "NAME",
        "MEMBERSHIP",
        "STATUS",
        "AVAILABILITY",
        "MANAGER STATUS",
        "ENGINE",
    ];
    fn cells(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.name.clone(),
            self.membership.clone(),
            self.status.clone(),
            self.availability.clone(),
            format!(
                "{}{}",
                self.manager_status,
                if self.leader { " *" } else { "" }
            ),
            self.engine.clone(),
        ]
    }
}

pub async fn run(context: &mut Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ls { quiet, stale } => list(context, quiet, stale).await,
        Command::Inspect { node, all } => inspect(context, &node, all).await,
        Command::Activate { node } => availability(context, &node, Availability::Active).await,
        Command::Pause { node } => availability(context, &node, Availability::Pause).await,
        Command::Drain { node } => availability(context, &node, Availability::Drain).await,
        Command::Promote(args) => roles(context, args, NodeRole::Manager).await,
        Command::Demote(args) => roles(context, args, NodeRole::Worker).await,
        Command::Update { node, label } => {
            let labels = crate::flags::pairs(&label)?;
            change(context, &node, |spec| {
                spec.annotations.get_or_insert_default().labels = labels.clone();
            })
            .await
        }
        Command::Rm { nodes, force } => remove(context, &nodes, force).await,
    }
}

async fn list(context: &mut Context, quiet: bool, stale: bool) -> anyhow::Result<()> {
    let mut request = tonic::Request::new(ListNodesRequest::default());
    if stale {
        let local = MetadataValue::from_static(READ_LOCAL);
        request.metadata_mut().insert(METADATA_READ, local);
    }
    let answer = context.control.list_nodes(request).await?;
    if stale && !quiet {
        let applied = answer.metadata().get(METADATA_APPLIED_INDEX);
        let applied = applied.and_then(|index| index.to_str().ok());
        eprintln!(
            "From this manager's own copy at log index {}; it may be old.",
            applied.unwrap_or("unknown")
        );
    }
    let nodes = answer.into_inner().nodes;
    if quiet {
        let ids: String = nodes.iter().map(|node| format!("{}\n", node.id)).collect();
        print_text(&ids)?;
        return Ok(());
    }
    let rows: Vec<NodeRow> = nodes.iter().map(row).collect();
    print_rows(context.format, &rows)?;
    Ok(())
}

fn row(node: &Node) -> NodeRow {
    let spec = node.spec.clone().unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    let manager = node.manager_status.clone();
    let is_manager = manager.is_some() || spec.desired_role() == NodeRole::Manager;
    NodeRow {
        id: node.id.clone(),
        name: node_name(node),
        membership: spec.membership().as_str_name().to_string(),
        status: status.state().as_str_name().to_string(),
        availability: spec.availability().as_str_name().to_string(),
        manager_status: match &manager {
            Some(manager) => manager.reachability().as_str_name().to_string(),
            None if is_manager => "UNKNOWN".to_string(),
            None => String::new(),
        },
        leader: manager.as_ref().is_some_and(|manager| manager.leader),
        address: status.addr,
        engine: node
            .description
            .as_ref()
            .and_then(|description| description.engine.as_ref())
            .map(|engine| engine.engine_version.clone())
            .unwrap_or_default(),
        message: status.message,
    }
}

async fn inspect(context: &mut Context, wanted: &str, all: bool) -> anyhow::Result<()> {
    let node = resolve::node(context, wanted).await?;
    let json = message_json("docker.swarmkit.v1.Node", &node)?;
    print_json(&json)?;
    if context.format == Format::Table {
        let request = ListTasksRequest {
            filters: Some(list_tasks_request::Filters {
                node_ids: vec![node.id.clone()],
                ..Default::default()
            }),
        };
        let tasks = context
            .control
            .list_tasks(request)
            .await?
            .into_inner()
            .tasks;
        let names = Names::load(context).await?;
        print_text("\n")?;
        task::print(context, &names, tasks, all, false)?;
    }
    Ok(())
}

async fn availability(context: &mut Context, wanted: &str, to: Availability) -> anyhow::Result<()> {
    change(context, wanted, |spec| spec.set_availability(to)).await
}

async fn roles(context: &mut Context, args: RoleArgs, to: NodeRole) -> anyhow::Result<()> {
    for node in &args.nodes {
        change(context, node, |spec| spec.set_desired_role(to)).await?;
    }
    if args.wait {
        let deadline = Instant::now() + args.timeout;
        for node in &args.nodes {
            await_role(context, node, to, deadline).await?;
        }
    }
    Ok(())
}

/// Waits until a node has the role: a manager is a reachable member of the raft group, a worker none.
async fn await_role(
    context: &mut Context,
    wanted: &str,
    to: NodeRole,
    deadline: Instant,
) -> anyhow::Result<()> {
    let status = context.admin.status(StatusRequest::default()).await?;
    let own_id = status.into_inner().node_id;
    let mut is_own = wanted == "self";
    loop {
        let node = match resolve::node(context, wanted).await {
            Ok(node) => node,
            // The manager behind this socket ends with its demotion.
            Err(_) if is_own && to == NodeRole::Worker => return Ok(()),
            Err(error) => return Err(error),
        };
        is_own = node.id == own_id;
        let member = node.manager_status.as_ref();
        let reached = node.role == to as i32
            && match to {
                NodeRole::Manager => member.is_some_and(|member| {
                    member.reachability == raft_member_status::Reachability::Reachable as i32
                }),
                NodeRole::Worker => member.is_none(),
            };
        if reached {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!(
                "node {wanted} has not become a {} yet; its log says why, and it goes on trying",
                to.as_str_name().to_lowercase()
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

/// How often an edit is applied anew because the node changed meanwhile: its object also holds what the
/// managers observe, which changes while it joins or takes another role.
const ATTEMPTS: usize = 10;

/// Applies `edit` to the node's spec; nothing to change is an error, so that scripts notice.
async fn change(
    context: &mut Context,
    wanted: &str,
    edit: impl Fn(&mut NodeSpec),
) -> anyhow::Result<()> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let node = resolve::node(context, wanted).await?;
        let mut spec = node.spec.clone().unwrap_or_default();
        edit(&mut spec);
        if Some(&spec) == node.spec.as_ref() {
            bail!("node {wanted} is already so: nothing was changed");
        }
        let request = UpdateNodeRequest {
            node_id: node.id.clone(),
            node_version: version(&node.meta),
            spec: Some(spec),
        };
        match context.control.update_node(request).await {
            Ok(_) => return Ok(print_text(&format!("{}\n", node.id))?),
            Err(status) if attempt < ATTEMPTS && crate::stale_update(&status).is_some() => {}
            Err(status) => return Err(status.into()),
        }
    }
}

async fn remove(context: &mut Context, wanted: &[String], force: bool) -> anyhow::Result<()> {
    for name in wanted {
        let node = resolve::node(context, name).await?;
        let request = RemoveNodeRequest {
            node_id: node.id.clone(),
            force,
        };
        context.control.remove_node(request).await?;
        print_text(&format!("{}\n", node.id))?;
    }
    Ok(())
}
