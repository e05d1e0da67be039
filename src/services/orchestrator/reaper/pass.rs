//! One pass of the reaper: which tasks of a slot go, and their deletion.

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::debug;

use super::{Pass, Passed, is_discarded, overfull_slots, slot_limit};
use crate::api::types::service_spec::Mode;
use crate::api::types::{Service, Task};
use crate::services::orchestrator::task::{self, ASSIGNED, RUNNING, SlotKey};
use crate::services::reconcile::{item, read};
use crate::storage::{By, ReadTx, Store, StoreError};

/// Slots that are read from one view, before others get a turn.
const SLOTS_PER_VIEW: usize = 64;

/// Deletes what is to be deleted. Each task is looked at again in the transaction that deletes it.
pub async fn run(store: Store, pass: Pass) -> Result<Passed, StoreError> {
    let mut crowded = BTreeSet::new();
    let mut history = Vec::new();
    let mut slots = pass.slots;
    if pass.search {
        let limit = pass.history_limit;
        slots.append(&mut read(&store, move |view| overfull_slots(view, limit)).await?);
    }
    let slots: Vec<SlotKey> = slots.into_iter().collect();
    for slots in slots.chunks(SLOTS_PER_VIEW) {
        store.view(|view| -> Result<(), StoreError> {
            for slot in slots {
                let verdict = examine(view, slot, pass.history_limit)?;
                history.extend(verdict.delete);
                if verdict.running > 1 {
                    crowded.insert(slot.clone());
                }
            }
            Ok(())
        })?;
        tokio::task::yield_now().await;
    }

    let mut batch = store.batch();
    for (ids, may_delete) in [
        (
            pass.cleanup.into_iter().collect(),
            is_discarded as fn(&Task) -> bool,
        ),
        (history, is_finished),
    ] {
        let ids: Vec<String> = ids;
        for id in &ids {
            item(&mut batch, "delete a task", id, |tx| {
                if tx.get::<Task>(id)?.is_some_and(|task| may_delete(&task)) {
                    debug!(task = id, "deleting a task");
                    tx.delete::<Task>(id)?;
                }
                Ok(())
            })
            .await?;
        }
    }
    batch.commit().await?;
    Ok(Passed { crowded })
}

/// What is to become of a slot's history.
#[derive(Debug, Default, PartialEq, Eq)]
struct Verdict {
    delete: Vec<String>,
    /// Tasks met on the way that have to stay for now.
    running: usize,
}

fn examine(view: &ReadTx, slot: &SlotKey, history_limit: i64) -> Result<Verdict, StoreError> {
    let Some(service) = view.get::<Service>(&slot.service_id)? else {
        return Ok(Verdict::default());
    };
    let Some(limit) = slot_limit(&service, history_limit) else {
        return Ok(Verdict::default());
    };
    let tasks = match task::mode(&service) {
        Some(Mode::Replicated(_)) => view.find::<Task>(By::Slot {
            service_id: slot.service_id.clone(),
            slot: slot.slot,
        })?,
        Some(Mode::Global(_)) => {
            let mut tasks = view.find::<Task>(By::NodeId(slot.node_id.clone()))?;
            tasks.retain(|task| task.service_id == slot.service_id);
            tasks
        }
        // Tasks of jobs are their result; they go with the job or its next iteration.
        _ => return Ok(Verdict::default()),
    };
    Ok(judge(tasks, limit))
}

/// Picks the oldest finished tasks until no more than `limit` are left.
fn judge(mut tasks: Vec<Arc<Task>>, limit: usize) -> Verdict {
    let mut verdict = Verdict::default();
    let mut left = tasks.len();
    tasks.sort_by_key(|task| task::age(task));
    for task in tasks {
        if left <= limit {
            break;
        }
        if is_finished(&task) {
            verdict.delete.push(task.id.clone());
            left -= 1;
        } else {
            verdict.running += 1;
        }
    }
    verdict
}

/// Whether a task has ended or will never run.
fn is_finished(task: &Task) -> bool {
    let never_runs = task::observed(task) < ASSIGNED && task.desired_state > RUNNING;
    task::is_terminal(task) || never_runs
}
