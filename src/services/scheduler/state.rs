//! What the scheduler knows of tasks, and how it learns it.
//!
//! Every task in PENDING to RUNNING is known here: as waiting in the queue, as waiting for its preassigned
//! node to be confirmed, or as holding something of a node. Changes arrive in log order, mixed with the
//! scheduler's own decisions: a decision counts on the node's account from the moment it is taken, and is
//! certain once its own change has come by. Until then, older news of the task is not believed
//! (spec 07 sections 2 to 5).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tokio::time::Instant;

use super::debounce::Debounce;
use super::failures::Failures;
use super::nodes::{Hold, NodeIndex, Nodes};
use super::queue::{Arrival, GroupId, GroupKey, Queue};
use super::requirements::{Filter, Requirements};
use crate::api::types::{GenericResource, Node, Service, Task};
use crate::services::orchestrator::task::{self, COMPLETE, FAILED, PENDING, REJECTED, RUNNING};
use crate::storage::{Action, AnyObject, Change};

/// The scheduler's knowledge.
#[derive(Debug, Default)]
pub struct State {
    pub nodes: Nodes,
    pub queue: Queue,
    pub failures: Failures,
    pub debounce: Debounce,
    tasks: HashMap<Arc<str>, Known>,
    /// Index of the spec version of every service, if it has one.
    pub services: HashMap<Arc<str>, Option<u64>>,
    pub unconfirmed: Unconfirmed,
    /// Tasks that wait although nobody wants them any more, by service, with their spec version.
    pub withdrawn: HashMap<Arc<str>, BTreeMap<Arc<str>, u64>>,
}

#[derive(Debug)]
struct Known {
    place: Place,
    /// It came with its node. Never changes.
    preassigned: bool,
}

#[derive(Debug)]
enum Place {
    Queued(GroupId, Arrival),
    /// Waits for its own node.
    Unconfirmed,
    /// Waits, and is not to be placed.
    Withdrawn(Arc<str>),
    Holding {
        index: NodeIndex,
        hold: Hold,
        /// Placed by a decision whose change has not come by yet.
        undecided: bool,
    },
}

/// Tasks that came with a node and have not been confirmed there.
#[derive(Debug, Default)]
pub struct Unconfirmed {
    tasks: HashMap<Arc<str>, Preassigned>,
    by_node: HashMap<String, BTreeSet<Arc<str>>>,
    /// Those to look at in the next pass.
    pub due: BTreeSet<Arc<str>>,
}

/// One of them.
#[derive(Debug)]
pub struct Preassigned {
    pub node_id: String,
    pub service: Arc<str>,
    pub requirements: Arc<Requirements>,
    pub desired_state: i32,
    /// What it has been told.
    pub told: Option<Filter>,
}

impl Unconfirmed {
    pub fn get_mut(&mut self, task_id: &str) -> Option<&mut Preassigned> {
        self.tasks.get_mut(task_id)
    }

    /// A node has changed: its tasks are looked at again. `true` if there are any.
    pub fn touch(&mut self, node_id: &str) -> bool {
        let Some(on_node) = self.by_node.get(node_id) else {
            return false;
        };
        self.due.extend(on_node.iter().cloned());
        true
    }

    fn insert(&mut self, task_id: &Arc<str>, task: Preassigned) {
        let on_node = self.by_node.entry(task.node_id.clone()).or_default();
        on_node.insert(Arc::clone(task_id));
        self.due.insert(Arc::clone(task_id));
        self.tasks.insert(Arc::clone(task_id), task);
    }

    fn remove(&mut self, task_id: &str) {
        let Some(task) = self.tasks.remove(task_id) else {
            return;
        };
        self.due.remove(task_id);
        if let Some(on_node) = self.by_node.get_mut(&task.node_id) {
            on_node.remove(task_id);
            if on_node.is_empty() {
                self.by_node.remove(&task.node_id);
            }
        }
    }
}

impl State {
    /// Forgets everything but recent failures, which the store does not know.
    pub fn reset(&mut self) {
        *self = State {
            failures: std::mem::take(&mut self.failures),
            ..State::default()
        };
    }

    /// Hears of one change.
    pub fn observe(&mut self, change: &Change, now: Instant) {
        let removed = change.action == Action::Remove;
        let dirty = match &change.object {
            AnyObject::Task(task) if removed => self.forget(&task.id),
            AnyObject::Task(task) => self.observe_task(task, now),
            AnyObject::Node(node) => self.observe_node(node, removed),
            AnyObject::Service(service) => self.observe_service(service, removed),
            _ => false,
        };
        if dirty {
            self.debounce.changed(now);
        }
    }

    /// A node was created, has changed or is gone. `true` if a pass may find something to do.
    pub fn observe_node(&mut self, node: &Arc<Node>, removed: bool) -> bool {
        if removed {
            self.nodes.remove_node(&node.id);
            // What waits has to be told of one node less.
            return !self.queue.is_empty();
        }
        self.nodes.set_node(node);
        self.unconfirmed.touch(&node.id) || !self.queue.is_empty()
    }

    /// A service was created, has changed or is gone. `true` if a pass may find something to do.
    pub fn observe_service(&mut self, service: &Service, removed: bool) -> bool {
        let id: Arc<str> = service.id.as_str().into();
        let has_withdrawn = self.withdrawn.contains_key(&id);
        if removed {
            self.services.remove(&id);
            self.withdrawn.remove(&id);
            return !self.queue.is_empty();
        }
        let version = service.spec_version.map(|version| version.index);
        self.services.insert(id, version);
        has_withdrawn
    }

    /// A task was created or has changed. `true` if a pass may find something to do.
    pub fn observe_task(&mut self, task: &Task, now: Instant) -> bool {
        let state = task::observed(task);
        if state < PENDING {
            return false;
        }
        if state > RUNNING {
            if state == FAILED || state == REJECTED {
                self.record_failure(task, now);
            }
            return self.forget(&task.id);
        }
        if self.is_undecided(&task.id) && (state == PENDING || task.node_id.is_empty()) {
            return false;
        }
        let id = self.shared_id(&task.id);
        if state == PENDING && task.desired_state > COMPLETE {
            return self.withdraw(&id, task);
        }
        if !task.node_id.is_empty() && state > PENDING {
            return self.hold(&id, task);
        }
        if !task.node_id.is_empty() {
            return self.await_confirmation(&id, task);
        }
        if state > PENDING {
            // Past scheduling without ever having had a node: nothing to be accounted for.
            return self.forget(&task.id);
        }
        self.enqueue(&id, task)
    }

    /// A task is gone or has ended. `true` if something became free that others may wait for.
    pub fn forget(&mut self, task_id: &str) -> bool {
        let Some(known) = self.tasks.remove(task_id) else {
            return false;
        };
        match known.place {
            Place::Queued(group, arrival) => {
                self.queue.remove(group, arrival);
                false
            }
            Place::Unconfirmed => {
                self.unconfirmed.remove(task_id);
                false
            }
            Place::Withdrawn(service) => {
                if let Some(tasks) = self.withdrawn.get_mut(&service) {
                    tasks.remove(task_id);
                    if tasks.is_empty() {
                        self.withdrawn.remove(&service);
                    }
                }
                false
            }
            Place::Holding { index, hold, .. } => {
                let node = self
                    .nodes
                    .account(index)
                    .map(|account| Arc::clone(&account.id));
                self.nodes.remove(index, task_id, &hold);
                let waiting = node.is_some_and(|node| self.unconfirmed.touch(&node));
                waiting || !self.queue.is_empty()
            }
        }
    }

    /// A decision to run a task on a node: it counts from now on.
    pub fn decide(
        &mut self,
        task_id: &Arc<str>,
        index: NodeIndex,
        hold: Hold,
        generic: &[GenericResource],
    ) {
        self.nodes.add(index, task_id, &hold, generic);
        let place = Place::Holding {
            index,
            hold,
            undecided: true,
        };
        let preassigned = self
            .tasks
            .get(task_id)
            .is_some_and(|known| known.preassigned);
        self.unconfirmed.remove(task_id);
        self.tasks
            .insert(Arc::clone(task_id), Known { place, preassigned });
    }

    /// A decision was refused; `task` is what the store had instead.
    pub fn refuse(&mut self, task_id: &str, task: Option<&Task>, now: Instant) {
        if !self.is_undecided(task_id) {
            return;
        }
        self.forget(task_id);
        if let Some(task) = task {
            self.observe_task(task, now);
        }
        self.debounce.changed(now);
    }

    /// Drops a task that was taken out of its group; its service is gone.
    pub fn drop_queued(&mut self, task_id: &str) {
        self.tasks.remove(task_id);
    }

    fn is_undecided(&self, task_id: &str) -> bool {
        let known = self.tasks.get(task_id);
        known.is_some_and(|known| {
            matches!(
                known.place,
                Place::Holding {
                    undecided: true,
                    ..
                }
            )
        })
    }

    fn enqueue(&mut self, id: &Arc<str>, task: &Task) -> bool {
        if let Some(Known {
            place: Place::Queued(..),
            ..
        }) = self.tasks.get(id)
        {
            return false;
        }
        self.forget(id);
        let key = group_key(task);
        let (group, arrival) = self.queue.push(id, &key, Requirements::of(task));
        let place = Place::Queued(group, arrival);
        self.insert(id, place, false);
        true
    }

    fn await_confirmation(&mut self, id: &Arc<str>, task: &Task) -> bool {
        if let Some(waiting) = self.unconfirmed.get_mut(id) {
            waiting.desired_state = task.desired_state;
            return false;
        }
        self.forget(id);
        let waiting = Preassigned {
            node_id: task.node_id.clone(),
            service: task.service_id.as_str().into(),
            requirements: Arc::new(Requirements::of(task)),
            desired_state: task.desired_state,
            told: None,
        };
        self.unconfirmed.insert(id, waiting);
        self.insert(id, Place::Unconfirmed, true);
        true
    }

    fn withdraw(&mut self, id: &Arc<str>, task: &Task) -> bool {
        self.forget(id);
        let (service, version) = group_key(task);
        self.insert(
            id,
            Place::Withdrawn(Arc::clone(&service)),
            !task.node_id.is_empty(),
        );
        let Some(version) = version.filter(|_| task.node_id.is_empty()) else {
            return false;
        };
        let tasks = self.withdrawn.entry(Arc::clone(&service)).or_default();
        tasks.insert(Arc::clone(id), version);
        self.is_outdated(&service, version)
    }

    /// Whether a service has moved on from a spec version.
    pub fn is_outdated(&self, service: &str, version: u64) -> bool {
        let current = self.services.get(service).copied().flatten();
        current.is_some_and(|current| current > version)
    }

    fn hold(&mut self, id: &Arc<str>, task: &Task) -> bool {
        let on_node = self.nodes.index_of(&task.node_id);
        if let Some(Known {
            place:
                Place::Holding {
                    index,
                    hold,
                    undecided,
                },
            ..
        }) = self.tasks.get_mut(id)
            && *index == on_node
        {
            *undecided = false;
            let fewer = self.nodes.set_active(on_node, hold, task.desired_state);
            return fewer && !self.queue.is_empty();
        }
        let preassigned = self.tasks.get(id).is_some_and(|known| known.preassigned);
        // The account is opened again in case this was its last task.
        self.forget(id);
        let index = self.nodes.index_of(&task.node_id);
        let hold = Hold::of(self.shared_service(&task.service_id), task);
        self.nodes
            .add(index, id, &hold, &task.assigned_generic_resources);
        let place = Place::Holding {
            index,
            hold,
            undecided: false,
        };
        self.insert(id, place, preassigned);
        false
    }

    fn record_failure(&mut self, task: &Task, now: Instant) {
        let Some(known) = self.tasks.get(task.id.as_str()) else {
            return;
        };
        let Place::Holding { index, hold, .. } = &known.place else {
            return;
        };
        if known.preassigned {
            return;
        }
        if let Some(account) = self.nodes.account(*index) {
            let version = task.spec_version.map_or(0, |version| version.index);
            let version = (Arc::clone(&hold.service), version);
            self.failures.record(version, &account.id, now);
        }
    }

    fn insert(&mut self, id: &Arc<str>, place: Place, preassigned: bool) {
        self.tasks
            .insert(Arc::clone(id), Known { place, preassigned });
    }

    fn shared_id(&self, id: &str) -> Arc<str> {
        let known = self.tasks.get_key_value(id);
        known.map_or_else(|| id.into(), |(id, _)| Arc::clone(id))
    }

    fn shared_service(&self, id: &str) -> Arc<str> {
        let known = self.services.get_key_value(id);
        known.map_or_else(|| id.into(), |(id, _)| Arc::clone(id))
    }
}

/// Which tasks may be interchangeable with this one.
fn group_key(task: &Task) -> GroupKey {
    let version = task.spec_version.map(|version| version.index);
    (task.service_id.as_str().into(), version)
}
