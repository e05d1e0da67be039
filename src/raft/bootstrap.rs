//! The first member of a new group.
//!
//! What it writes is what any later member replays: one configuration change that adds it, at index 1 of
//! term 1, already committed (spec 03 section 4).

use super::convert;
use crate::api::raftpb;
use crate::api::types::RaftMember;
use prost::Message as _;
use raft::eraftpb::{Entry, HardState};

/// Term of the first entry.
const FIRST_TERM: u64 = 1;

/// A raft ID: uniformly random in 1 to 2^63 (spec 03 section 1). Drawn again by whoever needs it to
/// differ from others.
pub fn new_raft_id() -> u64 {
    rand::Rng::random_range(&mut rand::rng(), 1..=1 << 63)
}

/// The hard state and the entries with which the log of a group's first members begins; a new group
/// has one of them.
pub fn first_log(members: &[RaftMember]) -> (HardState, Vec<Entry>) {
    let entries = members.iter().zip(1..).map(|(member, index)| {
        let change = raftpb::ConfChange {
            id: Some(0),
            r#type: Some(raftpb::ConfChangeType::ConfChangeAddNode as i32),
            node_id: Some(member.raft_id),
            context: Some(member.encode_to_vec()),
        };
        Entry {
            term: FIRST_TERM,
            index,
            ..convert::conf_change_entry(&change)
        }
    });
    let hard_state = HardState {
        term: FIRST_TERM,
        commit: members.len() as u64,
        ..HardState::default()
    };
    (hard_state, entries.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::convert::ChangeKind;

    #[test]
    fn the_first_entry_adds_the_member() {
        // 03-A1
        let member = RaftMember {
            raft_id: 7,
            node_id: "node".into(),
            addr: "10.0.0.1:2377".into(),
            status: None,
        };
        let (hard_state, entries) = first_log(std::slice::from_ref(&member));
        assert_eq!(
            (hard_state.term, hard_state.vote, hard_state.commit),
            (1, 0, 1)
        );
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].term, entries[0].index), (1, 1));
        let (kind, change) = convert::decode_conf_change(1, &entries[0].data).unwrap();
        assert_eq!((kind, change.node_id()), (ChangeKind::Add, 7));
        assert_eq!(RaftMember::decode(change.context()).unwrap(), member);
    }

    #[test]
    fn raft_ids_are_never_zero_and_differ() {
        let ids: std::collections::BTreeSet<u64> = (0..1000).map(|_| new_raft_id()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(!ids.contains(&0) && ids.iter().all(|id| *id <= 1 << 63));
    }
}
