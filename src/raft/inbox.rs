//! Everything that waits for the raft thread, behind one lock and one wake-up.
//!
//! Callers on any thread put proposals, messages and requests in; the raft thread takes all of them in
//! one go per turn. While it is inside an fsync the queue grows, and what has gathered becomes the next
//! batch: that is group commit, without a timer. Every queue here is bounded, and putting something in
//! never blocks: the caller is told at once when there is no room.
//!
//! The decision whether a proposal is welcome is made under the same lock as the queue itself. So when
//! leadership ends, nothing of the old term can slip in behind the marker that fails its transactions.

use super::changes::Change;
use super::error::RaftError;
use super::log_store::DiskError;
use super::retention::Retention;
use crate::storage::proposer::{HistoryError, MAX_REQUEST_BYTES};
use crate::storage::seal::DekRing;
use crate::storage::{Proposal, ProposeError};
use parking_lot::{Condvar, Mutex};
use raft::eraftpb::Message;
use std::collections::VecDeque;
use std::time::Instant;

/// Proposals that may wait: more than the store lets be pending, so that writers wait there instead of
/// failing here.
const PROPOSALS_MAX: usize = 8192;
/// Bytes of proposals that may wait, 48 MiB; also above the store's own limit.
const PROPOSAL_BYTES_MAX: usize = 48 * 1024 * 1024;
/// Proposals taken per turn, so that ticks and heartbeats are not starved (spec 01 section 8).
const PROPOSALS_PER_TURN: usize = 1024;
/// Bytes of proposals taken per turn; at least one is.
const PROPOSAL_BYTES_PER_TURN: usize = 1024 * 1024;
/// Messages from other members that may wait; the protocol repairs what is dropped.
const MESSAGES_MAX: usize = 4096;
/// Messages taken per turn.
const MESSAGES_PER_TURN: usize = 1024;
/// Requests that may wait.
const REQUESTS_MAX: usize = 4096;

/// A piece of history: requests of normal entries, and the index up to which it reaches.
pub struct HistoryPart {
    pub requests: Vec<(u64, Vec<u8>)>,
    pub through: u64,
}

/// What is asked of the raft thread apart from proposals and messages.
pub enum Request {
    /// Entries of `(from, to]`, as many as one bounded read gives.
    History {
        from: u64,
        to: u64,
        reply: crossbeam_channel::Sender<Result<HistoryPart, HistoryError>>,
    },
    /// The log under another data key. It may forget entries up to `durable`.
    Reseal {
        ring: DekRing,
        durable: u64,
        reply: crossbeam_channel::Sender<Result<Option<u64>, DiskError>>,
    },
    /// An index that is current now: whoever has applied it reads nothing stale.
    ReadIndex {
        reply: tokio::sync::oneshot::Sender<Result<u64, ProposeError>>,
    },
    /// Another configuration of the group.
    Change(Change),
    /// Leadership is to go to another member; answered when that has begun.
    Transfer {
        reply: tokio::sync::oneshot::Sender<Result<(), RaftError>>,
    },
    /// A message did not reach a member.
    Unreachable { raft_id: u64 },
    /// A snapshot was delivered to a member, or not.
    SnapshotSent { raft_id: u64, delivered: bool },
    /// Another member says that this one was removed.
    Removed,
}

/// How far the applier is. The newest report replaces older ones.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// Index of the last applied entry.
    pub applied: u64,
    /// Cost of the entries that were handed to the applier and have been applied since the start.
    pub applied_bytes: u64,
    /// How many terms the state machine was told to begin since the start, and has begun.
    pub begun: u64,
    /// Applied index at the last sync of the state machine.
    pub synced: u64,
    /// Why nothing can be applied at present: the disk is full.
    pub full: Option<String>,
    /// How long the log is to be kept, as the cluster object says at `applied`.
    pub retention: Retention,
}

/// What the raft thread took for one turn.
#[derive(Default)]
pub struct Intake {
    pub proposals: Vec<Proposal>,
    pub messages: Vec<Message>,
    pub requests: Vec<Request>,
    pub progress: Progress,
    /// An orderly stop was asked for.
    pub stop: bool,
}

/// What ends the raft thread's wait before the deadline.
#[derive(Debug, Clone, Copy)]
pub struct Wishes {
    /// Proposals are welcome. False while too much is uncommitted or unapplied.
    pub proposals: bool,
    /// Something waits for the applier.
    pub progress: bool,
    /// Messages and progress may be processed. False while a write is being retried.
    pub all: bool,
}

#[derive(Default)]
struct State {
    /// The term whose proposals are accepted.
    term: Option<u64>,
    /// Why proposals are refused, whatever their term.
    refusal: Option<ProposeError>,
    proposals: VecDeque<Proposal>,
    proposal_bytes: usize,
    messages: VecDeque<Message>,
    requests: VecDeque<Request>,
    progress: Progress,
    /// Progress was reported since the raft thread looked.
    news: bool,
    /// An orderly stop was asked for and the raft thread has not seen it yet.
    stop: bool,
    /// Proposals are refused for good.
    stopping: bool,
    closed: bool,
    /// What the sleeping raft thread waits for; `None` while it is awake.
    asleep: Option<Wishes>,
}

/// The queue in front of the raft thread.
#[derive(Default)]
pub struct Inbox {
    state: Mutex<State>,
    wake: Condvar,
}

impl Inbox {
    pub fn new(progress: Progress) -> Inbox {
        let state = State {
            progress,
            ..State::default()
        };
        Inbox {
            state: Mutex::new(state),
            wake: Condvar::new(),
        }
    }

    // ------------------------------------------------------------------------------- for callers

    /// Queues a proposal of the accepted term.
    pub fn propose(&self, proposal: Proposal) -> Result<(), ProposeError> {
        if proposal.data.len() > MAX_REQUEST_BYTES {
            return Err(ProposeError::TooLarge);
        }
        let mut state = self.state.lock();
        if state.closed || state.stopping {
            return Err(ProposeError::Stopped);
        }
        if let Some(refusal) = &state.refusal {
            return Err(refusal.clone());
        }
        if state.term != Some(proposal.term) {
            return Err(ProposeError::LostLeadership);
        }
        let bytes = state.proposal_bytes + proposal.data.len();
        if state.proposals.len() >= PROPOSALS_MAX || bytes > PROPOSAL_BYTES_MAX {
            return Err(ProposeError::Busy);
        }
        state.proposal_bytes = bytes;
        state.proposals.push_back(proposal);
        self.wake_up(state);
        Ok(())
    }

    /// Queues a message from another member; false if it had to be dropped.
    pub fn message(&self, message: Message) -> bool {
        let mut state = self.state.lock();
        if state.closed || state.messages.len() >= MESSAGES_MAX {
            return false;
        }
        state.messages.push_back(message);
        self.wake_up(state);
        true
    }

    /// Queues a request; false if the member has ended or is overrun, and the reply is dropped.
    pub fn request(&self, request: Request) -> bool {
        let mut state = self.state.lock();
        if state.closed || state.requests.len() >= REQUESTS_MAX {
            return false;
        }
        state.requests.push_back(request);
        self.wake_up(state);
        true
    }

    /// Asks for an orderly stop. Proposals are refused from here on; those that wait are still served.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stop = true;
        state.stopping = true;
        self.wake_up(state);
    }

    // --------------------------------------------------------------------------- for the applier

    /// Changes the progress report. The raft thread is only woken if it waits for news.
    pub fn report(&self, change: impl FnOnce(&mut Progress)) {
        let mut state = self.state.lock();
        change(&mut state.progress);
        state.news = true;
        self.wake_up(state);
    }

    // ----------------------------------------------------------------------- for the raft thread

    /// Accepts proposals of `term`; with `None`, of no term, and forgets those that wait.
    pub fn accept(&self, term: Option<u64>) {
        let mut state = self.state.lock();
        state.term = term;
        if term.is_none() {
            state.proposals.clear();
            state.proposal_bytes = 0;
        }
    }

    /// Refuses proposals for this reason, or no longer. Those that wait stay.
    pub fn refuse(&self, refusal: Option<ProposeError>) {
        self.state.lock().refusal = refusal;
    }

    /// Whether an orderly stop was asked for.
    pub fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }

    /// How long the log is to be kept, as last reported.
    pub fn retention(&self) -> Retention {
        self.state.lock().progress.retention
    }

    pub fn has_proposals(&self) -> bool {
        !self.state.lock().proposals.is_empty()
    }

    /// Waits for something that `wishes` names, until `deadline` at most, and takes it.
    pub fn wait(&self, wishes: Wishes, deadline: Instant) -> Intake {
        let mut state = self.state.lock();
        while !state.satisfies(wishes) {
            state.asleep = Some(wishes);
            let timed_out = self.wake.wait_until(&mut state, deadline).timed_out();
            state.asleep = None;
            if timed_out {
                break;
            }
        }
        state.take(wishes)
    }

    /// Refuses everything from here on and forgets what waits.
    pub fn close(&self) {
        let mut state = self.state.lock();
        let progress = state.progress.clone();
        *state = State {
            closed: true,
            progress,
            ..State::default()
        };
    }

    fn wake_up(&self, state: parking_lot::MutexGuard<'_, State>) {
        let wanted = state.asleep.is_some_and(|wishes| state.satisfies(wishes));
        drop(state);
        if wanted {
            self.wake.notify_one();
        }
    }
}

impl State {
    fn satisfies(&self, wishes: Wishes) -> bool {
        if self.stop || !self.requests.is_empty() {
            return true;
        }
        if !wishes.all {
            return false;
        }
        !self.messages.is_empty()
            || (wishes.proposals && !self.proposals.is_empty())
            || (wishes.progress && self.news)
    }

    fn take(&mut self, wishes: Wishes) -> Intake {
        let mut intake = Intake {
            requests: std::mem::take(&mut self.requests).into(),
            progress: self.progress.clone(),
            stop: std::mem::take(&mut self.stop),
            ..Intake::default()
        };
        if !wishes.all {
            return intake;
        }
        self.news = false;
        let count = self.messages.len().min(MESSAGES_PER_TURN);
        intake.messages = self.messages.drain(..count).collect();
        if wishes.proposals {
            intake.proposals = self.take_proposals();
        }
        intake
    }

    fn take_proposals(&mut self) -> Vec<Proposal> {
        let mut count = 0;
        let mut bytes = 0;
        for proposal in self.proposals.iter().take(PROPOSALS_PER_TURN) {
            if count > 0 && bytes + proposal.data.len() > PROPOSAL_BYTES_PER_TURN {
                break;
            }
            bytes += proposal.data.len();
            count += 1;
        }
        self.proposal_bytes -= bytes;
        self.proposals.drain(..count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: Wishes = Wishes {
        proposals: true,
        progress: true,
        all: true,
    };

    fn proposal(term: u64, bytes: usize) -> Proposal {
        Proposal {
            request_id: 1,
            data: vec![0; bytes],
            term,
        }
    }

    fn accepting(term: u64) -> Inbox {
        let inbox = Inbox::default();
        inbox.accept(Some(term));
        inbox
    }

    #[test]
    fn only_the_accepted_term_may_propose() {
        let inbox = Inbox::default();
        let refused = Err(ProposeError::LostLeadership);
        assert_eq!(inbox.propose(proposal(1, 0)), refused);
        inbox.accept(Some(2));
        assert_eq!(inbox.propose(proposal(1, 0)), refused);
        assert_eq!(inbox.propose(proposal(2, 0)), Ok(()));
        inbox.accept(None);
        assert_eq!(inbox.propose(proposal(2, 0)), refused);
        let intake = inbox.wait(EVERYTHING, Instant::now());
        assert!(intake.proposals.is_empty());
    }

    #[test]
    fn queues_are_bounded() {
        let inbox = accepting(1);
        for _ in 0..PROPOSALS_MAX {
            assert_eq!(inbox.propose(proposal(1, 1)), Ok(()));
        }
        assert_eq!(inbox.propose(proposal(1, 1)), Err(ProposeError::Busy));

        let inbox = accepting(1);
        let large = PROPOSAL_BYTES_MAX / MAX_REQUEST_BYTES;
        for _ in 0..large {
            assert_eq!(inbox.propose(proposal(1, MAX_REQUEST_BYTES)), Ok(()));
        }
        let next = inbox.propose(proposal(1, MAX_REQUEST_BYTES));
        assert_eq!(next, Err(ProposeError::Busy));

        for _ in 0..MESSAGES_MAX {
            assert!(inbox.message(Message::default()));
        }
        assert!(!inbox.message(Message::default()));
    }

    #[test]
    fn oversized_proposals_are_refused() {
        let next = accepting(1).propose(proposal(1, MAX_REQUEST_BYTES + 1));
        assert_eq!(next, Err(ProposeError::TooLarge));
    }

    #[test]
    fn a_turn_takes_a_bounded_share_in_order() {
        let inbox = accepting(1);
        for id in 0..1500 {
            let mut next = proposal(1, 1);
            next.request_id = id;
            inbox.propose(next).unwrap();
        }
        let first = inbox.wait(EVERYTHING, Instant::now()).proposals;
        let second = inbox.wait(EVERYTHING, Instant::now()).proposals;
        let ids = first.iter().chain(&second).map(|next| next.request_id);
        assert_eq!(first.len(), PROPOSALS_PER_TURN);
        assert!(ids.eq(0..1500));

        let inbox = accepting(1);
        for _ in 0..3 {
            inbox.propose(proposal(1, PROPOSAL_BYTES_PER_TURN)).unwrap();
        }
        assert_eq!(inbox.wait(EVERYTHING, Instant::now()).proposals.len(), 1);
    }

    #[test]
    fn unwanted_proposals_stay_in_the_queue() {
        let inbox = accepting(1);
        inbox.propose(proposal(1, 1)).unwrap();
        let unwanted = Wishes {
            proposals: false,
            ..EVERYTHING
        };
        assert!(inbox.wait(unwanted, Instant::now()).proposals.is_empty());
        assert_eq!(inbox.wait(EVERYTHING, Instant::now()).proposals.len(), 1);
    }

    #[test]
    fn refusals_and_stop() {
        let inbox = accepting(1);
        inbox.propose(proposal(1, 1)).unwrap();
        inbox.refuse(Some(ProposeError::DiskFull("x".into())));
        let full = Err(ProposeError::DiskFull("x".into()));
        assert_eq!(inbox.propose(proposal(1, 1)), full);
        inbox.refuse(None);
        inbox.stop();
        assert_eq!(inbox.propose(proposal(1, 1)), Err(ProposeError::Stopped));
        let intake = inbox.wait(EVERYTHING, Instant::now());
        assert!(intake.stop);
        assert_eq!(intake.proposals.len(), 1);
        inbox.close();
        assert!(!inbox.message(Message::default()));
    }
}
