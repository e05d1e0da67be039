//! A session as the dispatcher's streams see it: whose it is, and whether it is still alive.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use super::refusal::Refusal;
use crate::api::ids;

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The node registered anew.
    Replaced,
    /// The node was silent too long.
    Expired,
    /// The node was removed from the cluster.
    Removed,
    /// Leadership ended or the manager stops.
    Stopped,
}

impl End {
    /// What the node's calls and streams are told.
    pub fn refusal(self) -> Refusal {
        match self {
            End::Replaced => Refusal::SessionInvalid,
            End::Expired | End::Removed => Refusal::NotRegistered,
            End::Stopped => Refusal::Stopped,
        }
    }
}

/// One registration of one node. Its ID is a secret between the node and this leader.
pub struct LiveSession {
    pub node_id: Arc<str>,
    /// 25 random characters, never stored.
    pub id: String,
    ended: CancellationToken,
    reason: OnceLock<End>,
    streams: AtomicUsize,
}

impl LiveSession {
    pub fn new(node_id: Arc<str>) -> LiveSession {
        LiveSession {
            node_id,
            id: ids::new_id(),
            ended: CancellationToken::new(),
            reason: OnceLock::new(),
            streams: AtomicUsize::new(0),
        }
    }

    /// Ends the session. Only the first reason counts.
    pub fn end(&self, reason: End) {
        // An earlier reason stands.
        let _ = self.reason.set(reason);
        self.ended.cancel();
    }

    /// Waits for the end of the session.
    pub async fn ended(&self) -> End {
        self.ended.cancelled().await;
        // The reason is set before the token fires.
        self.reason.get().copied().unwrap_or(End::Stopped)
    }

    /// Counts one more open stream, unless there are `streams_max` already.
    pub fn open_stream(self: &Arc<LiveSession>, streams_max: usize) -> Result<OpenStream, Refusal> {
        let open = self.streams.fetch_add(1, Ordering::Relaxed);
        let stream = OpenStream(Arc::clone(self));
        if open >= streams_max {
            return Err(Refusal::TooManyStreams {
                node_id: self.node_id.to_string(),
                open,
            });
        }
        Ok(stream)
    }
}

/// An open stream of a session; dropping it makes room for another.
pub struct OpenStream(Arc<LiveSession>);

impl std::ops::Deref for OpenStream {
    type Target = LiveSession;

    fn deref(&self) -> &LiveSession {
        &self.0
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}
