//! Which nodes have failed tasks of a service lately.
//!
//! A node on which tasks of one version of a service keep failing ranks behind others for that version;
//! it is never excluded (spec 07 section 6). Bounded: at most [`FAILURES_MAX`] moments per node and
//! version, none older than [`LOOK_BACK`] for long.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

/// How long a failure counts (spec 07 section 6).
const LOOK_BACK: Duration = Duration::from_secs(5 * 60);

/// Failures from which on a node ranks behind others (spec 07 section 6).
pub const THRESHOLD: usize = 5;

/// Failures remembered per node and version; nodes with as many are all alike.
const FAILURES_MAX: usize = 100;

/// A version of a service; 0 for tasks that belong to none.
pub type ServiceVersion = (Arc<str>, u64);

/// Failures by version, then node ID.
#[derive(Debug, Default)]
pub struct Failures {
    versions: HashMap<ServiceVersion, HashMap<Arc<str>, VecDeque<Instant>>>,
    purged: Option<Instant>,
}

impl Failures {
    /// A task of this version has failed or been rejected on a node.
    pub fn record(&mut self, version: ServiceVersion, node_id: &Arc<str>, now: Instant) {
        self.purge(now);
        let service = Arc::clone(&version.0);
        let nodes = self.versions.entry(version).or_default();
        let failures = nodes.entry(Arc::clone(node_id)).or_default();
        drop_expired(failures, now);
        failures.push_back(now);
        if failures.len() > FAILURES_MAX {
            failures.pop_front();
        }
        if failures.len() == THRESHOLD {
            warn!(
                node = &**node_id,
                service = &*service,
                "underweighting node: tasks keep failing there"
            );
        }
    }

    /// The nodes at or above the threshold, with their counts.
    pub fn faulty(&self, version: &ServiceVersion, now: Instant) -> HashMap<Arc<str>, usize> {
        let nodes = self.versions.get(version).into_iter().flatten();
        let counts = nodes.map(|(node_id, failures)| {
            let recent = failures.iter().filter(|at| is_recent(**at, now));
            (Arc::clone(node_id), recent.count())
        });
        counts.filter(|(_, count)| *count >= THRESHOLD).collect()
    }

    /// Drops what no longer counts, once per look-back.
    fn purge(&mut self, now: Instant) {
        let purged = *self.purged.get_or_insert(now);
        if now.duration_since(purged) < LOOK_BACK {
            return;
        }
        self.purged = Some(now);
        self.versions.retain(|_, nodes| {
            nodes.retain(|_, failures| {
                drop_expired(failures, now);
                !failures.is_empty()
            });
            !nodes.is_empty()
        });
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.duration_since(at) < LOOK_BACK
}

fn drop_expired(failures: &mut VecDeque<Instant>, now: Instant) {
    while failures.front().is_some_and(|at| !is_recent(*at, now)) {
        failures.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recent_failures_of_the_same_version_count() {
        let start = Instant::now();
        let node: Arc<str> = "node".into();
        let version = |number| (Arc::from("service"), number);
        let mut failures = Failures::default();
        for seconds in 0..5 {
            assert!(failures.faulty(&version(1), start).is_empty());
            failures.record(version(1), &node, start + Duration::from_secs(seconds));
        }
        let now = start + Duration::from_secs(10);
        assert_eq!(failures.faulty(&version(1), now).get(&node), Some(&5));
        assert!(failures.faulty(&version(2), now).is_empty());
        let later = start + LOOK_BACK;
        assert!(failures.faulty(&version(1), later).is_empty());
        failures.record(version(2), &node, start + 3 * LOOK_BACK);
        assert_eq!(failures.versions.len(), 1);
    }
}
