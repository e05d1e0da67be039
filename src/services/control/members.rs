//! What this room needs to know of the raft group.
//!
//! The raft member implements [`MembershipView`]; tests have a list of members instead. Nothing here
//! changes the group: promotion and demotion only set what is desired, and others act on it.

use futures::future::BoxFuture;

use crate::api::types::raft_member_status::Reachability;
use crate::api::types::{ManagerStatus, Node};
use crate::storage::ProposeError;

/// One member of the raft group, as the answering manager sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub raft_id: u64,
    pub node_id: String,
    /// Where the member serves its peers, `host:port`.
    pub addr: String,
    /// The current leader as known here.
    pub leader: bool,
    /// True for the answering manager itself and for members it has contact with.
    pub reachable: bool,
}

/// On whose authority a read is answered (settled R7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFrom {
    /// By the leader, which has made sure that it still leads: the answer is current.
    Leader,
    /// By a follower from its own copy: the answer may be old.
    Local,
}

impl ReadFrom {
    pub const fn as_str(self) -> &'static str {
        match self {
            ReadFrom::Leader => "leader",
            ReadFrom::Local => "local",
        }
    }
}

/// The raft group as the Control API sees it.
pub trait MembershipView: Send + Sync + 'static {
    /// All members, or `None` if this node is not (or no longer) one of them.
    fn members(&self) -> Option<Vec<Member>>;

    /// On the leader: makes sure that it leads now, sharing one round with other readers (none when it
    /// is alone), and fails if it does not. On a follower: says so at once.
    fn read_authority(&self) -> BoxFuture<'_, Result<ReadFrom, ProposeError>>;
}

/// Why a member must stay: too few reachable ones would remain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Reachable members without the one in question.
    pub reachable: usize,
    /// How many of them the group needs.
    pub needed: usize,
}

/// The quorum rule (spec 03 section 7.4): whether enough reachable members remain without this one.
pub fn check_removal(members: &[Member], raft_id: u64) -> Result<(), Shortage> {
    let needed = members.len().saturating_sub(1) / 2 + 1;
    let reachable = members
        .iter()
        .filter(|member| member.raft_id != raft_id && member.reachable)
        .count();
    match reachable >= needed {
        true => Ok(()),
        false => Err(Shortage { reachable, needed }),
    }
}

/// The member that a node is, if it is one.
pub(super) fn of_node<'a>(members: &'a [Member], node_id: &str) -> Option<&'a Member> {
    members.iter().find(|member| member.node_id == node_id)
}

/// Shows in a copy of a node what the member list says of it. Other nodes stay as stored.
pub(super) fn show(members: &[Member], node: &mut Node) {
    if let Some(member) = of_node(members, &node.id) {
        let reachability = if member.reachable {
            Reachability::Reachable
        } else {
            Reachability::Unreachable
        };
        node.manager_status = Some(ManagerStatus {
            raft_id: member.raft_id,
            addr: member.addr.clone(),
            leader: member.leader,
            reachability: reachability as i32,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(reachable: &[bool]) -> Vec<Member> {
        let member = |(at, reachable): (usize, &bool)| Member {
            raft_id: at as u64 + 1,
            node_id: format!("node{}", at + 1),
            addr: String::new(),
            leader: at == 0,
            reachable: *reachable,
        };
        reachable.iter().enumerate().map(member).collect()
    }

    #[test]
    fn quorum_rule() {
        for (reachable, remove, allowed) in [
            (&[true, false, false][..], 1, false),
            (&[true, false, false], 2, false),
            (&[true, true, false], 3, true),
            (&[true, true, false], 2, false),
            (&[true, true, true], 1, true),
            (&[true, true], 1, true),
            (&[true, true], 2, true),
            (&[true], 1, false),
            (&[true, true, true, true, false], 4, true),
            (&[true, true, true, false, false], 3, false),
        ] {
            let members = members(reachable);
            assert_eq!(
                check_removal(&members, remove).is_ok(),
                allowed,
                "{reachable:?} without {remove}"
            );
        }
    }

    #[test]
    fn overlay() {
        let mut node = Node {
            id: "node2".into(),
            ..Default::default()
        };
        show(&members(&[true, false]), &mut node);
        let status = node.manager_status.clone().unwrap();
        assert_eq!((status.raft_id, status.leader), (2, false));
        assert_eq!(status.reachability, Reachability::Unreachable as i32);
        node.id = "other".into();
        show(&[], &mut node);
        assert_eq!(node.manager_status, Some(status));
    }
}
