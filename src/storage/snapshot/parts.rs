//! Takes a `Snapshot` message apart while it arrives.
//!
//! Pieces of our own are whole messages, but the peer cuts its message wherever a piece is full: through an
//! object, or through a length. What is incomplete waits for the next piece, so at most one object and one
//! piece are in memory.

use super::{FIELD_MEMBERSHIP, FIELD_STORE, FIELD_VERSION, PIECE_BYTES_MAX};
use super::{SnapshotError, damaged, field_of};
use crate::api::types::ClusterSnapshot;
use crate::storage::object::Table;
use prost::Message as _;
use prost::bytes::{Buf as _, Bytes, BytesMut};
use prost::encoding::{WireType, decode_key, decode_varint};

/// Longest key and length of a field: two varints.
const HEADER_BYTES_MAX: usize = 20;

/// The state between two pieces.
#[derive(Default)]
pub(super) struct Parts {
    /// What has not been understood yet.
    rest: BytesMut,
    /// Bytes of the store's message that are still to come.
    store_left: u64,
    /// What was said of the members.
    cluster: ClusterSnapshot,
}

/// The beginning of a field.
struct Header {
    field: u32,
    kind: WireType,
    /// A length, or the number itself.
    value: u64,
    bytes: usize,
}

impl Parts {
    /// The objects that are complete with this piece.
    pub fn take(&mut self, piece: &[u8]) -> Result<Vec<(Table, Bytes)>, SnapshotError> {
        self.rest.extend_from_slice(piece);
        let mut objects = Vec::new();
        while let Some(header) = header_of(&self.rest)? {
            let done = match self.store_left {
                0 => self.outer(&header)?,
                _ => match self.object(&header)? {
                    Some(object) => {
                        objects.push(object);
                        true
                    }
                    None => false,
                },
            };
            if !done {
                break;
            }
        }
        Ok(objects)
    }

    /// What was said of the members, once everything has arrived.
    pub fn finish(self) -> Result<ClusterSnapshot, SnapshotError> {
        match self.rest.is_empty() && self.store_left == 0 {
            true => Ok(self.cluster),
            false => Err(damaged("it ends in the middle of an object")),
        }
    }

    /// Takes a field of the whole; false if it is not complete.
    fn outer(&mut self, header: &Header) -> Result<bool, SnapshotError> {
        match (header.field, header.kind) {
            (FIELD_MEMBERSHIP, WireType::LengthDelimited) => {
                let Some(part) = self.part(header)? else {
                    return Ok(false);
                };
                self.cluster.merge(part).map_err(damaged)?;
            }
            (FIELD_STORE, WireType::LengthDelimited) => {
                self.rest.advance(header.bytes);
                self.store_left = header.value;
            }
            (FIELD_VERSION, WireType::Varint) if header.value == 0 => {
                self.rest.advance(header.bytes);
            }
            (FIELD_VERSION, WireType::Varint) => {
                return Err(damaged(format!("unknown version {}", header.value)));
            }
            (field, _) => return Err(damaged(format!("unknown field {field}"))),
        }
        Ok(true)
    }

    /// Takes an object of the store, if it is complete.
    fn object(&mut self, header: &Header) -> Result<Option<(Table, Bytes)>, SnapshotError> {
        let table = Table::ALL
            .into_iter()
            .find(|table| field_of(*table) == header.field);
        let table = match header.kind {
            WireType::LengthDelimited => table,
            _ => None,
        };
        let table =
            table.ok_or_else(|| damaged(format!("objects of an unknown kind {}", header.field)))?;
        let bytes = header.value.saturating_add(header.bytes as u64);
        if bytes > self.store_left {
            return Err(damaged("an object reaches beyond the end of the store"));
        }
        let Some(object) = self.part(header)? else {
            return Ok(None);
        };
        self.store_left -= bytes;
        Ok(Some((table, object)))
    }

    fn part(&mut self, header: &Header) -> Result<Option<Bytes>, SnapshotError> {
        let length = usize::try_from(header.value)
            .ok()
            .filter(|length| *length <= PIECE_BYTES_MAX)
            .ok_or_else(|| damaged(format!("an object of {} bytes", header.value)))?;
        if self.rest.len() < header.bytes + length {
            return Ok(None);
        }
        self.rest.advance(header.bytes);
        Ok(Some(self.rest.split_to(length).freeze()))
    }
}

/// Reads the beginning of a field; `None` if more bytes are needed.
fn header_of(bytes: &[u8]) -> Result<Option<Header>, SnapshotError> {
    let mut rest = bytes;
    let read = decode_key(&mut rest).and_then(|(field, kind)| {
        let value = decode_varint(&mut rest)?;
        Ok((field, kind, value))
    });
    match read {
        Ok((field, kind, value)) => Ok(Some(Header {
            field,
            kind,
            value,
            bytes: bytes.len() - rest.len(),
        })),
        Err(_) if bytes.len() < HEADER_BYTES_MAX => Ok(None),
        Err(error) => Err(damaged(error)),
    }
}
