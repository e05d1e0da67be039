//! The task reaper: deletes tasks that nobody needs any more.
//!
//! Two kinds go: tasks that the manager wants removed, as soon as no agent holds them any longer; and the
//! oldest history of a slot that has more of it than the cluster (or the service's restart policy) wants
//! kept. Everything else is left alone (spec 06 section 9). Reaping is bundled: a first change is followed
//! by a pass a quarter of a second later, or at once when a great deal has come together.

mod pass;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::task::{self, ASSIGNED, COMPLETE, ORPHANED, REMOVE, SlotKey};
use crate::api::types::{Cluster, Service, Task, TaskState};
use crate::services::leader::{LeaderService, Ready, Term};
use crate::services::reconcile::{Now, Reconciler, drive};
use crate::storage::{
    Action, AnyObject, By, EventBatch, Interest, ReadTx, Store, StoreError, Table,
};

const NAME: &str = "task-reaper";

/// How long changes are collected before a pass (spec 06 section 13).
const BATCH_INTERVAL: Duration = Duration::from_millis(250);

/// More entries than this are not kept waiting (spec 06 section 13).
const BATCH_ENTRIES_MAX: usize = 1000;

/// The leader service.
#[derive(Debug, Default)]
pub struct TaskReaper {}

impl LeaderService for TaskReaper {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&self, term: Term, ready: Ready) -> BoxFuture<'static, anyhow::Result<()>> {
        drive(term, ready, Reaper::default()).boxed()
    }
}

/// What the reaper knows between two passes. Bounded by the number of stored tasks.
#[derive(Debug, Default)]
pub struct Reaper {
    /// Tasks kept per slot, the live one included; negative: all. 0 until a cluster object is seen.
    history_limit: i64,
    /// Slots that got a new task since the last pass.
    slots: BTreeSet<SlotKey>,
    /// Slots in which the last pass found tasks that still run beside each other. They are looked at
    /// again with the next pass, but do not hasten it.
    crowded: BTreeSet<SlotKey>,
    /// Tasks to delete outright.
    cleanup: BTreeSet<String>,
    /// The limit was lowered: slots have to be searched for those that are over it now.
    search: bool,
    due: Option<Instant>,
}

/// One pass.
pub struct Pass {
    slots: BTreeSet<SlotKey>,
    cleanup: BTreeSet<String>,
    search: bool,
    history_limit: i64,
}

/// What a pass leaves behind.
pub struct Passed {
    crowded: BTreeSet<SlotKey>,
}

impl Reconciler for Reaper {
    type Work = Pass;
    type Outcome = Passed;

    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> Vec<Interest> {
        vec![
            Interest::Table(Table::Task),
            Interest::Table(Table::Cluster),
        ]
    }

    fn load(&mut self, view: &ReadTx, now: Now) -> Result<(), StoreError> {
        *self = Reaper::default();
        let clusters = view.find::<Cluster>(By::Name(task::DEFAULT_CLUSTER.to_owned()))?;
        if let [only] = clusters.as_slice() {
            self.history_limit = history_limit(only);
        }
        view.each::<Task>(By::DesiredState(TaskState::Remove), |task| {
            self.note_task(task)
        })?;
        view.each::<Task>(By::TaskState(TaskState::Orphaned), |task| {
            self.note_task(task)
        })?;
        self.slots = overfull_slots(view, self.history_limit)?;
        if !self.slots.is_empty() || !self.cleanup.is_empty() {
            self.due = Some(now.instant);
        }
        Ok(())
    }

    fn observe(&mut self, batch: &EventBatch, now: Now) {
        for change in &batch.changes {
            match (&change.object, change.action) {
                (AnyObject::Task(task), Action::Create) => {
                    self.slots.insert(created_in(task));
                    self.note_task(task);
                }
                (AnyObject::Task(task), Action::Update) => self.note_task(task),
                (AnyObject::Cluster(cluster), Action::Create | Action::Update) => {
                    self.set_limit(history_limit(cluster));
                }
                _ => {}
            }
        }
        self.schedule(now);
    }

    fn next_due(&self) -> Option<Instant> {
        self.due
    }

    fn plan(&mut self, now: Now) -> Option<Pass> {
        self.due.take_if(|due| *due <= now.instant)?;
        let mut slots = std::mem::take(&mut self.slots);
        slots.append(&mut self.crowded);
        Some(Pass {
            slots,
            cleanup: std::mem::take(&mut self.cleanup),
            search: std::mem::take(&mut self.search),
            history_limit: self.history_limit,
        })
    }

    fn perform(store: Store, work: Pass) -> BoxFuture<'static, Result<Passed, StoreError>> {
        pass::run(store, work).boxed()
    }

    fn settle(&mut self, passed: Passed, _now: Now) {
        self.crowded = passed.crowded;
    }
}

impl Reaper {
    fn note_task(&mut self, task: &Task) {
        if is_discarded(task) {
            self.cleanup.insert(task.id.clone());
        }
    }

    fn set_limit(&mut self, limit: i64) {
        let unlimited_before = self.history_limit < 0;
        self.search |= limit >= 0 && (unlimited_before || limit < self.history_limit);
        self.history_limit = limit;
    }

    fn schedule(&mut self, now: Now) {
        let entries = self.slots.len() + self.cleanup.len();
        if entries > BATCH_ENTRIES_MAX {
            self.due = Some(now.instant);
        } else if (entries > 0 || self.search) && self.due.is_none() {
            self.due = Some(now.instant + BATCH_INTERVAL);
        }
    }
}

/// Whether a task is to be deleted and nobody holds it any longer.
fn is_discarded(task: &Task) -> bool {
    let state = task::observed(task);
    let held = (ASSIGNED..COMPLETE).contains(&state);
    let removed = task.desired_state == REMOVE && !held;
    removed || (state >= ORPHANED && task.service_id.is_empty())
}

/// The slot as the task itself names it.
fn created_in(task: &Task) -> SlotKey {
    SlotKey {
        service_id: task.service_id.clone(),
        slot: task.slot,
        node_id: task.node_id.clone(),
    }
}

fn history_limit(cluster: &Cluster) -> i64 {
    let orchestration = cluster
        .spec
        .as_ref()
        .and_then(|spec| spec.orchestration.as_ref());
    orchestration.map_or(0, |orchestration| {
        orchestration.task_history_retention_limit
    })
}

/// How many tasks a slot of this service may hold; `None`: any number. A service that limits restarts
/// needs one more than that, since a new leader counts them by their tasks.
fn slot_limit(service: &Service, history_limit: i64) -> Option<usize> {
    let spec = service.spec.as_ref().and_then(|spec| spec.task.as_ref());
    let limit = match task::restart_attempts_max(spec) {
        0 => history_limit,
        attempts_max => i64::try_from(attempts_max)
            .unwrap_or(i64::MAX)
            .saturating_add(1),
    };
    usize::try_from(limit).ok()
}

/// Slots that hold more history than is wanted: left so by a leader before this one, or by a limit that has
/// been lowered since.
fn overfull_slots(view: &ReadTx, history_limit: i64) -> Result<BTreeSet<SlotKey>, StoreError> {
    let mut services: HashMap<String, Arc<Service>> = HashMap::new();
    view.each::<Service>(By::All, |service| {
        services.insert(service.id.clone(), Arc::clone(service));
    })?;
    let mut stopped: BTreeMap<SlotKey, usize> = BTreeMap::new();
    view.each::<Task>(By::DesiredState(TaskState::Shutdown), |task| {
        if let Some(service) = services.get(&task.service_id) {
            *stopped.entry(SlotKey::of(task, service)).or_default() += 1;
        }
    })?;
    // The live task of the slot comes on top of those that were stopped.
    stopped.retain(|slot, count| {
        let service = services.get(&slot.service_id);
        let limit = service.and_then(|service| slot_limit(service, history_limit));
        limit.is_some_and(|limit| *count >= limit)
    });
    Ok(stopped.into_keys().collect())
}
