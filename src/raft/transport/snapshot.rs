//! Sends the whole state to a member that the log cannot bring up to date.
//!
//! The library only says that a snapshot is due. What is sent is the newest state, read piece by piece while
//! it goes out; the place in the log that it stands for goes with each piece (spec 03 section 9).

use super::Shared;
use crate::api::raftpb;
use crate::api::types::StreamRaftMessageRequest;
use crate::api::types::raft_client::RaftClient;
use crate::identity::connect::connect_manager;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Pieces that have been read and not been taken by the network yet.
const PIECES_AHEAD: usize = 4;
/// Longest wait for the network to take one piece.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failure, before the library may ask for the next attempt.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Sends one snapshot and reports what became of it.
pub async fn send(shared: Arc<Shared>, raft_id: u64, addr: String, message: raftpb::Message) {
    let id = format!("{raft_id:x}");
    let Ok(_place) = shared.snapshots.clone().try_acquire_owned() else {
        tracing::debug!(raft_id = id, "too many snapshots are under way");
        tokio::time::sleep(FAILURE_PAUSE).await;
        return shared.snapshot_sent(raft_id, false);
    };
    tracing::info!(raft_id = id, "sending the whole state to a manager");
    let delivered = match deliver(&shared, &addr, message).await {
        Ok(bytes) => {
            tracing::info!(raft_id = id, bytes, "sent the whole state");
            true
        }
        Err(status) => {
            tracing::warn!(
                raft_id = id,
                error = status.message(),
                "the state was not sent"
            );
            tokio::time::sleep(FAILURE_PAUSE).await;
            false
        }
    };
    shared.snapshot_sent(raft_id, delivered);
}

async fn deliver(shared: &Shared, addr: &str, message: raftpb::Message) -> Result<usize, Status> {
    let channel = connect_manager(&shared.security, addr).await;
    let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
    let outgoing = shared.store.outgoing_snapshot();
    let outgoing = outgoing.map_err(|error| Status::internal(error.to_string()))?;
    let metadata = outgoing.metadata();
    let (pieces, ready) = mpsc::channel::<Vec<u8>>(PIECES_AHEAD);
    let runtime = shared.runtime.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let mut bytes = 0;
        let complete = outgoing.write(|piece| {
            bytes += piece.len();
            runtime
                .block_on(pieces.send_timeout(piece, PIECE_TIMEOUT))
                .is_ok()
        });
        (complete, bytes)
    });
    let chunks = ReceiverStream::new(ready).map(move |piece| StreamRaftMessageRequest {
        message: Some(raftpb::Message {
            snapshot: Some(raftpb::Snapshot {
                data: Some(piece),
                metadata: Some(metadata.clone()),
            }),
            ..message.clone()
        }),
    });
    let sent = RaftClient::new(channel).stream_raft_message(chunks).await;
    let (complete, bytes) = reading
        .await
        .map_err(|_| Status::internal("reading the state was interrupted"))?;
    sent?;
    match complete {
        Ok(true) => Ok(bytes),
        Ok(false) => Err(Status::cancelled("the network took no more")),
        Err(error) => Err(Status::internal(error.to_string())),
    }
}
