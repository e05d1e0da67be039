//! Replacing one task: the old one is told to stop, a new one is prepared in its slot and waits its turn.
//!
//! Runs inside a store transaction and reads everything it depends on again (spec 06 section 6.1). What
//! has to happen after the commit, the start of the replacement, is returned and not yet armed.

use std::time::Duration;

use tracing::warn;

use super::delays::{DelayedStart, OldTask};
use super::history::RestartHistory;
use super::task::{self, COMPLETE, READY, SHUTDOWN, SlotKey, TaskMaker};
use crate::api::types::service_spec::Mode;
use crate::api::types::{Node, Service, Task};
use crate::storage::{StoreError, Tx};

/// What restarts need besides the store.
pub struct RestartContext<'a> {
    pub history: &'a mut RestartHistory,
    pub maker: &'a TaskMaker,
}

/// Replaces a task of this service that has ended or has to end. The write order is: the old task, then the
/// new one. `None` if the policy forbids a replacement; the old task is then only told to stop.
///
/// The caller has made sure that the task is not waiting for its own start.
pub fn restart(
    tx: &mut Tx,
    task: &Task,
    service: &Service,
    context: &mut RestartContext<'_>,
) -> Result<Option<DelayedStart>, StoreError> {
    if task.desired_state > COMPLETE {
        return Ok(None);
    }
    task::raise_desired(tx, &task.id, SHUTDOWN)?;

    let key = SlotKey::of(task, service);
    if !context
        .history
        .should_restart(task, &key, task::is_job(service))
    {
        return Ok(None);
    }
    let Some(replacement) = replacement(task, service, context.maker) else {
        return Ok(None);
    };
    let replacement = tx.create(replacement)?;

    let node = if task.node_id.is_empty() {
        None
    } else {
        tx.get::<Node>(&task.node_id)?
    };
    let start = delayed_start(task, node.as_deref(), replacement.id.clone());
    let key = SlotKey::of(&replacement, service);
    context.history.record(&replacement, key, context.maker.now);
    Ok(Some(start))
}

/// The new task: of the service as it is now, in the same slot or on the same node.
fn replacement(task: &Task, service: &Service, maker: &TaskMaker) -> Option<Task> {
    let (slot, node_id) = match task::mode(service) {
        Some(Mode::Replicated(_) | Mode::ReplicatedJob(_)) => (task.slot, ""),
        Some(Mode::Global(_) | Mode::GlobalJob(_)) => (0, task.node_id.as_str()),
        None => {
            warn!(
                service = service.id,
                task = task.id,
                "the service has no known mode; its task is not replaced"
            );
            return None;
        }
    };
    let mut new = maker.make(service, slot, node_id);
    new.desired_state = READY;
    if task::is_job(service) {
        let status = service.job_status.as_ref();
        new.job_iteration = status.and_then(|status| status.job_iteration);
    }
    Some(new)
}

/// A drained node's tasks move without delay; nobody waits for a node that is down to stop anything.
fn delayed_start(task: &Task, node: Option<&Node>, new_id: String) -> DelayedStart {
    let delay = if node.is_some_and(task::is_drained) {
        Duration::ZERO
    } else {
        task::restart_delay(task)
    };
    let waits = !node.is_some_and(task::is_down) && !task::is_terminal(task);
    DelayedStart {
        task_id: new_id,
        delay,
        old: waits.then(|| OldTask {
            id: task.id.clone(),
            node_id: task.node_id.clone(),
        }),
    }
}
