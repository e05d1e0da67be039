//! Replacements that wait: for the delay of the restart policy, and for their predecessor to stop.
//!
//! A waiting replacement is stored with desired state READY; its agent prepares it meanwhile. When its
//! time has come it is handed out by [`DelayedStarts::take_due`] to be started. A pure state machine over
//! virtual time (spec 06 section 6.3). Bounded by the number of stored tasks with desired state READY.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// How long a replacement waits for its predecessor to stop (spec 06 section 13).
pub const OLD_TASK_STOP_MAX: Duration = Duration::from_secs(60);

/// The predecessor whose end a replacement waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldTask {
    pub id: String,
    /// Its end is also taken for granted when this node goes down or is removed.
    pub node_id: String,
}

/// A replacement that has just been created, or found waiting at the start of a term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelayedStart {
    pub task_id: String,
    pub delay: Duration,
    pub old: Option<OldTask>,
}

/// A replacement whose wait is over.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Due {
    pub task_id: String,
    /// It failed while it waited: once it has been started it is to be restarted itself.
    pub restart: bool,
}

/// All waiting replacements.
#[derive(Debug)]
pub struct DelayedStarts {
    waiting: BTreeMap<String, Waiting>,
    by_time: BTreeSet<(Instant, String)>,
    /// Predecessor, or node of a predecessor, to the replacements that wait for it.
    by_old: BTreeSet<(String, String)>,
    by_node: BTreeSet<(String, String)>,
    stop_max: Duration,
}

#[derive(Debug)]
struct Waiting {
    /// When the delay is over.
    earliest: Instant,
    /// When the wait for the predecessor is given up.
    latest: Instant,
    old: Option<OldTask>,
    restart: bool,
}

impl Waiting {
    fn due(&self) -> Instant {
        if self.old.is_some() {
            self.earliest.max(self.latest)
        } else {
            self.earliest
        }
    }
}

impl Default for DelayedStarts {
    fn default() -> Self {
        DelayedStarts::new(OLD_TASK_STOP_MAX)
    }
}

impl DelayedStarts {
    /// No replacement waits. Predecessors are given `stop_max` to stop.
    pub fn new(stop_max: Duration) -> DelayedStarts {
        DelayedStarts {
            waiting: BTreeMap::new(),
            by_time: BTreeSet::new(),
            by_old: BTreeSet::new(),
            by_node: BTreeSet::new(),
            stop_max,
        }
    }

    /// Lets a replacement wait. One that waits already starts its wait anew.
    pub fn arm(&mut self, start: DelayedStart, now: Instant) {
        let restart = self.remove(&start.task_id).is_some_and(|old| old.restart);
        let waiting = Waiting {
            // A delay beyond what the clock can show never ends; a century is as good.
            earliest: now.checked_add(start.delay).unwrap_or(now + CENTURY),
            latest: now + self.stop_max,
            old: start.old,
            restart,
        };
        self.by_time.insert((waiting.due(), start.task_id.clone()));
        if let Some(old) = &waiting.old {
            self.by_old.insert((old.id.clone(), start.task_id.clone()));
            if !old.node_id.is_empty() {
                self.by_node
                    .insert((old.node_id.clone(), start.task_id.clone()));
            }
        }
        self.waiting.insert(start.task_id, waiting);
    }

    /// Whether this task is waiting to be started.
    pub fn is_waiting(&self, task_id: &str) -> bool {
        self.waiting.contains_key(task_id)
    }

    /// Notes that a waiting task is to be restarted after its wait. `false` if it is not waiting.
    pub fn restart_after(&mut self, task_id: &str) -> bool {
        let waiting = self.waiting.get_mut(task_id);
        waiting.map(|waiting| waiting.restart = true).is_some()
    }

    /// A task has stopped, or is gone: whoever waits for it need not any more.
    pub fn old_stopped(&mut self, old_id: &str) {
        for task_id in partners(&self.by_old, old_id) {
            self.stop_waiting_for_old(&task_id);
        }
    }

    /// A node is down or gone, and with it the tasks that somebody waits for.
    pub fn node_lost(&mut self, node_id: &str) {
        for task_id in partners(&self.by_node, node_id) {
            self.stop_waiting_for_old(&task_id);
        }
    }

    /// Predecessors that are waited for, to be compared with the store after events were lost.
    pub fn olds(&self) -> Vec<OldTask> {
        let olds = self
            .waiting
            .values()
            .filter_map(|waiting| waiting.old.clone());
        olds.collect()
    }

    /// Keeps only the waits of tasks for which this holds.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        let dropped: Vec<String> = self
            .waiting
            .keys()
            .filter(|id| !keep(id))
            .cloned()
            .collect();
        for task_id in dropped {
            self.remove(&task_id);
        }
    }

    /// Ends a wait without a start.
    pub fn cancel(&mut self, task_id: &str) {
        self.remove(task_id);
    }

    /// When the next wait ends, as far as is known now.
    pub fn next_due(&self) -> Option<Instant> {
        self.by_time.first().map(|(due, _)| *due)
    }

    /// Takes the replacements whose wait is over, in the order in which it ended.
    pub fn take_due(&mut self, now: Instant) -> Vec<Due> {
        let mut taken = Vec::new();
        while let Some((due, task_id)) = self.by_time.first() {
            if *due > now {
                break;
            }
            let task_id = task_id.clone();
            let restart = self.remove(&task_id).is_some_and(|waiting| waiting.restart);
            taken.push(Due { task_id, restart });
        }
        taken
    }

    fn stop_waiting_for_old(&mut self, task_id: &str) {
        let Some(waiting) = self.waiting.get_mut(task_id) else {
            return;
        };
        let before = waiting.due();
        let old = waiting.old.take();
        let after = waiting.due();
        self.by_time.remove(&(before, task_id.to_owned()));
        self.by_time.insert((after, task_id.to_owned()));
        self.forget_old(task_id, old);
    }

    fn remove(&mut self, task_id: &str) -> Option<Waiting> {
        let mut waiting = self.waiting.remove(task_id)?;
        self.by_time.remove(&(waiting.due(), task_id.to_owned()));
        let old = waiting.old.take();
        self.forget_old(task_id, old);
        Some(waiting)
    }

    fn forget_old(&mut self, task_id: &str, old: Option<OldTask>) {
        if let Some(old) = old {
            self.by_old.remove(&(old.id, task_id.to_owned()));
            self.by_node.remove(&(old.node_id, task_id.to_owned()));
        }
    }
}

/// Stands in for a moment that the clock cannot show.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The second halves of the pairs that begin with `first`.
fn partners(pairs: &BTreeSet<(String, String)>, first: &str) -> Vec<String> {
    let from = (first.to_owned(), String::new());
    let pairs = pairs.range(from..).take_while(|(head, _)| head == first);
    pairs.map(|(_, partner)| partner.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn start(task_id: &str, delay: Duration, old: Option<(&str, &str)>) -> DelayedStart {
        DelayedStart {
            task_id: task_id.to_owned(),
            delay,
            old: old.map(|(id, node_id)| OldTask {
                id: id.to_owned(),
                node_id: node_id.to_owned(),
            }),
        }
    }

    fn due(delays: &mut DelayedStarts, now: Instant) -> Vec<String> {
        let due = delays.take_due(now).into_iter();
        due.map(|due| due.task_id).collect()
    }

    #[test]
    fn a_delay_alone() {
        let now = Instant::now();
        let mut delays = DelayedStarts::default();
        delays.arm(start("new", 5 * SECOND, None), now);
        assert_eq!(delays.next_due(), Some(now + 5 * SECOND));
        assert!(due(&mut delays, now + 4 * SECOND).is_empty());
        assert_eq!(due(&mut delays, now + 5 * SECOND), ["new"]);
        assert_eq!(delays.next_due(), None);
    }

    // 06-A17
    #[test]
    fn an_old_task_that_never_stops_delays_for_a_minute() {
        let now = Instant::now();
        let mut delays = DelayedStarts::default();
        delays.arm(start("new", SECOND, Some(("old", "node"))), now);
        assert!(due(&mut delays, now + 59 * SECOND).is_empty());
        assert_eq!(due(&mut delays, now + 60 * SECOND), ["new"]);
    }

    #[test]
    fn the_wait_for_the_old_task_runs_beside_the_delay() {
        let now = Instant::now();
        let mut delays = DelayedStarts::default();
        delays.arm(start("early", 5 * SECOND, Some(("old1", "node1"))), now);
        delays.arm(start("late", 5 * SECOND, Some(("old2", "node1"))), now);
        delays.old_stopped("old1");
        assert!(due(&mut delays, now + 4 * SECOND).is_empty());
        assert_eq!(due(&mut delays, now + 5 * SECOND), ["early"]);
        delays.node_lost("another");
        assert!(due(&mut delays, now + 20 * SECOND).is_empty());
        delays.node_lost("node1");
        assert_eq!(due(&mut delays, now + 20 * SECOND), ["late"]);
        assert!(delays.by_old.is_empty() && delays.by_node.is_empty());
    }

    #[test]
    fn a_replacement_that_failed_early_is_handed_out_for_a_restart() {
        let now = Instant::now();
        let mut delays = DelayedStarts::default();
        delays.arm(start("new", SECOND, None), now);
        assert!(delays.restart_after("new"));
        assert!(!delays.restart_after("other"));
        let due = delays.take_due(now + SECOND);
        assert!(due.len() == 1 && due[0].restart);
    }

    #[test]
    fn arming_again_and_cancelling() {
        let now = Instant::now();
        let mut delays = DelayedStarts::default();
        delays.arm(start("new", SECOND, Some(("old", "node"))), now);
        delays.arm(start("new", 3 * SECOND, None), now);
        assert!(due(&mut delays, now + 2 * SECOND).is_empty());
        delays.cancel("new");
        assert!(!delays.is_waiting("new"));
        assert!(due(&mut delays, now + 100 * SECOND).is_empty());
        delays.arm(start("never", Duration::MAX, None), now);
        assert!(delays.next_due().is_some());
    }
}
