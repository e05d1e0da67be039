//! Tasks of nodes that have been removed: nobody will report on them any more, so they are declared
//! orphaned, which lets orchestrators replace them and the reaper delete them.
//!
//! A few tasks are orphaned in the transaction that removes the node. Very many would not fit into one
//! log entry; the node is removed first then, and its tasks follow in batches. If the manager dies in
//! between, [`OrphanSweep`] finishes the work at the start of the next leadership term.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::BoxFuture;
use prost::Message;

use super::error::{Answer, ControlError};
use crate::api::time;
use crate::api::types::{Node, Task, TaskState, TaskStatus};
use crate::services::leader::{LeaderService, Ready, Term};
use crate::storage::{By, ReadTx, Store, StoreError, Tx};

/// Most tasks, and most bytes of tasks, that are orphaned together with the removal of their node. The
/// entry also holds the cluster and the node and may have 1.5 MiB.
const TOGETHER_TASKS_MAX: usize = 200;
const TOGETHER_BYTES_MAX: usize = 768 * 1024;

/// What became of the tasks of a removed node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Orphaned {
    All,
    /// Nothing has been done yet.
    TooMany,
}

/// Orphans the live tasks of a node if they are few enough for one log entry.
pub(super) fn orphan_now(tx: &mut Tx, node_id: &str) -> Answer<Orphaned> {
    let mut live = tx.find::<Task>(By::NodeId(node_id.to_owned()))?;
    live.retain(|task| is_live(task));
    let bytes: usize = live.iter().map(|task| task.encoded_len()).sum();
    if live.len() > TOGETHER_TASKS_MAX || bytes > TOGETHER_BYTES_MAX {
        return Ok(Orphaned::TooMany);
    }
    for task in live {
        tx.update(orphan(&task))?;
    }
    Ok(Orphaned::All)
}

/// Orphans the live tasks of a node that no longer exists, however many there are.
pub(super) async fn orphan_in_batches(store: &Store, node_id: &str) -> Answer<()> {
    let tasks = store.view(|tx| tx.find::<Task>(By::NodeId(node_id.to_owned())))?;
    let mut batch = store.batch();
    for stale in tasks.iter().filter(|task| is_live(task)) {
        batch
            .update(|tx: &mut Tx| -> Result<(), StoreError> {
                if let Some(task) = tx.get::<Task>(&stale.id)?
                    && task.node_id == node_id
                    && is_live(&task)
                    && tx.get::<Node>(node_id)?.is_none()
                {
                    tx.update(orphan(&task))?;
                }
                Ok(())
            })
            .await?;
    }
    Ok(batch.commit().await?)
}

/// A task that may still run, as far as anybody knows.
fn is_live(task: &Task) -> bool {
    task.status.as_ref().map_or(0, |status| status.state) < TaskState::Complete as i32
}

fn orphan(task: &Task) -> Task {
    Task {
        status: Some(TaskStatus {
            timestamp: Some(time::now()),
            state: TaskState::Orphaned as i32,
            message: "Task belonged to a node that has been deleted".into(),
            ..Default::default()
        }),
        ..task.clone()
    }
}

/// Orphans, at the start of a term, the live tasks whose node no longer exists. Nothing waits for it,
/// and what fails (a full disk, say) is tried again.
pub struct OrphanSweep;

/// Pause after a failed sweep.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// States of live tasks that may have a node.
const LIVE_STATES: [TaskState; 7] = [
    TaskState::Pending,
    TaskState::Assigned,
    TaskState::Accepted,
    TaskState::Preparing,
    TaskState::Ready,
    TaskState::Starting,
    TaskState::Running,
];

impl LeaderService for OrphanSweep {
    fn name(&self) -> &'static str {
        "orphan-sweep"
    }

    fn run(&self, term: Term, ready: Ready) -> BoxFuture<'static, anyhow::Result<()>> {
        Box::pin(async move {
            ready.loaded();
            let work = sweep_until_done(term.store);
            term.cancel.run_until_cancelled(work).await;
            term.cancel.cancelled().await;
            Ok(())
        })
    }
}

async fn sweep_until_done(store: Store) {
    while let Err(error) = sweep(&store).await {
        tracing::warn!(%error, "tasks of removed nodes are not orphaned yet; trying again");
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

pub(super) async fn sweep(store: &Store) -> Answer<()> {
    let scanned = store.clone();
    let scan = tokio::task::spawn_blocking(move || scanned.view(missing_nodes));
    let stopped =
        |_| ControlError::Internal("the search for orphaned tasks was interrupted".into());
    for node_id in scan.await.map_err(stopped)?? {
        tracing::info!(node = %node_id, "orphaning the tasks of a node that no longer exists");
        orphan_in_batches(store, &node_id).await?;
    }
    Ok(())
}

/// Nodes that live tasks are assigned to and that do not exist.
fn missing_nodes(tx: &ReadTx) -> Answer<BTreeSet<String>> {
    let mut assigned = BTreeSet::new();
    for state in LIVE_STATES {
        tx.each::<Task>(By::TaskState(state), |task| {
            if !task.node_id.is_empty() && !assigned.contains(&task.node_id) {
                assigned.insert(task.node_id.clone());
            }
        })?;
    }
    let mut missing = BTreeSet::new();
    for node_id in assigned {
        if tx.get::<Node>(&node_id)?.is_none() {
            missing.insert(node_id);
        }
    }
    Ok(missing)
}
