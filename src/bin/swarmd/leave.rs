//! `swarmd leave`: asks the running node of a state directory to leave its cluster.

use anyhow::{Context as _, bail};
use std::path::Path;
use swarm_manager::api::admin::LeaveNodeRequest;
use swarm_manager::api::admin::node_client::NodeClient;
use swarm_manager::cli::connect;
use swarm_manager::node::leave::{socket_path, wipe};
use swarm_manager::storage::state_dir::StateDir;

pub async fn run(state_dir: &Path, force: bool) -> anyhow::Result<()> {
    let socket = socket_path(state_dir);
    let channel = match connect::control_socket(&socket).await {
        Ok(channel) => channel,
        Err(error) if !force => bail!(
            "no node that could leave runs in {} ({error}); start it first, or use --force to only \
             erase what it keeps",
            state_dir.display()
        ),
        Err(_) => return erase(state_dir),
    };
    let answer = NodeClient::new(channel)
        .leave(LeaveNodeRequest { force })
        .await
        .map_err(|status| anyhow::anyhow!("{}", status.message()))?
        .into_inner();
    println!(
        "Node {id} has left its cluster. On a manager, `swarmctl node rm {id}` removes it from the list.",
        id = answer.node_id
    );
    if answer.tasks_left > 0 {
        println!(
            "{} tasks of it may still be running here.",
            answer.tasks_left
        );
    }
    Ok(())
}

/// Erases the state of a node that does not run.
fn erase(state_dir: &Path) -> anyhow::Result<()> {
    if !state_dir.is_dir() {
        bail!("there is no state directory at {}", state_dir.display());
    }
    let state_dir = StateDir::open(state_dir).context("the node cannot be erased")?;
    wipe(&state_dir)?;
    println!("Erased what the node kept. Its tasks, if any, may still be running here.");
    Ok(())
}
