//! How often the tasks of a slot were restarted, and whether they may be once more.
//!
//! Kept in memory only; a new leader rebuilds it from the tasks that the reaper retained for the purpose
//! (spec 06 sections 3 and 6.2). Bounded: one entry per slot whose service limits its restarts, with at
//! most [`RESTARTS_MAX`] moments each.

use std::collections::{HashMap, VecDeque};

use prost_types::Timestamp;

use super::task::{self, SlotKey};
use crate::api::time::{duration_nanos, timestamp_nanos};
use crate::api::types::restart_policy::RestartCondition;
use crate::api::types::{Task, Version};

/// Moments remembered per slot. A policy that allows more restarts than this within its window is as
/// good as unlimited.
const RESTARTS_MAX: usize = 10_000;

/// Restarts by slot.
#[derive(Debug, Default)]
pub struct RestartHistory {
    services: HashMap<String, HashMap<SlotKey, Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// Restarts since the spec version last changed.
    total: u64,
    spec_version: Option<Version>,
    /// When the replacements were created, as nanoseconds since 1970; only for policies with a window.
    created_ns: VecDeque<i128>,
}

/// What a new leader reads off one task whose restarts are limited, to rebuild its slot's history.
#[derive(Debug, Clone, Copy)]
pub struct Trace {
    pub created: Timestamp,
    pub spec_version: Version,
    /// Whether the task's policy counts moments, not only restarts.
    pub windowed: bool,
}

impl Trace {
    /// The trace of a task, if its restarts are limited at all and it belongs to a spec version.
    pub fn of(task: &Task) -> Option<Trace> {
        if task::restart_attempts_max(task.spec.as_ref()) == 0 {
            return None;
        }
        let created = task.meta.as_ref().and_then(|meta| meta.created_at);
        Some(Trace {
            created: created.unwrap_or_default(),
            spec_version: task.spec_version?,
            windowed: window_ns(task).is_some(),
        })
    }
}

impl RestartHistory {
    /// Whether the policy of a task that has ended, or has to end, allows a replacement. Restarts that have
    /// left the policy's window are forgotten for good.
    pub fn should_restart(&mut self, task: &Task, key: &SlotKey, is_job: bool) -> bool {
        let complete = task::observed(task) == task::COMPLETE;
        let allowed = match task::restart_condition(task) {
            RestartCondition::None => false,
            RestartCondition::OnFailure => !complete,
            RestartCondition::Any => !(is_job && complete),
        };
        allowed && self.has_attempts_left(task, key)
    }

    fn has_attempts_left(&mut self, task: &Task, key: &SlotKey) -> bool {
        let attempts_max = task::restart_attempts_max(task.spec.as_ref());
        if attempts_max == 0 {
            return true;
        }
        let slots = self.services.get_mut(&key.service_id);
        let Some(entry) = slots.and_then(|slots| slots.get_mut(key)) else {
            return true;
        };
        if task.spec_version.is_some() && task.spec_version != entry.spec_version {
            return true;
        }
        let (Some(window_ns), Some(reference)) = (window_ns(task), task::status_time(task)) else {
            return entry.total < attempts_max;
        };
        let reference_ns = timestamp_nanos(&reference);
        while entry
            .created_ns
            .front()
            .is_some_and(|created| *created <= reference_ns - window_ns)
        {
            entry.created_ns.pop_front();
        }
        let later = entry.created_ns.iter().rev();
        let later = later
            .take_while(|created| **created >= reference_ns)
            .count();
        ((entry.created_ns.len() - later) as u64) < attempts_max
    }

    /// Notes that a replacement was created now.
    pub fn record(&mut self, replacement: &Task, key: SlotKey, now: Timestamp) {
        if task::restart_attempts_max(replacement.spec.as_ref()) == 0 {
            return;
        }
        let windowed = window_ns(replacement).is_some();
        self.count(key, replacement.spec_version, now, windowed);
    }

    /// Rebuilds a slot's history from its tasks: of those of the newest spec version, every one but the
    /// first is a restart.
    pub fn rebuild(&mut self, key: &SlotKey, mut tasks: Vec<Trace>) {
        let Some(newest) = tasks.iter().map(|trace| trace.spec_version.index).max() else {
            return;
        };
        tasks.retain(|trace| trace.spec_version.index == newest);
        tasks.sort_by_key(|trace| timestamp_nanos(&trace.created));
        for trace in tasks.into_iter().skip(1) {
            let version = Some(trace.spec_version);
            self.count(key.clone(), version, trace.created, trace.windowed);
        }
    }

    /// Forgets a service that has been removed.
    pub fn forget(&mut self, service_id: &str) {
        self.services.remove(service_id);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.services.clear();
    }

    fn count(
        &mut self,
        key: SlotKey,
        version: Option<Version>,
        created: Timestamp,
        windowed: bool,
    ) {
        let slots = self.services.entry(key.service_id.clone()).or_default();
        let entry = slots.entry(key).or_default();
        if version.is_some() && version != entry.spec_version {
            *entry = Entry {
                spec_version: version,
                ..Entry::default()
            };
        }
        entry.total += 1;
        if windowed {
            entry.created_ns.push_back(timestamp_nanos(&created));
            if entry.created_ns.len() > RESTARTS_MAX {
                entry.created_ns.pop_front();
            }
        }
    }
}

/// The span in which a policy counts restarts, in nanoseconds; `None` if it counts them all.
pub fn window_ns(task: &Task) -> Option<i128> {
    let policy = task::restart_policy(task.spec.as_ref())?;
    let window = duration_nanos(policy.window.as_ref()?);
    (window > 0).then_some(window)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{Meta, RestartPolicy, TaskSpec, TaskStatus};

    const SECOND: i128 = 1_000_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    fn policy(condition: RestartCondition, attempts_max: u64, window_s: i64) -> RestartPolicy {
        RestartPolicy {
            condition: condition as i32,
            max_attempts: attempts_max,
            window: (window_s > 0).then_some(prost_types::Duration {
                seconds: window_s,
                nanos: 0,
            }),
            ..RestartPolicy::default()
        }
    }

    fn task(version: u64, created_s: i64, ended_s: i64, policy: RestartPolicy) -> Task {
        Task {
            service_id: "web".to_owned(),
            slot: 1,
            meta: Some(Meta {
                created_at: Some(at(created_s)),
                ..Meta::default()
            }),
            spec_version: Some(Version { index: version }),
            spec: Some(TaskSpec {
                restart: Some(policy),
                ..TaskSpec::default()
            }),
            status: Some(TaskStatus {
                state: task::FAILED,
                timestamp: Some(at(ended_s)),
                ..TaskStatus::default()
            }),
            ..Task::default()
        }
    }

    fn key() -> SlotKey {
        SlotKey {
            service_id: "web".to_owned(),
            slot: 1,
            node_id: String::new(),
        }
    }

    #[test]
    fn conditions() {
        let mut history = RestartHistory::default();
        let cases = [
            (RestartCondition::None, task::FAILED, false, false),
            (RestartCondition::OnFailure, task::FAILED, false, true),
            (RestartCondition::OnFailure, task::COMPLETE, false, false),
            (RestartCondition::Any, task::COMPLETE, false, true),
            (RestartCondition::Any, task::COMPLETE, true, false),
            (RestartCondition::Any, task::REJECTED, true, true),
        ];
        for (condition, state, is_job, allowed) in cases {
            let mut task = task(1, 0, 0, policy(condition, 0, 0));
            task.status.get_or_insert_default().state = state;
            let found = history.should_restart(&task, &key(), is_job);
            assert_eq!(found, allowed, "{condition:?} {state} {is_job}");
        }
        let mut without = task(1, 0, 0, policy(RestartCondition::None, 0, 0));
        without.spec = None;
        assert!(history.should_restart(&without, &key(), false));
    }

    #[test]
    fn attempts_are_counted_per_version() {
        let any = |attempts| policy(RestartCondition::Any, attempts, 0);
        let mut history = RestartHistory::default();
        for restart in 0..3 {
            let failed = task(1, restart, restart, any(3));
            assert!(history.should_restart(&failed, &key(), false));
            history.record(&failed, key(), at(restart));
        }
        assert!(!history.should_restart(&task(1, 9, 9, any(3)), &key(), false));
        assert!(history.should_restart(&task(2, 9, 9, any(3)), &key(), false));
        history.record(&task(2, 9, 9, any(1)), key(), at(9));
        assert!(!history.should_restart(&task(2, 9, 9, any(1)), &key(), false));
        history.forget("web");
        assert!(history.should_restart(&task(2, 9, 9, any(1)), &key(), false));
    }

    /// Restarts at the very beginning of the window do not count any more, those at the moment of the
    /// failure not yet.
    #[test]
    fn windows() {
        let windowed = || policy(RestartCondition::Any, 1, 10);
        let mut history = RestartHistory::default();
        history.record(&task(1, 100, 0, windowed()), key(), at(100));
        assert!(history.should_restart(&task(1, 0, 100, windowed()), &key(), false));
        assert!(!history.should_restart(&task(1, 0, 101, windowed()), &key(), false));
        assert!(!history.should_restart(&task(1, 0, 109, windowed()), &key(), false));
        assert!(history.should_restart(&task(1, 0, 110, windowed()), &key(), false));
        let entry = &history.services["web"][&key()];
        assert!(entry.created_ns.is_empty(), "{entry:?}");
        assert_eq!(window_ns(&task(1, 0, 0, windowed())), Some(10 * SECOND));
    }

    /// Three restarts in ten minutes; of five tasks one has an old spec and one lies outside of the window.
    #[test]
    fn a_new_leader_counts_what_it_finds() {
        let windowed = || policy(RestartCondition::Any, 3, 600);
        let now = 10_000;
        let found = [
            (1, now - 30),
            (2, now - 1_500),
            (2, now - 900),
            (2, now - 20),
            (2, now - 10),
        ];
        let found = found.map(|(version, created_s)| task(version, created_s, 0, windowed()));
        let mut history = RestartHistory::default();
        let traces = found.iter().filter_map(Trace::of).collect();
        history.rebuild(&key(), traces);
        assert!(history.should_restart(&task(2, 0, now, windowed()), &key(), false));
        history.record(&task(2, now, 0, windowed()), key(), at(now));
        assert!(!history.should_restart(&task(2, 0, now + 1, windowed()), &key(), false));
    }
}
