//! The RPCs that members call on each other: `Raft` and `RaftMembership` (spec 03 section 8).
//!
//! A message from another member is checked in a fixed order before it reaches the library; most
//! failures are answered with success and dropped, because the protocol repairs a lost message and a
//! sender could do nothing about an error. The one answer that a sender acts on is "you were removed".
//!
//! Joining and leaving are in `admission`.

pub use super::admission::{DialBack, METADATA_RAFT_ID, SecureDialBack};
use super::assembly::{self, Assembly, ChunkError};
use super::convert::{self, ConvertError};
use super::error::RaftError;
use super::handle::Handle;
use super::membership::Book;
use crate::api::raftpb;
use crate::api::types::raft_membership_server::RaftMembershipServer;
use crate::api::types::raft_server::{Raft, RaftServer};
use crate::api::types::{
    ProcessRaftMessageRequest, ProcessRaftMessageResponse, ResolveAddressRequest,
    ResolveAddressResponse, StreamRaftMessageRequest, StreamRaftMessageResponse,
};
use crate::identity::Caller;
use crate::storage::snapshot::{Incoming, SnapshotError, Spool};
use raft::eraftpb;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore};
use tonic::{Code, Request, Response, Status, Streaming};

/// Largest message or chunk, the peer's limit (spec 03 section 1).
pub const MESSAGE_BYTES_MAX: usize = 4_194_304;
/// Messages assembled from several chunks at a time.
const ASSEMBLIES_MAX: usize = 4;
/// Longest wait for a candidate to answer before its request for a vote is dropped: half an election
/// timeout of ten ticks of 100 ms (settled R3).
const CANDIDATE_TIMEOUT: Duration = Duration::from_millis(500);
/// Candidates asked at a time; there are few, and a dropped request is sent anew.
const CANDIDATES_MAX: usize = 8;

/// Serves both services for one member.
#[derive(Clone)]
pub struct RaftRpc {
    pub(super) member: Handle,
    assemblies: Arc<Semaphore>,
    candidates: Arc<Semaphore>,
    pub(super) dial_back: Arc<dyn DialBack>,
    incoming: Option<Arc<Incoming>>,
    /// Held while a snapshot is received.
    receiving: Arc<Mutex<()>>,
    /// Held while the group is being changed.
    pub(super) membership: Arc<Mutex<()>>,
}

impl RaftRpc {
    /// Snapshots go to `incoming`; without it they are assembled in memory, and dropped.
    pub fn new(
        member: Handle,
        dial_back: Arc<dyn DialBack>,
        incoming: Option<Arc<Incoming>>,
    ) -> RaftRpc {
        RaftRpc {
            incoming,
            receiving: Arc::default(),
            member,
            assemblies: Arc::new(Semaphore::new(ASSEMBLIES_MAX)),
            candidates: Arc::new(Semaphore::new(CANDIDATES_MAX)),
            dial_back,
            membership: Arc::default(),
        }
    }

    /// The `Raft` service with its size limit. It is always served by the member itself.
    pub fn raft_server(&self) -> RaftServer<RaftRpc> {
        RaftServer::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// The `RaftMembership` service, which belongs behind the leader proxy.
    pub fn membership_server(&self) -> RaftMembershipServer<RaftRpc> {
        RaftMembershipServer::new(self.clone())
    }

    /// Receives a snapshot piece by piece onto the disk.
    async fn receive(
        &self,
        incoming: Arc<Incoming>,
        mut first: raftpb::Message,
        mut chunks: Streaming<StreamRaftMessageRequest>,
    ) -> Result<raftpb::Message, Status> {
        let _alone = self.receiving.try_lock().map_err(|_| {
            Status::resource_exhausted("another snapshot is being received; try again later")
        })?;
        let head = without_data(&first);
        let metadata = head.snapshot.as_ref().and_then(|s| s.metadata.clone());
        let metadata = metadata.unwrap_or_default();
        let begun = blocking(move || incoming.begin(&metadata)).await?;
        let mut spooling = spool(begun, &mut first).await?;
        while let Some(chunk) = chunks.message().await.map_err(size_error)? {
            let next = assembly::next_chunk(head.index(), chunk.message);
            let mut message = next.map_err(chunk_status)?;
            if !is_snapshot(&message) {
                return Err(chunk_status(ChunkError::NotSnapshot));
            }
            spooling = spool(spooling, &mut message).await?;
        }
        // A call that was cancelled looks like one that ended. Whoever runs this future knows better and drops
        // it here, before half a state could count as received.
        tokio::task::yield_now().await;
        blocking(move || spooling.finish()).await?;
        Ok(head)
    }

    /// Checks a message in the order of spec 03 section 8.1 and hands it to the member.
    fn process(&self, caller: &Caller, message: Option<raftpb::Message>) -> Result<(), Status> {
        let Some(message) = message else {
            return Ok(());
        };
        let book = self.member.book();
        let from = message.from();
        if book.is_removed(from) {
            return Err(Status::not_found(RaftError::MemberRemoved.to_string()));
        }
        if let Some(reason) = self.reason_to_drop(&book, caller, &message) {
            tracing::debug!(from = format!("{from:x}"), reason, "raft message dropped");
            return Ok(());
        }
        let vote = is_vote(&message);
        match convert::message_from_wire(message) {
            Ok(message) if vote => self.step_vote(&book, message),
            Ok(message) => self.member.step(message),
            // The peer answers so as well: there is nothing in it to be wrong.
            Err(ConvertError::NoSnapshot) => tracing::debug!("empty raft snapshot dropped"),
            Err(error) => return Err(Status::invalid_argument(error.to_string())),
        }
        Ok(())
    }

    /// Steps a candidate's request once it is known that the candidate can be reached: one that only sends
    /// would win the election and lead nobody (settled R3). Contact of late is proof enough; else it is
    /// asked beside this call, so that neither the caller nor the raft thread waits.
    fn step_vote(&self, book: &Book, message: eraftpb::Message) {
        if self.member.reaches(message.from) {
            return self.member.step(message);
        }
        let Some(addr) = book.member(message.from).map(|known| known.addr.clone()) else {
            return;
        };
        let Ok(permit) = self.candidates.clone().try_acquire_owned() else {
            return tracing::debug!(
                "raft vote request dropped: too many candidates are being asked"
            );
        };
        let (member, dial_back) = (self.member.clone(), self.dial_back.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let from = format!("{:x}", message.from);
            match tokio::time::timeout(CANDIDATE_TIMEOUT, dial_back.check(addr)).await {
                Ok(Ok(())) => member.step(message),
                Ok(Err(error)) => {
                    let error = error.message();
                    tracing::warn!(
                        from,
                        error,
                        "no vote for a candidate that cannot be reached"
                    );
                }
                Err(_) => tracing::warn!(from, "no vote for a candidate that does not answer"),
            }
        });
    }

    fn reason_to_drop(
        &self,
        book: &Book,
        caller: &Caller,
        message: &raftpb::Message,
    ) -> Option<&'static str> {
        match book.member(message.from()) {
            // One manager must not speak for another, in an election least of all.
            Some(sender) if sender.node_id != caller.node_id => {
                return Some("its sender is another node than the caller");
            }
            None if is_vote(message) => return Some("the candidate is unknown"),
            _ => {}
        }
        if message.r#type == Some(raftpb::MessageType::MsgProp as i32) {
            return Some("members do not forward proposals");
        }
        if !self.member.is_member() {
            return Some("this node is not a member");
        }
        // A wiped machine that started anew keeps receiving what is meant for its predecessor.
        if message.to() != self.member.raft_id() {
            return Some("it is meant for another raft ID");
        }
        (message.from() == self.member.raft_id()).then_some("it claims to come from this member")
    }

    async fn assemble(
        &self,
        caller: &Caller,
        mut chunks: Streaming<StreamRaftMessageRequest>,
    ) -> Result<raftpb::Message, Status> {
        let mut assembly = Assembly::default();
        let mut permit = None;
        let mut count = 0;
        while let Some(chunk) = chunks.message().await.map_err(size_error)? {
            if count == 0
                && let Some(incoming) = &self.incoming
                && let Some(first) = chunk.message.as_ref().filter(|m| is_snapshot(m))
            {
                let book = self.member.book();
                if self.reason_to_drop(&book, caller, first).is_some() {
                    return Ok(without_data(first));
                }
                let first = first.clone();
                return self.receive(incoming.clone(), first, chunks).await;
            }
            count += 1;
            if count == 2 {
                // Whole messages, which are nearly all, never wait here.
                let granted = self.assemblies.try_acquire();
                permit = Some(granted.map_err(|_| {
                    Status::resource_exhausted("too many Raft messages are being assembled")
                })?);
            }
            assembly.push(chunk.message).map_err(chunk_status)?;
        }
        drop(permit);
        assembly.finish().map_err(chunk_status)
    }
}

fn is_vote(message: &raftpb::Message) -> bool {
    let kind = message.r#type.unwrap_or_default();
    kind == raftpb::MessageType::MsgVote as i32 || kind == raftpb::MessageType::MsgPreVote as i32
}

fn is_snapshot(message: &raftpb::Message) -> bool {
    let metadata = message
        .snapshot
        .as_ref()
        .and_then(|snapshot| snapshot.metadata.as_ref());
    message.r#type == Some(raftpb::MessageType::MsgSnap as i32)
        && metadata.is_some_and(|metadata| metadata.index() > 0)
}

/// The message as the library gets it: it knows of a snapshot, the data lie on the disk.
fn without_data(message: &raftpb::Message) -> raftpb::Message {
    let mut message = message.clone();
    if let Some(snapshot) = &mut message.snapshot {
        snapshot.data = None;
    }
    message
}

/// Takes a piece, beside the network.
async fn spool(mut spool: Spool, message: &mut raftpb::Message) -> Result<Spool, Status> {
    let snapshot = message.snapshot.take().ok_or(ChunkError::NoSnapshot);
    let data = snapshot.map_err(chunk_status)?.data.unwrap_or_default();
    blocking(move || spool.push(&data).map(|()| spool)).await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SnapshotError> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Status::internal("receiving a snapshot was interrupted"))?
        .map_err(|error| match error {
            SnapshotError::Full => Status::resource_exhausted(error.to_string()),
            SnapshotError::Damaged(_) => Status::invalid_argument(error.to_string()),
            _ => Status::internal(error.to_string()),
        })
}

/// The peer's code and text for a message that is too large; tonic has others.
pub(crate) fn size_error(status: Status) -> Status {
    let found = status.message().split_once("found ").map(|(_, rest)| rest);
    let bytes = found.and_then(|rest| rest.split_once(" bytes")?.0.parse::<u64>().ok());
    match bytes {
        Some(bytes) if status.code() == Code::OutOfRange => too_large(bytes),
        _ => status,
    }
}

/// The refusal of a message of so many bytes.
pub(crate) fn too_large(bytes: u64) -> Status {
    Status::resource_exhausted(format!(
        "grpc: received message larger than max ({bytes} vs. {MESSAGE_BYTES_MAX})"
    ))
}

fn chunk_status(error: ChunkError) -> Status {
    match error {
        ChunkError::TooLarge => Status::resource_exhausted(error.to_string()),
        _ => Status::invalid_argument(error.to_string()),
    }
}

/// A plain error of the group, which carries no code of its own (spec 03 section 2).
pub(super) fn plain(error: RaftError) -> Status {
    Status::unknown(error.to_string())
}

#[tonic::async_trait]
impl Raft for RaftRpc {
    async fn process_raft_message(
        &self,
        request: Request<ProcessRaftMessageRequest>,
    ) -> Result<Response<ProcessRaftMessageResponse>, Status> {
        let caller = Caller::of(&request)?;
        self.process(&caller, request.into_inner().message)?;
        Ok(Response::new(ProcessRaftMessageResponse {}))
    }

    async fn stream_raft_message(
        &self,
        request: Request<Streaming<StreamRaftMessageRequest>>,
    ) -> Result<Response<StreamRaftMessageResponse>, Status> {
        let caller = Caller::of(&request)?;
        let message = self.assemble(&caller, request.into_inner()).await?;
        self.process(&caller, Some(message))?;
        Ok(Response::new(StreamRaftMessageResponse {}))
    }

    async fn resolve_address(
        &self,
        request: Request<ResolveAddressRequest>,
    ) -> Result<Response<ResolveAddressResponse>, Status> {
        if !self.member.is_member() {
            return Err(plain(RaftError::NoRaftMember));
        }
        let raft_id = request.into_inner().raft_id;
        match self.member.book().member(raft_id) {
            Some(member) => Ok(Response::new(ResolveAddressResponse {
                addr: member.addr.clone(),
            })),
            None => Err(Status::not_found(format!("member {raft_id:x} not found"))),
        }
    }
}
