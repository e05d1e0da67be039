//! Turns declared objects into allocated ones: services get their endpoint, new tasks become pending.
//!
//! This is the only way from NEW to PENDING (spec 09). The engine that decides is [`inert`]: networks are not
//! built yet. Tasks that need one stay NEW and say so.

pub mod inert;
mod pass;

use std::collections::BTreeSet;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use prost_types::Timestamp;
use tokio::time::Instant;

use self::inert::ServiceNeed;
use super::leader::{LeaderService, Ready, Term};
use super::orchestrator::task::{self, COMPLETE, NEW};
use super::reconcile::{Now, Reconciler, drive};
use crate::api::types::{Service, Task, TaskState};
use crate::storage::{
    Action, AnyObject, By, EventBatch, Interest, ReadTx, Store, StoreError, Table,
};

const NAME: &str = "allocator";

/// Tasks taken into one pass; others follow in the next.
const TASKS_MAX: usize = 10_000;

/// The leader service.
#[derive(Debug, Default)]
pub struct Allocator {}

impl LeaderService for Allocator {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&self, term: Term, ready: Ready) -> BoxFuture<'static, anyhow::Result<()>> {
        drive(term, ready, Allocation::default()).boxed()
    }
}

/// What the allocator knows between two passes. Bounded by the number of stored objects.
#[derive(Debug, Default)]
pub struct Allocation {
    /// New tasks to look at.
    tasks: BTreeSet<String>,
    /// Services that need something, or whose waiting tasks may go on.
    services: BTreeSet<String>,
    /// Services with tasks that wait for them.
    waited_for: BTreeSet<String>,
    /// Services that have changed while a pass is under way, which may have found tasks to wait for them
    /// just before.
    changed_meanwhile: BTreeSet<String>,
    due: Option<Instant>,
}

/// One pass.
pub struct Pass {
    tasks: Vec<String>,
    services: BTreeSet<String>,
    now: Timestamp,
}

/// What a pass leaves behind.
pub struct Passed {
    /// Services with tasks that wait for them.
    waited_for: BTreeSet<String>,
}

impl Reconciler for Allocation {
    type Work = Pass;
    type Outcome = Passed;

    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> Vec<Interest> {
        [Table::Service, Table::Task].map(Interest::Table).to_vec()
    }

    fn load(&mut self, view: &ReadTx, now: Now) -> Result<(), StoreError> {
        *self = Allocation::default();
        view.each::<Service>(By::All, |service| self.note_service(service))?;
        view.each::<Task>(By::TaskState(TaskState::New), |task| self.note_task(task))?;
        self.schedule(now);
        Ok(())
    }

    fn observe(&mut self, batch: &EventBatch, now: Now) {
        for change in &batch.changes {
            match (&change.object, change.action) {
                (AnyObject::Service(service), Action::Remove) => {
                    self.services.remove(&service.id);
                    self.waited_for.remove(&service.id);
                }
                (AnyObject::Service(service), _) => {
                    self.changed_meanwhile.insert(service.id.clone());
                    self.note_service(service);
                }
                (AnyObject::Task(task), Action::Remove) => {
                    self.tasks.remove(&task.id);
                }
                (AnyObject::Task(task), _) => self.note_task(task),
                _ => {}
            }
        }
        self.schedule(now);
    }

    fn next_due(&self) -> Option<Instant> {
        self.due
    }

    fn plan(&mut self, now: Now) -> Option<Pass> {
        self.due = None;
        let mut tasks = Vec::new();
        while tasks.len() < TASKS_MAX
            && let Some(id) = self.tasks.pop_first()
        {
            tasks.push(id);
        }
        let services = std::mem::take(&mut self.services);
        self.changed_meanwhile.clear();
        self.schedule(now);
        (!tasks.is_empty() || !services.is_empty()).then_some(Pass {
            tasks,
            services,
            now: now.wall,
        })
    }

    fn perform(store: Store, work: Pass) -> BoxFuture<'static, Result<Passed, StoreError>> {
        pass::run(store, work).boxed()
    }

    fn settle(&mut self, passed: Passed, now: Now) {
        let changed = std::mem::take(&mut self.changed_meanwhile);
        let again = changed.intersection(&passed.waited_for).cloned();
        self.services.extend(again);
        self.waited_for.extend(passed.waited_for);
        self.schedule(now);
    }
}

impl Allocation {
    fn note_service(&mut self, service: &Service) {
        let needs = matches!(inert::service_need(service), ServiceNeed::Endpoint(_));
        if needs || self.waited_for.contains(&service.id) {
            self.services.insert(service.id.clone());
        }
    }

    fn note_task(&mut self, task: &Task) {
        // Whoever is to be removed before it was allocated never needs anything.
        if task::observed(task) == NEW && task.desired_state <= COMPLETE {
            self.tasks.insert(task.id.clone());
        }
    }

    fn schedule(&mut self, now: Now) {
        let pending = !self.tasks.is_empty() || !self.services.is_empty();
        if pending && self.due.is_none() {
            self.due = Some(now.instant);
        }
    }
}
