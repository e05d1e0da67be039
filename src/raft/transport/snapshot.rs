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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

/// Pieces that have been read and not been taken by the network yet.
const PIECES_AHEAD: usize = 4;
/// Longest wait for the network to take one piece.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the receiver's word, once everything was read: it syncs what it has received.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
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
    let complete = Arc::new(AtomicBool::new(false));
    let mut reading = tokio::task::spawn_blocking({
        let complete = complete.clone();
        move || {
            let mut bytes = 0;
            let written = outgoing.write(|piece| {
                bytes += piece.len();
                runtime
                    .block_on(pieces.send_timeout(piece, PIECE_TIMEOUT))
                    .is_ok()
            });
            // Before the queue ends with `pieces`.
            complete.store(matches!(written, Ok(true)), Ordering::Release);
            (written, bytes)
        }
    });
    let chunks = chunks(ready, message, metadata, complete);
    let mut client = RaftClient::new(channel);
    let mut sent = std::pin::pin!(client.stream_raft_message(chunks));
    let (early, (written, bytes)) = tokio::select! {
        answer = &mut sent => (Some(answer), read((&mut reading).await)?),
        result = &mut reading => (None, read(result)?),
    };
    let answer = match early {
        Some(answer) => answer,
        None => tokio::time::timeout(ANSWER_TIMEOUT, sent)
            .await
            .map_err(|_| Status::deadline_exceeded("the state was not confirmed"))?,
    };
    match written {
        Ok(true) => answer.map(|_| bytes),
        Ok(false) => match answer {
            Err(status) => Err(status),
            Ok(_) => Err(Status::cancelled("the network took no more")),
        },
        Err(error) => Err(Status::internal(error.to_string())),
    }
}

/// The pieces as they go over the wire. `complete` is looked at once there are no more of them.
fn chunks(
    pieces: mpsc::Receiver<Vec<u8>>,
    message: raftpb::Message,
    metadata: raftpb::SnapshotMetadata,
    complete: Arc<AtomicBool>,
) -> impl Stream<Item = StreamRaftMessageRequest> + Send {
    let spoiler = spoiler(&message);
    let end = std::iter::once_with(move || {
        let complete = complete.load(Ordering::Acquire);
        (!complete).then_some(spoiler)
    });
    ReceiverStream::new(pieces)
        .map(move |piece| StreamRaftMessageRequest {
            message: Some(raftpb::Message {
                snapshot: Some(raftpb::Snapshot {
                    data: Some(piece),
                    metadata: Some(metadata.clone()),
                }),
                ..message.clone()
            }),
        })
        .chain(tokio_stream::iter(end.flatten()))
}

fn read<T>(result: Result<T, tokio::task::JoinError>) -> Result<T, Status> {
    result.map_err(|_| Status::internal("reading the state was interrupted"))
}

/// Ends a stream that is not complete. The end of a stream is all that says "this was everything", so a
/// part of the state must never end in order: every receiver refuses a piece of another message.
fn spoiler(message: &raftpb::Message) -> StreamRaftMessageRequest {
    StreamRaftMessageRequest {
        message: Some(raftpb::Message {
            index: Some(!message.index()),
            snapshot: None,
            ..message.clone()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What goes over the wire after one piece.
    async fn after_one_piece(is_complete: bool) -> Vec<raftpb::Message> {
        let complete = Arc::new(AtomicBool::new(false));
        let (pieces, ready) = mpsc::channel(PIECES_AHEAD);
        let message = raftpb::Message {
            r#type: Some(raftpb::MessageType::MsgSnap as i32),
            ..Default::default()
        };
        let stream = chunks(ready, message, Default::default(), complete.clone());
        pieces.send(vec![1]).await.unwrap();
        complete.store(is_complete, Ordering::Release);
        drop(pieces);
        let sent: Vec<_> = stream.collect().await;
        sent.into_iter().filter_map(|one| one.message).collect()
    }

    #[tokio::test]
    async fn a_part_of_the_state_never_ends_in_order() {
        assert_eq!(after_one_piece(true).await.len(), 1);
        let spoilt = after_one_piece(false).await;
        assert_eq!(spoilt.len(), 2);
        assert_ne!(spoilt[0].index(), spoilt[1].index(), "receivers refuse it");
        assert!(spoilt[1].snapshot.is_none());
    }
}
