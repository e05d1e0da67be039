//! What the managers say about this node and the cluster: the newest session message, and what changed.
//!
//! The view is level-triggered: whoever waits for changes always gets the difference between what it saw
//! last and what holds now. Intermediate states that nobody looked at are not reported.

use crate::api::types::{
    EncryptionKey, Node, NodeRole, SessionMessage, issuance_status::State as IssuanceState,
};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::watch;

/// The newest of what the managers said. Everything is empty before the first session.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterView {
    /// This node's object, complete.
    pub node: Option<Arc<Node>>,
    /// PEM of the roots to trust, exactly as sent; empty while unknown.
    pub root_ca: Arc<Vec<u8>>,
    /// Keys for gossip and overlay traffic.
    pub network_keys: Arc<Vec<EncryptionKey>>,
}

impl ClusterView {
    /// Takes a session message in. What a message leaves out stays as it is.
    pub(crate) fn take(&mut self, message: SessionMessage) {
        if let Some(node) = message.node {
            self.node = Some(Arc::new(node));
        }
        if !message.root_ca.is_empty() && *self.root_ca != message.root_ca {
            self.root_ca = Arc::new(message.root_ca);
        }
        if has_new_key(&self.network_keys, &message.network_bootstrap_keys) {
            self.network_keys = Arc::new(message.network_bootstrap_keys);
        }
    }

    /// The role an operator wants this node to have.
    pub fn desired_role(&self) -> Option<NodeRole> {
        let spec = self.node.as_ref()?.spec.as_ref()?;
        NodeRole::try_from(spec.desired_role).ok()
    }

    /// The role the managers will certify this node for.
    pub fn role(&self) -> Option<NodeRole> {
        NodeRole::try_from(self.node.as_ref()?.role).ok()
    }

    /// The managers ask for a new certificate.
    pub fn wants_rotation(&self) -> bool {
        self.node
            .as_ref()
            .and_then(|node| node.certificate.as_ref()?.status.as_ref())
            .is_some_and(|status| status.state == IssuanceState::Rotate as i32)
    }

    fn vxlan_port(&self) -> u32 {
        self.node.as_ref().map_or(0, |node| node.vxlanudp_port)
    }
}

/// Keys count as new if any of them has a logical time that no known one has (spec 08 section 15.4).
fn has_new_key(known: &[EncryptionKey], offered: &[EncryptionKey]) -> bool {
    offered
        .iter()
        .any(|new| known.iter().all(|old| old.lamport_time != new.lamport_time))
}

/// The same node, status and bookkeeping aside.
pub(crate) fn same_node(one: Option<&Arc<Node>>, other: Option<&Arc<Node>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => {
            let bare = |node: &Node| Node {
                meta: None,
                status: None,
                ..node.clone()
            };
            Arc::ptr_eq(one, other) || bare(one) == bare(other)
        }
        (None, None) => true,
        _ => false,
    }
}

/// One difference that the node has to act on (spec 08 section 15.4).
#[derive(Debug, Clone, PartialEq)]
pub enum NodeChange {
    /// An operator wants another role.
    DesiredRole(NodeRole),
    /// The managers certify the node for another role: renew the certificate.
    Role(NodeRole),
    /// The managers ask for a new certificate.
    CertificateRotation,
    /// Other root certificates than before, PEM: trust them if they differ from the trusted ones.
    RootCa(Arc<Vec<u8>>),
    /// Port for overlay traffic.
    VxlanPort(u32),
}

/// What changed from one view to a later one. Before the first session nothing is known, so the first
/// view reports its roles and root too.
pub fn changes(before: &ClusterView, after: &ClusterView) -> Vec<NodeChange> {
    let mut changes = Vec::new();
    if let Some(root) = Some(&after.root_ca).filter(|root| !root.is_empty())
        && *root != before.root_ca
    {
        changes.push(NodeChange::RootCa(root.clone()));
    }
    if let Some(role) = after.desired_role()
        && before.desired_role() != Some(role)
    {
        changes.push(NodeChange::DesiredRole(role));
    }
    if let Some(role) = after.role()
        && before.role() != Some(role)
    {
        changes.push(NodeChange::Role(role));
    }
    if after.wants_rotation() && !before.wants_rotation() {
        changes.push(NodeChange::CertificateRotation);
    }
    let port = after.vxlan_port();
    if port != 0 && port != before.vxlan_port() {
        changes.push(NodeChange::VxlanPort(port));
    }
    changes
}

/// The changes of the view, one after another.
pub struct NodeChanges {
    view: watch::Receiver<ClusterView>,
    seen: ClusterView,
    pending: VecDeque<NodeChange>,
}

impl NodeChanges {
    pub(crate) fn new(view: watch::Receiver<ClusterView>) -> NodeChanges {
        NodeChanges {
            view,
            seen: ClusterView::default(),
            pending: VecDeque::new(),
        }
    }

    /// The next change; `None` when the agent has ended. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<NodeChange> {
        loop {
            let now = self.view.borrow_and_update().clone();
            self.pending.extend(changes(&self.seen, &now));
            self.seen = now;
            if let Some(change) = self.pending.pop_front() {
                return Some(change);
            }
            self.view.changed().await.ok()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{Certificate, IssuanceStatus, NodeSpec, NodeStatus};

    fn node(desired: NodeRole, role: NodeRole) -> Node {
        Node {
            id: "n".to_owned(),
            spec: Some(NodeSpec {
                desired_role: desired as i32,
                ..Default::default()
            }),
            role: role as i32,
            ..Default::default()
        }
    }

    fn message(node: Node) -> SessionMessage {
        SessionMessage {
            node: Some(node),
            root_ca: b"root".to_vec(),
            ..Default::default()
        }
    }

    fn key(lamport_time: u64) -> EncryptionKey {
        EncryptionKey {
            lamport_time,
            ..Default::default()
        }
    }

    #[tokio::test]
    async fn roles_root_and_rotation_are_reported_once_each() {
        let sender = watch::Sender::new(ClusterView::default());
        let mut changes = NodeChanges::new(sender.subscribe());
        let worker = node(NodeRole::Worker, NodeRole::Worker);
        sender.send_modify(|view| view.take(message(worker.clone())));
        assert_eq!(
            changes.next().await,
            Some(NodeChange::RootCa(Arc::new(b"root".to_vec())))
        );
        assert_eq!(
            changes.next().await,
            Some(NodeChange::DesiredRole(NodeRole::Worker))
        );
        assert_eq!(
            changes.next().await,
            Some(NodeChange::Role(NodeRole::Worker))
        );

        let mut promoted = node(NodeRole::Manager, NodeRole::Worker);
        promoted.certificate = Some(Certificate {
            status: Some(IssuanceStatus {
                state: IssuanceState::Rotate as i32,
                ..Default::default()
            }),
            ..Default::default()
        });
        promoted.vxlanudp_port = 4789;
        sender.send_modify(|view| view.take(message(promoted)));
        assert_eq!(
            changes.next().await,
            Some(NodeChange::DesiredRole(NodeRole::Manager))
        );
        assert_eq!(changes.next().await, Some(NodeChange::CertificateRotation));
        assert_eq!(changes.next().await, Some(NodeChange::VxlanPort(4789)));
        drop(sender);
        assert_eq!(changes.next().await, None);
    }

    #[test]
    fn keys_are_taken_if_any_is_new_and_never_emptied() {
        let mut view = ClusterView::default();
        let mut offer = |keys: Vec<EncryptionKey>| {
            view.take(SessionMessage {
                network_bootstrap_keys: keys,
                ..Default::default()
            });
            view.network_keys.len()
        };
        assert_eq!(offer(vec![key(1), key(2)]), 2);
        assert_eq!(offer(vec![]), 2);
        assert_eq!(offer(vec![key(1)]), 2, "nothing new in it");
        assert_eq!(offer(vec![key(1), key(2), key(3)]), 3);
    }

    #[test]
    fn status_and_bookkeeping_are_no_change_of_the_node() {
        let one = node(NodeRole::Worker, NodeRole::Worker);
        let mut other = one.clone();
        other.status = Some(NodeStatus {
            state: 2,
            ..Default::default()
        });
        other.meta = Some(Default::default());
        assert!(same_node(
            Some(&Arc::new(one.clone())),
            Some(&Arc::new(other.clone()))
        ));
        other.role = NodeRole::Manager as i32;
        assert!(!same_node(Some(&Arc::new(one)), Some(&Arc::new(other))));
    }
}
