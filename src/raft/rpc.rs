//! The RPCs that members call on each other: `Raft` and `RaftMembership` (spec 03 section 8).
//!
//! A message from another member is checked in a fixed order before it reaches the library; most
//! failures are answered with success and dropped, because the protocol repairs a lost message and a
//! sender could do nothing about an error. The one answer that a sender acts on is "you were removed".
//!
//! Joining and leaving are in [`admission`].

pub use super::admission::{DialBack, METADATA_RAFT_ID, SecureDialBack};
use super::assembly::{Assembly, ChunkError};
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
use std::sync::Arc;
use tokio::sync::{Mutex, Semaphore};
use tonic::{Code, Request, Response, Status, Streaming};

/// Largest message or chunk, the peer's limit (spec 03 section 1).
pub const MESSAGE_BYTES_MAX: usize = 4_194_304;
/// Messages assembled from several chunks at a time.
const ASSEMBLIES_MAX: usize = 4;

/// Serves both services for one member.
#[derive(Clone)]
pub struct RaftRpc {
    pub(super) member: Handle,
    assemblies: Arc<Semaphore>,
    pub(super) dial_back: Arc<dyn DialBack>,
    /// Held while the group is being changed.
    pub(super) membership: Arc<Mutex<()>>,
}

impl RaftRpc {
    pub fn new(member: Handle, dial_back: Arc<dyn DialBack>) -> RaftRpc {
        RaftRpc {
            member,
            assemblies: Arc::new(Semaphore::new(ASSEMBLIES_MAX)),
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

    /// Checks a message in the order of spec 03 section 8.1 and hands it to the member.
    fn process(&self, message: Option<raftpb::Message>) -> Result<(), Status> {
        let Some(message) = message else {
            return Ok(());
        };
        let book = self.member.book();
        let from = message.from();
        if book.is_removed(from) {
            return Err(Status::not_found(RaftError::MemberRemoved.to_string()));
        }
        if let Some(reason) = self.reason_to_drop(&book, &message) {
            tracing::debug!(from = format!("{from:x}"), reason, "raft message dropped");
            return Ok(());
        }
        match convert::message_from_wire(message) {
            Ok(message) => self.member.step(message),
            // The peer answers so as well: there is nothing in it to be wrong.
            Err(ConvertError::NoSnapshot) => tracing::debug!("empty raft snapshot dropped"),
            Err(error) => return Err(Status::invalid_argument(error.to_string())),
        }
        Ok(())
    }

    fn reason_to_drop(&self, book: &Book, message: &raftpb::Message) -> Option<&'static str> {
        let kind = message.r#type.unwrap_or_default();
        let vote = kind == raftpb::MessageType::MsgVote as i32
            || kind == raftpb::MessageType::MsgPreVote as i32;
        if vote && book.member(message.from()).is_none() {
            return Some("the candidate is unknown");
        }
        if kind == raftpb::MessageType::MsgProp as i32 {
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
        mut chunks: Streaming<StreamRaftMessageRequest>,
    ) -> Result<raftpb::Message, Status> {
        let mut assembly = Assembly::default();
        let mut permit = None;
        let mut count = 0;
        while let Some(chunk) = chunks.message().await.map_err(size_error)? {
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

/// The peer's code and text for a message that is too large; tonic has others.
pub(crate) fn size_error(status: Status) -> Status {
    let found = status.message().split_once("found ").map(|(_, rest)| rest);
    let bytes = found.and_then(|rest| rest.split_once(" bytes")?.0.parse::<u64>().ok());
    match bytes {
        Some(bytes) if status.code() == Code::OutOfRange => Status::resource_exhausted(format!(
            "grpc: received message larger than max ({bytes} vs. {MESSAGE_BYTES_MAX})"
        )),
        _ => status,
    }
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
        self.process(request.into_inner().message)?;
        Ok(Response::new(ProcessRaftMessageResponse {}))
    }

    async fn stream_raft_message(
        &self,
        request: Request<Streaming<StreamRaftMessageRequest>>,
    ) -> Result<Response<StreamRaftMessageResponse>, Status> {
        let message = self.assemble(request.into_inner()).await?;
        self.process(Some(message))?;
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
