//! `swarmd dev`: a throw-away one-node cluster on this machine.

use crate::args::{Cli, NodeFlags};
use crate::{config, run_until_signal};
use anyhow::Context as _;
use clap::Parser;
use std::net::TcpListener;
use std::path::PathBuf;
use swarm_manager::api::types::{Cluster, JoinTokens};
use swarm_manager::node::Node;
use swarm_manager::node::addresses::DEFAULT_REMOTE_PORT;
use swarm_manager::services::founding::DEFAULT_CLUSTER;
use swarm_manager::storage::By;

pub async fn run(state_dir: Option<PathBuf>, control: Option<PathBuf>) -> anyhow::Result<()> {
    // Removed when this function ends, so only a directory of our own making is.
    let temporary = match state_dir {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("swarmd-dev-").tempdir()?),
    };
    let state_dir = match (&state_dir, &temporary) {
        (Some(dir), _) => std::path::absolute(dir)?,
        (None, Some(dir)) => dir.path().to_owned(),
        (None, None) => return Ok(()),
    };
    let socket = control.unwrap_or_else(|| state_dir.join("control.sock"));
    let mut flags: NodeFlags = Cli::parse_from(["swarmd"]).node;
    flags.state_dir = state_dir;
    flags.listen_control_api = socket.clone();
    flags.listen_remote_api = format!("127.0.0.1:{}", free_port()?);
    let node = Node::start(config(flags)?).await?;
    node.ready().await?;
    print_welcome(&node, &socket).await?;
    let result = run_until_signal(node).await;
    drop(temporary);
    result
}

/// 2377 if it is free, else any free port.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", DEFAULT_REMOTE_PORT))
        .or_else(|_| TcpListener::bind(("127.0.0.1", 0)))
        .context("no port is free on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

async fn print_welcome(node: &Node, socket: &std::path::Path) -> anyhow::Result<()> {
    let manager = node.manager().context("this node is not a manager")?;
    let tokens = manager.store().view(|tx| -> anyhow::Result<JoinTokens> {
        let clusters = tx.find::<Cluster>(By::Name(DEFAULT_CLUSTER.to_owned()))?;
        let root = clusters.first().and_then(|cluster| cluster.root_ca.clone());
        root.and_then(|root| root.join_tokens)
            .context("the cluster has no join tokens")
    })?;
    let address = manager.advertise();
    println!(
        "A one-node cluster is running. Stop it with Ctrl-C.\n\n\
         Worker token:   {worker}\n\
         Manager token:  {manager}\n\n\
         A Docker Engine on this machine joins with:\n  \
           docker swarm join --token {worker} {address}\n\n\
         Try next:\n  \
           export SWARM_SOCKET={socket}\n  \
           swarmctl node ls\n  \
           swarmctl service create --name web --image host --replicas 3 --command sleep --args 1000 --wait\n  \
           swarmctl service ps web",
        worker = tokens.worker,
        manager = tokens.manager,
        socket = socket.display(),
    );
    Ok(())
}
