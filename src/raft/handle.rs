//! The member as the rest of the program sees it.
//!
//! A [`Handle`] is cheap to clone and never blocks, except for history reads. It stays valid after the
//! member has ended; every call then says so.

use super::error::RaftError;
use super::inbox::{Inbox, Request};
use super::membership::Book;
use crate::storage::proposer::HistoryError;
use crate::storage::rotation::{LogKeys, RotationError};
use crate::storage::seal::DekRing;
use crate::storage::{Position, Proposal, ProposeError, Proposer};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use raft::eraftpb::Message;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// Requests of one history call may take this much memory; more has to be asked for in parts.
const HISTORY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What a subscriber learns about leadership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leadership {
    /// This member leads in this raft term, has applied its whole log, and the store accepts
    /// transactions.
    Leader { term: u64 },
    /// It does not lead, or not yet. The leader's raft ID, if one is known.
    Follower { leader: Option<u64> },
}

impl Leadership {
    /// The term, on the signalled leader.
    pub fn term(self) -> Option<u64> {
        match self {
            Leadership::Leader { term } => Some(term),
            Leadership::Follower { .. } => None,
        }
    }
}

/// One member as this one sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberView {
    pub raft_id: u64,
    pub node_id: String,
    /// Where the member serves its peers, `host:port`.
    pub addr: String,
    pub leader: bool,
    pub reachable: bool,
    /// Highest log index known to be stored by the member; 0 if this member does not lead.
    pub match_index: u64,
}

/// The member's state, at most one tick old; the indexes may be a few entries apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    pub raft_id: u64,
    pub term: u64,
    /// The leader's raft ID.
    pub leader: Option<u64>,
    /// True on the signalled leader.
    pub is_leader: bool,
    pub first: u64,
    pub last: u64,
    pub commit: u64,
    pub applied: u64,
    /// All members by raft ID.
    pub members: Vec<MemberView>,
    /// Why writes are refused at present, if they are.
    pub refusal: Option<String>,
}

/// How the member ended.
pub type End = Result<(), RaftError>;

/// What the raft thread publishes and the handles read.
pub(super) struct Shared {
    pub raft_id: u64,
    pub inbox: Inbox,
    pub leadership: watch::Sender<Leadership>,
    /// Term of the signalled leadership, 0 for none.
    pub signalled: AtomicU64,
    pub commit: AtomicU64,
    pub last: AtomicU64,
    pub status: Mutex<Status>,
    pub book: ArcSwap<Book>,
    /// `None` while the member runs.
    pub ended: watch::Sender<Option<End>>,
}

impl Shared {
    /// Says that the member has ended.
    pub fn close(&self, end: End) {
        self.inbox.close();
        self.signalled.store(0, Ordering::Release);
        let follower = Leadership::Follower { leader: None };
        self.leadership.send_replace(follower);
        self.ended.send_replace(Some(end));
    }
}

/// A running member of the raft group. See the module's comment.
#[derive(Clone)]
pub struct Handle {
    pub(super) shared: Arc<Shared>,
}

impl Handle {
    pub fn raft_id(&self) -> u64 {
        self.shared.raft_id
    }

    /// Leadership now and its changes. A receiver that is slow sees the newest state only.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.shared.leadership.subscribe()
    }

    /// What the member published last; the ends of its log are those of now.
    pub fn status(&self) -> Status {
        let mut status = self.shared.status.lock().clone();
        status.last = status.last.max(self.shared.last.load(Ordering::Acquire));
        status.commit = status
            .commit
            .max(self.shared.commit.load(Ordering::Acquire));
        if status.is_leader {
            let own = status
                .members
                .iter_mut()
                .find(|member| member.raft_id == status.raft_id);
            if let Some(own) = own {
                own.match_index = status.last;
            }
        }
        status
    }

    /// Whether the member runs.
    pub fn is_member(&self) -> bool {
        self.shared.ended.borrow().is_none()
    }

    /// The members and removed IDs at the newest committed configuration.
    pub fn book(&self) -> Arc<Book> {
        self.shared.book.load_full()
    }

    /// Whether there was contact with another member of late, at most one tick ago as far as known here.
    pub(super) fn reaches(&self, raft_id: u64) -> bool {
        let status = self.shared.status.lock();
        let found = status
            .members
            .iter()
            .find(|member| member.raft_id == raft_id);
        found.is_some_and(|member| member.reachable)
    }

    /// Hands a message from another member to the library; dropped when too many wait.
    pub fn step(&self, message: Message) {
        if !self.shared.inbox.message(message) {
            tracing::debug!("dropping a raft message: too many wait, or the member has ended");
        }
    }

    /// Makes sure that this member leads now, and returns an index: a reader that has applied it sees
    /// everything acknowledged before the call (settled R7). Alone in the group this costs nothing.
    pub async fn confirm_leader(&self) -> Result<u64, ProposeError> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        if !self.is_member() {
            return Err(ProposeError::Stopped);
        }
        let signalled = self.shared.signalled.load(Ordering::Acquire);
        if signalled == 0 {
            return Err(ProposeError::LostLeadership);
        }
        if self.shared.book.load().is_alone(self.shared.raft_id) {
            return Ok(self.shared.commit.load(Ordering::Acquire));
        }
        if !self.shared.inbox.request(Request::ReadIndex { reply }) {
            return Err(ProposeError::Busy);
        }
        // The member drops the reply when it ends.
        answer.await.unwrap_or(Err(ProposeError::Stopped))
    }

    /// Ends the member in an orderly way: what is already queued is still committed and applied, both
    /// stores are synced, the threads end. Waits for that; calling it again is harmless.
    pub async fn stop(&self) -> End {
        self.shared.inbox.stop();
        self.ended().await
    }

    /// Waits until the member has ended, for whatever reason.
    pub async fn ended(&self) -> End {
        let mut ended = self.shared.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(Ok(())),
            Err(_) => Err(RaftError::NoRaftMember),
        }
    }

    fn history(&self, from: u64, to: u64) -> Result<super::inbox::HistoryPart, HistoryError> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        let request = Request::History { from, to, reply };
        if !self.shared.inbox.request(request) {
            return Err(super::error::history_stopped());
        }
        answer
            .recv()
            .unwrap_or_else(|_| Err(super::error::history_stopped()))
    }
}

impl LogKeys for Handle {
    /// Has the raft thread do it.
    fn reseal(&self, ring: DekRing, durable: u64) -> Result<Option<u64>, RotationError> {
        let stopped = || RotationError::Log(ProposeError::Stopped.to_string());
        let (reply, answer) = crossbeam_channel::bounded(1);
        let request = Request::Reseal {
            ring,
            durable,
            reply,
        };
        if !self.shared.inbox.request(request) {
            return Err(stopped());
        }
        let resealed = answer.recv().map_err(|_| stopped())?;
        resealed.map_err(|error| RotationError::Log(error.to_string()))
    }
}

impl Proposer for Handle {
    fn propose(&self, proposal: Proposal) -> Result<(), ProposeError> {
        self.shared.inbox.propose(proposal)
    }

    fn position(&self) -> Option<Position> {
        if !self.is_member() {
            return None;
        }
        let term = self.shared.signalled.load(Ordering::Acquire);
        Some(Position {
            leader_term: (term != 0).then_some(term),
            commit: self.shared.commit.load(Ordering::Acquire),
            last: self.shared.last.load(Ordering::Acquire),
        })
    }

    fn changes_between(&self, from: u64, to: u64) -> Result<Vec<(u64, Vec<u8>)>, HistoryError> {
        if from > to {
            return Err(HistoryError::OutOfOrder);
        }
        if !self.is_member() {
            return Err(HistoryError::NoVersion);
        }
        if to > self.shared.commit.load(Ordering::Acquire) {
            return Err(HistoryError::OutOfBounds);
        }
        let mut found = Vec::new();
        let mut bytes = 0;
        let mut reached = from;
        while reached < to {
            let part = self.history(reached, to)?;
            bytes += part
                .requests
                .iter()
                .map(|(_, data)| data.len())
                .sum::<usize>();
            if bytes > HISTORY_BYTES_MAX {
                return Err(HistoryError::Log(format!(
                    "the changes between {from} and {to} exceed {HISTORY_BYTES_MAX} bytes: \
                     ask for fewer at a time"
                )));
            }
            reached = part.through;
            found.extend(part.requests);
        }
        Ok(found)
    }
}
