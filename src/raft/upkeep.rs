//! What the raft thread does beside consensus: keeping the log short, marking how far it reaches.

use super::applier::Task;
use super::error::Fatal;
use super::inbox::Progress;
use super::log_store::{DiskError, LogStore};
use super::node::Node;
use super::retention::LogLife;
use std::time::{Duration, Instant};

/// Time between two looks at the log's size, and between two marks (settled S8).
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between two purges of log files (spec 01 section 8).
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// State of the upkeep.
pub(super) struct Upkeep {
    pub life: LogLife,
    /// Bytes of log above which it is compacted early.
    pub log_bytes_max: u64,
    next_look: Instant,
    next_purge: Instant,
    above_ceiling: bool,
    /// Something was written since the last mark.
    unmarked: bool,
}

impl Upkeep {
    pub fn new(life: LogLife, log_bytes_max: u64) -> Upkeep {
        let now = Instant::now();
        Upkeep {
            life,
            log_bytes_max,
            next_look: now,
            next_purge: now + PURGE_EVERY,
            above_ceiling: false,
            unmarked: true,
        }
    }

    /// The log was written.
    pub fn wrote(&mut self) {
        self.unmarked = true;
    }

    pub fn waits_for_sync(&self) -> bool {
        self.life.is_waiting()
    }
}

impl<L: LogStore> Node<L> {
    /// Once per tick.
    pub(super) fn keep_up(&mut self, now: Instant) -> Result<(), Fatal> {
        self.look_at_space(now);
        if now >= self.upkeep.next_look {
            self.upkeep.next_look = now + LOOK_EVERY;
            let size = self.raw.store().log().size_bytes();
            self.upkeep.above_ceiling = size > self.upkeep.log_bytes_max;
            self.mark();
        }
        if now >= self.upkeep.next_purge {
            self.purge(now)?;
        }
        Ok(())
    }

    /// Marks how far the log reaches. The mark only helps to notice damage, so a failure can wait.
    fn mark(&mut self) {
        if !self.upkeep.unmarked {
            return;
        }
        match self.raw.mut_store().log_mut().mark() {
            Ok(()) => self.upkeep.unmarked = false,
            Err(error) => tracing::warn!(%error, "cannot mark the end of the raft log"),
        }
    }

    /// Starts a compaction when one is due, and finishes it once the state machine is durable.
    pub(super) fn compact(&mut self, progress: &Progress) -> Result<(), Fatal> {
        let retention = progress.retention;
        let first = self.raw.store().log().first_index();
        if let Some(target) = self.upkeep.life.synced(progress.synced, retention, first) {
            let compacted = self.raw.mut_store().compact(target);
            check(compacted)?;
            tracing::debug!(target, "raft log compacted");
            self.purge(Instant::now())?;
        }
        let above = self.upkeep.above_ceiling;
        if self.upkeep.life.start(progress.applied, retention, above) {
            self.send_task(Task::Sync)?;
        }
        Ok(())
    }

    fn purge(&mut self, now: Instant) -> Result<(), Fatal> {
        self.upkeep.next_purge = now + PURGE_EVERY;
        let purged = self.raw.mut_store().log_mut().purge();
        check(purged)
    }
}

/// A full disk can wait: the same is tried again later. Anything else ends the member.
fn check(result: Result<(), DiskError>) -> Result<(), Fatal> {
    match result {
        Ok(()) => Ok(()),
        Err(DiskError::Full(reason)) => {
            tracing::warn!(%reason, "upkeep of the raft log postponed");
            Ok(())
        }
        Err(DiskError::Broken(reason)) => Err(Fatal::Log(reason)),
    }
}
