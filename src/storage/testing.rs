//! A store for tests: a database in a temporary directory and a double in place of the raft group.
//!
//! The double commits every proposal at once, or holds it back while [`TestStore::hold`] is in force. Its
//! version starts at 0 and grows by 3 per proposal (spec 04 section 12), so that a test notices when it
//! takes the version of an object for the index of its entry.

use super::apply::{CommittedEntry, Payload};
use super::engine::{Db, DbOptions};
use super::proposer::{HistoryError, Position, Proposal, ProposeError, Proposer};
use super::seal::{Dek, DekRing};
use super::store::{Inner, Store};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// By how much the version grows with each proposal.
pub const VERSION_STEP: u64 = 3;

/// A store of its own, removed when dropped. Use it like a [`Store`].
pub struct TestStore {
    store: Store,
    proposer: Arc<TestProposer>,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl TestStore {
    /// An empty store whose member is the leader of term 1.
    pub fn new() -> TestStore {
        let store = TestStore::without_proposer();
        store.proposer.lead(1);
        store.store.set_proposer(store.proposer.clone());
        store
    }

    /// An empty store without anybody to replicate: transactions are applied directly, and neither
    /// stamped nor compared.
    pub fn without_proposer() -> TestStore {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("db");
        let db = Db::create(&path, &ring(), &DbOptions::default()).expect("empty database");
        TestStore::on(db, path, dir, State::default())
    }

    fn on(db: Db, path: PathBuf, dir: tempfile::TempDir, state: State) -> TestStore {
        let store = Store::open(Arc::new(db)).expect("readable store");
        TestStore {
            proposer: Arc::new(TestProposer {
                store: Arc::downgrade(&store.inner),
                state: Mutex::new(state),
            }),
            store,
            path,
            _dir: dir,
        }
    }

    /// Closes the store and opens it again, as after a restart; it leads the next term. What waited is
    /// lost. All clones of the store must be gone.
    pub fn reopen(self) -> TestStore {
        let (version, history, term) = {
            let state = self.proposer.state.lock();
            let version = state.version - state.waiting.len() as u64 * VERSION_STEP;
            (version, state.history.clone(), state.term.unwrap_or(0))
        };
        let TestStore {
            store, path, _dir, ..
        } = self;
        store.close();
        drop(store);
        let db = Db::open(&path, &ring(), &DbOptions::default()).expect("whole database");
        let state = State {
            version,
            history,
            ..State::default()
        };
        let reopened = TestStore::on(db, path, _dir, state);
        reopened.proposer.lead(term + 1);
        reopened.store.set_proposer(reopened.proposer.clone());
        reopened
    }

    /// The database below.
    pub fn db(&self) -> Arc<Db> {
        self.store.inner.state.load().view.db().clone()
    }

    /// The store itself, to hand to what is under test.
    pub fn store(&self) -> Store {
        self.store.clone()
    }

    pub fn proposer(&self) -> &Arc<TestProposer> {
        &self.proposer
    }

    /// Directory of the database.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From now on proposals wait until [`TestStore::release`].
    pub fn hold(&self) {
        self.proposer.state.lock().held = true;
    }

    /// Commits what waits, in order, as one run, and goes back to committing at once.
    pub fn release(&self) {
        self.proposer.release();
    }

    /// Leadership ends: what waits fails. Returns what the log may still commit later.
    pub fn lose_leadership(&self) -> Vec<CommittedEntry> {
        self.proposer.lose_leadership()
    }

    /// This member leads the given term.
    pub fn lead(&self, term: u64) {
        self.proposer.lead(term);
    }
}

impl Default for TestStore {
    fn default() -> TestStore {
        TestStore::new()
    }
}

impl Deref for TestStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// The key of all test databases.
pub fn ring() -> DekRing {
    DekRing::single(Dek::from_bytes(&[7; 32]).expect("32 bytes"))
}

/// Stands in for the raft group.
pub struct TestProposer {
    store: Weak<Inner>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    term: Option<u64>,
    version: u64,
    held: bool,
    waiting: VecDeque<CommittedEntry>,
    history: Vec<(u64, Vec<u8>)>,
    /// Entries up to this one are gone from the log.
    compacted: u64,
    refuse: Option<ProposeError>,
}

impl TestProposer {
    fn store(&self) -> Option<Store> {
        Some(Store {
            inner: self.store.upgrade()?,
        })
    }

    /// The next proposals are refused with this error, until it is set to `None`.
    pub fn refuse(&self, with: Option<ProposeError>) {
        self.state.lock().refuse = with;
    }

    /// Proposals that wait.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Takes the proposals that wait, as the entries that they would become.
    pub fn take_waiting(&self) -> Vec<CommittedEntry> {
        std::mem::take(&mut self.state.lock().waiting).into()
    }

    /// Forgets the log up to and including this entry.
    pub fn compact(&self, through: u64) {
        self.state.lock().compacted = through;
    }

    /// Every request ever committed, with its index.
    pub fn history(&self) -> Vec<(u64, Vec<u8>)> {
        self.state.lock().history.clone()
    }

    /// Puts entries into the history that somebody else committed, without applying them.
    pub fn record(&self, entries: Vec<CommittedEntry>) {
        let mut state = self.state.lock();
        for entry in entries {
            state.version = state.version.max(entry.index);
            if let Payload::Request(data) = entry.payload {
                state.history.push((entry.index, data));
            }
        }
    }

    fn lead(&self, term: u64) {
        self.state.lock().term = Some(term);
        if let Some(store) = self.store() {
            store.begin_term(term);
        }
    }

    fn lose_leadership(&self) -> Vec<CommittedEntry> {
        let lost = {
            let mut state = self.state.lock();
            state.term = None;
            state.held = false;
            std::mem::take(&mut state.waiting).into()
        };
        if let Some(store) = self.store() {
            store.end_term(ProposeError::LostLeadership);
        }
        lost
    }

    fn release(&self) {
        let entries: Vec<CommittedEntry> = {
            let mut state = self.state.lock();
            state.held = false;
            std::mem::take(&mut state.waiting).into()
        };
        self.commit(entries);
    }

    fn commit(&self, entries: Vec<CommittedEntry>) {
        {
            let mut state = self.state.lock();
            for entry in &entries {
                if let Payload::Request(data) = &entry.payload {
                    state.history.push((entry.index, data.clone()));
                }
            }
        }
        if let Some(store) = self.store() {
            store.apply(entries).expect("entries can be applied");
        }
    }
}

impl Proposer for TestProposer {
    fn propose(&self, proposal: Proposal) -> Result<(), ProposeError> {
        let entry = {
            let mut state = self.state.lock();
            if let Some(error) = &state.refuse {
                return Err(error.clone());
            }
            if state.term != Some(proposal.term) {
                return Err(ProposeError::LostLeadership);
            }
            state.version += VERSION_STEP;
            let entry = CommittedEntry {
                index: state.version,
                term: proposal.term,
                payload: Payload::Request(proposal.data),
            };
            if state.held {
                state.waiting.push_back(entry);
                return Ok(());
            }
            entry
        };
        self.commit(vec![entry]);
        Ok(())
    }

    fn position(&self) -> Option<Position> {
        let state = self.state.lock();
        let waiting = state.waiting.len() as u64 * VERSION_STEP;
        Some(Position {
            leader_term: state.term,
            commit: state.version - waiting,
            last: state.version,
        })
    }

    fn changes_between(&self, from: u64, to: u64) -> Result<Vec<(u64, Vec<u8>)>, HistoryError> {
        let state = self.state.lock();
        if from > to {
            return Err(HistoryError::OutOfOrder);
        }
        if state.history.is_empty() {
            return Err(HistoryError::Log("no history".into()));
        }
        if to > state.version {
            return Err(HistoryError::OutOfBounds);
        }
        if from < state.compacted {
            return Err(HistoryError::Compacted);
        }
        let wanted = |index: &u64| from < *index && *index <= to;
        Ok(state
            .history
            .iter()
            .filter(|(index, _)| wanted(index))
            .cloned()
            .collect())
    }
}
