//! Why the dispatcher refuses a call, and the gRPC code and text that tell the agent so.
//!
//! Agents and the peer's tests compare these texts, so they are fixed (spec 08 section 3); only the
//! refusals that the peer does not know are worded freely.

use tonic::{Code, Status};

use crate::storage::StoreError;

/// A refused call or the end of a stream. `Display` is the text on the wire.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    /// Not the leader, not yet ready, or stopping.
    #[error("dispatcher is stopped")]
    Stopped,
    /// The end of a session stream when the dispatcher stops.
    #[error("node must disconnect")]
    MustDisconnect,
    /// The node has no entry in the registry, for example because its heartbeat expired.
    #[error("node not registered")]
    NotRegistered,
    /// The session is empty, or not the current one of the node.
    #[error("session invalid")]
    SessionInvalid,
    /// The node of the certificate is not in the store.
    #[error("node not found")]
    NodeNotFound,
    #[error("node {0} exceeded rate limit count of registrations")]
    TooManyRegistrations(String),
    #[error("cannot update a task not assigned this node")]
    ForeignTask,
    /// What the authorization layer says of such a caller; a second line of defence.
    #[error(
        "Permission denied: unauthorized peer role: rpc error: code = PermissionDenied desc = no client certificates in request"
    )]
    Anonymous,
    #[error("session of node {node_id} has {open} streams open already: close one first")]
    TooManyStreams { node_id: String, open: usize },
    #[error("cluster volumes are not available yet")]
    NoVolumes,
    #[error("status of task {task_id} has the unknown state {state}")]
    UnknownTaskState { task_id: String, state: i32 },
    #[error("{what} has {bytes} bytes, at most {bytes_max} are accepted")]
    TooLarge {
        what: String,
        bytes: usize,
        bytes_max: usize,
    },
    /// The write that the call depends on was not done in time.
    #[error("{0} could not be written in time: the manager is busy, try again")]
    Busy(String),
    /// The managers' addresses are not known, so nothing complete can be sent.
    #[error("the addresses of the managers are not known yet, try again")]
    NoManagers,
    #[error("the store failed: {0}")]
    Store(#[from] StoreError),
}

impl Refusal {
    /// The gRPC code of this refusal.
    pub fn code(&self) -> Code {
        match self {
            Refusal::Stopped | Refusal::MustDisconnect => Code::Aborted,
            Refusal::NotRegistered | Refusal::NodeNotFound => Code::NotFound,
            Refusal::SessionInvalid
            | Refusal::UnknownTaskState { .. }
            | Refusal::TooLarge { .. } => Code::InvalidArgument,
            Refusal::TooManyRegistrations(_) | Refusal::Busy(_) | Refusal::NoManagers => {
                Code::Unavailable
            }
            Refusal::ForeignTask | Refusal::Anonymous => Code::PermissionDenied,
            Refusal::TooManyStreams { .. } => Code::ResourceExhausted,
            Refusal::NoVolumes => Code::Unimplemented,
            Refusal::Store(StoreError::Closed) => Code::Aborted,
            Refusal::Store(_) => Code::Internal,
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        Status::new(refusal.code(), refusal.to_string())
    }
}
