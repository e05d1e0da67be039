//! Making a group of one out of a member whose fellows are lost (spec 03 section 4.1, settled R4).
//!
//! The member's log gets entries that remove every other member, and they are taken for committed, with all
//! that the log held before: an entry whose outcome was not known is kept, because it may have been
//! acknowledged. Everything is one durable write, so a kill leaves the group as it was or a group of one;
//! doing it again changes nothing.

use super::convert::{self, ChangeKind};
use crate::api::raftpb;
use crate::api::types::RaftMember;
use crate::storage::Membership;
use crate::storage::log::{Identity, LogError, RaftLog};
use prost::Message as _;
use raft::eraftpb::{Entry, EntryType};
use std::collections::BTreeSet;

/// Bytes of log entries read at a time.
const READ_BYTES: u64 = 1024 * 1024;

/// Why it was not done. Nothing is changed then.
#[derive(Debug, thiserror::Error)]
pub enum ForceError {
    #[error("there is no raft data here that a new cluster could be made of")]
    NoData,
    #[error("entry {index} of the raft log cannot be understood: {reason}")]
    Entry { index: u64, reason: String },
    #[error(transparent)]
    Log(#[from] LogError),
}

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forced {
    /// Raft IDs of the members that were struck off.
    pub removed: Vec<u64>,
    /// Entries that were kept although it is not known whether they had been committed.
    pub uncertain: u64,
    /// Nothing had to be done.
    pub already: bool,
}

/// Makes this member the only one, reached at `addr`. `membership` is that of the state machine, which has
/// applied the log up to `applied`.
pub fn force_new_cluster(
    log: &mut RaftLog,
    membership: &Membership,
    applied: u64,
    addr: &str,
) -> Result<Forced, ForceError> {
    let own = log.identity().cloned().ok_or(ForceError::NoData)?;
    let mut hard_state = log.hard_state();
    let known = hard_state.commit.max(applied);
    let last = log.last_index().max(known);
    let (voters, own_addr) = members_at_end(log, membership, applied, &own)?;
    let changes = changes(&voters, &own, own_addr.as_deref(), addr);
    let removed: Vec<u64> = voters
        .iter()
        .copied()
        .filter(|id| *id != own.raft_id)
        .collect();
    let forced = Forced {
        uncertain: last - known,
        already: changes.is_empty(),
        removed,
    };
    if forced.already {
        return Ok(forced);
    }
    let entries: Vec<Entry> = changes
        .iter()
        .zip(last + 1..)
        .map(|(change, index)| Entry {
            term: hard_state.term,
            index,
            ..convert::conf_change_entry(change)
        })
        .collect();
    hard_state.commit = last + entries.len() as u64;
    log.append(&entries, Some(&hard_state))?;
    Ok(forced)
}

/// The voters, and this member's address, once the whole log is applied.
fn members_at_end(
    log: &RaftLog,
    membership: &Membership,
    applied: u64,
    own: &Identity,
) -> Result<(BTreeSet<u64>, Option<String>), ForceError> {
    let mut voters: BTreeSet<u64> = membership.conf_state.voters.iter().copied().collect();
    let own_member = membership
        .members
        .iter()
        .find(|member| member.raft_id == own.raft_id);
    let mut own_addr = own_member.map(|member| member.addr.clone());
    let mut next = applied + 1;
    while next <= log.last_index() {
        let entries = log.entries(next, log.last_index() + 1, READ_BYTES)?;
        let Some(last) = entries.last() else { break };
        next = last.index + 1;
        let changes = entries.iter().filter(|entry| {
            entry.get_entry_type() == EntryType::EntryConfChange && !entry.data.is_empty()
        });
        for entry in changes {
            let (kind, change) =
                convert::decode_conf_change(entry.index, &entry.data).map_err(|error| {
                    ForceError::Entry {
                        index: entry.index,
                        reason: error.to_string(),
                    }
                })?;
            let id = change.node_id.unwrap_or_default();
            match kind {
                ChangeKind::Add => voters.insert(id),
                ChangeKind::Remove => voters.remove(&id),
                ChangeKind::Update => false,
            };
            if id == own.raft_id && kind != ChangeKind::Remove {
                let member = RaftMember::decode(change.context.as_deref().unwrap_or_default());
                own_addr = member.ok().map(|member| member.addr);
            }
        }
    }
    Ok((voters, own_addr))
}

/// The changes that leave this member alone, at its present address.
fn changes(
    voters: &BTreeSet<u64>,
    own: &Identity,
    own_addr: Option<&str>,
    addr: &str,
) -> Vec<raftpb::ConfChange> {
    let change =
        |kind: raftpb::ConfChangeType, raft_id: u64, context: Option<Vec<u8>>| raftpb::ConfChange {
            id: Some(0),
            r#type: Some(kind as i32),
            node_id: Some(raft_id),
            context,
        };
    let member = RaftMember {
        raft_id: own.raft_id,
        node_id: own.node_id.clone(),
        addr: addr.to_owned(),
        status: None,
    };
    let others = voters.iter().filter(|id| **id != own.raft_id);
    let mut changes: Vec<_> = others
        .map(|id| change(raftpb::ConfChangeType::ConfChangeRemoveNode, *id, None))
        .collect();
    let own_change = match voters.contains(&own.raft_id) {
        false => Some(raftpb::ConfChangeType::ConfChangeAddNode),
        true if own_addr != Some(addr) => Some(raftpb::ConfChangeType::ConfChangeUpdateNode),
        true => None,
    };
    if let Some(kind) = own_change {
        changes.push(change(kind, own.raft_id, Some(member.encode_to_vec())));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Identity {
        Identity {
            raft_id: 2,
            node_id: "n2".into(),
            cluster_id: "c".into(),
            address: "a:1".into(),
            created_unix_s: 0,
        }
    }

    fn kinds(voters: &[u64], own_addr: Option<&str>) -> Vec<(i32, u64)> {
        let voters = voters.iter().copied().collect();
        changes(&voters, &own(), own_addr, "a:1")
            .iter()
            .map(|change| (change.r#type(), change.node_id()))
            .map(|(kind, id)| (kind as i32, id))
            .collect()
    }

    // 03-A18 (the entries)
    #[test]
    fn only_this_member_is_left() {
        let (add, remove, update) = (0, 1, 2);
        assert_eq!(kinds(&[1, 2, 3], Some("a:1")), [(remove, 1), (remove, 3)]);
        assert_eq!(kinds(&[1, 3], None), [(remove, 1), (remove, 3), (add, 2)]);
        assert_eq!(kinds(&[2], Some("b:1")), [(update, 2)]);
        assert_eq!(kinds(&[2], Some("a:1")), []);
    }
}
