//! Writing decisions, each in a transaction that looks at its task and node once more.
//!
//! A decision was taken on what the scheduler knew; until it is written the task may have been withdrawn
//! and the node drained (spec 07 section 12). What no longer fits is refused and handed back with the task
//! as it is now.

use std::sync::Arc;

use prost_types::Timestamp;

use super::requirements::Requirements;
use crate::api::types::{GenericResource, Node, Task, TaskStatus};
use crate::services::orchestrator::task::{self, ASSIGNED, COMPLETE, Edited, PENDING, SHUTDOWN};
use crate::services::reconcile::each_in_batches;
use crate::storage::{Store, StoreError, Tx};

const ASSIGNED_MESSAGE: &str = "scheduler assigned task to node";
const CONFIRMED_MESSAGE: &str = "scheduler confirmed task can run on preassigned node";

/// What is to become of one task.
#[derive(Debug, Clone)]
pub struct Decision {
    pub task_id: Arc<str>,
    pub verdict: Verdict,
}

impl AsRef<str> for Decision {
    /// The task's ID.
    fn as_ref(&self) -> &str {
        &self.task_id
    }
}

#[derive(Debug, Clone)]
pub enum Verdict {
    /// It runs on this node.
    Assign(Placement),
    /// It runs on the node that it came with.
    Confirm(Placement),
    /// It waits, and this is why. With a node: the one it came with.
    Explain { node_id: String, reason: String },
    /// It was never placed and nobody wants it any more.
    ShutDown,
}

/// A node, and what the task is given there.
#[derive(Debug, Clone)]
pub struct Placement {
    pub node_id: Arc<str>,
    pub requirements: Arc<Requirements>,
    pub generic: Vec<GenericResource>,
}

/// What became of a decision.
#[derive(Debug, Clone)]
pub enum Written {
    /// It is stored, or was already.
    Done,
    /// It no longer fits. With it comes the task as it is now, if there still is one.
    Refused(Option<Arc<Task>>),
}

/// Writes all decisions and reports on each of them.
pub async fn write(
    store: Store,
    decisions: Vec<Decision>,
    now: Timestamp,
) -> Result<Vec<(Arc<str>, Written)>, StoreError> {
    let what = "write a scheduling decision";
    let done = each_in_batches(&store, decisions, what, move |tx, decision| {
        apply(tx, decision, now)
    })
    .await?;
    let mut written = Vec::with_capacity(done.len());
    for (decision, outcome) in done {
        let id = decision.task_id;
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => Written::Refused(store.view(|view| view.get::<Task>(&id))?),
        };
        written.push((id, outcome));
    }
    Ok(written)
}

fn apply(tx: &mut Tx, decision: &Decision, now: Timestamp) -> Result<Written, StoreError> {
    let id = &decision.task_id;
    let edited = match &decision.verdict {
        Verdict::Assign(placement) => {
            if !is_still_good(tx, placement)? {
                return refused(tx, id);
            }
            edit_pending(tx, id, "", |task| {
                task.desired_state <= COMPLETE && {
                    task.node_id = placement.node_id.as_ref().to_owned();
                    assign(task, placement, ASSIGNED_MESSAGE, now);
                    true
                }
            })?
        }
        Verdict::Confirm(placement) => {
            if !is_still_good(tx, placement)? {
                return refused(tx, id);
            }
            edit_pending(tx, id, &placement.node_id, |task| {
                task.desired_state <= COMPLETE && {
                    assign(task, placement, CONFIRMED_MESSAGE, now);
                    true
                }
            })?
        }
        Verdict::Explain { node_id, reason } => {
            edit_pending(tx, id, node_id, |task| explain(task, reason, now))?;
            return Ok(Written::Done);
        }
        Verdict::ShutDown => {
            edit_pending(tx, id, "", |task| {
                task.desired_state >= SHUTDOWN && {
                    let status = task.status.get_or_insert_default();
                    status.state = SHUTDOWN;
                    status.timestamp = Some(now);
                    status.err.clear();
                    true
                }
            })?;
            return Ok(Written::Done);
        }
    };
    match edited {
        Edited::Written => Ok(Written::Done),
        Edited::Unchanged | Edited::Gone | Edited::Refused => refused(tx, id),
    }
}

/// Whether the node is still there, still takes tasks and still suits the task.
fn is_still_good(tx: &Tx, placement: &Placement) -> Result<bool, StoreError> {
    let node = tx.get::<Node>(&placement.node_id)?;
    Ok(node.is_some_and(|node| placement.requirements.refused_by_node(&node).is_none()))
}

/// Changes a task that still waits, with the node that it had when the decision was taken.
fn edit_pending(
    tx: &mut Tx,
    id: &str,
    node_id: &str,
    change: impl FnOnce(&mut Task) -> bool,
) -> Result<Edited, StoreError> {
    task::edit(tx, id, |task| {
        task::observed(task) == PENDING && task.node_id == node_id && change(task)
    })
}

fn assign(task: &mut Task, placement: &Placement, message: &str, now: Timestamp) {
    task.assigned_generic_resources
        .clone_from(&placement.generic);
    task.status = Some(TaskStatus {
        state: ASSIGNED,
        timestamp: Some(now),
        message: message.to_owned(),
        ..TaskStatus::default()
    });
}

/// Tells why; says nothing twice.
fn explain(task: &mut Task, reason: &str, now: Timestamp) -> bool {
    let status = task.status.get_or_insert_default();
    if status.err == reason {
        return false;
    }
    status.err = reason.to_owned();
    status.timestamp = Some(now);
    true
}

fn refused(tx: &Tx, id: &str) -> Result<Written, StoreError> {
    Ok(Written::Refused(tx.get::<Task>(id)?))
}
