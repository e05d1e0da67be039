//! `swarmctl cluster`: state, settings, join tokens.

use crate::Context;
use crate::resolve::{self, cluster_name, version};
use clap::{Subcommand, ValueEnum};
use swarm_manager::api::admin::{StatusRequest, StatusResponse};
use swarm_manager::api::types::*;
use swarm_manager::cli::output::{
    self, Format, Row, message_json, print_json, print_rows, print_text,
};
use swarm_manager::cli::units::{parse_duration, show_duration};

#[derive(Subcommand)]
pub enum Command {
    /// Leader, members, log and store of the manager behind the socket
    Status,
    /// List clusters (there is one, `default`)
    Ls {
        /// Only IDs
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show one cluster
    Inspect {
        #[arg(default_value = "default")]
        cluster: String,
    },
    /// Show the join tokens and how to use them
    Tokens,
    /// Change settings
    #[command(
        after_help = "Examples:\n  swarmctl cluster update --taskhistory 10\n  swarmctl cluster update --rotate-join-token worker"
    )]
    Update {
        #[arg(default_value = "default")]
        cluster: String,
        /// Finished tasks kept per slot (-1 keeps all)
        #[arg(long, allow_negative_numbers = true)]
        taskhistory: Option<i64>,
        /// Life of node certificates, such as 2160h
        #[arg(long, value_parser = parse_duration)]
        certexpiry: Option<prost_types::Duration>,
        /// Heartbeat period of the nodes
        #[arg(long, value_parser = parse_duration)]
        heartbeatperiod: Option<prost_types::Duration>,
        /// Default log driver of tasks
        #[arg(long)]
        log_driver: Option<String>,
        /// Options of the default log driver, KEY=VALUE
        #[arg(long)]
        log_opt: Vec<String>,
        /// Replace a join token: the old one stops working at once
        #[arg(long, value_enum)]
        rotate_join_token: Option<TokenRole>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TokenRole {
    Worker,
    Manager,
}

#[derive(serde::Serialize)]
struct ClusterRow {
    id: String,
    name: String,
    task_history: i64,
    heartbeat_period: String,
    certificate_expiry: String,
}

impl Row for ClusterRow {
    const COLUMNS: &'static [&'static str] =
        &["ID", "NAME", "TASK HISTORY", "HEARTBEAT", "CERT EXPIRY"];
    fn cells(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.name.clone(),
            self.task_history.to_string(),
            self.heartbeat_period.clone(),
            self.certificate_expiry.clone(),
        ]
    }
}

pub async fn run(context: &mut Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Status => status(context).await,
        Command::Ls { quiet } => list(context, quiet).await,
        Command::Inspect { cluster } => inspect(context, &cluster).await,
        Command::Tokens => tokens(context).await,
        update @ Command::Update { .. } => self::update(context, update).await,
    }
}

async fn status(context: &mut Context) -> anyhow::Result<()> {
    let status = context
        .admin
        .status(StatusRequest::default())
        .await?
        .into_inner();
    if context.format == Format::Json {
        print_json(&message_json("swarmmanager.v1.StatusResponse", &status)?)?;
        return Ok(());
    }
    print_text(&status_text(&status))?;
    Ok(())
}

fn status_text(status: &StatusResponse) -> String {
    let mut pairs = vec![
        ("Cluster", status.cluster_id.clone()),
        ("Node", status.node_id.clone()),
        ("Version", status.version.clone()),
        (
            "Leader",
            if status.is_leader {
                "this node".into()
            } else {
                status.leader_node_id.clone()
            },
        ),
        ("Raft term", status.term.to_string()),
        (
            "Raft log",
            format!(
                "{} to {}, committed {}, applied {}",
                status.first_index, status.last_index, status.commit_index, status.applied_index
            ),
        ),
        (
            "Up for",
            show_duration(Some(&prost_types::Duration {
                seconds: status.uptime_seconds as i64,
                nanos: 0,
            })),
        ),
    ];
    let objects = status
        .object_counts
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(table, count)| format!("{table} {count}"))
        .collect::<Vec<_>>()
        .join(", ");
    pairs.push(("Objects", objects));
    let mut text = String::new();
    for (name, value) in pairs {
        text.push_str(&format!("{:<12}{value}\n", format!("{name}:")));
    }
    text.push('\n');
    text.push_str(&output::table(
        &["RAFT ID", "NODE", "ADDRESS", "LEADER", "REACHABLE", "MATCH"],
        status.members.iter().map(|member| {
            vec![
                format!("{:x}", member.raft_id),
                member.node_id.clone(),
                member.addr.clone(),
                if member.leader { "yes" } else { "" }.to_string(),
                if member.reachable { "yes" } else { "no" }.to_string(),
                member.match_index.to_string(),
            ]
        }),
    ));
    text
}

async fn list(context: &mut Context, quiet: bool) -> anyhow::Result<()> {
    let clusters = context
        .control
        .list_clusters(ListClustersRequest::default())
        .await?
        .into_inner()
        .clusters;
    if quiet {
        let ids: String = clusters
            .iter()
            .map(|cluster| format!("{}\n", cluster.id))
            .collect();
        print_text(&ids)?;
        return Ok(());
    }
    let rows: Vec<ClusterRow> = clusters.iter().map(row).collect();
    print_rows(context.format, &rows)?;
    Ok(())
}

fn row(cluster: &Cluster) -> ClusterRow {
    let spec = cluster.spec.clone().unwrap_or_default();
    ClusterRow {
        id: cluster.id.clone(),
        name: cluster_name(cluster).to_string(),
        task_history: spec.orchestration.map_or(0, |orchestration| {
            orchestration.task_history_retention_limit
        }),
        heartbeat_period: show_duration(spec.dispatcher.and_then(|d| d.heartbeat_period).as_ref()),
        certificate_expiry: show_duration(
            spec.ca_config.and_then(|ca| ca.node_cert_expiry).as_ref(),
        ),
    }
}

async fn inspect(context: &mut Context, wanted: &str) -> anyhow::Result<()> {
    let cluster = resolve::cluster(context, wanted).await?;
    print_json(&message_json("docker.swarmkit.v1.Cluster", &cluster)?)?;
    Ok(())
}

async fn tokens(context: &mut Context) -> anyhow::Result<()> {
    let cluster = resolve::cluster(context, "default").await?;
    let tokens = cluster
        .root_ca
        .and_then(|root| root.join_tokens)
        .unwrap_or_default();
    if context.format == Format::Json {
        let json = serde_json::json!({ "worker": tokens.worker, "manager": tokens.manager });
        print_json(&json)?;
        return Ok(());
    }
    let status = context
        .admin
        .status(StatusRequest::default())
        .await?
        .into_inner();
    let address = status
        .members
        .iter()
        .find(|member| member.node_id == status.node_id)
        .map_or("MANAGER:2377", |member| member.addr.as_str());
    print_text(&format!(
        "Worker:   {}\nManager:  {}\n\nA Docker Engine joins as a worker with:\n  docker swarm join --token {} {address}\n",
        tokens.worker, tokens.manager, tokens.worker
    ))?;
    Ok(())
}

async fn update(context: &mut Context, command: Command) -> anyhow::Result<()> {
    let Command::Update {
        cluster,
        taskhistory,
        certexpiry,
        heartbeatperiod,
        log_driver,
        log_opt,
        rotate_join_token,
    } = command
    else {
        return Ok(());
    };
    let cluster = resolve::cluster(context, &cluster).await?;
    let mut spec = cluster.spec.clone().unwrap_or_default();
    if let Some(limit) = taskhistory {
        spec.orchestration
            .get_or_insert_default()
            .task_history_retention_limit = limit;
    }
    if let Some(expiry) = certexpiry {
        spec.ca_config.get_or_insert_default().node_cert_expiry = Some(expiry);
    }
    if let Some(period) = heartbeatperiod {
        spec.dispatcher.get_or_insert_default().heartbeat_period = Some(period);
    }
    if log_driver.is_some() || !log_opt.is_empty() {
        let driver = spec
            .task_defaults
            .get_or_insert_default()
            .log_driver
            .get_or_insert_default();
        if let Some(name) = log_driver {
            driver.name = name;
        }
        driver.options.extend(crate::flags::pairs(&log_opt)?);
    }
    let rotation = KeyRotation {
        worker_join_token: rotate_join_token == Some(TokenRole::Worker),
        manager_join_token: rotate_join_token == Some(TokenRole::Manager),
        ..Default::default()
    };
    if Some(&spec) == cluster.spec.as_ref() && rotate_join_token.is_none() {
        anyhow::bail!("no changes detected");
    }
    let request = UpdateClusterRequest {
        cluster_id: cluster.id.clone(),
        cluster_version: version(&cluster.meta),
        spec: Some(spec),
        rotation: Some(rotation),
    };
    context.control.update_cluster(request).await?;
    if rotate_join_token.is_some() {
        return tokens(context).await;
    }
    print_text(&format!("{}\n", cluster.id))?;
    Ok(())
}
