//! The orchestrator of replicated services: keeps as many slots occupied as each service wants.
//!
//! It counts slots, never tasks. It hears of services, tasks and nodes, remembers which of them need
//! attention, and works that off one [`pass`] at a time (spec 06 section 4).
//!
//! Updating tasks whose service has changed is the updater's room, which is not built yet: tasks of an
//! older spec are left alone, and replacements are made of the current spec.

mod pass;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::delays::{DelayedStart, DelayedStarts, Due};
use super::history::RestartHistory;
use super::repair;
use super::task::{self, IdSource, REMOVE, TaskMaker};
use crate::api::types::{Cluster, Node, Service, Task};
use crate::services::leader::{LeaderService, Ready, Term};
use crate::services::reconcile::{Now, Reconciler, drive};
use crate::storage::{
    Action, AnyObject, By, EventBatch, Interest, ReadTx, Store, StoreError, Table,
};

const NAME: &str = "replicated-orchestrator";

/// The leader service.
#[derive(Debug, Default)]
pub struct ReplicatedOrchestrator {}

impl LeaderService for ReplicatedOrchestrator {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&self, term: Term, ready: Ready) -> BoxFuture<'static, anyhow::Result<()>> {
        drive(term, ready, Replicated::default()).boxed()
    }
}

/// What the orchestrator knows between two passes.
#[derive(Debug, Default)]
pub struct Replicated {
    ids: IdSource,
    cluster: Option<Arc<Cluster>>,
    /// Every known node, and whether tasks have no business there.
    nodes: HashMap<String, bool>,
    delays: DelayedStarts,
    /// Travels with the pass that is under way.
    history: RestartHistory,
    pending: Pending,
    /// Since when something is pending.
    pending_since: Option<Instant>,
}

/// What needs attention. Bounded by the number of stored objects.
#[derive(Debug, Default)]
struct Pending {
    services: BTreeSet<String>,
    removed_services: BTreeSet<String>,
    /// Tasks whose service was missing when the state was loaded.
    ownerless: BTreeSet<String>,
    /// Tasks to restart, if they still need it.
    tasks: BTreeSet<String>,
    /// Nodes whose tasks have to move, if they still have to.
    nodes: BTreeSet<String>,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.services.is_empty()
            && self.removed_services.is_empty()
            && self.ownerless.is_empty()
            && self.tasks.is_empty()
            && self.nodes.is_empty()
    }
}

/// One pass over what is pending and due.
pub struct Pass {
    pending: Pending,
    starts: Vec<Due>,
    history: RestartHistory,
    maker: TaskMaker,
}

/// What a pass leaves behind.
pub struct Passed {
    history: RestartHistory,
    /// Replacements that were created and now wait.
    waiting: Vec<DelayedStart>,
    /// Services that want another look.
    unfinished: Vec<String>,
}

impl Reconciler for Replicated {
    type Work = Pass;
    type Outcome = Passed;

    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> Vec<Interest> {
        [Table::Service, Table::Task, Table::Node, Table::Cluster]
            .map(Interest::Table)
            .to_vec()
    }

    fn load(&mut self, view: &ReadTx, now: Now) -> Result<(), StoreError> {
        self.cluster = default_cluster(view)?;
        let nodes = view.find::<Node>(By::All)?.into_iter();
        self.nodes = nodes
            .map(|node| (node.id.clone(), task::is_invalid_node(Some(&node))))
            .collect();
        let findings = repair::check_tasks(view, now, task::is_replicated, |task| {
            self.needs_restart(task)
        })?;
        self.history = findings.history;
        self.resume_waits(view, findings.waiting, now)?;
        self.pending = Pending {
            services: findings.services,
            ownerless: findings.ownerless,
            tasks: findings.to_fix,
            ..Pending::default()
        };
        self.note_pending(now);
        Ok(())
    }

    fn observe(&mut self, batch: &EventBatch, now: Now) {
        for change in &batch.changes {
            match &change.object {
                AnyObject::Service(service) => self.observe_service(service, change.action),
                AnyObject::Task(task) => self.observe_task(task, change.action),
                AnyObject::Node(node) => self.observe_node(node, change.action),
                AnyObject::Cluster(cluster) => self.observe_cluster(cluster, change.action),
                _ => {}
            }
        }
        self.note_pending(now);
    }

    fn next_due(&self) -> Option<Instant> {
        let waits = self.delays.next_due();
        self.pending_since.into_iter().chain(waits).min()
    }

    fn plan(&mut self, now: Now) -> Option<Pass> {
        let starts = self.delays.take_due(now.instant);
        let mut pending = std::mem::take(&mut self.pending);
        self.pending_since = None;
        // Whoever fails before its own start is replaced after it, or a task that is rejected at
        // once would be replaced in a tight loop.
        pending.tasks.retain(|id| !self.delays.restart_after(id));
        if starts.is_empty() && pending.is_empty() {
            return None;
        }
        Some(Pass {
            pending,
            starts,
            history: std::mem::take(&mut self.history),
            maker: TaskMaker {
                cluster: self.cluster.clone(),
                ids: self.ids,
                now: now.wall,
            },
        })
    }

    fn perform(store: Store, work: Pass) -> BoxFuture<'static, Result<Passed, StoreError>> {
        pass::run(store, work).boxed()
    }

    fn settle(&mut self, passed: Passed, now: Now) {
        self.history = passed.history;
        for start in passed.waiting {
            self.delays.arm(start, now.instant);
        }
        self.pending.services.extend(passed.unfinished);
        self.note_pending(now);
    }
}

impl Replicated {
    /// An orchestrator that knows nothing yet.
    pub fn new(ids: IdSource) -> Replicated {
        Replicated {
            ids,
            ..Replicated::default()
        }
    }

    fn observe_service(&mut self, service: &Service, action: Action) {
        if !task::is_replicated(service) {
            return;
        }
        match action {
            Action::Create | Action::Update => {
                self.pending.services.insert(service.id.clone());
            }
            Action::Remove => {
                self.pending.services.remove(&service.id);
                self.pending.removed_services.insert(service.id.clone());
            }
        }
    }

    fn observe_task(&mut self, task: &Task, action: Action) {
        if action == Action::Remove {
            self.delays.old_stopped(&task.id);
            self.delays.cancel(&task.id);
            self.pending.tasks.remove(&task.id);
            // A live task that somebody deleted leaves a hole; one that was on its way out may
            // have been counted until now.
            let counted = task::is_runnable(task) || task.desired_state == REMOVE;
            if counted && !task.service_id.is_empty() {
                self.pending.services.insert(task.service_id.clone());
            }
            return;
        }
        if task::is_terminal(task) {
            self.delays.old_stopped(&task.id);
        }
        if !task.service_id.is_empty() && self.needs_restart(task) {
            self.pending.tasks.insert(task.id.clone());
        }
    }

    fn observe_node(&mut self, node: &Node, action: Action) {
        let gone = action == Action::Remove;
        let invalid = gone || task::is_invalid_node(Some(node));
        if gone {
            self.nodes.remove(&node.id);
        } else {
            self.nodes.insert(node.id.clone(), invalid);
        }
        if gone || task::is_down(node) {
            self.delays.node_lost(&node.id);
        }
        if invalid {
            self.pending.nodes.insert(node.id.clone());
        } else {
            self.pending.nodes.remove(&node.id);
        }
    }

    fn observe_cluster(&mut self, cluster: &Arc<Cluster>, action: Action) {
        if is_default(cluster) {
            self.cluster = (action != Action::Remove).then(|| Arc::clone(cluster));
        }
    }

    /// Whether a task that is meant to run does not, or has no business where it is.
    fn needs_restart(&self, task: &Task) -> bool {
        if !task::is_runnable(task) {
            return false;
        }
        let misplaced =
            !task.node_id.is_empty() && self.nodes.get(&task.node_id).copied().unwrap_or(true);
        task::is_terminal(task) || misplaced
    }

    /// Takes over the waits that the view shows, and ends those that events would have ended.
    fn resume_waits(
        &mut self,
        view: &ReadTx,
        waiting: Vec<DelayedStart>,
        now: Now,
    ) -> Result<(), StoreError> {
        let still: BTreeSet<&str> = waiting.iter().map(|start| start.task_id.as_str()).collect();
        self.delays.retain(|task_id| still.contains(task_id));
        for start in waiting {
            if !self.delays.is_waiting(&start.task_id) {
                self.delays.arm(start, now.instant);
            }
        }
        for old in self.delays.olds() {
            if pass::has_let_go(view, &old)? {
                self.delays.old_stopped(&old.id);
            }
        }
        Ok(())
    }

    fn note_pending(&mut self, now: Now) {
        if self.pending_since.is_none() && !self.pending.is_empty() {
            self.pending_since = Some(now.instant);
        }
    }
}

fn is_default(cluster: &Cluster) -> bool {
    let annotations = cluster
        .spec
        .as_ref()
        .and_then(|spec| spec.annotations.as_ref());
    annotations.is_some_and(|annotations| annotations.name == task::DEFAULT_CLUSTER)
}

/// The cluster object, if there is exactly one.
fn default_cluster(view: &ReadTx) -> Result<Option<Arc<Cluster>>, StoreError> {
    let found = view.find::<Cluster>(By::Name(task::DEFAULT_CLUSTER.to_owned()))?;
    Ok(match found.as_slice() {
        [only] => Some(Arc::clone(only)),
        _ => None,
    })
}
