//! Where the member's messages for other members go.

use super::membership::Book;
use crate::api::raftpb;

/// Takes messages for other members off the raft thread.
///
/// Nothing here blocks: an implementation has a bounded queue per peer and drops what does not fit,
/// which the protocol repairs by itself. Messages of one call keep their order per receiver.
pub trait Outbox: Send + 'static {
    fn send(&mut self, messages: Vec<raftpb::Message>);

    /// The group has other members now.
    fn follow(&mut self, _book: &Book) {}

    /// Whether there is contact with a member, if the implementation knows.
    fn is_active(&self, _raft_id: u64) -> Option<bool> {
        None
    }
}

/// The outbox of a member without a transport: there is nobody to reach.
pub struct NoPeers;

impl Outbox for NoPeers {
    fn send(&mut self, messages: Vec<raftpb::Message>) {
        for message in messages {
            tracing::debug!(
                to = message.to.unwrap_or_default(),
                kind = message.r#type.unwrap_or_default(),
                "dropping a raft message: this manager has no transport to other managers"
            );
        }
    }
}
