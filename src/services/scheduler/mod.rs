//! Which node runs which task.
//!
//! The scheduler takes tasks that are pending and binds each to a node, for good; a task that came with its
//! node is confirmed there. A task that no node can take stays pending, says why, and is tried again when
//! something changes that could help it. The scheduler never moves a task (spec 07).
//!
//! - [`state`]: what is known of tasks, and how it is learnt
//! - [`nodes`]: what every node has and what is taken of it
//! - [`requirements`]: what a task asks of a node; the filters and their explanations
//! - [`placement`]: the best node for one task at a time
//! - [`queue`]: groups of interchangeable tasks that wait
//! - [`failures`]: nodes on which a service keeps failing
//! - [`pass`]: from knowledge to decisions; pure
//! - [`commit`]: decisions become transactions
//! - [`debounce`]: when to do all that
//!
//! Cluster volumes are not built yet; their filter would be the last one.

pub mod commit;
pub mod debounce;
pub mod failures;
pub mod nodes;
pub mod pass;
pub mod placement;
pub mod queue;
pub mod requirements;
pub mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use prost_types::Timestamp;
use tokio::time::Instant;

use self::commit::{Decision, Written};
use self::state::State;
use super::leader::{LeaderService, Ready, Term};
use super::reconcile::{Now, Reconciler, drive};
use crate::api::types::{Node, Service, Task, TaskState};
use crate::storage::{By, EventBatch, Interest, ReadTx, Store, StoreError, Table};

const NAME: &str = "scheduler";

/// The states of tasks that wait for a node or hold something of one.
const CONCERNED: [TaskState; 7] = [
    TaskState::Pending,
    TaskState::Assigned,
    TaskState::Accepted,
    TaskState::Preparing,
    TaskState::Ready,
    TaskState::Starting,
    TaskState::Running,
];

/// The leader service.
#[derive(Debug, Default)]
pub struct Scheduler {}

impl LeaderService for Scheduler {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&self, term: Term, ready: Ready) -> BoxFuture<'static, anyhow::Result<()>> {
        drive(term, ready, Scheduling::default()).boxed()
    }
}

/// The scheduler between two passes.
#[derive(Debug, Default)]
pub struct Scheduling {
    state: State,
    /// A pass is due even if nothing changes.
    more_at: Option<Instant>,
}

/// Decisions on their way into the store.
pub struct Pass {
    decisions: Vec<Decision>,
    now: Timestamp,
}

impl Reconciler for Scheduling {
    type Work = Pass;
    type Outcome = Vec<(Arc<str>, Written)>;

    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> Vec<Interest> {
        [Table::Task, Table::Node, Table::Service]
            .map(Interest::Table)
            .to_vec()
    }

    fn load(&mut self, view: &ReadTx, now: Now) -> Result<(), StoreError> {
        self.state.reset();
        let state = &mut self.state;
        view.each::<Service>(By::All, |service| {
            state.observe_service(service, false);
        })?;
        for concerned in CONCERNED {
            view.each::<Task>(By::TaskState(concerned), |task| {
                state.observe_task(task, now.instant);
            })?;
        }
        view.each::<Node>(By::All, |node| {
            state.observe_node(node, false);
        })?;
        self.more_at = Some(now.instant);
        Ok(())
    }

    fn observe(&mut self, batch: &EventBatch, now: Now) {
        for change in &batch.changes {
            self.state.observe(change, now.instant);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let changes = self.state.debounce.due();
        changes.into_iter().chain(self.more_at).min()
    }

    fn plan(&mut self, now: Now) -> Option<Pass> {
        self.state.debounce.clear();
        let (decisions, more_at) = self.state.pass(now.instant);
        self.more_at = more_at;
        (!decisions.is_empty()).then_some(Pass {
            decisions,
            now: now.wall,
        })
    }

    fn perform(
        store: Store,
        work: Pass,
    ) -> BoxFuture<'static, Result<Vec<(Arc<str>, Written)>, StoreError>> {
        commit::write(store, work.decisions, work.now).boxed()
    }

    fn settle(&mut self, written: Vec<(Arc<str>, Written)>, now: Now) {
        for (task_id, written) in written {
            if let Written::Refused(task) = written {
                self.state.refuse(&task_id, task.as_deref(), now.instant);
            }
        }
    }
}
