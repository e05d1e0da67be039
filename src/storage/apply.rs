//! Committed entries: one write batch per run of entries, then events, then the waiting writers.
//!
//! This is the only code that writes the database. A run of entries becomes one atomic batch of rows,
//! index entries and the position in the log; once it is written the new state is published, its events
//! go out in order, the speculative head drops what is now real, and the writers are told.
//!
//! An entry that was proposed here takes its prepared changes from the head. Any other entry is decoded
//! and played through the rules of the replicated state machine. If one of its actions breaks a rule the
//! whole entry is discarded, as on every other manager, and counted here.

use super::engine::{Applied, Db, Family, meta};
use super::events::Change;
use super::keys::KeyRef;
use super::membership::Membership;
use super::overlay::{Overlay, TxChange};
use super::proposer::ProposeError;
use super::read::State;
use super::request::{self, RawRequest};
use super::store::Store;
use super::summary::{Dirty, Summary};
use super::tx::{Mode, ReplayError, Tx};
use super::{StoreError, records, rows};
use prost::bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What an entry carries.
#[derive(Debug, Clone)]
pub enum Payload {
    /// Nothing: a leader's first entry, or a refused change of the membership.
    Empty,
    /// A plain, encoded `InternalRaftRequest`.
    Request(Vec<u8>),
    /// The membership as it is after this entry.
    Membership(Membership),
}

/// A committed entry of the log.
#[derive(Debug, Clone)]
pub struct CommittedEntry {
    pub index: u64,
    pub term: u64,
    pub payload: Payload,
}

/// Entries that were committed but discarded because an action broke a rule.
#[derive(Debug, Default)]
pub struct ApplyErrors {
    count: AtomicU64,
    last_index: AtomicU64,
}

impl ApplyErrors {
    /// How many there were since the store was opened.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The index of the last one; 0 if there was none.
    pub fn last_index(&self) -> u64 {
        self.last_index.load(Ordering::Relaxed)
    }

    fn note(&self, index: u64) {
        self.last_index.store(index, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A run of entries on its way into the database.
struct Run {
    base: Arc<State>,
    /// Net changes of all entries so far; the writer of each is the entry's index.
    overlay: Overlay,
    summary: Summary,
    /// What else has to be written because of the changes.
    dirty: Dirty,
    discarded: Vec<u64>,
    applied: u64,
    term: u64,
    membership: Option<Membership>,
    /// Changes of each entry that has any.
    events: Vec<(u64, Vec<Arc<Change>>)>,
    /// Transactions of this member are among them.
    has_own: bool,
}

impl Run {
    fn new(base: Arc<State>) -> Run {
        Run {
            overlay: Overlay::default(),
            summary: base.summary.clone(),
            dirty: Dirty::default(),
            discarded: Vec::new(),
            applied: base.applied,
            term: base.applied_term,
            membership: None,
            events: Vec::new(),
            has_own: false,
            base,
        }
    }

    /// Takes the changes of an entry in.
    fn commit(&mut self, index: u64, changes: &[TxChange]) {
        for change in changes {
            self.overlay.apply(change, index);
            self.summary.apply(change, &mut self.dirty);
        }
        if !changes.is_empty() {
            let events = changes.iter().map(|change| change.change.clone()).collect();
            self.events.push((index, events));
        }
    }

    /// Plays an entry that was not prepared here. On an error nothing of it remains.
    fn replay(&mut self, index: u64, request: RawRequest) -> Result<(), ReplayError> {
        let mut tx = Tx::new(self.base.clone(), self.overlay.clone(), Mode::Apply);
        for action in request.actions {
            match (action.action, action.target) {
                (Some(kind), Some((table, payload))) => tx.replay(kind, table, payload)?,
                _ => return Err(StoreError::Rule("unrecognized action type").into()),
            }
        }
        self.commit(index, &tx.into_changes());
        Ok(())
    }

    /// Writes everything as one batch.
    fn write(&self, db: &Db) -> Result<(), StoreError> {
        let mut changes = db.changes();
        for (key, row) in &self.overlay.rows {
            match &row.stored {
                Some(stored) => rows::put(&mut changes, db, key, row.writer, &stored.payload)?,
                None => changes.delete(rows::family_of_row(key), key),
            }
        }
        for (plain, entry) in &self.overlay.index {
            let key = KeyRef {
                plain,
                value_end: entry.value_end,
            };
            let unique = key.is_unique();
            let family = if unique { Family::Uniq } else { Family::Idx };
            let name = key.disk(db.hasher());
            match &entry.owner {
                Some(owner) if unique => changes.put(family, &name, owner.as_bytes()),
                Some(_) => changes.put(family, &name, &[]),
                None => changes.delete(family, &name),
            }
        }
        self.summary
            .write(&self.dirty, &self.overlay, db, &mut changes)?;
        if !self.discarded.is_empty() {
            let mut discarded = records::discarded(&self.base.view)?;
            self.discarded
                .iter()
                .for_each(|index| discarded.note(*index));
            records::put_discarded(&mut changes, &discarded)?;
        }
        if let Some(membership) = &self.membership {
            rows::put_membership(&mut changes, db, membership)?;
        }
        let applied = Applied {
            index: self.applied,
            term: self.term,
        };
        changes.put_record(meta::APPLIED, &applied)?;
        Ok(changes.commit()?)
    }
}

impl Store {
    /// Applies committed entries, in order, as one write. To be called by the applier only. Entries up
    /// to the applied index are skipped. An error means that the database cannot be written or read:
    /// nothing has happened then, and the same entries may be tried again, also after a term has ended.
    pub fn apply(&self, entries: Vec<CommittedEntry>) -> Result<(), StoreError> {
        let _applier = self.inner.applier.lock();
        let applied = self.apply_run(entries);
        if applied.is_err() {
            self.inner.head.lock().uncommit();
        }
        applied
    }

    fn apply_run(&self, entries: Vec<CommittedEntry>) -> Result<(), StoreError> {
        let mut run = Run::new(self.inner.state.load_full());
        for entry in entries {
            if entry.index <= run.applied {
                continue;
            }
            match entry.payload {
                Payload::Empty => {}
                Payload::Membership(membership) => run.membership = Some(membership),
                Payload::Request(data) if data.is_empty() => {}
                Payload::Request(data) => {
                    self.apply_request(&mut run, entry.index, entry.term, data.into())?;
                }
            }
            run.applied = entry.index;
            run.term = entry.term;
        }
        self.finish(run)
    }

    /// Applies changes without a log, for a store that has no proposer.
    pub(super) fn apply_directly(&self, changes: Vec<TxChange>) -> Result<(), StoreError> {
        let _applier = self.inner.applier.lock();
        let mut run = Run::new(self.inner.state.load_full());
        run.applied += 1;
        run.commit(run.applied, &changes);
        self.finish(run)
    }

    fn apply_request(
        &self,
        run: &mut Run,
        index: u64,
        term: u64,
        data: Bytes,
    ) -> Result<(), StoreError> {
        let request = match request::decode(data) {
            Ok(request) => request,
            Err(error) => {
                Store::discard(run, index, &error);
                return Ok(());
            }
        };
        let own = self.inner.head.lock().commit(request.id, term);
        if let Some(changes) = own {
            run.commit(index, &changes);
            run.has_own = true;
            return Ok(());
        }
        // Somebody else's entry: what waits here was built on a state without it.
        if self.inner.head.lock().is_waiting() {
            self.fail_pending(ProposeError::LostLeadership, None);
        }
        match run.replay(index, request) {
            Ok(()) => Ok(()),
            Err(ReplayError::Store(error @ StoreError::Disk(_))) => Err(error),
            Err(error) => {
                Store::discard(run, index, &error);
                Ok(())
            }
        }
    }

    /// Notes an entry that has no effect, here and on every other manager.
    fn discard(run: &mut Run, index: u64, error: &dyn std::error::Error) {
        run.discarded.push(index);
        tracing::error!(index, %error, "a committed entry cannot be applied and was discarded");
    }

    /// Writes a run, publishes its state and its events, and tells the waiting writers.
    fn finish(&self, run: Run) -> Result<(), StoreError> {
        let db = run.base.view.db().clone();
        run.write(&db)?;
        for index in &run.discarded {
            self.inner.apply_errors.note(*index);
        }
        if let Some(membership) = run.membership {
            *self.inner.membership.write() = membership;
        }
        for (row, state) in &run.overlay.rows {
            let stored = state.stored.as_ref();
            let object = stored.map(|stored| (&stored.object, stored.payload.len()));
            self.inner.cache.change(row, object, state.writer);
        }
        self.inner.state.store(Arc::new(State {
            view: db.view(),
            applied: run.applied,
            applied_term: run.term,
            summary: run.summary,
            cache: self.inner.cache.clone(),
        }));
        for (index, changes) in &run.events {
            self.inner.events.publish(*index, changes);
        }
        if run.has_own {
            let settled = self.inner.head.lock().settle();
            self.inner.room.notify_one();
            for reply in settled {
                // Nobody listens any more if the caller gave up.
                let _ = reply.send(Ok(()));
            }
        }
        Ok(())
    }

    /// The membership as of the last applied entry that changed it.
    pub fn membership(&self) -> Membership {
        self.inner.membership.read().clone()
    }

    /// Entries that were discarded while they were applied.
    pub fn apply_errors(&self) -> &ApplyErrors {
        &self.inner.apply_errors
    }
}
