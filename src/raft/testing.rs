//! Doubles for the tests of the member: a log in memory and a state machine that notes what it is told.
//!
//! Both share their state with the test, which can look at it, make them fail, hold them up, and start a
//! second member on what the first one left.

use super::applier::Machine;
use super::log_store::{DiskError, LogStore};
use super::retention::Retention;
use crate::storage::ProposeError;
use crate::storage::{CommittedEntry, Membership, Payload};
use parking_lot::{Condvar, Mutex};
use raft::eraftpb::{Entry, HardState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No test waits longer than this for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Something that threads change and a test waits for.
pub struct Watched<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Watched<T> {
    pub fn new(value: T) -> Arc<Watched<T>> {
        Arc::new(Watched {
            value: Mutex::new(value),
            changed: Condvar::new(),
        })
    }

    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let result = f(&mut self.value.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until `found` finds what it looks for.
    pub fn wait<R>(&self, what: &str, mut found: impl FnMut(&mut T) -> Option<R>) -> R {
        let deadline = Instant::now() + PATIENCE;
        let mut value = self.value.lock();
        loop {
            if let Some(result) = found(&mut value) {
                return result;
            }
            let timeout = self.changed.wait_until(&mut value, deadline).timed_out();
            assert!(!timeout, "waited in vain for: {what}");
        }
    }
}

/// The content of a [`MemLog`].
#[derive(Default)]
pub struct MemState {
    pub entries: Vec<Entry>,
    pub hard_state: HardState,
    /// Index and term of the last forgotten entry.
    pub truncated: (u64, u64),
    /// Entries per durable write, in order.
    pub writes: Vec<usize>,
    /// Every write fails with this.
    pub fails: Option<DiskError>,
    /// Every read fails with this.
    pub unreadable: Option<String>,
    /// Writes wait while this is set.
    pub held: bool,
    /// A write is waiting.
    pub waiting: bool,
    pub closed: bool,
}

/// A log in memory.
#[derive(Clone)]
pub struct MemLog(pub Arc<Watched<MemState>>);

impl MemLog {
    pub fn new(hard_state: HardState, entries: Vec<Entry>) -> MemLog {
        MemLog(Watched::new(MemState {
            entries,
            hard_state,
            ..MemState::default()
        }))
    }
}

impl LogStore for MemLog {
    fn first_index(&self) -> u64 {
        self.0.with(|log| log.truncated.0 + 1)
    }

    fn last_index(&self) -> u64 {
        self.0
            .with(|log| log.entries.last().map_or(log.truncated.0, |e| e.index))
    }

    fn term(&self, index: u64) -> Result<u64, DiskError> {
        self.0.with(|log| {
            if index == log.truncated.0 {
                return Ok(log.truncated.1);
            }
            let entry = log.entries.iter().find(|entry| entry.index == index);
            entry
                .map(|entry| entry.term)
                .ok_or_else(|| DiskError::Broken(format!("no entry {index}")))
        })
    }

    fn entries(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<Entry>, DiskError> {
        self.0.with(|log| {
            if let Some(reason) = &log.unreadable {
                return Err(DiskError::Broken(reason.clone()));
            }
            let mut bytes = 0;
            let wanted = log.entries.iter().filter(|entry| entry.index >= low);
            let fitting = wanted.take_while(|entry| {
                let first = bytes == 0;
                bytes += 1 + entry.data.len() as u64;
                entry.index < high && (first || bytes <= bytes_max)
            });
            Ok(fitting.cloned().collect())
        })
    }

    fn hard_state(&self) -> HardState {
        self.0.with(|log| log.hard_state.clone())
    }

    fn append(&mut self, entries: &[Entry], hard_state: &HardState) -> Result<(), DiskError> {
        self.0.with(|log| log.waiting = true);
        self.0
            .wait("a log that is not held", |log| (!log.held).then_some(()));
        self.0.with(|log| {
            log.waiting = false;
            if let Some(error) = &log.fails {
                return Err(error.clone());
            }
            let promised = (log.hard_state.term, log.hard_state.vote);
            if !entries.is_empty() || promised != (hard_state.term, hard_state.vote) {
                log.writes.push(entries.len());
            }
            if let Some(first) = entries.first() {
                log.entries.retain(|entry| entry.index < first.index);
                let last = log.entries.last().map_or(log.truncated.0, |e| e.index);
                assert_eq!(last + 1, first.index, "a gap in the log");
            }
            log.entries.extend_from_slice(entries);
            log.hard_state = hard_state.clone();
            Ok(())
        })
    }

    fn compact(&mut self, index: u64) -> Result<(), DiskError> {
        let term = self.term(index)?;
        self.0.with(|log| {
            log.entries.retain(|entry| entry.index > index);
            log.truncated = (index, term);
            Ok(())
        })
    }

    fn purge(&mut self) -> Result<(), DiskError> {
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        0
    }

    fn mark(&mut self) -> Result<(), DiskError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), DiskError> {
        self.0.with(|log| log.closed = true);
        Ok(())
    }
}

/// What a [`NotingMachine`] was told.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    Empty(u64),
    Request(u64, Vec<u8>),
    Membership(u64, Membership),
    Begin(u64),
    End(ProposeError),
    Sync,
}

/// The state of a [`NotingMachine`].
#[derive(Default)]
pub struct Notes {
    pub told: Vec<Told>,
    /// Entries per call of `apply`.
    pub runs: Vec<usize>,
    pub applied: u64,
    pub membership: Membership,
    pub retention: Retention,
    /// Applying waits while this is set.
    pub held: bool,
    /// Applying fails with this.
    pub fails: Option<DiskError>,
    /// Applying a request with this data panics.
    pub poison: Option<Vec<u8>>,
}

/// A state machine that notes what it is told.
#[derive(Clone)]
pub struct NotingMachine(pub Arc<Watched<Notes>>);

impl Default for NotingMachine {
    fn default() -> NotingMachine {
        NotingMachine(Watched::new(Notes::default()))
    }
}

impl NotingMachine {
    /// Waits until a request with this data is applied, and returns its index.
    pub fn wait_for(&self, data: &[u8]) -> u64 {
        self.0.wait("an applied request", |notes| {
            notes.told.iter().find_map(|told| match told {
                Told::Request(index, found) if found == data => Some(*index),
                _ => None,
            })
        })
    }

    /// Waits until it was told this.
    pub fn wait_told(&self, wanted: &Told) {
        self.0.wait(&format!("{wanted:?}"), |notes| {
            notes.told.contains(wanted).then_some(())
        });
    }

    pub fn told(&self) -> Vec<Told> {
        self.0.with(|notes| notes.told.clone())
    }
}

impl Machine for NotingMachine {
    fn apply(&mut self, entries: Vec<CommittedEntry>) -> Result<(), DiskError> {
        self.0.wait("a machine that is not held", |notes| {
            (!notes.held).then_some(())
        });
        self.0.with(|notes| {
            if let Some(error) = &notes.fails {
                return Err(error.clone());
            }
            notes.runs.push(entries.len());
            for entry in entries {
                assert_eq!(entry.index, notes.applied + 1, "entries out of order");
                let told = match entry.payload {
                    Payload::Empty => Told::Empty(entry.index),
                    Payload::Request(data) => {
                        assert_ne!(notes.poison.as_ref(), Some(&data), "poisoned entry");
                        Told::Request(entry.index, data)
                    }
                    Payload::Membership(membership) => {
                        notes.membership = membership.clone();
                        Told::Membership(entry.index, membership)
                    }
                };
                notes.told.push(told);
                notes.applied = entry.index;
            }
            Ok(())
        })
    }

    fn begin_term(&mut self, term: u64) {
        self.0.with(|notes| notes.told.push(Told::Begin(term)));
    }

    fn end_term(&mut self, why: ProposeError) {
        self.0.with(|notes| notes.told.push(Told::End(why)));
    }

    fn sync(&mut self) -> Result<(), DiskError> {
        self.0.with(|notes| notes.told.push(Told::Sync));
        Ok(())
    }

    fn retention(&mut self) -> Retention {
        self.0.with(|notes| notes.retention)
    }
}
