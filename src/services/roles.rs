//! The role manager: makes the observed role of nodes follow the desired one, and the raft group the nodes.
//!
//! Promotion: the observed role becomes *manager*, the node gets a manager certificate and joins the raft
//! group by itself. Demotion: the node is first taken out of the raft group, then its observed role becomes
//! *worker*. A member whose node object is gone is taken out too (spec 03 section 7.5).
//!
//! Guarantees: a member is removed only while enough others are reachable; the leader hands leadership over
//! before it is removed; a role is written only if wish and role are still what the decision was made on.
//! What cannot be done now is tried again every [`RETRY_INTERVAL`], for as long as it is wanted.
//!
//! Never does: revoke or issue certificates. They follow the observed role.

use crate::api::types::{Node, NodeRole};
use crate::raft::RaftError;
use crate::services::control::{self, Member};
use crate::services::leader::{LeaderService, Ready, Term};
use crate::services::reconcile::{Now, Reconciler, drive};
use crate::storage::{
    Action, By, EventBatch, Interest, ProposeError, ReadTx, Store, StoreError, Table, Tx,
};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

#[cfg(test)]
mod tests;

const NAME: &str = "role-manager";
/// Pause before something that could not be done is tried again (spec 03 section 1).
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait for one removal to be committed (spec 03 section 1).
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Nodes per pass, so that a pass stays short and new wishes are heard.
const NODES_PER_PASS_MAX: usize = 64;

/// What the role manager does to the raft group.
pub trait GroupControl: Send + Sync + 'static {
    /// This manager's raft ID.
    fn raft_id(&self) -> u64;
    /// All members; `None` if this node is not (or no longer) one.
    fn members(&self) -> Option<Vec<Member>>;
    /// Removes a member; done when the change is applied here.
    fn remove(&self, raft_id: u64) -> BoxFuture<'static, Result<(), RaftError>>;
    /// Hands leadership to another member; done when another leader is known.
    fn transfer(&self) -> BoxFuture<'static, Result<(), RaftError>>;
}

/// The leader service.
pub struct RoleManager {
    group: Arc<dyn GroupControl>,
}

impl RoleManager {
    pub fn new(group: Arc<dyn GroupControl>) -> RoleManager {
        RoleManager { group }
    }
}

impl LeaderService for RoleManager {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&self, term: Term, ready: Ready) -> BoxFuture<'static, anyhow::Result<()>> {
        drive(term, ready, Roles::new(self.group.clone())).boxed()
    }
}

/// The nodes that are not yet what they should be. Bounded by the nodes and the members.
struct Roles {
    group: Arc<dyn GroupControl>,
    /// When each is looked at next.
    queue: BTreeMap<String, Instant>,
}

impl Roles {
    fn new(group: Arc<dyn GroupControl>) -> Roles {
        Roles {
            group,
            queue: BTreeMap::new(),
        }
    }
}

/// One pass over some nodes.
struct Pass {
    group: Arc<dyn GroupControl>,
    nodes: Vec<String>,
}

impl Reconciler for Roles {
    type Work = Pass;
    /// The nodes that have to be looked at again.
    type Outcome = Vec<String>;

    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> Vec<Interest> {
        vec![Interest::Table(Table::Node)]
    }

    fn load(&mut self, view: &ReadTx, now: Now) -> Result<(), StoreError> {
        self.queue.clear();
        for node in view.find::<Node>(By::All)? {
            if wish(&node).is_some() {
                self.queue.insert(node.id.clone(), now.instant);
            }
        }
        for member in self.group.members().unwrap_or_default() {
            if view.get::<Node>(&member.node_id)?.is_none() {
                self.queue.insert(member.node_id, now.instant);
            }
        }
        Ok(())
    }

    fn observe(&mut self, batch: &EventBatch, now: Now) {
        for change in &batch.changes {
            let Some(node) = change.get::<Node>() else {
                continue;
            };
            if change.action == Action::Remove || wish(node).is_some() {
                self.queue.entry(node.id.clone()).or_insert(now.instant);
            } else {
                self.queue.remove(&node.id);
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.queue.values().min().copied()
    }

    fn plan(&mut self, now: Now) -> Option<Pass> {
        let due = self.queue.iter().filter(|(_, due)| **due <= now.instant);
        let nodes: Vec<String> = due
            .map(|(id, _)| id.clone())
            .take(NODES_PER_PASS_MAX)
            .collect();
        if nodes.is_empty() {
            return None;
        }
        for id in &nodes {
            self.queue.remove(id);
        }
        Some(Pass {
            group: self.group.clone(),
            nodes,
        })
    }

    fn perform(store: Store, pass: Pass) -> BoxFuture<'static, Result<Vec<String>, StoreError>> {
        async move {
            let mut later = Vec::new();
            for id in pass.nodes {
                if !reconcile(&store, &pass.group, &id).await? {
                    later.push(id);
                }
            }
            Ok(later)
        }
        .boxed()
    }

    fn settle(&mut self, later: Vec<String>, now: Now) {
        for id in later {
            self.queue.insert(id, now.instant + RETRY_INTERVAL);
        }
    }
}

/// The role that a node should get, if it has another one.
fn wish(node: &Node) -> Option<NodeRole> {
    let desired = node.spec.as_ref().map_or(0, |spec| spec.desired_role);
    let desired = NodeRole::try_from(desired).ok()?;
    (desired as i32 != node.role).then_some(desired)
}

/// Does what is to be done about one node now; says whether that is all.
async fn reconcile(
    store: &Store,
    group: &Arc<dyn GroupControl>,
    node_id: &str,
) -> Result<bool, StoreError> {
    let node = store.view(|view| view.get::<Node>(node_id))?;
    let wished = match &node {
        Some(node) => wish(node),
        None => Some(NodeRole::Worker),
    };
    match wished {
        None => return Ok(true),
        // Membership is not touched: the node joins by itself once it has its certificate.
        Some(NodeRole::Manager) => return set_role(store, node_id, NodeRole::Manager).await,
        Some(NodeRole::Worker) => {}
    }
    let Some(members) = group.members() else {
        return Ok(false);
    };
    // After a lost disk a node may be there under an old and a new raft ID.
    let of_node = members.iter().filter(|member| member.node_id == node_id);
    for raft_id in of_node
        .map(|member| member.raft_id)
        .collect::<BTreeSet<_>>()
    {
        if !take_out(group, &members, raft_id).await {
            return Ok(false);
        }
    }
    match node {
        Some(_) => set_role(store, node_id, NodeRole::Worker).await,
        None => Ok(true),
    }
}

/// Writes the role if it is still wished for.
async fn set_role(store: &Store, node_id: &str, role: NodeRole) -> Result<bool, StoreError> {
    let written = store
        .update(|tx: &mut Tx| -> Result<bool, StoreError> {
            let Some(node) = tx.get::<Node>(node_id)? else {
                return Ok(false);
            };
            if wish(&node) != Some(role) {
                return Ok(false);
            }
            let mut node = Arc::unwrap_or_clone(node);
            node.role = role as i32;
            tx.update(node)?;
            Ok(true)
        })
        .await?;
    if written {
        tracing::info!(
            node_id,
            role = role.as_str_name(),
            "the node has another role"
        );
    }
    Ok(true)
}

/// Takes a member out of the raft group; says whether it is out.
async fn take_out(group: &Arc<dyn GroupControl>, members: &[Member], raft_id: u64) -> bool {
    let id = format!("{raft_id:x}");
    if let Err(shortage) = control::check_removal(members, raft_id) {
        tracing::warn!(
            raft_id = id,
            reachable = shortage.reachable,
            needed = shortage.needed,
            "a manager is to be demoted, but the others would have no quorum without it; trying \
             again when more of them are reachable"
        );
        return false;
    }
    if raft_id == group.raft_id() {
        // The term ends in the middle of this, so it must not end with the term.
        let transfer = tokio::spawn(group.transfer());
        match transfer.await {
            Ok(Ok(())) => {
                tracing::info!("handed leadership over; the next leader takes this manager out");
                return false;
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "leadership could not be handed over; leaving as the leader");
            }
            Err(error) => {
                tracing::error!(%error, "handing leadership over ended badly");
                return false;
            }
        }
    }
    match tokio::time::timeout(REMOVAL_TIMEOUT, group.remove(raft_id)).await {
        Ok(Ok(())) => {
            tracing::info!(raft_id = id, "took a manager out of the raft group");
            true
        }
        Ok(Err(RaftError::IdRemoved | RaftError::IdNotFound)) => true,
        Ok(Err(error)) => {
            tracing::warn!(raft_id = id, %error, "a manager could not be taken out of the raft group");
            false
        }
        Err(_) => {
            tracing::warn!(
                raft_id = id,
                error = %ProposeError::Busy,
                "taking a manager out of the raft group takes too long"
            );
            false
        }
    }
}
