//! Who belongs to the group: raft IDs, node IDs, addresses, and the IDs that may never return.
//!
//! The book follows the committed configuration changes in log order. It is pure: deciding what a change
//! means for the network or for the library is the caller's work. Processing a change twice has the
//! effect of processing it once, because a member replays its log after a crash (spec 03 section 3).

use super::convert::ChangeKind;
use super::error::RaftError;
use crate::api::raftpb;
use crate::api::types::RaftMember;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};

/// The members and the removed IDs at one point of the log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Book {
    members: BTreeMap<u64, RaftMember>,
    removed: BTreeSet<u64>,
}

/// What a processed change did to the book.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Added(RaftMember),
    /// The member's address changed.
    Moved(RaftMember),
    Removed(u64),
    Unchanged,
}

impl Book {
    pub fn new(members: Vec<RaftMember>, removed: Vec<u64>) -> Book {
        let members = members.into_iter().map(|member| (member.raft_id, member));
        Book {
            members: members.collect(),
            removed: removed.into_iter().collect(),
        }
    }

    /// All members by raft ID.
    pub fn members(&self) -> impl Iterator<Item = &RaftMember> {
        self.members.values()
    }

    pub fn removed(&self) -> impl Iterator<Item = u64> {
        self.removed.iter().copied()
    }

    pub fn member(&self, raft_id: u64) -> Option<&RaftMember> {
        self.members.get(&raft_id)
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn is_removed(&self, raft_id: u64) -> bool {
        self.removed.contains(&raft_id)
    }

    /// Whether `raft_id` is the only member.
    pub fn is_alone(&self, raft_id: u64) -> bool {
        self.members.len() == 1 && self.members.contains_key(&raft_id)
    }

    /// The verdict that the change's proposer receives. The change is processed either way.
    pub fn validate(&self, kind: ChangeKind, change: &raftpb::ConfChange) -> Result<(), RaftError> {
        let id = change.node_id.unwrap_or_default();
        if self.is_removed(id) {
            return Err(RaftError::IdRemoved);
        }
        let known = self.members.contains_key(&id);
        match kind {
            ChangeKind::Add if known => Err(RaftError::IdExists),
            ChangeKind::Update | ChangeKind::Remove if !known => Err(RaftError::IdNotFound),
            ChangeKind::Remove => Ok(()),
            ChangeKind::Add | ChangeKind::Update => decode_member(change)
                .map(|_| ())
                .ok_or(RaftError::CannotUnmarshalConfig),
        }
    }

    /// Processes a committed change.
    pub fn process(&mut self, kind: ChangeKind, change: &raftpb::ConfChange) -> Outcome {
        let id = change.node_id.unwrap_or_default();
        if id == 0 {
            return Outcome::Unchanged;
        }
        match kind {
            ChangeKind::Remove => self.remove(id),
            ChangeKind::Add | ChangeKind::Update => match decode_member(change) {
                Some(member) if !self.is_removed(id) => self.put(kind, id, member),
                _ => Outcome::Unchanged,
            },
        }
    }

    fn put(&mut self, kind: ChangeKind, id: u64, mut member: RaftMember) -> Outcome {
        member.raft_id = id;
        member.status = None;
        match self.members.get(&id) {
            None if kind == ChangeKind::Update => Outcome::Unchanged,
            None => {
                self.members.insert(id, member.clone());
                Outcome::Added(member)
            }
            // An address never moves from one node to another under the same raft ID.
            Some(known) if kind == ChangeKind::Update && known.node_id != member.node_id => {
                Outcome::Unchanged
            }
            Some(known) if *known == member => Outcome::Unchanged,
            Some(_) => {
                self.members.insert(id, member.clone());
                Outcome::Moved(member)
            }
        }
    }

    /// The ID is struck off for ever, even if it never was a member.
    fn remove(&mut self, id: u64) -> Outcome {
        self.removed.insert(id);
        match self.members.remove(&id) {
            Some(_) => Outcome::Removed(id),
            None => Outcome::Unchanged,
        }
    }

    /// The quorum rule for removals (spec 03 section 7.4): enough members that are reachable must remain.
    /// `reachable` says so of one member; the asking member counts as reachable.
    pub fn may_remove(&self, raft_id: u64, reachable: impl Fn(u64) -> bool) -> bool {
        let needed = self.members.len().saturating_sub(1) / 2 + 1;
        let rest = self.members.keys().filter(|id| **id != raft_id);
        rest.filter(|id| reachable(**id)).count() >= needed
    }
}

fn decode_member(change: &raftpb::ConfChange) -> Option<RaftMember> {
    RaftMember::decode(change.context.as_deref().unwrap_or_default()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(raft_id: u64, addr: &str) -> RaftMember {
        RaftMember {
            raft_id,
            node_id: format!("node{raft_id}"),
            addr: addr.into(),
            status: None,
        }
    }

    fn change(id: u64, addr: &str) -> raftpb::ConfChange {
        raftpb::ConfChange {
            node_id: Some(id),
            context: Some(member(id, addr).encode_to_vec()),
            ..Default::default()
        }
    }

    #[test]
    fn changes_are_idempotent() {
        let mut book = Book::default();
        let add = change(1, "a:1");
        assert_eq!(
            book.process(ChangeKind::Add, &add),
            Outcome::Added(member(1, "a:1"))
        );
        assert_eq!(book.process(ChangeKind::Add, &add), Outcome::Unchanged);
        let update = change(1, "b:1");
        assert_eq!(
            book.process(ChangeKind::Update, &update),
            Outcome::Moved(member(1, "b:1"))
        );
        assert_eq!(
            book.process(ChangeKind::Update, &update),
            Outcome::Unchanged
        );
        assert_eq!(book.process(ChangeKind::Remove, &add), Outcome::Removed(1));
        assert_eq!(book.process(ChangeKind::Remove, &add), Outcome::Unchanged);
        assert!(book.is_empty() && book.is_removed(1));
    }

    #[test]
    fn a_removed_id_never_returns() {
        let mut book = Book::new(Vec::new(), vec![1]);
        assert_eq!(
            book.validate(ChangeKind::Add, &change(1, "a:1")),
            Err(RaftError::IdRemoved)
        );
        book.process(ChangeKind::Add, &change(1, "a:1"));
        assert!(book.is_empty());
    }

    #[test]
    fn verdicts() {
        let book = Book::new(vec![member(1, "a:1")], Vec::new());
        let verdict = |kind, change: &raftpb::ConfChange| book.validate(kind, change);
        assert_eq!(
            verdict(ChangeKind::Add, &change(1, "a:1")),
            Err(RaftError::IdExists)
        );
        for kind in [ChangeKind::Update, ChangeKind::Remove] {
            assert_eq!(verdict(kind, &change(2, "b:1")), Err(RaftError::IdNotFound));
        }
        let mut garbled = change(2, "b:1");
        garbled.context = Some(vec![0xff]);
        assert_eq!(
            verdict(ChangeKind::Add, &garbled),
            Err(RaftError::CannotUnmarshalConfig)
        );
        assert_eq!(verdict(ChangeKind::Add, &change(2, "b:1")), Ok(()));
    }

    #[test]
    fn an_update_for_another_node_changes_nothing() {
        let mut book = Book::new(vec![member(1, "a:1")], Vec::new());
        let mut foreign = member(1, "b:1");
        foreign.node_id = "other".into();
        let mut update = change(1, "b:1");
        update.context = Some(foreign.encode_to_vec());
        assert_eq!(
            book.process(ChangeKind::Update, &update),
            Outcome::Unchanged
        );
        assert_eq!(book.member(1), Some(&member(1, "a:1")));
    }

    #[test]
    fn quorum_rule() {
        let group = |n: u64| Book::new((1..=n).map(|id| member(id, "a:1")).collect(), Vec::new());
        // (members, down, removed, allowed), this member being 1.
        let cases: [(u64, &[u64], u64, bool); 7] = [
            (3, &[2, 3], 2, false),
            (3, &[2, 3], 1, false),
            (3, &[2], 2, true),
            (3, &[2], 3, false),
            (3, &[], 2, true),
            (2, &[], 1, true),
            (1, &[], 1, false),
        ];
        for (members, down, removed, allowed) in cases {
            let verdict = group(members).may_remove(removed, |id| !down.contains(&id));
            assert_eq!(
                verdict, allowed,
                "{members} members, {down:?} down, removing {removed}"
            );
        }
    }
}
