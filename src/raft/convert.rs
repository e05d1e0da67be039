//! Raft messages and entries between two dialects of one protocol.
//!
//! On the wire we speak `raftpb`, the peer's dialect; the consensus library has its own, `eraftpb`. The
//! field numbers agree, the meanings do not always: the library keeps extensions where the peer keeps
//! other things, and the two number the kinds of configuration changes differently, so that "update this
//! member's address" read with the library's types becomes "take this member's vote away".
//!
//! Guarantees, in both directions (spec 01 section 4, spec 03 section 19):
//!
//! * library extensions (priority, requested snapshot, entry context) are dropped, never sent;
//! * unknown message types, entry types and kinds of configuration change are errors, never guessed;
//! * what we send writes zero scalars explicitly, as the peer does, and leaves absent data absent;
//! * entries keep the peer's encoding in the log. [`conf_change_to_library`] translates at the one place
//!   where a change is handed to the library.
//!
//! Nothing here performs I/O or keeps state.

use crate::api::raftpb;
use prost::Message as _;
use protobuf::ProtobufEnum as _;
use raft::eraftpb;

/// Why a message or entry from outside is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    #[error("raft message type {0} is not one that members exchange")]
    MessageType(i32),
    #[error("raft entry {index} has unsupported type {kind}")]
    EntryType { index: u64, kind: i32 },
    #[error("raft entry {0} holds a configuration change that cannot be decoded")]
    ConfChange(u64),
    #[error("raft entry {index} holds a configuration change of unsupported type {kind}")]
    ConfChangeType { index: u64, kind: i32 },
    #[error("raft entry {found} follows entry {after}: entries of a message must be consecutive")]
    Gap { after: u64, found: u64 },
    #[error("a raft snapshot message carries no snapshot")]
    NoSnapshot,
    #[error("raft snapshot at index {0} describes a joint configuration or learners")]
    SnapshotConfiguration(u64),
}

/// The kinds of configuration change that members of this group exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Add,
    Remove,
    /// A new address for a member. The library must never see it.
    Update,
}

// ---------------------------------------------------------------------------------------------------
// From the wire

/// A message from a member, for the library.
pub fn message_from_wire(message: raftpb::Message) -> Result<eraftpb::Message, ConvertError> {
    let kind = message.r#type.unwrap_or_default();
    let msg_type = message_type(kind)?;
    let mut out = eraftpb::Message::default();
    out.set_msg_type(msg_type);
    out.to = message.to.unwrap_or_default();
    out.from = message.from.unwrap_or_default();
    out.term = message.term.unwrap_or_default();
    out.log_term = message.log_term.unwrap_or_default();
    out.index = message.index.unwrap_or_default();
    out.commit = message.commit.unwrap_or_default();
    out.reject = message.reject.unwrap_or_default();
    out.reject_hint = message.reject_hint.unwrap_or_default();
    out.context = message.context.unwrap_or_default().into();
    if msg_type == eraftpb::MessageType::MsgAppend {
        check_consecutive(out.index, &message.entries)?;
    }
    let entries: Result<Vec<_>, _> = message.entries.into_iter().map(entry_from_wire).collect();
    out.set_entries(entries?.into());
    match message.snapshot.filter(|snapshot| !is_empty(snapshot)) {
        Some(snapshot) => out.set_snapshot(snapshot_from_wire(snapshot)?),
        None if msg_type == eraftpb::MessageType::MsgSnapshot => {
            return Err(ConvertError::NoSnapshot);
        }
        None => {}
    }
    Ok(out)
}

/// The library's message type, which must be one of the nineteen that both dialects share.
fn message_type(kind: i32) -> Result<eraftpb::MessageType, ConvertError> {
    eraftpb::MessageType::from_i32(kind).ok_or(ConvertError::MessageType(kind))
}

/// The library trusts the entries of an append to follow each other; a gap would end the process.
fn check_consecutive(before: u64, entries: &[raftpb::Entry]) -> Result<(), ConvertError> {
    let mut after = before;
    for entry in entries {
        let found = entry.index.unwrap_or_default();
        if after.checked_add(1) != Some(found) {
            return Err(ConvertError::Gap { after, found });
        }
        after = found;
    }
    Ok(())
}

/// An entry from a member, checked so that it can be applied once it is committed.
pub fn entry_from_wire(entry: raftpb::Entry) -> Result<eraftpb::Entry, ConvertError> {
    let index = entry.index.unwrap_or_default();
    let kind = entry.r#type.unwrap_or_default();
    let mut out = eraftpb::Entry::default();
    match raftpb::EntryType::try_from(kind) {
        Ok(raftpb::EntryType::EntryNormal) => {}
        Ok(raftpb::EntryType::EntryConfChange) => {
            out.set_entry_type(eraftpb::EntryType::EntryConfChange);
            decode_conf_change(index, entry.data.as_deref().unwrap_or_default())?;
        }
        // The peer ignores a version 2 change without changing its configuration; we would not.
        Ok(raftpb::EntryType::EntryConfChangeV2) | Err(_) => {
            return Err(ConvertError::EntryType { index, kind });
        }
    }
    out.term = entry.term.unwrap_or_default();
    out.index = index;
    out.data = entry.data.unwrap_or_default().into();
    Ok(out)
}

fn is_empty(snapshot: &raftpb::Snapshot) -> bool {
    let metadata = snapshot.metadata.as_ref();
    metadata.and_then(|m| m.index).unwrap_or_default() == 0
}

fn snapshot_from_wire(snapshot: raftpb::Snapshot) -> Result<eraftpb::Snapshot, ConvertError> {
    let metadata = snapshot.metadata.unwrap_or_default();
    let index = metadata.index.unwrap_or_default();
    let conf_state = metadata.conf_state.unwrap_or_default();
    let simple = conf_state.learners.is_empty()
        && conf_state.voters_outgoing.is_empty()
        && conf_state.learners_next.is_empty();
    if !simple {
        return Err(ConvertError::SnapshotConfiguration(index));
    }
    let mut out = eraftpb::Snapshot {
        data: snapshot.data.unwrap_or_default().into(),
        ..Default::default()
    };
    out.mut_metadata().index = index;
    out.mut_metadata().term = metadata.term.unwrap_or_default();
    out.mut_metadata()
        .set_conf_state(conf_state_to_library(conf_state));
    Ok(out)
}

// ---------------------------------------------------------------------------------------------------
// To the wire

/// A message of the library's, for a member. `None` for proposals: members never forward them.
pub fn message_to_wire(mut message: eraftpb::Message) -> Option<raftpb::Message> {
    if message.get_msg_type() == eraftpb::MessageType::MsgPropose {
        return None;
    }
    let snapshot = message.snapshot.take().filter(|s| !s.is_empty());
    let entries = message.take_entries().into_iter().map(entry_to_wire);
    Some(raftpb::Message {
        r#type: Some(message.get_msg_type().value()),
        to: Some(message.to),
        from: Some(message.from),
        term: Some(message.term),
        log_term: Some(message.log_term),
        index: Some(message.index),
        entries: entries.collect(),
        commit: Some(message.commit),
        // Field 13 is younger than most engines and only for messages that stay inside a process.
        vote: None,
        snapshot: snapshot.map(snapshot_to_wire),
        reject: Some(message.reject),
        reject_hint: Some(message.reject_hint),
        context: some_bytes(&message.context),
        responses: Vec::new(),
    })
}

/// An entry for a member, without the library's own fields.
pub fn entry_to_wire(entry: eraftpb::Entry) -> raftpb::Entry {
    raftpb::Entry {
        term: Some(entry.term),
        index: Some(entry.index),
        r#type: Some(entry.get_entry_type().value()),
        data: some_bytes(&entry.data),
    }
}

fn snapshot_to_wire(mut snapshot: eraftpb::Snapshot) -> raftpb::Snapshot {
    let mut metadata = snapshot.take_metadata();
    raftpb::Snapshot {
        data: some_bytes(&snapshot.data),
        metadata: Some(raftpb::SnapshotMetadata {
            conf_state: Some(conf_state_from_library(metadata.take_conf_state())),
            index: Some(metadata.index),
            term: Some(metadata.term),
        }),
    }
}

/// No data is absent data, not empty data: both libraries then see an entry without effect.
fn some_bytes(bytes: &[u8]) -> Option<Vec<u8>> {
    (!bytes.is_empty()).then(|| bytes.to_vec())
}

// ---------------------------------------------------------------------------------------------------
// Configuration

/// Decodes a configuration change in the peer's encoding and names its kind.
pub fn decode_conf_change(
    index: u64,
    data: &[u8],
) -> Result<(ChangeKind, raftpb::ConfChange), ConvertError> {
    let change = raftpb::ConfChange::decode(data).map_err(|_| ConvertError::ConfChange(index))?;
    let kind = change.r#type.unwrap_or_default();
    let known = match raftpb::ConfChangeType::try_from(kind) {
        Ok(raftpb::ConfChangeType::ConfChangeAddNode) => ChangeKind::Add,
        Ok(raftpb::ConfChangeType::ConfChangeRemoveNode) => ChangeKind::Remove,
        Ok(raftpb::ConfChangeType::ConfChangeUpdateNode) => ChangeKind::Update,
        Ok(raftpb::ConfChangeType::ConfChangeAddLearnerNode) | Err(_) => {
            return Err(ConvertError::ConfChangeType { index, kind });
        }
    };
    Ok((known, change))
}

/// The log entry of a configuration change; its place in the log is still to be filled in.
pub fn conf_change_entry(change: &raftpb::ConfChange) -> eraftpb::Entry {
    let mut entry = eraftpb::Entry::default();
    entry.set_entry_type(eraftpb::EntryType::EntryConfChange);
    entry.data = change.encode_to_vec().into();
    entry
}

/// The library's form of a change, or `None` when the library has nothing to do for it: an update of
/// an address, or a change of a kind that neither side knows.
pub fn conf_change_to_library(change: &raftpb::ConfChange) -> Option<eraftpb::ConfChange> {
    let kind = raftpb::ConfChangeType::try_from(change.r#type.unwrap_or_default()).ok()?;
    let kind = match kind {
        raftpb::ConfChangeType::ConfChangeAddNode => eraftpb::ConfChangeType::AddNode,
        raftpb::ConfChangeType::ConfChangeRemoveNode => eraftpb::ConfChangeType::RemoveNode,
        raftpb::ConfChangeType::ConfChangeAddLearnerNode => eraftpb::ConfChangeType::AddLearnerNode,
        raftpb::ConfChangeType::ConfChangeUpdateNode => return None,
    };
    let mut out = eraftpb::ConfChange::default();
    out.set_change_type(kind);
    out.id = change.id.unwrap_or_default();
    out.node_id = change.node_id.unwrap_or_default();
    out.context = change.context.clone().unwrap_or_default().into();
    Some(out)
}

/// The peer's form of one of the library's changes.
pub fn conf_change_from_library(change: &eraftpb::ConfChange) -> raftpb::ConfChange {
    let kind = match change.get_change_type() {
        eraftpb::ConfChangeType::AddNode => raftpb::ConfChangeType::ConfChangeAddNode,
        eraftpb::ConfChangeType::RemoveNode => raftpb::ConfChangeType::ConfChangeRemoveNode,
        eraftpb::ConfChangeType::AddLearnerNode => raftpb::ConfChangeType::ConfChangeAddLearnerNode,
    };
    raftpb::ConfChange {
        id: Some(change.id),
        r#type: Some(kind as i32),
        node_id: Some(change.node_id),
        context: some_bytes(&change.context),
    }
}

pub fn conf_state_to_library(state: raftpb::ConfState) -> eraftpb::ConfState {
    eraftpb::ConfState {
        voters: state.voters,
        learners: state.learners,
        voters_outgoing: state.voters_outgoing,
        learners_next: state.learners_next,
        auto_leave: state.auto_leave.unwrap_or_default(),
        ..Default::default()
    }
}

pub fn conf_state_from_library(state: eraftpb::ConfState) -> raftpb::ConfState {
    raftpb::ConfState {
        voters: state.voters,
        learners: state.learners,
        voters_outgoing: state.voters_outgoing,
        learners_next: state.learners_next,
        auto_leave: Some(state.auto_leave),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append() -> eraftpb::Message {
        let entry = eraftpb::Entry {
            term: 5,
            index: 1,
            data: vec![1, 2, 3].into(),
            ..Default::default()
        };
        let mut message = eraftpb::Message::default();
        message.set_msg_type(eraftpb::MessageType::MsgAppend);
        message.to = 1;
        message.from = 2;
        message.term = 5;
        message.set_entries(vec![entry].into());
        message
    }

    fn conf_change(kind: i32, id: u64) -> raftpb::ConfChange {
        raftpb::ConfChange {
            id: Some(7),
            r#type: Some(kind),
            node_id: Some(id),
            context: None,
        }
    }

    fn entry(kind: i32, data: Vec<u8>) -> raftpb::Entry {
        raftpb::Entry {
            term: Some(1),
            index: Some(4),
            r#type: Some(kind),
            data: Some(data),
        }
    }

    #[test]
    fn zeros_are_written_like_the_peer_writes_them() {
        // 01-A8
        let bytes = [
            0x08, 0x03, 0x10, 0x01, 0x18, 0x02, 0x20, 0x05, 0x28, 0x00, 0x30, 0x00, 0x3a, 0x0b,
            0x08, 0x00, 0x10, 0x05, 0x18, 0x01, 0x22, 0x03, 0x01, 0x02, 0x03, 0x40, 0x00,
        ];
        let wire = message_to_wire(append()).unwrap();
        let short = raftpb::Message {
            reject: None,
            reject_hint: None,
            ..wire.clone()
        };
        assert_eq!(short.encode_to_vec(), bytes);
        let rest = [0x50, 0x00, 0x58, 0x00];
        assert_eq!(wire.encode_to_vec(), [&bytes[..], &rest[..]].concat());
    }

    #[test]
    fn a_message_survives_the_round_trip() {
        let wire = message_to_wire(append()).unwrap();
        assert_eq!(message_from_wire(wire).unwrap(), append());

        let mut snap = append();
        snap.set_msg_type(eraftpb::MessageType::MsgSnapshot);
        snap.set_entries(Vec::new().into());
        snap.mut_snapshot().data = vec![9].into();
        snap.mut_snapshot().mut_metadata().index = 8;
        snap.mut_snapshot().mut_metadata().term = 3;
        let state = snap.mut_snapshot().mut_metadata().mut_conf_state();
        state.voters = vec![1, 2];
        let wire = message_to_wire(snap.clone()).unwrap();
        assert_eq!(message_from_wire(wire).unwrap(), snap);
    }

    #[test]
    fn an_entry_without_data_has_no_data_field() {
        let wire = entry_to_wire(eraftpb::Entry::default());
        assert_eq!(wire.encode_to_vec(), [0x08, 0, 0x10, 0, 0x18, 0]);
    }

    #[test]
    fn an_absent_field_means_zero() {
        let wire = raftpb::Message {
            r#type: Some(raftpb::MessageType::MsgHeartbeat as i32),
            ..Default::default()
        };
        let mut expected = eraftpb::Message::default();
        expected.set_msg_type(eraftpb::MessageType::MsgHeartbeat);
        assert_eq!(message_from_wire(wire).unwrap(), expected);
    }

    #[test]
    fn configuration_changes_keep_their_meaning() {
        // 01-A9
        let learner = conf_change_to_library(&conf_change(3, 5)).unwrap();
        assert_eq!(
            learner.get_change_type(),
            eraftpb::ConfChangeType::AddLearnerNode
        );
        assert_eq!(conf_change_to_library(&conf_change(2, 5)), None);
        for kind in [
            eraftpb::ConfChangeType::AddNode,
            eraftpb::ConfChangeType::RemoveNode,
            eraftpb::ConfChangeType::AddLearnerNode,
        ] {
            let mut change = eraftpb::ConfChange::default();
            change.set_change_type(kind);
            change.id = 3;
            change.node_id = 9;
            change.context = vec![1].into();
            let wire = conf_change_from_library(&change);
            assert_eq!(conf_change_to_library(&wire), Some(change));
        }
    }

    #[test]
    fn message_types_that_never_travel_are_refused() {
        // 01-A10, 03-A36
        for kind in 19..=23 {
            let wire = raftpb::Message {
                r#type: Some(kind),
                ..Default::default()
            };
            assert_eq!(
                message_from_wire(wire),
                Err(ConvertError::MessageType(kind))
            );
        }
    }

    #[test]
    fn a_message_nested_too_deeply_is_a_decoding_error() {
        // 01-A10
        let mut bytes = raftpb::Message::default().encode_to_vec();
        for _ in 0..200 {
            let mut outer = vec![0x72]; // field 14, responses
            prost::encoding::encode_varint(bytes.len() as u64, &mut outer);
            outer.extend(bytes);
            bytes = outer;
        }
        assert!(raftpb::Message::decode(bytes.as_slice()).is_err());
    }

    #[test]
    fn library_extensions_are_stripped() {
        // 03-A36
        let mut message = append();
        message.priority = 3;
        message.deprecated_priority = 3;
        message.request_snapshot = 4;
        message.commit_term = 2;
        message.mut_entries()[0].context = vec![1].into();
        message.mut_entries()[0].sync_log = true;
        assert_eq!(message_to_wire(message), message_to_wire(append()));
    }

    #[test]
    fn entries_we_cannot_apply_are_refused() {
        // 03-A36
        for kind in [2, 3, -1] {
            assert_eq!(
                entry_from_wire(entry(kind, Vec::new())),
                Err(ConvertError::EntryType { index: 4, kind })
            );
        }
        for kind in [3, 4] {
            let data = conf_change(kind, 5).encode_to_vec();
            assert_eq!(
                entry_from_wire(entry(1, data)),
                Err(ConvertError::ConfChangeType { index: 4, kind })
            );
        }
        assert_eq!(
            entry_from_wire(entry(1, vec![0xff])),
            Err(ConvertError::ConfChange(4))
        );
        let update = conf_change(2, 5).encode_to_vec();
        assert!(entry_from_wire(entry(1, update)).is_ok());
    }

    #[test]
    fn a_gap_between_entries_is_refused() {
        let mut wire = message_to_wire(append()).unwrap();
        wire.index = Some(3);
        assert_eq!(
            message_from_wire(wire),
            Err(ConvertError::Gap { after: 3, found: 1 })
        );
    }

    #[test]
    fn proposals_are_not_forwarded() {
        let mut message = append();
        message.set_msg_type(eraftpb::MessageType::MsgPropose);
        assert_eq!(message_to_wire(message), None);
    }

    #[test]
    fn an_empty_snapshot_is_no_snapshot() {
        let mut wire = message_to_wire(append()).unwrap();
        wire.snapshot = Some(raftpb::Snapshot::default());
        assert_eq!(message_from_wire(wire.clone()).unwrap(), append());
        wire.r#type = Some(raftpb::MessageType::MsgSnap as i32);
        assert_eq!(message_from_wire(wire), Err(ConvertError::NoSnapshot));
    }
}
