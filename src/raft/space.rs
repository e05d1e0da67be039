//! Disk space: refusing writes in time, and living through a disk that is full nevertheless.
//!
//! Three things can be in the way of a write: less free space than the reserve, a log that could not be
//! written, an object store that could not be written. While one of them is, proposals are refused with
//! the reason; reads go on. In the last two cases the transactions under way fail as well, because nobody
//! knows when they can be finished; if they are in the log they are applied later all the same.

use super::error::Fatal;
use super::log_store::LogStore;
use super::node::Node;
use crate::storage::ProposeError;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time between two looks while there are writes. In that time nobody should be able to fill the reserve:
/// the object store survives a full disk only if it never has to write to one.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What is in the way of writes.
pub(super) struct Space {
    /// Where to look for free space.
    dir: PathBuf,
    /// Free bytes below which writes are refused.
    reserve_bytes: u64,
    next_look: Instant,
    /// Too little space is free.
    low: Option<String>,
    /// The log could not be written.
    log: Option<String>,
    /// The object store could not be written.
    tables: Option<String>,
}

impl Space {
    pub fn new(dir: PathBuf, reserve_bytes: u64) -> Space {
        Space {
            dir,
            reserve_bytes,
            next_look: Instant::now(),
            low: None,
            log: None,
            tables: None,
        }
    }

    /// Why writes are refused at present.
    pub fn refusal(&self) -> Option<ProposeError> {
        let reason = self.log.as_ref().or(self.tables.as_ref());
        reason
            .or(self.low.as_ref())
            .cloned()
            .map(ProposeError::DiskFull)
    }

    /// Free space against the reserve; a quarter more must be free before writes are accepted again.
    fn judge(&self, free: u64) -> Option<String> {
        let (stop, resume) = (self.reserve_bytes, self.resume_bytes());
        let wanted = if self.low.is_none() { stop } else { resume };
        (free < wanted).then(|| {
            format!(
                "{} MiB free at {}; writes stop below {} MiB and come back at {} MiB: free some space",
                free >> 20,
                self.dir.display(),
                stop >> 20,
                resume >> 20
            )
        })
    }

    fn resume_bytes(&self) -> u64 {
        self.reserve_bytes.saturating_add(self.reserve_bytes / 4)
    }
}

impl<L: LogStore> Node<L> {
    /// Refuses writes while the disk is nearly full. A look that fails decides nothing. To be called
    /// before proposals are taken, and once per tick.
    pub(super) fn look_at_space(&mut self, now: Instant) {
        if now < self.space.next_look {
            return;
        }
        self.space.next_look = now + LOOK_EVERY;
        let free = match rustix::fs::statvfs(&self.space.dir) {
            Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
            Err(error) => {
                tracing::debug!(%error, "cannot determine the free disk space");
                return;
            }
        };
        let low = self.space.judge(free);
        match (&low, &self.space.low) {
            (Some(reason), None) => tracing::error!("refusing writes: {reason}"),
            (None, Some(_)) => {
                tracing::info!("there is enough disk space again: accepting writes");
            }
            _ => {}
        }
        if low != self.space.low {
            self.space.low = low;
            self.refuse_while_full();
        }
    }

    /// The log cannot be written for this reason, or can again.
    pub(super) fn log_is_full(&mut self, reason: Option<String>) -> Result<(), Fatal> {
        self.space.log.clone_from(&reason);
        self.fail_while_full(reason)
    }

    /// The applier reports that the object store cannot be written for this reason, or can.
    pub(super) fn tables_are_full(&mut self, reason: &Option<String>) -> Result<(), Fatal> {
        if self.space.tables == *reason {
            return Ok(());
        }
        self.space.tables.clone_from(reason);
        self.fail_while_full(reason.clone())
    }

    fn fail_while_full(&mut self, reason: Option<String>) -> Result<(), Fatal> {
        self.refuse_while_full();
        let Some(reason) = reason else {
            return Ok(());
        };
        let why = ProposeError::DiskFull(reason);
        if self.book.is_alone(self.raw.raft.id) {
            return self.interrupt(why);
        }
        // A leader that cannot write is none; the others choose a new one when they miss its heartbeats.
        match self.phase.lose() {
            Some(effect) => self.take_effect(effect, why),
            None => Ok(()),
        }
    }

    fn refuse_while_full(&self) {
        let refusal = self.space.refusal();
        self.shared.status.lock().refusal = refusal.as_ref().map(ToString::to_string);
        self.shared.inbox.refuse(refusal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_come_back_with_a_margin() {
        let mut space = Space::new("/state".into(), 100 << 20);
        assert_eq!(space.judge(100 << 20), None);
        let low = space.judge((100 << 20) - 1);
        assert_eq!(
            low.as_deref(),
            Some(
                "99 MiB free at /state; writes stop below 100 MiB and come back at 125 MiB: free some \
                 space"
            )
        );
        space.low = low;
        assert!(space.judge((125 << 20) - 1).is_some());
        assert_eq!(space.judge(125 << 20), None);
    }
}
