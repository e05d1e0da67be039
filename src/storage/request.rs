//! The replicated form of a transaction: `InternalRaftRequest`, written and read piece by piece.
//!
//! An object's encoded bytes are kept exactly as they stand in the request. They are what the row will
//! hold, so fields unknown to this release survive and the opened rows of all replicas are identical.
//! The generated type is not used here, because decoding through it would lose both.

use super::object::{Action, Table};
use crate::api::types::StoreActionKind;
use prost::DecodeError;
use prost::bytes::{Buf, BufMut, Bytes};
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint,
    encoded_len_varint, key_len, skip_field,
};

/// Field numbers of `InternalRaftRequest`.
const FIELD_ID: u32 = 1;
const FIELD_ACTION: u32 = 2;
/// Field number of `StoreAction.action`.
const FIELD_KIND: u32 = 1;

/// Request IDs have their top bit set, so that all take this many bytes and a size can be told before
/// the ID is drawn: key and ten bytes of varint.
pub const REQUEST_ID_BYTES: usize = 11;

/// Why the bytes of an entry are not a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Wire(#[from] DecodeError),
    #[error("a length points beyond the end of the request")]
    Cut,
}

/// One change inside a request.
#[derive(Debug, Clone)]
pub struct RawAction {
    /// `None` when the kind is unknown or unset: such an action fails its entry.
    pub action: Option<Action>,
    /// `None` when no known target is set: such an action fails its entry.
    pub target: Option<(Table, Bytes)>,
}

/// A decoded request.
#[derive(Debug, Clone)]
pub struct RawRequest {
    pub id: u64,
    pub actions: Vec<RawAction>,
}

/// The field of `StoreAction` that holds objects of a table (spec 04 section 8).
fn target_field(table: Table) -> u32 {
    match table {
        Table::Node => 2,
        Table::Service => 3,
        Table::Task => 4,
        Table::Network => 5,
        Table::Cluster => 6,
        Table::Secret => 7,
        Table::Resource => 8,
        Table::Extension => 9,
        Table::Config => 10,
        Table::Volume => 11,
    }
}

fn target_table(field: u32) -> Option<Table> {
    Table::ALL
        .into_iter()
        .find(|table| target_field(*table) == field)
}

fn kind_of(action: Action) -> StoreActionKind {
    match action {
        Action::Create => StoreActionKind::StoreActionCreate,
        Action::Update => StoreActionKind::StoreActionUpdate,
        Action::Remove => StoreActionKind::StoreActionRemove,
    }
}

fn action_bytes(table: Table, payload_bytes: usize) -> usize {
    key_len(FIELD_KIND)
        + 1
        + key_len(target_field(table))
        + encoded_len_varint(payload_bytes as u64)
        + payload_bytes
}

/// Bytes that one change adds to a request.
pub fn change_bytes(table: Table, payload_bytes: usize) -> usize {
    let action = action_bytes(table, payload_bytes);
    key_len(FIELD_ACTION) + encoded_len_varint(action as u64) + action
}

/// Encodes a request of known size.
pub fn encode<'a>(
    id: u64,
    bytes: usize,
    changes: impl Iterator<Item = (Action, Table, &'a Bytes)>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes);
    if id != 0 {
        encode_key(FIELD_ID, WireType::Varint, &mut out);
        encode_varint(id, &mut out);
    }
    for (action, table, payload) in changes {
        encode_key(FIELD_ACTION, WireType::LengthDelimited, &mut out);
        encode_varint(action_bytes(table, payload.len()) as u64, &mut out);
        encode_key(FIELD_KIND, WireType::Varint, &mut out);
        encode_varint(kind_of(action) as u64, &mut out);
        encode_key(target_field(table), WireType::LengthDelimited, &mut out);
        encode_varint(payload.len() as u64, &mut out);
        out.put_slice(payload);
    }
    out
}

/// Reads a request. The payloads share the memory of `data`.
pub fn decode(mut data: Bytes) -> Result<RawRequest, RequestError> {
    let mut request = RawRequest {
        id: 0,
        actions: Vec::new(),
    };
    while data.has_remaining() {
        match decode_key(&mut data)? {
            (FIELD_ID, WireType::Varint) => request.id = decode_varint(&mut data)?,
            (FIELD_ACTION, WireType::LengthDelimited) => {
                let action = take_delimited(&mut data)?;
                request.actions.push(decode_action(action)?);
            }
            (field, wire_type) => skip_unknown(field, wire_type, &mut data)?,
        }
    }
    Ok(request)
}

fn decode_action(mut data: Bytes) -> Result<RawAction, RequestError> {
    let mut action = RawAction {
        action: None,
        target: None,
    };
    while data.has_remaining() {
        let (field, wire_type) = decode_key(&mut data)?;
        match (field, wire_type, target_table(field)) {
            (FIELD_KIND, WireType::Varint, _) => {
                action.action = match decode_varint(&mut data)? {
                    1 => Some(Action::Create),
                    2 => Some(Action::Update),
                    3 => Some(Action::Remove),
                    _ => None,
                }
            }
            // Of several targets the last one counts.
            (_, WireType::LengthDelimited, Some(table)) => {
                action.target = Some((table, take_delimited(&mut data)?));
            }
            _ => skip_unknown(field, wire_type, &mut data)?,
        }
    }
    Ok(action)
}

fn skip_unknown(field: u32, wire_type: WireType, data: &mut Bytes) -> Result<(), RequestError> {
    Ok(skip_field(
        wire_type,
        field,
        data,
        DecodeContext::default(),
    )?)
}

fn take_delimited(data: &mut Bytes) -> Result<Bytes, RequestError> {
    let length = decode_varint(data)?;
    match usize::try_from(length) {
        Ok(length) if length <= data.remaining() => Ok(data.split_to(length)),
        _ => Err(RequestError::Cut),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{InternalRaftRequest, Node, StoreAction, Task, store_action::Target};
    use prost::Message;

    fn task(id: &str) -> Task {
        Task {
            id: id.into(),
            slot: 3,
            ..Default::default()
        }
    }

    #[test]
    fn encodes_as_the_generated_type() {
        let node = Node {
            id: "n".into(),
            ..Default::default()
        };
        let id = 1 << 63 | 5;
        let expected = InternalRaftRequest {
            id,
            action: vec![
                StoreAction {
                    action: StoreActionKind::StoreActionCreate as i32,
                    target: Some(Target::Task(task("a"))),
                },
                StoreAction {
                    action: StoreActionKind::StoreActionRemove as i32,
                    target: Some(Target::Node(node.clone())),
                },
            ],
        }
        .encode_to_vec();
        let task = Bytes::from(task("a").encode_to_vec());
        let node = Bytes::from(node.encode_to_vec());
        let bytes = REQUEST_ID_BYTES
            + change_bytes(Table::Task, task.len())
            + change_bytes(Table::Node, node.len());
        let changes = [
            (Action::Create, Table::Task, &task),
            (Action::Remove, Table::Node, &node),
        ];
        let encoded = encode(id, bytes, changes.into_iter());
        assert_eq!(encoded, expected);
        assert_eq!(encoded.len(), bytes);

        let decoded = decode(encoded.into()).unwrap();
        assert_eq!(decoded.id, id);
        assert_eq!(decoded.actions.len(), 2);
        assert_eq!(decoded.actions[1].action, Some(Action::Remove));
        assert_eq!(decoded.actions[1].target, Some((Table::Node, node)));
    }

    #[test]
    fn unknown_and_broken_requests() {
        // An action with kind 9 and an unknown target field 99.
        let mut action = Vec::new();
        encode_key(1, WireType::Varint, &mut action);
        encode_varint(9, &mut action);
        encode_key(99, WireType::LengthDelimited, &mut action);
        encode_varint(1, &mut action);
        action.push(7);
        let mut data = Vec::new();
        encode_key(2, WireType::LengthDelimited, &mut data);
        encode_varint(action.len() as u64, &mut data);
        data.extend_from_slice(&action);

        let decoded = decode(data.clone().into()).unwrap();
        assert_eq!(decoded.actions[0].action, None);
        assert!(decoded.actions[0].target.is_none());
        for cut in 1..data.len() {
            assert!(decode(data[..cut].to_vec().into()).is_err(), "cut {cut}");
        }
    }
}
