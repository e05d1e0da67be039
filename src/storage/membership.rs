//! Who is in the raft group, as the state machine knows it at its applied index.

use crate::api::raftpb::ConfState;
use crate::api::types::RaftMember;

/// Who is in the raft group at some index.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Membership {
    /// What the raft library needs to know.
    pub conf_state: ConfState,
    pub members: Vec<RaftMember>,
    /// Raft IDs that will never be used again.
    pub removed: Vec<u64>,
}
