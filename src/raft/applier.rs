//! The thread that applies committed entries, in log order, and is the only one to write the tables.
//!
//! It takes tasks from a bounded queue that the raft thread fills and never blocks on. Entries that have
//! gathered while a write was under way are applied together, as one batch; the markers between them
//! (a term begins, a term ends, make it durable) take effect exactly at their place in the log.
//!
//! A full disk is waited out. Any other failure ends the process: a member that skipped an entry would hold another state than the rest
//! of the group and pass it on.

use super::error::Fatal;
use super::handle::Shared;
use super::log_store::{DiskError, RETRY_AFTER, entry_cost};
use super::retention::Retention;
use crate::storage::ProposeError;
use crate::storage::{CommittedEntry, Membership, Payload};
use crossbeam_channel::Receiver;
use raft::eraftpb::Entry;
use std::sync::Arc;

/// Entries applied as one batch. Small, so that the writers of the first entries go on while the rest is
/// applied: with one large batch the writers and the applier take turns and half the machine idles.
const RUN_ENTRIES_MAX: usize = 32;
/// Bytes of entries applied as one batch; a single larger entry is applied alone.
const RUN_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The replicated state machine: the object store, or a double in unit tests.
pub trait Machine: Send + 'static {
    /// Applies entries that follow the last applied one, as one atomic write. After an error nothing of
    /// them is applied.
    fn apply(&mut self, entries: Vec<CommittedEntry>) -> Result<(), DiskError>;
    /// This member leads in `term` and everything before it is applied: transactions may start.
    fn begin_term(&mut self, term: u64);
    /// Transactions of the term fail with `why`; those already in the log may still be applied.
    fn end_term(&mut self, why: ProposeError);
    /// Makes everything applied so far durable.
    fn sync(&mut self) -> Result<(), DiskError>;
    /// How long the log is to be kept, according to the applied state.
    fn retention(&mut self) -> Retention;
}

/// A committed entry, with the configuration it leads to if it changes that.
pub struct Handed {
    pub entry: Entry,
    pub membership: Option<Membership>,
}

/// One step of the applier.
pub enum Task {
    Entries(Vec<Handed>),
    BeginTerm(u64),
    EndTerm(ProposeError),
    /// Make what is applied durable and report up to where that is.
    Sync,
    /// Make what is applied durable and end the thread.
    Stop,
}

/// The applier's state.
pub struct Applier<M> {
    pub machine: M,
    pub tasks: Receiver<Task>,
    pub shared: Arc<Shared>,
    /// Index of the last applied entry.
    pub applied: u64,
    /// The disk was full when the member was told to stop: nothing more is applied.
    pub given_up: bool,
}

impl<M: Machine> Applier<M> {
    /// Works off tasks until told to stop.
    pub fn run(&mut self) -> Result<(), Fatal> {
        loop {
            let task = self.tasks.recv().map_err(|_| Fatal::ThreadGone("raft"))?;
            let mut next = Some(task);
            while let Some(task) = next.take() {
                match task {
                    Task::Entries(entries) => next = self.apply_run(entries)?,
                    Task::BeginTerm(term) => {
                        self.machine.begin_term(term);
                        self.shared.inbox.report(|progress| progress.begun += 1);
                    }
                    Task::EndTerm(why) => self.machine.end_term(why),
                    Task::Sync => self.sync()?,
                    Task::Stop => return self.sync(),
                }
            }
        }
    }

    /// Applies these entries and those queued right behind them, then reports. Returns the task that
    /// ended the run.
    fn apply_run(&mut self, mut entries: Vec<Handed>) -> Result<Option<Task>, Fatal> {
        let mut bytes = bytes_of(&entries);
        let mut next = None;
        while entries.len() < RUN_ENTRIES_MAX && bytes < RUN_BYTES_MAX {
            match self.tasks.try_recv() {
                Ok(Task::Entries(more)) => {
                    bytes += bytes_of(&more);
                    entries.extend(more);
                }
                Ok(other) => {
                    next = Some(other);
                    break;
                }
                Err(_) => break,
            }
        }
        while entries.len() > RUN_ENTRIES_MAX {
            let rest = entries.split_off(RUN_ENTRIES_MAX);
            self.apply(entries)?;
            entries = rest;
        }
        self.apply(entries)?;
        Ok(next)
    }

    fn apply(&mut self, entries: Vec<Handed>) -> Result<(), Fatal> {
        let Some(last) = entries.last().map(|handed| handed.entry.index) else {
            return Ok(());
        };
        let bytes = bytes_of(&entries);
        let from = self.applied + 1;
        let applied = self.until_there_is_space(|machine| {
            machine.apply(entries.iter().map(committed_entry).collect())
        });
        let applied = applied.map_err(|reason| Fatal::Apply {
            from,
            to: last,
            reason,
        })?;
        if !applied {
            return Ok(());
        }
        self.applied = last;
        let retention = self.machine.retention();
        self.shared.inbox.report(|progress| {
            progress.applied = last;
            progress.applied_bytes += bytes;
            progress.retention = retention;
        });
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Fatal> {
        let synced = self.until_there_is_space(M::sync).map_err(Fatal::Sync)?;
        if synced {
            let applied = self.applied;
            self.shared
                .inbox
                .report(|progress| progress.synced = applied);
        }
        Ok(())
    }

    /// Does something that needs disk space, again and again for as long as there is none. Transactions
    /// fail meanwhile, reads go on. False if it was not done because the member is to stop; then nothing
    /// more is applied, which the next start makes up for.
    fn until_there_is_space(
        &mut self,
        mut attempt: impl FnMut(&mut M) -> Result<(), DiskError>,
    ) -> Result<bool, String> {
        let mut full = false;
        while !self.given_up {
            match attempt(&mut self.machine) {
                Ok(()) => {
                    if full {
                        tracing::info!("the object store can be written again");
                        self.shared.inbox.report(|progress| progress.full = None);
                    }
                    return Ok(true);
                }
                Err(DiskError::Broken(reason)) => return Err(reason),
                Err(DiskError::Full(reason)) => {
                    if !full {
                        full = true;
                        self.report_full(reason);
                    }
                    std::thread::sleep(RETRY_AFTER);
                    self.given_up = self.shared.inbox.is_stopping();
                }
            }
        }
        Ok(false)
    }

    fn report_full(&mut self, reason: String) {
        tracing::error!(%reason, "the object store cannot be written; retrying until there is space");
        let refusal = ProposeError::DiskFull(reason.clone());
        self.machine.end_term(refusal);
        self.shared
            .inbox
            .report(|progress| progress.full = Some(reason));
    }
}

fn bytes_of(entries: &[Handed]) -> u64 {
    entries.iter().map(|handed| entry_cost(&handed.entry)).sum()
}

fn committed_entry(handed: &Handed) -> CommittedEntry {
    let payload = match &handed.membership {
        Some(membership) => Payload::Membership(membership.clone()),
        None if handed.entry.data.is_empty() => Payload::Empty,
        None => Payload::Request(handed.entry.data.to_vec()),
    };
    CommittedEntry {
        index: handed.entry.index,
        term: handed.entry.term,
        payload,
    }
}
