//! What a Control call answers when it cannot do what was asked, and the gRPC status of each answer.
//!
//! This is the only place of this room where a code is chosen. Codes and the texts that clients match
//! are those of spec 05; errors of the store travel with their own text and code Unknown, because
//! clients match the whole rendering of `update out of sequence` (settled V2).

use tonic::{Code, Status};

use crate::api::validate::Invalid;
use crate::storage::{ProposeError, StoreError};
use tonic::metadata::MetadataValue;

/// Response metadata beside `update out of sequence`: the version that the caller sent.
pub const METADATA_VERSION_GIVEN: &str = "swarm-version-given";
/// Response metadata beside `update out of sequence`: the version that is stored.
pub const METADATA_VERSION_STORED: &str = "swarm-version-stored";

/// Response metadata of a write that was not even begun, because this manager does not lead: whoever asks
/// the leader instead does it once.
pub const METADATA_NOT_DONE: &str = "swarm-not-done";

/// Why a call was refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ControlError {
    /// An ID, a version or a spec is missing in the request.
    #[error("invalid argument")]
    Incomplete,
    #[error("{0}")]
    InvalidArgument(String),
    #[error("{kind} {id} not found")]
    NotFound { kind: &'static str, id: String },
    #[error("{0}")]
    AlreadyExists(String),
    #[error("{0}")]
    FailedPrecondition(String),
    #[error("{0}")]
    Unimplemented(String),
    #[error("{0}")]
    ResourceExhausted(String),
    #[error("{0}")]
    Internal(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What every handler returns before it becomes a status.
pub type Answer<T> = Result<T, ControlError>;

impl ControlError {
    pub fn invalid(reason: impl Into<String>) -> ControlError {
        ControlError::InvalidArgument(reason.into())
    }

    pub fn precondition(reason: impl Into<String>) -> ControlError {
        ControlError::FailedPrecondition(reason.into())
    }

    pub fn not_found(kind: &'static str, id: impl Into<String>) -> ControlError {
        ControlError::NotFound {
            kind,
            id: id.into(),
        }
    }

    /// A part of the interface that is not built yet; `what` names it.
    pub fn not_available(what: &str) -> ControlError {
        ControlError::Unimplemented(format!("{what}: not available yet"))
    }

    /// The gRPC code of this error.
    pub fn code(&self) -> Code {
        match self {
            ControlError::Incomplete | ControlError::InvalidArgument(_) => Code::InvalidArgument,
            ControlError::NotFound { .. } => Code::NotFound,
            ControlError::AlreadyExists(_) => Code::AlreadyExists,
            ControlError::FailedPrecondition(_) => Code::FailedPrecondition,
            ControlError::Unimplemented(_) => Code::Unimplemented,
            ControlError::ResourceExhausted(_) => Code::ResourceExhausted,
            ControlError::Internal(_) => Code::Internal,
            ControlError::Store(error) => store_code(error),
        }
    }
}

/// Rules of the store and lost proposals have always been Unknown to clients. What the peer's store
/// does not have (a full queue, a full or broken disk) says what kind of trouble it is.
fn store_code(error: &StoreError) -> Code {
    match error {
        StoreError::Propose(ProposeError::Busy) | StoreError::Closed => Code::Unavailable,
        StoreError::Propose(ProposeError::DiskFull(_)) => Code::ResourceExhausted,
        StoreError::Disk(_) => Code::Internal,
        _ => Code::Unknown,
    }
}

impl From<Invalid> for ControlError {
    fn from(invalid: Invalid) -> Self {
        ControlError::InvalidArgument(invalid.0)
    }
}

impl From<ProposeError> for ControlError {
    fn from(error: ProposeError) -> Self {
        ControlError::Store(error.into())
    }
}

impl From<ControlError> for Status {
    fn from(error: ControlError) -> Self {
        let mut status = Status::new(error.code(), error.to_string());
        if let ControlError::Store(StoreError::Propose(ProposeError::NotLeader)) = error {
            let metadata = status.metadata_mut();
            metadata.insert(METADATA_NOT_DONE, MetadataValue::from_static("true"));
        }
        if let ControlError::Store(StoreError::SequenceConflict { given, stored }) = error {
            let metadata = status.metadata_mut();
            metadata.insert(METADATA_VERSION_GIVEN, given.into());
            metadata.insert(METADATA_VERSION_STORED, stored.into());
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All codes and the texts that others match.
    #[test]
    fn codes_and_texts() {
        let text = || "reason".to_owned();
        let store = |error: StoreError| ControlError::Store(error);
        for (error, code, message) in [
            (
                ControlError::Incomplete,
                Code::InvalidArgument,
                "invalid argument",
            ),
            (
                ControlError::invalid("reason"),
                Code::InvalidArgument,
                "reason",
            ),
            (
                Invalid::new("reason").into(),
                Code::InvalidArgument,
                "reason",
            ),
            (
                ControlError::not_found("node", "n1"),
                Code::NotFound,
                "node n1 not found",
            ),
            (
                ControlError::AlreadyExists(text()),
                Code::AlreadyExists,
                "reason",
            ),
            (
                ControlError::precondition("reason"),
                Code::FailedPrecondition,
                "reason",
            ),
            (
                ControlError::not_available("volumes"),
                Code::Unimplemented,
                "volumes: not available yet",
            ),
            (
                ControlError::ResourceExhausted(text()),
                Code::ResourceExhausted,
                "reason",
            ),
            (ControlError::Internal(text()), Code::Internal, "reason"),
            (
                store(StoreError::SequenceConflict {
                    given: 3,
                    stored: 6,
                }),
                Code::Unknown,
                "update out of sequence",
            ),
            (
                store(StoreError::NameConflict),
                Code::Unknown,
                "name conflicts with an existing object",
            ),
            (
                store(StoreError::NotExist),
                Code::Unknown,
                "object does not exist",
            ),
            (
                store(StoreError::Exist),
                Code::Unknown,
                "object already exists",
            ),
            (
                ProposeError::LostLeadership.into(),
                Code::Unknown,
                "raft: failed to process the request: node lost leader status",
            ),
            (
                ProposeError::Stopped.into(),
                Code::Unknown,
                "raft: failed to process the request: node is stopped",
            ),
            (
                ProposeError::TooLarge.into(),
                Code::Unknown,
                "raft: raft message is too large and can't be sent",
            ),
            (
                ProposeError::Busy.into(),
                Code::Unavailable,
                "too many writes are waiting for the disk; try again",
            ),
            (
                ProposeError::DiskFull("x".into()).into(),
                Code::ResourceExhausted,
                "writes are refused: x",
            ),
            (
                store(StoreError::Disk("broken".into())),
                Code::Internal,
                "broken",
            ),
        ] {
            let status = Status::from(error);
            assert_eq!((status.code(), status.message()), (code, message));
        }
    }

    #[test]
    fn a_version_conflict_names_both_versions() {
        let conflict = StoreError::SequenceConflict {
            given: 3,
            stored: 6,
        };
        let status = Status::from(ControlError::from(conflict));
        let value = |key| status.metadata().get(key).and_then(|v| v.to_str().ok());
        assert_eq!(value(METADATA_VERSION_GIVEN), Some("3"));
        assert_eq!(value(METADATA_VERSION_STORED), Some("6"));
    }
}
