//! What can go wrong in the raft group, with the texts that API clients and other managers see.

use crate::storage::ProposeError;
use crate::storage::proposer::HistoryError;

/// Errors of membership calls and of the member's own life. `Display` of the variants that name the
/// group ("raft: …", "membership: …") is part of the wire contract (spec 03 section 2).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RaftError {
    /// The node has not finished joining, or was removed or stopped.
    #[error("raft: node is not yet part of a raft cluster")]
    NoRaftMember,
    /// A call that only the leader serves reached another member.
    #[error("raft: failed to process the request: node lost leader status")]
    LostLeadership,
    /// The quorum rule (spec 03 section 7.4) forbids the removal.
    #[error("raft: member cannot be removed, because removing it may result in loss of quorum")]
    CannotRemoveMember,
    #[error("raft: no elected cluster leader")]
    NoClusterLeader,
    /// Sent to a member whose raft ID was removed; it stops its manager when it reads this.
    #[error("raft: member was removed from the cluster")]
    MemberRemoved,
    #[error("membership: can't add node to cluster, node id is a duplicate")]
    IdExists,
    #[error("membership: node was removed during cluster lifetime")]
    IdRemoved,
    #[error("membership: member not found in cluster list")]
    IdNotFound,
    #[error("membership: ConfChange type should be either AddNode, RemoveNode or UpdateNode")]
    ConfChangeInvalid,
    #[error("membership: cannot unmarshal configuration change")]
    CannotUnmarshalConfig,
    /// The member ended to start anew on the state that another one has sent.
    #[error("raft: starting anew on a received snapshot")]
    BeginAnew,
    /// The member ended; the text says why.
    #[error("the raft member has stopped: {0}")]
    Stopped(String),
    /// The member could not be started.
    #[error("cannot start the raft member: {0}")]
    Start(String),
}

/// Why a running member cannot go on. Every variant ends the process, so each says what was attempted
/// and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// The raft log could not be read or written.
    #[error("raft log: {0}")]
    Log(String),
    /// The state machine refused a committed entry or could not write it.
    #[error("applying committed entries {from} to {to} to the object store failed: {reason}")]
    Apply { from: u64, to: u64, reason: String },
    /// The object store's write-ahead log could not be synced.
    #[error("syncing the object store failed: {0}")]
    Sync(String),
    /// A committed entry that this program does not understand; going on would split the group.
    #[error(
        "committed log entry {index} of term {term} cannot be processed: {reason}; \
         this manager is probably older than another one in the group: upgrade it"
    )]
    Entry {
        index: u64,
        term: u64,
        reason: String,
    },
    /// The consensus library refused something that it must accept.
    #[error("consensus: {0}")]
    Library(String),
    /// Not a failure: the group goes on without this member.
    #[error("{}", RaftError::MemberRemoved)]
    Removed,
    /// Not a failure: a received snapshot is to become the state at the next start.
    #[error("{}", RaftError::BeginAnew)]
    BeginAnew,
    /// The other of the two threads is gone.
    #[error("the {0} thread has ended")]
    ThreadGone(&'static str),
}

impl From<raft::Error> for Fatal {
    fn from(error: raft::Error) -> Self {
        Fatal::Library(error.to_string())
    }
}

/// The member ended while the request waited.
pub(super) fn history_stopped() -> HistoryError {
    HistoryError::Log(ProposeError::Stopped.to_string())
}
