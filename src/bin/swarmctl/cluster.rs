//! `swarmctl cluster`: state, settings, join tokens.

use crate::Context;
use crate::resolve::{self, cluster_name, version};
use clap::{Subcommand, ValueEnum};
use swarm_manager::api::admin::{
    MemberStatus, RotateDataKeyRequest, StatusRequest, StatusResponse,
};
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
    /// Replace the key that seals the data on the disk of the manager behind the socket
    ///
    /// The manager goes on working; `cluster status` shows how far it is. Other managers have keys of
    /// their own.
    RotateDataKey,
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
        Command::RotateDataKey => rotate_data_key(context).await,
        update @ Command::Update { .. } => self::update(context, update).await,
    }
}

async fn rotate_data_key(context: &mut Context) -> anyhow::Result<()> {
    let request = RotateDataKeyRequest {};
    context.admin.rotate_data_key(request).await?;
    print_text("The data key is being replaced; `swarmctl cluster status` shows how far it is.\n")?;
    Ok(())
}

/// One line about the exchange of the data key, unless there was none.
fn data_key_text(status: &StatusResponse) -> Option<String> {
    let rotation = status.data_key_rotation.as_ref()?;
    let rows = format!("{} rows seen", rotation.rows_seen);
    let damaged = match rotation.damaged {
        0 => String::new(),
        count => format!(", {count} damaged: {}", rotation.damaged_named.join("; ")),
    };
    match rotation.phase.as_str() {
        "idle" => None,
        "done" => Some(format!(
            "{} in use since the exchange{damaged}",
            rotation.key_id
        )),
        phase => Some(format!(
            "going over to {} ({phase}, {rows}){damaged}",
            rotation.key_id
        )),
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
    let leader = status
        .members
        .iter()
        .find(|member| member.raft_id == status.leader_raft_id && status.leader_raft_id != 0);
    let mut pairs = vec![
        ("Cluster", status.cluster_id.clone()),
        ("Node", status.node_id.clone()),
        ("Version", status.version.clone()),
        (
            "Leader",
            match leader {
                _ if status.is_leader => "this node".into(),
                Some(leader) if leader.node_id == status.node_id => {
                    "this node, not ready yet".into()
                }
                Some(leader) => format!("{} at {}", leader.node_id, leader.addr),
                None => "none".into(),
            },
        ),
        ("Managers", quorum_text(status)),
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
    if let Some(data_key) = data_key_text(status) {
        pairs.push(("Data key", data_key));
    }
    let mut text = String::new();
    for (name, value) in pairs {
        text.push_str(&format!("{:<12}{value}\n", format!("{name}:")));
    }
    text.push('\n');
    text.push_str(&output::table(
        &[
            "RAFT ID",
            "NODE",
            "ADDRESS",
            "LEADER",
            "REACHABLE",
            "MATCH",
            "LAG",
        ],
        status
            .members
            .iter()
            .map(|member| member_cells(status, member)),
    ));
    if leader.is_none() {
        text.push_str(&no_leader_text(status));
    } else if !status.is_leader {
        text.push_str("\nMatch and lag are known to the leader only.\n");
    }
    text
}

fn member_cells(status: &StatusResponse, member: &MemberStatus) -> Vec<String> {
    // Only the leader knows how far the others are.
    let (matched, lag) = match status.is_leader {
        true => (
            member.match_index.to_string(),
            status
                .last_index
                .saturating_sub(member.match_index)
                .to_string(),
        ),
        false => ("-".to_string(), "-".to_string()),
    };
    vec![
        format!("{:x}", member.raft_id),
        member.node_id.clone(),
        member.addr.clone(),
        if member.leader { "yes" } else { "" }.to_string(),
        if member.reachable { "yes" } else { "no" }.to_string(),
        matched,
        lag,
    ]
}

fn quorum_needed(status: &StatusResponse) -> usize {
    status.members.len() / 2 + 1
}

fn quorum_text(status: &StatusResponse) -> String {
    let reachable = status
        .members
        .iter()
        .filter(|member| member.reachable)
        .count();
    format!(
        "{reachable} of {} reachable, {} needed",
        status.members.len(),
        quorum_needed(status)
    )
}

/// What to do on the bad day: who is missing, and the way out.
fn no_leader_text(status: &StatusResponse) -> String {
    let missing: Vec<String> = status
        .members
        .iter()
        .filter(|member| !member.reachable)
        .map(|member| format!("{} at {}", member.node_id, member.addr))
        .collect();
    if missing.is_empty() {
        return "\nThere is no leader at the moment; the managers are electing one.\n".to_string();
    }
    let (needed, total) = (quorum_needed(status), status.members.len());
    let more = needed.saturating_sub(total - missing.len());
    if more == 0 {
        return format!(
            "\nThere is no leader at the moment. Not reachable: {}.\n",
            missing.join(", ")
        );
    }
    format!(
        "\nThe managers have no quorum: {more} more must come back. Missing: {}.\nNothing can be \
         changed until then; tasks go on running. If the missing managers are lost for good, stop this \
         one and start it with:\n  swarmd --force-new-cluster (and its usual flags)\n",
        missing.join(", ")
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    fn status(reachable: &[bool], leader: Option<u64>) -> StatusResponse {
        let member = |(at, reachable): (usize, &bool)| MemberStatus {
            raft_id: at as u64 + 1,
            node_id: format!("n{}", at + 1),
            addr: format!("10.0.0.{}:2377", at + 1),
            leader: leader == Some(at as u64 + 1),
            reachable: *reachable,
            match_index: 90 + at as u64,
        };
        StatusResponse {
            node_id: "n1".into(),
            is_leader: leader == Some(1),
            leader_raft_id: leader.unwrap_or_default(),
            last_index: 92,
            members: reachable.iter().enumerate().map(member).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn the_leader_shows_how_far_the_others_are() {
        let text = status_text(&status(&[true, true, false], Some(1)));
        assert!(text.contains("this node"), "{text}");
        assert!(text.contains("2 of 3 reachable, 2 needed"), "{text}");
        let line = text.lines().find(|line| line.contains("n1 ")).unwrap();
        assert!(line.trim_end().ends_with("90     2"), "{line:?}");
        let follower = status_text(&status(&[true, true], Some(2)));
        assert!(follower.contains("n2 at 10.0.0.2:2377"), "{follower}");
        assert!(follower.contains("known to the leader only"), "{follower}");
    }

    #[test]
    fn a_lost_quorum_says_who_is_missing_and_what_helps() {
        let text = status_text(&status(&[true, false, false], None));
        for part in [
            "1 of 3 reachable, 2 needed",
            "1 more must come back",
            "n2 at 10.0.0.2:2377, n3 at 10.0.0.3:2377",
            "--force-new-cluster",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let electing = status_text(&status(&[true, true, true], None));
        assert!(!electing.contains("--force-new-cluster"), "{electing}");
        let one_away = status_text(&status(&[true, true, false], None));
        assert!(!one_away.contains("--force-new-cluster"), "{one_away}");
    }
}
