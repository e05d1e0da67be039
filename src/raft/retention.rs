//! How long the raft log is kept.
//!
//! The log exists to bring followers up to date and to replay what the object store lost in a crash.
//! Once the object store holds an entry durably, and no follower is likely to need it, it may go. Here
//! is only the arithmetic; the raft thread acts on it.

use crate::api::types::RaftConfig;

/// Applied entries between two compactions when the cluster object does not say (spec 03 section 1).
pub const SNAPSHOT_INTERVAL: u64 = 10_000;
/// Entries kept for followers that are slightly behind.
pub const SLOW_FOLLOWER_ENTRIES: u64 = 500;
/// Entries between two compactions while the log is above its ceiling.
const CEILING_INTERVAL: u64 = 1000;

/// The settings in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Applied entries between two compactions; 0 leaves compaction to the size ceiling.
    pub interval: u64,
    /// Newest applied entries that are kept.
    pub slow: u64,
}

impl Default for Retention {
    fn default() -> Retention {
        Retention {
            interval: SNAPSHOT_INTERVAL,
            slow: SLOW_FOLLOWER_ENTRIES,
        }
    }
}

impl From<&RaftConfig> for Retention {
    /// A count of 0 for slow followers means the default, an interval of 0 means "never" (settled S19).
    fn from(config: &RaftConfig) -> Retention {
        let slow = match config.log_entries_for_slow_followers {
            0 => SLOW_FOLLOWER_ENTRIES,
            entries => entries,
        };
        Retention {
            interval: config.snapshot_interval,
            slow,
        }
    }
}

/// When to compact, and up to where.
#[derive(Debug)]
pub struct LogLife {
    /// Applied index at which the last compaction was started.
    started_at: u64,
    /// The state machine has been asked to become durable.
    waiting: bool,
}

impl LogLife {
    /// The life of a log whose entries up to `truncated` are gone. They were dropped when the state
    /// machine was a slow follower's share further.
    pub fn new(truncated: u64, retention: Retention) -> LogLife {
        let started_at = match truncated {
            0 => 0,
            index => index + retention.slow,
        };
        LogLife {
            started_at,
            waiting: false,
        }
    }

    /// Whether to start a compaction now: to have the state machine synced, that is.
    pub fn start(&mut self, applied: u64, retention: Retention, above_ceiling: bool) -> bool {
        let interval = match (retention.interval, above_ceiling) {
            (0, false) => return false,
            (0, true) => CEILING_INTERVAL,
            (interval, true) => interval.min(CEILING_INTERVAL),
            (interval, false) => interval,
        };
        let due = applied.saturating_sub(self.started_at) >= interval;
        if self.waiting || !due {
            return false;
        }
        self.started_at = applied;
        self.waiting = true;
        true
    }

    /// Whether a compaction is under way.
    pub fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// The last entry to drop, now that the state machine is durable up to `synced`.
    pub fn synced(&mut self, synced: u64, retention: Retention, first_index: u64) -> Option<u64> {
        if !self.waiting || synced < self.started_at {
            return None;
        }
        self.waiting = false;
        let target = synced.checked_sub(retention.slow)?;
        (target >= first_index).then_some(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NINE: Retention = Retention {
        interval: 9,
        slow: 2,
    };

    #[test]
    fn zeros_in_the_cluster_object() {
        let config = RaftConfig::default();
        let retention = Retention::from(&config);
        assert_eq!((retention.interval, retention.slow), (0, 500));
    }

    #[test]
    fn compaction_comes_once_per_interval() {
        let mut life = LogLife::new(0, NINE);
        assert!(!life.start(8, NINE, false));
        assert!(life.start(9, NINE, false));
        assert!(!life.start(20, NINE, false), "one at a time");
        assert_eq!(life.synced(8, NINE, 1), None, "not durable that far");
        assert_eq!(life.synced(20, NINE, 1), Some(18));
        assert!(!life.start(17, NINE, false));
        assert!(life.start(18, NINE, false));
    }

    #[test]
    fn a_restart_continues_the_count() {
        let mut life = LogLife::new(18, NINE);
        assert!(!life.start(28, NINE, false));
        assert!(life.start(29, NINE, false));
    }

    #[test]
    fn nothing_to_drop() {
        let mut life = LogLife::new(0, NINE);
        let wide = Retention {
            interval: 9,
            slow: 500,
        };
        assert!(life.start(9, wide, false));
        assert_eq!(life.synced(9, wide, 1), None);
        assert!(life.start(18, wide, false), "the next one is not blocked");
    }

    #[test]
    fn the_ceiling_overrules_interval_zero() {
        let never = Retention {
            interval: 0,
            slow: 500,
        };
        let mut life = LogLife::new(0, never);
        assert!(!life.start(1_000_000, never, false));
        assert!(life.start(1_000_000, never, true));
        assert_eq!(life.synced(1_000_000, never, 1), Some(999_500));
        assert!(!life.start(1_000_999, never, true));
        assert!(life.start(1_001_000, never, true));
    }
}
