//! One other member: its queue, and the task that empties it.

use super::{Shared, snapshot};
use crate::api::raftpb;
use crate::api::types::ProcessRaftMessageRequest;
use crate::api::types::raft_client::RaftClient;
use crate::identity::connect::connect_manager;
use crate::raft::error::RaftError;
use crate::raft::health;
use crate::raft::rpc::MESSAGE_BYTES_MAX;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Messages that may wait for one member (spec 03 section 1).
const QUEUE_MAX: usize = 4096;
/// Longest time for sending one message, connecting included (spec 03 section 1).
const SEND_TIMEOUT: Duration = Duration::from_secs(2);
/// A member to which nothing was sent for this long is asked for its health.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a failure, in which messages are dropped; doubles up to the second one.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long the last messages for a removed member are still tried (spec 03 section 9 allows 16 s).
const RETIRE_AFTER: Duration = Duration::from_secs(2);
/// Snapshots under way at a time, over all members: each reads the whole state.
pub const SNAPSHOTS_MAX: usize = 2;

/// The queue of one member. Its task ends when this is dropped.
pub struct Peer {
    addr: String,
    queue: mpsc::Sender<raftpb::Message>,
    cancel: CancellationToken,
    runtime: tokio::runtime::Handle,
    retired: bool,
}

impl Peer {
    pub fn start(shared: Arc<Shared>, raft_id: u64, addr: &str) -> Peer {
        let (queue, inbox) = mpsc::channel(QUEUE_MAX);
        let cancel = CancellationToken::new();
        let runtime = shared.runtime.clone();
        let worker = Worker {
            shared,
            raft_id,
            addr: addr.to_owned(),
            channel: None,
        };
        let stop = cancel.clone();
        runtime.spawn(async move {
            stop.run_until_cancelled(worker.run(inbox)).await;
        });
        Peer {
            addr: addr.to_owned(),
            queue,
            cancel,
            runtime,
            retired: false,
        }
    }

    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Queues a message; false if it had to be dropped.
    pub fn send(&self, message: raftpb::Message) -> bool {
        self.queue.try_send(message).is_ok()
    }

    /// Lets what waits go out, for a moment.
    pub fn retire(mut self) {
        self.retired = true;
        let cancel = self.cancel.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(RETIRE_AFTER).await;
            cancel.cancel();
        });
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if !self.retired {
            self.cancel.cancel();
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    raft_id: u64,
    addr: String,
    channel: Option<Channel>,
}

impl Worker {
    /// Sends what is queued until the queue is closed and empty.
    async fn run(mut self, mut inbox: mpsc::Receiver<raftpb::Message>) {
        let mut pause = PAUSE_MIN;
        // The first contact does not wait for a message.
        let mut idle = Duration::ZERO;
        loop {
            let delivered = match tokio::time::timeout(idle, inbox.recv()).await {
                Ok(Some(message)) if message.snapshot.is_some() => {
                    tokio::spawn(snapshot::send(
                        self.shared.clone(),
                        self.raft_id,
                        self.addr.clone(),
                        message,
                    ));
                    continue;
                }
                Ok(Some(message)) => self.deliver(message).await,
                Ok(None) => return,
                Err(_) => self.probe().await,
            };
            idle = PROBE_INTERVAL;
            match delivered {
                Ok(()) => {
                    self.shared.note(self.raft_id, true);
                    pause = PAUSE_MIN;
                }
                Err(status) if is_removal(&status) => {
                    self.shared.removed();
                    return;
                }
                Err(status) => {
                    tracing::debug!(addr = self.addr, error = status.message(), "no contact");
                    self.channel = None;
                    self.shared.note(self.raft_id, false);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    // What has gathered meanwhile is old; the library sends anew.
                    while inbox.try_recv().is_ok() {}
                }
            }
        }
    }

    async fn deliver(&mut self, message: raftpb::Message) -> Result<(), Status> {
        let sending = async {
            let mut client =
                RaftClient::new(self.channel().await?).max_decoding_message_size(MESSAGE_BYTES_MAX);
            let request = ProcessRaftMessageRequest {
                message: Some(message),
            };
            client.process_raft_message(request).await.map(drop)
        };
        within(sending).await
    }

    /// Asks whether the member is there, without a message for it.
    async fn probe(&mut self) -> Result<(), Status> {
        let asking = async {
            match health::serves(self.channel().await?).await? {
                true => Ok(()),
                false => Err(Status::unavailable(health::NOT_SERVING)),
            }
        };
        within(asking).await
    }

    async fn channel(&mut self) -> Result<Channel, Status> {
        if let Some(channel) = &self.channel {
            return Ok(channel.clone());
        }
        let channel = connect_manager(&self.shared.security, &self.addr).await;
        let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(self.channel.insert(channel).clone())
    }
}

async fn within(trying: impl Future<Output = Result<(), Status>>) -> Result<(), Status> {
    tokio::time::timeout(SEND_TIMEOUT, trying)
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")))
}

/// Whether the answer says that this member was removed from the group.
fn is_removal(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message() == RaftError::MemberRemoved.to_string()
}
