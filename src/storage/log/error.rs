//! What can go wrong with the raft log, always with what was attempted, on what, and what to do next.

use super::MarkError;
use crate::storage::codec::CodecError;
use crate::storage::seal::SealError;

/// Why the log could not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LogError {
    /// Nothing was acknowledged; the same write may be tried again.
    #[error("no space left for the raft log {dir} ({reason}); free space on its file system")]
    NoSpace { dir: String, reason: String },
    #[error("cannot {attempt} the raft log {dir}: {reason}; {advice}")]
    Engine {
        attempt: &'static str,
        dir: String,
        reason: String,
        /// What to do next.
        advice: &'static str,
    },
    #[error("raft log file {file}, offset {offset}: {reason}; {advice}")]
    Damaged {
        file: String,
        offset: u64,
        reason: String,
        advice: &'static str,
    },
    #[error("the record {record} of the raft log {dir} is unreadable: {error}")]
    Record {
        record: String,
        dir: String,
        error: CodecError,
    },
    #[error("cannot seal entry {index} of the raft log: {error}")]
    Seal { index: u64, error: SealError },
    #[error("entry {index} is no longer in the raft log, which begins at {first}")]
    Compacted { index: u64, first: u64 },
    #[error("entry {index} is not in the raft log, which ends at {last}")]
    Unavailable { index: u64, last: u64 },
    #[error(
        "refused to write entries {first} to {last}: they do not continue the raft log, which holds {log_first} to {log_last}"
    )]
    Gap {
        first: u64,
        last: u64,
        log_first: u64,
        log_last: u64,
    },
    #[error("the watermark of the raft log: {0}")]
    Mark(String),
    /// A first record on a log that has one.
    #[error("the raft log {dir} already belongs to raft member {raft_id}")]
    Taken { dir: String, raft_id: u64 },
    #[error("the raft log {dir} belongs to no raft member yet")]
    Unclaimed { dir: String },
}

impl From<MarkError> for LogError {
    fn from(error: MarkError) -> LogError {
        LogError::Mark(error.to_string())
    }
}

pub(super) const ADVICE_DAMAGED: &str = "a member of a group gets a fresh copy with `swarmd --rejoin`; a manager that is alone starts with `--accept-log-loss`, which says how much is lost";
pub(super) const ADVICE_DISK: &str = "check the disk and the file permissions";
