//! Tasks that wait for a node, in groups of interchangeable ones.
//!
//! A group is made of the tasks of one service and version that ask the same of a node. It is placed as a
//! whole; if no node can take another of its tasks it is *blocked*, and remembers which filter every node
//! failed at, so that a change of one node costs one look at that node (spec 07 section 10). Groups are
//! served in the order in which their oldest task arrived.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::nodes::{NodeIndex, Nodes};
use super::requirements::{Blame, Filter, Requirements};

/// Number of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u64);

/// Number of an arrival; tasks of a group are placed in this order.
pub type Arrival = u64;

/// Service ID and index of the spec version.
pub type GroupKey = (Arc<str>, Option<u64>);

/// Shortest time between two rewritings of a group's explanation, plus this much per task: explanations
/// of a hundred thousand tasks are not rewritten whenever a node comes or goes.
const RETELL_MIN: Duration = Duration::from_secs(1);
const RETELL_PER_TASK: Duration = Duration::from_millis(1);

/// Memory for the per-node reasons of all blocked groups together. Groups beyond it are tried on all
/// nodes in every pass instead.
const REASONS_BYTES_MAX: usize = 32 << 20;

/// Interchangeable tasks.
#[derive(Debug)]
pub struct Group {
    pub key: GroupKey,
    pub requirements: Arc<Requirements>,
    pub tasks: BTreeMap<Arrival, Arc<str>>,
    pub blocked: Option<Blocked>,
    told: Told,
}

/// What the tasks of a blocked group have been told.
#[derive(Debug, Default)]
struct Told {
    text: String,
    /// Tasks that have not been told it.
    missing: BTreeSet<Arrival>,
    /// When it may be changed for all of them.
    changeable: Option<Instant>,
}

/// Why no node takes a task of a group.
#[derive(Debug)]
pub struct Blocked {
    /// Per account, the filter that refused; `None` when there is no memory for it.
    reasons: Option<Vec<Option<Filter>>>,
    blame: Blame,
}

impl Blocked {
    /// `reasons` has one entry per account.
    pub fn new(reasons: Vec<Option<Filter>>) -> Blocked {
        let mut blame = Blame::default();
        for filter in reasons.iter().flatten() {
            blame.add(*filter);
        }
        Blocked {
            reasons: Some(reasons),
            blame,
        }
    }

    fn bytes(&self) -> usize {
        self.reasons.as_ref().map_or(0, Vec::len)
    }

    /// Looks at the nodes that have changed. `false`: one of them takes a task now, or it is not known.
    pub fn still_blocked(
        &mut self,
        nodes: &Nodes,
        touched: &BTreeSet<NodeIndex>,
        key: &GroupKey,
        requirements: &Requirements,
    ) -> bool {
        let Some(reasons) = &mut self.reasons else {
            return false;
        };
        reasons.resize(nodes.slots(), None);
        for index in touched {
            let reason = match nodes.known(*index) {
                None => None,
                Some((node, account)) => {
                    let of_service = nodes.of_service(&key.0, *index);
                    match requirements.refused_by(node, account, of_service) {
                        None => return false,
                        refused => refused,
                    }
                }
            };
            let before = std::mem::replace(&mut reasons[index.position()], reason);
            if let Some(before) = before {
                self.blame.remove(before);
            }
            if let Some(reason) = reason {
                self.blame.add(reason);
            }
        }
        true
    }
}

/// Explanations to be written, and when there may be more.
#[derive(Debug, Default)]
pub struct Explanations {
    pub tasks: Vec<(Arc<str>, String)>,
    pub more_at: Option<Instant>,
}

impl Group {
    /// What the tasks of a blocked group have to be told now, `limit` of them at most. Newcomers are told at
    /// once, a changed reason is told to the others after a while.
    pub fn explain(&mut self, now: Instant, limit: usize) -> Explanations {
        let mut explanations = Explanations::default();
        let Some(blocked) = &self.blocked else {
            return explanations;
        };
        let text = match blocked.blame.to_string() {
            none if none.is_empty() => "no suitable node".to_owned(),
            reasons => format!("no suitable node ({reasons})"),
        };
        if text != self.told.text {
            match self.told.changeable {
                Some(changeable) if now < changeable => explanations.more_at = Some(changeable),
                _ => {
                    let tasks = u32::try_from(self.tasks.len()).unwrap_or(u32::MAX);
                    let pause = RETELL_MIN + RETELL_PER_TASK.saturating_mul(tasks);
                    self.told.text.clone_from(&text);
                    self.told.missing = self.tasks.keys().copied().collect();
                    self.told.changeable = Some(now + pause);
                }
            }
        }
        while explanations.tasks.len() < limit
            && let Some(arrival) = self.told.missing.pop_first()
        {
            if let Some(task_id) = self.tasks.get(&arrival) {
                explanations.tasks.push((Arc::clone(task_id), text.clone()));
            }
        }
        if !self.told.missing.is_empty() {
            explanations.more_at = Some(now);
        }
        explanations
    }
}

/// All groups.
#[derive(Debug, Default)]
pub struct Queue {
    groups: BTreeMap<GroupId, Group>,
    by_key: HashMap<GroupKey, Vec<GroupId>>,
    next_group: u64,
    next_arrival: Arrival,
    reasons_bytes: usize,
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Queues a task with its like.
    pub fn push(
        &mut self,
        task_id: &Arc<str>,
        key: &GroupKey,
        requirements: Requirements,
    ) -> (GroupId, Arrival) {
        let alike = self.by_key.get(key).into_iter().flatten().copied();
        let mut alike = alike.filter(|id| {
            let group = self.groups.get(id);
            group.is_some_and(|group| *group.requirements == requirements)
        });
        let id = match alike.next() {
            Some(id) => id,
            None => self.open(key, requirements),
        };
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        if let Some(group) = self.groups.get_mut(&id) {
            group.tasks.insert(arrival, Arc::clone(task_id));
            group.told.missing.insert(arrival);
        }
        (id, arrival)
    }

    /// Takes a task out of its group.
    pub fn remove(&mut self, id: GroupId, arrival: Arrival) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        group.tasks.remove(&arrival);
        group.told.missing.remove(&arrival);
        if group.tasks.is_empty() {
            self.take(id);
        }
    }

    /// The groups, oldest task first.
    pub fn in_order(&self) -> Vec<GroupId> {
        let groups = self.groups.iter();
        let mut order: Vec<(Arrival, GroupId)> = groups
            .filter_map(|(id, group)| Some((*group.tasks.first_key_value()?.0, *id)))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, id)| id).collect()
    }

    /// Takes a group out, to work on it; [`Queue::put_back`] returns it.
    pub fn take(&mut self, id: GroupId) -> Option<Group> {
        let group = self.groups.remove(&id)?;
        self.reasons_bytes -= group.blocked.as_ref().map_or(0, Blocked::bytes);
        if let Some(alike) = self.by_key.get_mut(&group.key) {
            alike.retain(|other| *other != id);
            if alike.is_empty() {
                self.by_key.remove(&group.key);
            }
        }
        Some(group)
    }

    /// Returns a group. One without tasks is dropped.
    pub fn put_back(&mut self, id: GroupId, mut group: Group) {
        if group.tasks.is_empty() {
            return;
        }
        if let Some(blocked) = &mut group.blocked {
            if self.reasons_bytes + blocked.bytes() > REASONS_BYTES_MAX {
                blocked.reasons = None;
            }
            self.reasons_bytes += blocked.bytes();
        }
        self.by_key.entry(group.key.clone()).or_default().push(id);
        self.groups.insert(id, group);
    }

    fn open(&mut self, key: &GroupKey, requirements: Requirements) -> GroupId {
        let id = GroupId(self.next_group);
        self.next_group += 1;
        let group = Group {
            key: key.clone(),
            requirements: Arc::new(requirements),
            tasks: BTreeMap::new(),
            blocked: None,
            told: Told::default(),
        };
        self.by_key.entry(key.clone()).or_default().push(id);
        self.groups.insert(id, group);
        id
    }
}
