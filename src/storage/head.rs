//! The speculative head: transactions that are proposed but not yet applied, and their writers.
//!
//! A transaction runs on top of everything proposed before it, without waiting for the disk: it sees the
//! overlays of all pending transactions. That is sound because the log keeps the order of the proposals
//! and because they live and die together: when leadership ends, all of them fail at once
//! ([`Store::end_term`]), and whatever of them was committed nevertheless arrives through the ordinary
//! apply path, exactly once.
//!
//! Lock order: `writer` before `applier` before `head`. `head` is held for a few map operations only,
//! never across a closure, a proposal or the disk. A waiting or cancelled writer holds nothing: dropping
//! its future frees the writer lock, and a pending transaction belongs to the head alone.

use super::StoreError;
use super::batch::OpenBatch;
use super::object::Action;
use super::overlay::{Overlay, TxChange};
use super::proposer::{MAX_REQUEST_BYTES, Proposal, ProposeError};
use super::request;
use super::store::Store;
use super::tx::{Mode, Tx};
use crate::api::time;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::{MutexGuard, oneshot};

/// Transactions that may be pending at once. Far more than one disk flush can take in, so that the limit
/// shows only when the disk stands still.
pub const PENDING_MAX: usize = 4096;
/// Encoded bytes that may be pending at once, 14 MiB: bounds the memory of a standing disk, and leaves
/// the queue of the raft thread room for one more of the largest.
pub const PENDING_BYTES_MAX: usize = 14 << 20;
/// Attempts to get the writer lock before a task goes to sleep: closures take microseconds, a sleep more.
const SPINS: usize = 100;

/// What the writer lock protects.
#[derive(Default)]
pub(super) struct Writer {
    /// The part of a batch that is not proposed yet.
    pub open: Option<OpenBatch>,
}

/// Pending transactions and what they add up to.
pub(super) struct Head {
    /// The term of leadership, while this member is the signalled leader.
    pub term: Option<u64>,
    /// Why there is none.
    ended: ProposeError,
    /// The changes of all pending transactions.
    overlay: Overlay,
    /// In the order of the log.
    pending: VecDeque<Pending>,
    /// How many of them, from the oldest on, are committed and being applied.
    committed: usize,
    pending_bytes: usize,
    next_writer: u64,
}

/// One pending transaction.
struct Pending {
    /// Identifies it in the overlay.
    writer: u64,
    stamp: u64,
    request_id: u64,
    term: u64,
    bytes: usize,
    since: Instant,
    changes: Arc<[TxChange]>,
    reply: oneshot::Sender<Reply>,
}

/// Where a transaction began.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub term: Option<u64>,
    pub stamp: Option<u64>,
}

/// Tells the writer what became of its transaction.
pub(super) type Reply = Result<(), ProposeError>;

/// The outcome of a submitted transaction.
#[must_use]
pub(super) struct Outcome(Option<oneshot::Receiver<Reply>>);

impl Outcome {
    fn settled() -> Outcome {
        Outcome(None)
    }

    /// Waits until the transaction is applied or has failed. May be cancelled and called again.
    pub async fn ready(&mut self) -> Result<(), StoreError> {
        let Some(reply) = &mut self.0 else {
            return Ok(());
        };
        let outcome = match reply.await {
            Ok(outcome) => outcome,
            // The applier gave up, which ends the process.
            Err(_) => Err(ProposeError::Stopped),
        };
        self.0 = None;
        Ok(outcome?)
    }

    pub async fn wait(mut self) -> Result<(), StoreError> {
        self.ready().await
    }
}

/// The error of a transaction that has not become a proposal: nothing of it can ever happen.
fn not_begun(error: ProposeError) -> ProposeError {
    match error {
        ProposeError::LostLeadership => ProposeError::NotLeader,
        error => error,
    }
}

impl Head {
    /// Why there are no transactions at present.
    fn refusal(&self) -> ProposeError {
        not_begun(self.ended.clone())
    }

    pub fn new() -> Head {
        Head {
            term: None,
            ended: ProposeError::LostLeadership,
            overlay: Overlay::default(),
            pending: VecDeque::new(),
            committed: 0,
            pending_bytes: 0,
            next_writer: 1,
        }
    }

    fn has_room(&self) -> bool {
        self.pending.len() < PENDING_MAX && self.pending_bytes < PENDING_BYTES_MAX
    }

    /// Adds the newest transaction; returns its writer number.
    fn push(&mut self, mut pending: Pending) -> u64 {
        let writer = self.next_writer;
        self.next_writer += 1;
        pending.writer = writer;
        self.overlay.apply_all(&pending.changes, writer);
        self.pending_bytes += pending.bytes;
        self.pending.push_back(pending);
        writer
    }

    /// Takes the newest transaction back, if it still is the one with this number.
    fn take_back(&mut self, writer: u64) {
        if self.pending.len() > self.committed
            && let Some(newest) = self.pending.pop_back_if(|newest| newest.writer == writer)
        {
            self.pending_bytes -= newest.bytes;
            self.lay_over();
        }
    }

    /// Makes the overlay anew.
    fn lay_over(&mut self) {
        self.overlay = Overlay::default();
        for pending in &self.pending {
            self.overlay.apply_all(&pending.changes, pending.writer);
        }
    }

    /// The changes that an entry commits, if it is the next transaction that was proposed here.
    pub fn commit(&mut self, request_id: u64, term: u64) -> Option<Arc<[TxChange]>> {
        let next = self.pending.get(self.committed)?;
        if next.request_id != request_id || next.term != term {
            return None;
        }
        self.committed += 1;
        Some(next.changes.clone())
    }

    /// Whether transactions wait for their commit.
    pub fn is_waiting(&self) -> bool {
        self.pending.len() > self.committed
    }

    /// The run that held the committed transactions was not written: they wait as before.
    pub fn uncommit(&mut self) {
        self.committed = 0;
    }

    /// Drops the committed transactions, which are applied now. Returns whom to tell.
    pub fn settle(&mut self) -> Vec<oneshot::Sender<Reply>> {
        let applied: Vec<Pending> = self.pending.drain(..self.committed).collect();
        self.committed = 0;
        let settled = applied.into_iter().map(|pending| {
            self.overlay.prune(&pending.changes, pending.writer);
            self.pending_bytes -= pending.bytes;
            pending.reply
        });
        settled.collect()
    }

    /// Drops the transactions that wait for their commit. Returns whom to tell.
    fn abandon(&mut self) -> Vec<oneshot::Sender<Reply>> {
        let failed: Vec<Pending> = self.pending.drain(self.committed..).collect();
        if !failed.is_empty() {
            self.lay_over();
        }
        let abandoned = failed.into_iter().map(|pending| {
            self.pending_bytes -= pending.bytes;
            pending.reply
        });
        abandoned.collect()
    }
}

impl Store {
    /// Waits for the turn to write, and for room among the pending transactions.
    pub(super) async fn lock_writer(&self) -> Result<MutexGuard<'_, Writer>, StoreError> {
        let writer = match self.try_lock_writer() {
            Some(writer) => writer,
            None => self.inner.writer.lock().await,
        };
        loop {
            if self.inner.closed.load(Ordering::Acquire) {
                return Err(StoreError::Closed);
            }
            let room = self.inner.room.notified();
            if self.inner.head.lock().has_room() {
                return Ok(writer);
            }
            room.await;
        }
    }

    fn try_lock_writer(&self) -> Option<MutexGuard<'_, Writer>> {
        for _ in 0..SPINS {
            if let Ok(writer) = self.inner.writer.try_lock() {
                return Some(writer);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Starts a transaction on top of the head. The caller holds the writer lock.
    pub(super) fn begin(&self) -> (Tx, Origin) {
        let proposer = self.inner.proposer.read().clone();
        let position = proposer.as_ref().and_then(|proposer| proposer.position());
        let head = self.inner.head.lock();
        // The state is loaded under the lock: what is missing in it is still in the overlay.
        let state = self.inner.state.load_full();
        // The index before the one the entry is expected to get (settled S13). While others are pending
        // that is at least one more than theirs; the log may have grown by other entries, too.
        let stamp = position.map(|position| match head.pending.back() {
            Some(newest) => position.last.max(newest.stamp + 1),
            None => position.last.max(state.applied),
        });
        let origin = Origin {
            term: head.term,
            stamp,
        };
        let below = head.overlay.clone();
        drop(head);
        let mode = Mode::Propose {
            stamp,
            now: time::now(),
        };
        let tx = Tx::new(state, below, mode);
        (tx, origin)
    }

    /// Proposes a transaction. The caller holds the writer lock, and has since [`Store::begin`] or has
    /// made sure that nobody else proposed in between.
    pub(super) fn submit(&self, tx: Tx, origin: Origin) -> Result<Outcome, StoreError> {
        if tx.changes().is_empty() {
            return Ok(Outcome::settled());
        }
        let Some(proposer) = self.inner.proposer.read().clone() else {
            self.apply_directly(tx.into_changes())?;
            return Ok(Outcome::settled());
        };
        let bytes = tx.request_bytes();
        if bytes > MAX_REQUEST_BYTES {
            return Err(ProposeError::TooLarge.into());
        }
        let Some(stamp) = origin.stamp else {
            return Err(ProposeError::Stopped.into());
        };
        let Some(term) = origin.term else {
            return Err(self.inner.head.lock().refusal().into());
        };

        let request_id = self.inner.next_request.fetch_add(1, Ordering::Relaxed) | 1 << 63;
        let changes = tx.into_changes();
        let data = encode(request_id, bytes, &changes);
        let (reply, outcome) = oneshot::channel();
        let writer = {
            let mut head = self.inner.head.lock();
            if head.term != Some(term) {
                return Err(head.refusal().into());
            }
            head.push(Pending {
                writer: 0,
                stamp,
                request_id,
                term,
                bytes,
                since: Instant::now(),
                changes: changes.into(),
                reply,
            })
        };
        let proposal = Proposal {
            request_id,
            data,
            term,
        };
        // Registered first: the entry may be applied before this call returns.
        if let Err(error) = proposer.propose(proposal) {
            self.inner.head.lock().take_back(writer);
            return Err(not_begun(error).into());
        }
        Ok(Outcome(Some(outcome)))
    }

    /// How many transactions are pending, and since when the oldest one is.
    pub fn pending(&self) -> (usize, Option<Instant>) {
        let head = self.inner.head.lock();
        let oldest = head.pending.front().map(|pending| pending.since);
        (head.pending.len(), oldest)
    }

    /// This member is the signalled leader of `term` from here on. Called by the applier, in order.
    pub fn begin_term(&self, term: u64) {
        self.fail_pending(ProposeError::LostLeadership, Some(term));
    }

    /// Leadership is over: all pending transactions fail with `why`, their outcome being unknown. Called
    /// by the applier, in order between applies.
    pub fn end_term(&self, why: ProposeError) {
        self.fail_pending(why, None);
    }

    /// Fails everything that is pending and goes over to another term.
    pub(super) fn fail_pending(&self, why: ProposeError, term: Option<u64>) {
        let failed = {
            let mut head = self.inner.head.lock();
            head.term = term;
            head.ended = why.clone();
            head.abandon()
        };
        self.inner.room.notify_one();
        for reply in failed {
            // Nobody listens any more if the caller gave up.
            let _ = reply.send(Err(why.clone()));
        }
    }
}

fn encode(request_id: u64, bytes: usize, changes: &[TxChange]) -> Vec<u8> {
    let actions = changes.iter().map(|change| {
        let action: Action = change.change.action;
        (action, change.table(), &change.payload)
    });
    let data = request::encode(request_id, bytes, actions);
    debug_assert_eq!(data.len(), bytes);
    data
}
