//! Puts a raft message back together that arrives in chunks.
//!
//! Only snapshots are cut: each chunk is a whole message of its own that repeats the head and carries a
//! part of the snapshot's data (spec 03 section 8.2). Memory is bounded per message; how many messages
//! are assembled at a time is the caller's to bound.

use crate::api::raftpb::{Message, MessageType};

/// Bytes of snapshot data that one message may carry here.
pub const ASSEMBLED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Why a chunk is refused. The first two texts are part of the wire contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    #[error(
        "Raft message chunk with index {found} is different from the previously received raft \
         message index {first}"
    )]
    Index { found: u64, first: u64 },
    #[error("Raft message chunk is not of type {}", MessageType::MsgSnap as i32)]
    NotSnapshot,
    #[error("Raft message chunk without a message")]
    NoMessage,
    #[error("Raft message chunk without a snapshot")]
    NoSnapshot,
    #[error("Raft message is larger than {ASSEMBLED_BYTES_MAX} bytes")]
    TooLarge,
    #[error("stream without a Raft message")]
    Empty,
}

/// A message in the making.
#[derive(Default)]
pub struct Assembly {
    message: Option<Message>,
}

impl Assembly {
    /// Takes the next chunk.
    pub fn push(&mut self, chunk: Option<Message>) -> Result<(), ChunkError> {
        let Some(message) = &mut self.message else {
            self.message = Some(chunk.ok_or(ChunkError::NoMessage)?);
            return Ok(());
        };
        let chunk = next_chunk(message.index(), chunk)?;
        let snapshot = message.snapshot.as_mut().ok_or(ChunkError::NoSnapshot)?;
        let more = chunk.snapshot.ok_or(ChunkError::NoSnapshot)?;
        let data = snapshot.data.get_or_insert_default();
        let more = more.data.unwrap_or_default();
        if data.len() + more.len() > ASSEMBLED_BYTES_MAX {
            return Err(ChunkError::TooLarge);
        }
        data.extend(more);
        Ok(())
    }

    /// The message, once the stream has ended.
    pub fn finish(self) -> Result<Message, ChunkError> {
        self.message.ok_or(ChunkError::Empty)
    }
}

/// Checks a chunk that follows one of the message index `first`.
pub fn next_chunk(first: u64, chunk: Option<Message>) -> Result<Message, ChunkError> {
    let chunk = chunk.ok_or(ChunkError::NoMessage)?;
    let found = chunk.index();
    if found != first {
        return Err(ChunkError::Index { found, first });
    }
    match chunk.r#type == Some(MessageType::MsgSnap as i32) {
        true => Ok(chunk),
        false => Err(ChunkError::NotSnapshot),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::raftpb::Snapshot;

    fn chunk(kind: MessageType, index: u64, data: &[u8]) -> Option<Message> {
        Some(Message {
            r#type: Some(kind as i32),
            index: Some(index),
            snapshot: Some(Snapshot {
                data: Some(data.to_vec()),
                metadata: None,
            }),
            ..Default::default()
        })
    }

    #[test]
    fn chunks_are_joined() {
        let mut assembly = Assembly::default();
        for data in [b"ab", b"cd", b"ef"] {
            assembly.push(chunk(MessageType::MsgSnap, 3, data)).unwrap();
        }
        let message = assembly.finish().unwrap();
        assert_eq!(message, chunk(MessageType::MsgSnap, 3, b"abcdef").unwrap());
    }

    #[test]
    fn bad_chunks() {
        let snap = |index| chunk(MessageType::MsgSnap, index, b"x");
        let mut assembly = Assembly::default();
        assembly.push(snap(0)).unwrap();
        assert_eq!(
            assembly.push(snap(1)).unwrap_err().to_string(),
            "Raft message chunk with index 1 is different from the previously received raft message \
             index 0"
        );
        let app = || chunk(MessageType::MsgApp, 0, b"x");
        let mut assembly = Assembly::default();
        assembly.push(app()).unwrap();
        assert_eq!(
            assembly.push(app()).unwrap_err().to_string(),
            "Raft message chunk is not of type 7"
        );
        let mut bare = snap(0);
        if let Some(message) = &mut bare {
            message.snapshot = None;
        }
        let mut assembly = Assembly::default();
        assembly.push(bare).unwrap();
        assert_eq!(assembly.push(snap(0)), Err(ChunkError::NoSnapshot));
        assert_eq!(assembly.push(None), Err(ChunkError::NoMessage));
        assert_eq!(Assembly::default().finish(), Err(ChunkError::Empty));
    }

    #[test]
    fn assembly_is_bounded() {
        let piece = vec![0; ASSEMBLED_BYTES_MAX / 4];
        let mut assembly = Assembly::default();
        for _ in 0..4 {
            assembly
                .push(chunk(MessageType::MsgSnap, 0, &piece))
                .unwrap();
        }
        let more = assembly.push(chunk(MessageType::MsgSnap, 0, b"x"));
        assert_eq!(more, Err(ChunkError::TooLarge));
    }
}
