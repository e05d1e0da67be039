//! What the raft thread does beside consensus: keeping the log short and the disk from running full.

use super::applier::Task;
use super::error::Fatal;
use super::inbox::Progress;
use super::log_store::{LogError, LogStore};
use super::node::Node;
use super::retention::LogLife;
use crate::storage::ProposeError;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time between two looks at the log's size, at the free space, and between two marks (settled S8).
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between two purges of log files (spec 01 section 8).
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// State of the upkeep.
pub(super) struct Upkeep {
    pub life: LogLife,
    /// Bytes of log above which it is compacted early.
    pub log_bytes_max: u64,
    /// Where to look for free space.
    pub dir: PathBuf,
    /// Free bytes below which writes are refused.
    pub reserve_bytes: u64,
    next_look: Instant,
    next_purge: Instant,
    above_ceiling: bool,
    /// Something was written since the last mark.
    unmarked: bool,
    /// Why writes are refused for lack of space.
    full: Option<String>,
}

impl Upkeep {
    pub fn new(life: LogLife, log_bytes_max: u64, dir: PathBuf, reserve_bytes: u64) -> Upkeep {
        let now = Instant::now();
        Upkeep {
            life,
            log_bytes_max,
            dir,
            reserve_bytes,
            next_look: now,
            next_purge: now + PURGE_EVERY,
            above_ceiling: false,
            unmarked: true,
            full: None,
        }
    }

    /// The log was written.
    pub fn wrote(&mut self) {
        self.unmarked = true;
    }

    pub fn waits_for_sync(&self) -> bool {
        self.life.is_waiting()
    }

    /// Why writes are refused at present.
    pub fn refusal(&self) -> Option<String> {
        self.full.clone()
    }

    /// Free space against the reserve; a quarter more must be free before writes are accepted again.
    fn judge_space(&self, free: u64) -> Option<String> {
        let wanted = match &self.full {
            None => self.reserve_bytes,
            Some(_) => self.reserve_bytes + self.reserve_bytes / 4,
        };
        (free < wanted).then(|| {
            format!(
                "{} MiB free at {}, {} MiB are kept in reserve; free some space",
                free >> 20,
                self.dir.display(),
                self.reserve_bytes >> 20
            )
        })
    }
}

impl<L: LogStore> Node<L> {
    /// Once per tick.
    pub(super) fn keep_up(&mut self, now: Instant) -> Result<(), Fatal> {
        if now >= self.upkeep.next_look {
            self.upkeep.next_look = now + LOOK_EVERY;
            self.look_at_space();
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

    /// Refuses writes while the disk is nearly full. A look that fails decides nothing.
    fn look_at_space(&mut self) {
        let free = match rustix::fs::statvfs(&self.upkeep.dir) {
            Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
            Err(error) => {
                tracing::debug!(%error, "cannot determine the free disk space");
                return;
            }
        };
        let full = self.upkeep.judge_space(free);
        if full.is_some() == self.upkeep.full.is_some() {
            return;
        }
        match &full {
            Some(reason) => tracing::error!("refusing writes: {reason}"),
            None => tracing::info!("there is enough disk space again: accepting writes"),
        }
        self.upkeep.full = full;
        self.refuse_while_full();
    }

    /// Has the inbox refuse proposals for as long as there is too little space.
    pub(super) fn refuse_while_full(&self) {
        let full = self.upkeep.full.clone();
        self.shared.inbox.refuse(full.map(ProposeError::DiskFull));
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
fn check(result: Result<(), LogError>) -> Result<(), Fatal> {
    match result {
        Ok(()) => Ok(()),
        Err(LogError::NoSpace(reason)) => {
            tracing::warn!(%reason, "upkeep of the raft log postponed");
            Ok(())
        }
        Err(LogError::Broken(reason)) => Err(Fatal::Log(reason)),
    }
}
