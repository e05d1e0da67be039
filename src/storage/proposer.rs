//! The contract between the store and whatever replicates its transactions.
//!
//! The store never waits for a proposal while it holds a lock: [`Proposer::propose`] queues and returns.
//! The outcome arrives through the store's apply calls, in log order: either the entry with this
//! `request_id` is applied, or all pending proposals fail because leadership was lost.

/// One encoded transaction on its way into the replicated log.
#[derive(Debug)]
pub struct Proposal {
    /// Unique among the outstanding proposals of this process; equals the ID inside `data`.
    pub request_id: u64,
    /// Encoded `InternalRaftRequest`, at most [`MAX_REQUEST_BYTES`] bytes.
    pub data: Vec<u8>,
    /// The leadership term in which it was built; refused when another term has begun since.
    pub term: u64,
}

/// Largest encoded request, 1.5 MiB: the limit of the peer's store (spec 04 section 6.4).
pub const MAX_REQUEST_BYTES: usize = 1_572_864;

/// Where the log stands, as seen by the proposing member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Leadership term of this member if it is the signalled leader.
    pub leader_term: Option<u64>,
    /// Highest committed index known.
    pub commit: u64,
    /// Index of the last entry in the local log.
    pub last: u64,
}

/// Why a proposal was not, or perhaps not, committed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    #[error("raft: failed to process the request: node is stopped")]
    Stopped,
    /// Not the signalled leader, or leadership was lost while waiting: the outcome is unknown.
    #[error("raft: failed to process the request: node lost leader status")]
    LostLeadership,
    /// Not the signalled leader, and nothing was done: another manager may do it.
    #[error("raft: failed to process the request: node lost leader status")]
    NotLeader,
    #[error("raft: raft message is too large and can't be sent")]
    TooLarge,
    /// The library refused (no leader, transfer in progress).
    #[error("raft proposal dropped")]
    Dropped,
    /// Too many proposals wait; nothing was queued.
    #[error("too many writes are waiting for the disk; try again")]
    Busy,
    /// The disk is full: reads go on, writes are refused before the log is hurt.
    #[error("writes are refused: {0}")]
    DiskFull(String),
}

/// History requests (spec 04 section 12).
#[derive(Debug, Clone, thiserror::Error)]
pub enum HistoryError {
    #[error("versions are out of order")]
    OutOfOrder,
    #[error("last version is out of bounds")]
    OutOfBounds,
    #[error("requested history has been compacted")]
    Compacted,
    #[error("store does not support versioning")]
    NoVersioning,
    #[error("could not get current version from store")]
    NoVersion,
    #[error("{0}")]
    Log(String),
}

/// Replicates transactions. Implemented by the raft member, and by a double in unit tests.
pub trait Proposer: Send + Sync + 'static {
    /// Queues one proposal. Never blocks. Entries enter the log in the order of these calls.
    fn propose(&self, proposal: Proposal) -> Result<(), ProposeError>;

    /// Current position, or `None` when this node is not (or no longer) a member.
    fn position(&self) -> Option<Position>;

    /// Encoded requests of the normal entries in `(from, to]`, with their indexes.
    /// Blocks on disk reads: call it from a blocking context.
    fn changes_between(&self, from: u64, to: u64) -> Result<Vec<(u64, Vec<u8>)>, HistoryError>;
}
