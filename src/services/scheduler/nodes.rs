//! What every node has, what is taken of it, and which services run there.
//!
//! The accounts are kept by adding and removing tasks one by one; they equal what a recount over all tasks
//! gives (a property test says so). A task holds its reservations and ports until it has ended, even while
//! it is being stopped, but counts as *active* only as long as it is meant to run (spec 07 section 5).
//!
//! Tasks may be known before their node is: such an account exists, holds its tasks, and is offered to
//! nobody.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use super::requirements::{HostPort, Requirements, host_ports, reservations};
use crate::api::generic;
use crate::api::types::{GenericResource, Node, Resources, Task};
use crate::services::orchestrator::task::COMPLETE;

/// Number of an account; given to another node once its node is gone and its tasks have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(u32);

impl NodeIndex {
    /// Position in a list with one entry per account.
    pub fn position(self) -> usize {
        self.0 as usize
    }
}

/// A known node's place in the order of preference, as far as it does not depend on the service: the one
/// with fewer active tasks first, then the one with the lower ID.
pub type Rank = (u32, Arc<str>, NodeIndex);

/// What one task takes from its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub service: Arc<str>,
    nano_cpus: i64,
    memory_bytes: i64,
    host_ports: Box<[HostPort]>,
    active: bool,
}

impl Hold {
    /// What a stored task takes.
    pub fn of(service: Arc<str>, task: &Task) -> Hold {
        let reserved = reservations(task);
        Hold {
            service,
            nano_cpus: reserved.map_or(0, |reserved| reserved.nano_cpus),
            memory_bytes: reserved.map_or(0, |reserved| reserved.memory_bytes),
            host_ports: host_ports(task).into(),
            active: task.desired_state <= COMPLETE,
        }
    }

    /// What a task with these requirements is going to take.
    pub fn new(service: Arc<str>, requirements: &Requirements, desired_state: i32) -> Hold {
        Hold {
            service,
            nano_cpus: requirements.nano_cpus,
            memory_bytes: requirements.memory_bytes,
            host_ports: requirements.host_ports.as_slice().into(),
            active: desired_state <= COMPLETE,
        }
    }
}

/// One node's account.
#[derive(Debug)]
pub struct Account {
    pub id: Arc<str>,
    node: Option<Arc<Node>>,
    nano_cpus_reserved: i128,
    memory_bytes_reserved: i128,
    generic_left: Vec<GenericResource>,
    /// What was given to tasks, by task ID.
    generic_assigned: BTreeMap<Arc<str>, Vec<GenericResource>>,
    host_ports: BTreeMap<HostPort, u32>,
    /// Tasks that hold something.
    holding: u32,
    /// Those of them that are meant to run.
    active: u32,
}

impl Account {
    fn new(id: Arc<str>) -> Account {
        Account {
            id,
            node: None,
            nano_cpus_reserved: 0,
            memory_bytes_reserved: 0,
            generic_left: Vec::new(),
            generic_assigned: BTreeMap::new(),
            host_ports: BTreeMap::new(),
            holding: 0,
            active: 0,
        }
    }

    /// The node, unless only tasks of it are known.
    pub fn node(&self) -> Option<&Arc<Node>> {
        self.node.as_ref()
    }

    /// May be negative: a node can shrink below what its tasks reserve.
    pub fn nano_cpus_left(&self) -> i128 {
        let described = self.described().map_or(0, |all| all.nano_cpus);
        i128::from(described) - self.nano_cpus_reserved
    }

    pub fn memory_bytes_left(&self) -> i128 {
        let described = self.described().map_or(0, |all| all.memory_bytes);
        i128::from(described) - self.memory_bytes_reserved
    }

    pub fn generic_left(&self) -> &[GenericResource] {
        &self.generic_left
    }

    pub fn uses_port(&self, port: HostPort) -> bool {
        self.host_ports.contains_key(&port)
    }

    pub fn active(&self) -> u32 {
        self.active
    }

    fn described(&self) -> Option<&Resources> {
        self.node.as_ref()?.description.as_ref()?.resources.as_ref()
    }

    fn described_generic(&self) -> &[GenericResource] {
        self.described().map_or(&[], |all| &all.generic)
    }

    /// What is left is what the node describes less what its tasks were given.
    fn recount_generic(&mut self) {
        let mut left = self.described_generic().to_vec();
        for assigned in self.generic_assigned.values() {
            generic::consume(&mut left, assigned);
        }
        self.generic_left = left;
    }
}

/// All accounts.
#[derive(Debug, Default)]
pub struct Nodes {
    accounts: Vec<Option<Account>>,
    free: Vec<NodeIndex>,
    by_id: HashMap<Arc<str>, NodeIndex>,
    /// Known nodes, best first.
    ranking: BTreeSet<Rank>,
    /// Active tasks by service and node, where there are any.
    services: HashMap<Arc<str>, HashMap<NodeIndex, u32>>,
    /// Accounts that have changed since [`Nodes::take_touched`].
    touched: BTreeSet<NodeIndex>,
}

impl Nodes {
    /// Length of a list with one entry per account.
    pub fn slots(&self) -> usize {
        self.accounts.len()
    }

    pub fn find(&self, id: &str) -> Option<NodeIndex> {
        self.by_id.get(id).copied()
    }

    pub fn account(&self, index: NodeIndex) -> Option<&Account> {
        self.accounts.get(index.position())?.as_ref()
    }

    /// A known node and its account.
    pub fn known(&self, index: NodeIndex) -> Option<(&Arc<Node>, &Account)> {
        let account = self.account(index)?;
        Some((account.node()?, account))
    }

    /// All known nodes, best first.
    pub fn ranking(&self) -> impl Iterator<Item = &Rank> {
        self.ranking.iter()
    }

    /// Known nodes that rank behind this one, best first.
    pub fn ranked_behind<'a>(
        &'a self,
        rank: Option<&Rank>,
    ) -> impl Iterator<Item = &'a Rank> + use<'a> {
        let from = rank.map_or(Unbounded, Excluded);
        self.ranking.range::<Rank, _>((from, Unbounded))
    }

    /// Active tasks of a service on a node.
    pub fn of_service(&self, service: &str, index: NodeIndex) -> u32 {
        let nodes = self.services.get(service);
        nodes
            .and_then(|nodes| nodes.get(&index))
            .copied()
            .unwrap_or(0)
    }

    /// Nodes with active tasks of a service, in no particular order.
    pub fn with_service(&self, service: &str) -> impl Iterator<Item = NodeIndex> {
        self.services
            .get(service)
            .into_iter()
            .flatten()
            .map(|(index, _)| *index)
    }

    /// The accounts that have changed since the last call.
    pub fn take_touched(&mut self) -> BTreeSet<NodeIndex> {
        std::mem::take(&mut self.touched)
    }

    /// A node was created or has changed.
    pub fn set_node(&mut self, node: &Arc<Node>) -> NodeIndex {
        let index = self.index_of(&node.id);
        self.unrank(index);
        if let Some(account) = self.account_mut(index) {
            account.node = Some(Arc::clone(node));
            account.recount_generic();
        }
        self.rank(index);
        index
    }

    /// A node is gone. Its tasks, should there be any, keep their account.
    pub fn remove_node(&mut self, id: &str) {
        let Some(index) = self.find(id) else {
            return;
        };
        self.unrank(index);
        if let Some(account) = self.account_mut(index) {
            account.node = None;
            account.recount_generic();
        }
        self.release_if_empty(index);
    }

    /// The number of a node's account, which is opened if need be.
    pub fn index_of(&mut self, id: &str) -> NodeIndex {
        if let Some(index) = self.find(id) {
            return index;
        }
        let id: Arc<str> = id.into();
        let index = self.free.pop().unwrap_or_else(|| {
            self.accounts.push(None);
            // Nodes are counted in thousands; their number fits long before memory does.
            NodeIndex((self.accounts.len() - 1) as u32)
        });
        self.accounts[index.position()] = Some(Account::new(Arc::clone(&id)));
        self.by_id.insert(id, index);
        index
    }

    /// Puts a task on a node's account. `assigned` is what it was given of generic resources.
    pub fn add(
        &mut self,
        index: NodeIndex,
        task_id: &Arc<str>,
        hold: &Hold,
        assigned: &[GenericResource],
    ) {
        self.unrank(index);
        if let Some(account) = self.account_mut(index) {
            account.nano_cpus_reserved += i128::from(hold.nano_cpus);
            account.memory_bytes_reserved += i128::from(hold.memory_bytes);
            for port in &hold.host_ports {
                *account.host_ports.entry(*port).or_default() += 1;
            }
            if !assigned.is_empty() {
                generic::consume(&mut account.generic_left, assigned);
                account
                    .generic_assigned
                    .insert(Arc::clone(task_id), assigned.to_vec());
            }
            account.holding += 1;
        }
        if hold.active {
            self.count_active(index, &hold.service, true);
        }
        self.rank(index);
    }

    /// Takes a task off a node's account; exactly what [`Nodes::add`] took is given back.
    pub fn remove(&mut self, index: NodeIndex, task_id: &str, hold: &Hold) {
        self.unrank(index);
        if let Some(account) = self.account_mut(index) {
            account.nano_cpus_reserved -= i128::from(hold.nano_cpus);
            account.memory_bytes_reserved -= i128::from(hold.memory_bytes);
            for port in &hold.host_ports {
                if let Some(users) = account.host_ports.get_mut(port) {
                    *users -= 1;
                    if *users == 0 {
                        account.host_ports.remove(port);
                    }
                }
            }
            if account.generic_assigned.remove(task_id).is_some() {
                // Counted anew, not added up: a node may have shrunk below what its tasks hold.
                account.recount_generic();
            }
            account.holding = account.holding.saturating_sub(1);
        }
        if hold.active {
            self.count_active(index, &hold.service, false);
        }
        self.rank(index);
        self.release_if_empty(index);
    }

    /// Notes whether a task on the account is still meant to run. `true` if it no longer is.
    pub fn set_active(&mut self, index: NodeIndex, hold: &mut Hold, desired_state: i32) -> bool {
        let active = desired_state <= COMPLETE;
        if active == hold.active {
            return false;
        }
        hold.active = active;
        self.unrank(index);
        self.count_active(index, &hold.service, active);
        self.rank(index);
        !active
    }

    /// The members or amounts that a reservation would get on a node now; `None` if it has too little.
    pub fn claim(
        &self,
        index: NodeIndex,
        reservations: &[GenericResource],
    ) -> Option<Vec<GenericResource>> {
        if reservations.is_empty() {
            return Some(Vec::new());
        }
        let mut left = self.account(index)?.generic_left.clone();
        let mut assigned = Vec::new();
        generic::claim(&mut left, &mut assigned, reservations).ok()?;
        Some(assigned)
    }

    fn account_mut(&mut self, index: NodeIndex) -> Option<&mut Account> {
        self.touched.insert(index);
        self.accounts.get_mut(index.position())?.as_mut()
    }

    fn count_active(&mut self, index: NodeIndex, service: &Arc<str>, more: bool) {
        let Some(account) = self.account_mut(index) else {
            return;
        };
        if more {
            account.active += 1;
            let nodes = self.services.entry(Arc::clone(service)).or_default();
            *nodes.entry(index).or_default() += 1;
            return;
        }
        account.active = account.active.saturating_sub(1);
        let Some(nodes) = self.services.get_mut(service) else {
            return;
        };
        if let Some(count) = nodes.get_mut(&index) {
            *count -= 1;
            if *count == 0 {
                nodes.remove(&index);
            }
        }
        if nodes.is_empty() {
            self.services.remove(service);
        }
    }

    /// Takes a node out of the ranking before its account changes; [`Nodes::rank`] puts it back.
    fn unrank(&mut self, index: NodeIndex) {
        if let Some(rank) = self.rank_of(index) {
            self.ranking.remove(&rank);
        }
    }

    fn rank(&mut self, index: NodeIndex) {
        if let Some(rank) = self.rank_of(index) {
            self.ranking.insert(rank);
        }
    }

    fn rank_of(&self, index: NodeIndex) -> Option<Rank> {
        let (_, account) = self.known(index)?;
        Some((account.active, Arc::clone(&account.id), index))
    }

    fn release_if_empty(&mut self, index: NodeIndex) {
        let unused = |account: &Account| account.node.is_none() && account.holding == 0;
        if let Some(account) = self.account(index).filter(|account| unused(account)) {
            let id = Arc::clone(&account.id);
            self.by_id.remove(&id);
            self.accounts[index.position()] = None;
            self.free.push(index);
        }
    }
}

#[cfg(test)]
impl Nodes {
    /// Everything that is counted, one line per account and one per service, to be compared with a recount.
    pub fn counts(&self) -> Vec<String> {
        let accounts = self.accounts.iter().flatten();
        let mut lines: Vec<String> = accounts
            .map(|account| {
                let mut generic: Vec<String> =
                    account.generic_left.iter().map(|entry| format!("{entry:?}")).collect();
                generic.sort();
                format!(
                    "{} known={} cpus={} memory={} generic={generic:?} ports={:?} holding={} active={}",
                    account.id,
                    account.node.is_some(),
                    account.nano_cpus_left(),
                    account.memory_bytes_left(),
                    account.host_ports,
                    account.holding,
                    account.active,
                )
            })
            .collect();
        for (service, nodes) in &self.services {
            for (index, count) in nodes {
                let id = self.account(*index).map(|account| account.id.to_string());
                lines.push(format!("service {service} on {id:?}: {count}"));
            }
        }
        let ranks = self
            .ranking
            .iter()
            .map(|(active, id, _)| format!("rank {active} {id}"));
        lines.extend(ranks);
        lines.sort();
        lines
    }
}
