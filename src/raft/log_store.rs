//! What the member needs from its log on disk, and the library's view of that log.
//!
//! [`LogStore`] is the boundary to the storage room: the real log, and a log in memory for tests.
//! [`LogView`] is what the consensus library reads through. It adds three things:
//!
//! * a cache of the newest entries, because an entry is read back right after it was written, when it is
//!   committed, and again for every follower that is slightly behind;
//! * a gate: while the applier is behind, no further committed entries are handed out, so that the
//!   backlog in memory stays bounded without ever blocking the raft thread;
//! * the reason of a failed read. The library ends the thread on any error but "compacted"; the
//!   supervisor then reports this reason instead of the library's bare panic.

use crate::storage::seal::DekRing;
use parking_lot::Mutex;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, StorageError};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Why the log, or the state machine, could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The disk is full. Nothing was acknowledged; the same write may be tried again.
    #[error("{0}")]
    Full(String),
    /// Anything else: damage, an I/O error. There is no going on.
    #[error("{0}")]
    Broken(String),
}

/// Time between two attempts to write to a full disk.
pub const RETRY_AFTER: Duration = Duration::from_millis(250);

/// A raft log on disk. Only the raft thread uses it.
pub trait LogStore: Send + 'static {
    /// Index after the last compacted entry, 1 for a log that was never compacted.
    fn first_index(&self) -> u64;
    /// Index of the newest entry; `first_index() - 1` when there is none.
    fn last_index(&self) -> u64;
    /// Term of an entry, or of the last compacted one. Indexes outside of that range are errors.
    fn term(&self, index: u64) -> Result<u64, DiskError>;
    /// Entries of `[low, high)`, which lies within the log: at least the first one, then as many as fit
    /// into `bytes_max` bytes of data.
    fn entries(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<Entry>, DiskError>;
    /// The stored hard state.
    fn hard_state(&self) -> HardState;
    /// Writes entries, cutting off what the log held from the first of them on, and the hard state, as
    /// one batch; durable on return. A mere change of the commit index may stay in memory until the
    /// next batch.
    fn append(&mut self, entries: &[Entry], hard_state: &HardState) -> Result<(), DiskError>;
    /// Forgets the entries up to and including `index`. Whoever calls this knows that the state machine
    /// holds their effect durably.
    fn compact(&mut self, index: u64) -> Result<(), DiskError>;
    /// Gives the space of forgotten entries back to the file system.
    fn purge(&mut self) -> Result<(), DiskError>;
    /// Seals from now on with the ring's current key, and everything in the log anew, durably. It may
    /// forget entries up to the first of `forget` that makes the log short enough. Returns the number of
    /// entries sealed anew, `None` if they are too many. A log that seals nothing has none.
    fn reseal(&mut self, ring: &DekRing, forget: &[u64]) -> Result<Option<u64>, DiskError> {
        let _ = (ring, forget);
        Ok(Some(0))
    }
    /// Bytes of log files on disk.
    fn size_bytes(&self) -> u64;
    /// Makes the end of the log known to the next opening, durably (settled S8).
    fn mark(&mut self) -> Result<(), DiskError>;
    /// Writes what is still only in memory; the last call.
    fn close(&mut self) -> Result<(), DiskError>;
}

/// The reason of a failed read, shared with the thread's supervisor.
pub type ReadFailure = Arc<Mutex<Option<String>>>;

/// Budget of the entry cache, 16 MiB (settled S2).
const CACHE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// What an entry costs beside its data: the struct, its allocation, the deque slot.
const ENTRY_OVERHEAD_BYTES: u64 = 128;

/// The log as the consensus library sees it.
pub struct LogView<L> {
    log: L,
    cache: RefCell<Cache>,
    conf_state: ConfState,
    /// True while committed entries may be handed out.
    gate_open: Cell<bool>,
    failure: ReadFailure,
}

impl<L: LogStore> LogView<L> {
    /// `conf_state` is the configuration at the state machine's applied index.
    pub fn new(log: L, conf_state: ConfState, failure: ReadFailure) -> LogView<L> {
        LogView {
            log,
            cache: RefCell::new(Cache::default()),
            conf_state,
            gate_open: Cell::new(true),
            failure,
        }
    }

    pub fn log(&self) -> &L {
        &self.log
    }

    pub fn log_mut(&mut self) -> &mut L {
        &mut self.log
    }

    /// Writes one batch; see [`LogStore::append`].
    pub fn append(&mut self, entries: &[Entry], hard_state: &HardState) -> Result<(), DiskError> {
        self.log.append(entries, hard_state)?;
        self.cache.get_mut().append(entries);
        Ok(())
    }

    /// Forgets entries; see [`LogStore::compact`].
    pub fn compact(&mut self, index: u64) -> Result<(), DiskError> {
        self.log.compact(index)?;
        self.cache.get_mut().forget(index);
        Ok(())
    }

    /// Writes the log again under another data key; see [`LogStore::reseal`].
    pub fn reseal(&mut self, ring: &DekRing, forget: &[u64]) -> Result<Option<u64>, DiskError> {
        let resealed = self.log.reseal(ring, forget);
        self.cache.get_mut().forget(self.log.first_index() - 1);
        resealed
    }

    /// Runs `f`, a call of the library that hands out committed entries, with the gate open or shut.
    pub fn set_gate(&self, open: bool) {
        self.gate_open.set(open);
    }

    /// Entries of `[low, high)` from the cache as far as it reaches, else from disk.
    pub fn read(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<Entry>, DiskError> {
        let cache = self.cache.borrow();
        let cached_from = cache.first().unwrap_or(u64::MAX);
        if low >= cached_from {
            return Ok(cache.range(low, high, bytes_max));
        }
        self.log.entries(low, high.min(cached_from), bytes_max)
    }

    fn fail(&self, attempt: String, error: DiskError) -> Error {
        let reason = format!("{attempt}: {error}");
        *self.failure.lock() = Some(reason.clone());
        Error::Store(StorageError::Other(reason.into()))
    }
}

impl<L: LogStore> raft::Storage for LogView<L> {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(
            self.log.hard_state(),
            self.conf_state.clone(),
        ))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low < self.log.first_index() {
            return Err(Error::Store(StorageError::Compacted));
        }
        // The library asks for entries to hand out with a context that cannot wait; those for
        // followers can. The gate is only shut while the library collects entries to hand out.
        if !self.gate_open.get() && !context.can_async() {
            return Ok(Vec::new());
        }
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        self.read(low, high, bytes_max)
            .map_err(|error| self.fail(format!("reading entries {low} to {}", high - 1), error))
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if let Some(term) = self.cache.borrow().term(index) {
            return Ok(term);
        }
        if index + 1 < self.log.first_index() {
            return Err(Error::Store(StorageError::Compacted));
        }
        if index > self.log.last_index() {
            return Err(Error::Store(StorageError::Unavailable));
        }
        self.log
            .term(index)
            .map_err(|error| self.fail(format!("reading the term of entry {index}"), error))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.log.first_index())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.log.last_index())
    }

    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        // The library needs to know that there is one that reaches to the beginning of the log. The
        // transport sends the newest state, and its place with it (settled S12).
        let index = self.log.first_index() - 1;
        if index == 0 {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        let mut snapshot = Snapshot::default();
        snapshot.mut_metadata().index = index;
        snapshot.mut_metadata().term = raft::Storage::term(self, index)?;
        snapshot
            .mut_metadata()
            .set_conf_state(self.conf_state.clone());
        Ok(snapshot)
    }
}

/// The newest entries, without a gap, within [`CACHE_BYTES_MAX`].
#[derive(Default)]
struct Cache {
    entries: VecDeque<Entry>,
    bytes: u64,
}

impl Cache {
    fn first(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.index)
    }

    /// Position of an index, if it is cached.
    fn position(&self, index: u64) -> Option<usize> {
        let position = index.checked_sub(self.first()?)?;
        usize::try_from(position)
            .ok()
            .filter(|at| *at < self.entries.len())
    }

    fn term(&self, index: u64) -> Option<u64> {
        self.position(index).map(|at| self.entries[at].term)
    }

    fn range(&self, low: u64, high: u64, bytes_max: u64) -> Vec<Entry> {
        let Some(from) = self.position(low) else {
            return Vec::new();
        };
        let mut bytes = 0u64;
        let entries = self.entries.iter().skip(from);
        let fitting = entries.take_while(|entry| {
            let first = bytes == 0;
            bytes += entry_cost(entry);
            entry.index < high && (first || bytes <= bytes_max)
        });
        fitting.cloned().collect()
    }

    fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else {
            return;
        };
        while self
            .entries
            .back()
            .is_some_and(|last| last.index >= first.index)
        {
            self.drop_back();
        }
        if self
            .entries
            .back()
            .is_some_and(|last| last.index + 1 != first.index)
        {
            self.entries.clear();
            self.bytes = 0;
        }
        for entry in entries {
            self.bytes += entry_cost(entry);
            self.entries.push_back(entry.clone());
        }
        while self.bytes > CACHE_BYTES_MAX {
            self.drop_front();
        }
    }

    fn forget(&mut self, through: u64) {
        while self.first().is_some_and(|first| first <= through) {
            self.drop_front();
        }
    }

    fn drop_back(&mut self) {
        if let Some(entry) = self.entries.pop_back() {
            self.bytes -= entry_cost(&entry);
        }
    }

    fn drop_front(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= entry_cost(&entry);
        }
    }
}

/// Bytes of memory that an entry stands for.
pub fn entry_cost(entry: &Entry) -> u64 {
    entry.data.len() as u64 + ENTRY_OVERHEAD_BYTES
}
