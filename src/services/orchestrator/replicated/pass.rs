//! One pass of the replicated orchestrator: what it writes, and in which order.
//!
//! First the tasks of removed services and the starts that are due, then restarts, then whole services, so
//! that a service is counted only after its failed tasks have been replaced. Every change is a
//! transaction of its own within a batch; it reads its task and its service again and does nothing if
//! the reason for it has gone.

use std::sync::Arc;

use tracing::{debug, info};

use super::{Pass, Passed};
use crate::api::types::update_status::UpdateState;
use crate::api::types::{Node, Service, Task};
use crate::services::orchestrator::delays::{DelayedStart, OldTask};
use crate::services::orchestrator::restart::{RestartContext, restart};
use crate::services::orchestrator::slots::{self, Slots};
use crate::services::orchestrator::task::{self, REMOVE, SlotKey, TaskMaker};
use crate::services::reconcile::{item, read};
use crate::storage::{Batch, By, ReadTx, Store, StoreError, Tx};

/// Tasks that one pass creates for one service. The rest is left to the next pass, so that a service with
/// a very large number of replicas does not keep the restarts of all others waiting.
const CREATIONS_MAX: u64 = 10_000;

/// Does everything that is pending. Returns right after its last look at the store, so that nothing the
/// machine hears falls between that look and the waits it arms.
pub async fn run(store: Store, mut pass: Pass) -> Result<Passed, StoreError> {
    release_tasks(&store, &mut pass).await?;
    let mut waiting = restart_tasks(&store, &mut pass).await?;
    let mut unfinished = Vec::new();
    for service_id in std::mem::take(&mut pass.pending.services) {
        if reconcile(&store, &mut pass, &service_id).await? {
            unfinished.push(service_id);
        }
    }
    drop_finished_waits(&store, &mut waiting)?;
    Ok(Passed {
        history: pass.history,
        waiting,
        unfinished,
    })
}

/// Whether nobody has to wait any longer for a predecessor: it has stopped, or is gone, or its node is.
pub fn has_let_go(view: &ReadTx, old: &OldTask) -> Result<bool, StoreError> {
    let Some(task) = view.get::<Task>(&old.id)? else {
        return Ok(true);
    };
    if task::is_terminal(&task) {
        return Ok(true);
    }
    if old.node_id.is_empty() {
        return Ok(false);
    }
    let node = view.get::<Node>(&old.node_id)?;
    Ok(node.is_none_or(|node| task::is_down(&node)))
}

/// Tasks of services that are gone, and replacements whose time has come.
async fn release_tasks(store: &Store, pass: &mut Pass) -> Result<(), StoreError> {
    let mut batch = store.batch();
    for service_id in &pass.pending.removed_services {
        let by = By::ServiceId(service_id.clone());
        for task in read(store, move |view| view.find::<Task>(by)).await? {
            item(
                &mut batch,
                "mark a removed service's task",
                &task.id,
                |tx| task::raise_desired(tx, &task.id, REMOVE),
            )
            .await?;
        }
        pass.history.forget(service_id);
    }
    for id in &pass.pending.ownerless {
        item(&mut batch, "clear a task without a service", id, |tx| {
            clear_ownerless(tx, id)
        })
        .await?;
    }
    for due in &pass.starts {
        let id = &due.task_id;
        item(&mut batch, "start a task", id, |tx| task::start_now(tx, id)).await?;
        if due.restart {
            pass.pending.tasks.insert(id.clone());
        }
    }
    batch.commit().await
}

/// A task whose service does not exist is deleted, unless an agent has been told to stop it and has not
/// said that it did: then it holds on to what it uses until the reaper may have it.
fn clear_ownerless(tx: &mut Tx, id: &str) -> Result<(), StoreError> {
    let Some(task) = tx.get::<Task>(id)? else {
        return Ok(());
    };
    if tx.get::<Service>(&task.service_id)?.is_some() {
        return Ok(());
    }
    if task::is_runnable(&task) || task::is_in_no_hands(&task) {
        info!(
            task = id,
            service = task.service_id,
            "deleting a task whose service is gone"
        );
        tx.delete::<Task>(id)
    } else {
        task::raise_desired(tx, id, REMOVE).map(|_| ())
    }
}

/// Replaces the tasks that have ended or sit on a node they have no business on.
async fn restart_tasks(store: &Store, pass: &mut Pass) -> Result<Vec<DelayedStart>, StoreError> {
    for node_id in std::mem::take(&mut pass.pending.nodes) {
        let tasks = read(store, move |view| view.find::<Task>(By::NodeId(node_id))).await?;
        let runnable = tasks.iter().filter(|task| task::is_runnable(task));
        pass.pending
            .tasks
            .extend(runnable.map(|task| task.id.clone()));
    }
    let mut context = RestartContext {
        history: &mut pass.history,
        maker: &pass.maker,
    };
    let mut waiting = Vec::new();
    let mut batch = store.batch();
    for id in &pass.pending.tasks {
        let started = item(&mut batch, "restart a task", id, |tx| {
            restart_if_needed(tx, id, &mut context)
        })
        .await?;
        waiting.extend(started.flatten());
    }
    batch.commit().await?;
    Ok(waiting)
}

fn restart_if_needed(
    tx: &mut Tx,
    id: &str,
    context: &mut RestartContext<'_>,
) -> Result<Option<DelayedStart>, StoreError> {
    let Some(task) = tx.get::<Task>(id)? else {
        return Ok(None);
    };
    if !task::is_runnable(&task) {
        return Ok(None);
    }
    let service = tx.get::<Service>(&task.service_id)?;
    let Some(service) = service.filter(|service| task::is_replicated(service)) else {
        return Ok(None);
    };
    if !task::is_terminal(&task) {
        let placed = !task.node_id.is_empty();
        if !placed || !task::is_invalid_node(tx.get::<Node>(&task.node_id)?.as_deref()) {
            return Ok(None);
        }
    }
    debug!(
        task = id,
        service = service.id,
        slot = task.slot,
        "restarting a task"
    );
    restart(tx, &task, &service, context)
}

/// Brings one service to its number of replicas. `true` if there is more to do than one pass allows.
async fn reconcile(store: &Store, pass: &mut Pass, service_id: &str) -> Result<bool, StoreError> {
    let id = service_id.to_owned();
    let found = read(store, move |view| {
        let Some(service) = view.get::<Service>(&id)? else {
            return Ok(None);
        };
        let tasks = view.find::<Task>(By::ServiceId(id))?;
        Ok(Some((service, tasks)))
    });
    let Some((service, tasks)) = found.await? else {
        return Ok(false);
    };
    if !task::is_replicated(&service) {
        return Ok(false);
    }
    let slots = slots::group(tasks, is_rolling_back(&service), |task| {
        let key = SlotKey::of(task, &service);
        pass.history.should_restart(task, &key, false)
    });

    let wanted = task::replicas(&service);
    let occupied = slots.occupied.len() as u64;
    let mut batch = store.batch();
    let unfinished = if wanted > occupied {
        let missing = wanted - occupied;
        fill(
            &mut batch,
            pass,
            &service,
            slots,
            missing.min(CREATIONS_MAX),
        )
        .await?;
        missing > CREATIONS_MAX
    } else {
        forget_dead(&mut batch, &slots).await?;
        if wanted < occupied {
            // `wanted` is below a length, so it fits.
            shrink(&mut batch, &service, &slots, wanted as usize).await?;
        }
        false
    };
    batch.commit().await?;
    Ok(unfinished)
}

/// A rollback replaces whatever it finds, so a task that has ended for good does not count.
fn is_rolling_back(service: &Service) -> bool {
    let status = service.update_status.as_ref();
    status.is_some_and(|status| status.state == UpdateState::RollbackStarted as i32)
}

/// Creates tasks in the lowest free slots. History in a slot that is used again stays.
async fn fill(
    batch: &mut Batch,
    pass: &Pass,
    service: &Service,
    mut slots: Slots,
    count: u64,
) -> Result<(), StoreError> {
    info!(service = service.id, count, "creating tasks");
    for (slot, _) in slots::free_slots(&slots.occupied).zip(0..count) {
        slots.dead.remove(&slot);
        item(batch, "create a task", &service.id, |tx| {
            create_in_slot(tx, &service.id, slot, &pass.maker)
        })
        .await?;
    }
    forget_dead(batch, &slots).await
}

/// Creates a task in a slot, unless one runs there by now: a write whose outcome was unknown may have
/// happened after all.
fn create_in_slot(
    tx: &mut Tx,
    service_id: &str,
    slot: u64,
    maker: &TaskMaker,
) -> Result<(), StoreError> {
    let service = tx.get::<Service>(service_id)?;
    let Some(service) = service.filter(|service| task::is_replicated(service)) else {
        return Ok(());
    };
    let in_slot = tx.find::<Task>(By::Slot {
        service_id: service_id.to_owned(),
        slot,
    })?;
    if !in_slot.iter().any(|task| task::is_runnable(task)) {
        tx.create(maker.make(&service, slot, ""))?;
    }
    Ok(())
}

/// Deletes the tasks of slots that hold nothing but history. A task that an agent may still run goes the
/// ordinary way instead: it is told to stop and reaped when it has.
async fn forget_dead(batch: &mut Batch, slots: &Slots) -> Result<(), StoreError> {
    for task in slots.dead.values().flatten() {
        let id = &task.id;
        item(
            batch,
            "delete a task of an unused slot",
            id,
            |tx| match tx.get::<Task>(id)? {
                Some(task) if task::is_runnable(&task) => Ok(()),
                Some(task) if task::is_in_no_hands(&task) => tx.delete::<Task>(id),
                Some(_) => task::raise_desired(tx, id, REMOVE).map(|_| ()),
                None => Ok(()),
            },
        )
        .await?;
    }
    Ok(())
}

/// Gives up all but `keep` slots.
async fn shrink(
    batch: &mut Batch,
    service: &Service,
    slots: &Slots,
    keep: usize,
) -> Result<(), StoreError> {
    let order = slots::keep_order(&slots.occupied);
    let surplus = order.get(keep..).unwrap_or_default();
    info!(
        service = service.id,
        count = surplus.len(),
        "removing tasks"
    );
    let mut tasks: Vec<&Arc<Task>> = Vec::new();
    for slot in surplus {
        tasks.extend(slots.occupied.get(slot).into_iter().flatten());
    }
    for task in tasks {
        item(batch, "remove a task", &task.id, |tx| {
            task::raise_desired(tx, &task.id, REMOVE)
        })
        .await?;
    }
    Ok(())
}

/// A predecessor may have stopped since its replacement was created: nobody will say so again.
fn drop_finished_waits(store: &Store, waiting: &mut [DelayedStart]) -> Result<(), StoreError> {
    store.view(|view| {
        for start in waiting {
            if let Some(old) = &start.old
                && has_let_go(view, old)?
            {
                start.old = None;
            }
        }
        Ok(())
    })
}
