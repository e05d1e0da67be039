//! Small records about tasks, so that a million of them can be counted and looked over without opening
//! their rows.
//!
//! A [`TaskDigest`] stands in `idx` beside each task (settled S6): IDs and numbers only. The tasks of
//! one service are summed up in one [`ServiceTasks`] record, which also holds the names that its tasks
//! are called after; it is sealed for their sake. Both are written with the tasks they describe, in the
//! same batch, and a check recounts them.

use super::codec::Record;
use super::object::Table;
use crate::api::types::{Task, TaskState};
use serde::{Deserialize, Serialize};

/// Names kept per service; one that was renamed more often while its tasks stayed is simply a candidate
/// for every name.
pub const SERVICE_NAMES_MAX: usize = 32;
/// A longer name is not kept, with the same effect; people may use 63 characters.
pub const SERVICE_NAME_BYTES_MAX: usize = 1024;

/// What most questions about a task need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskDigest {
    pub service_id: String,
    pub node_id: String,
    pub slot: u64,
    /// `TaskState` as number, as the log had it.
    pub desired_state: i32,
    /// Observed `TaskState` as number.
    pub state: i32,
    /// `meta.version.index`.
    pub version: u64,
    /// Of jobs only.
    pub job_iteration: Option<u64>,
}

impl Record for TaskDigest {
    const KIND: &'static str = "task digest";
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 1 << 20;
}

impl TaskDigest {
    pub fn of(task: &Task) -> TaskDigest {
        let version = task.meta.as_ref().and_then(|meta| meta.version.as_ref());
        TaskDigest {
            service_id: task.service_id.clone(),
            node_id: task.node_id.clone(),
            slot: task.slot,
            desired_state: task.desired_state,
            state: task.status.as_ref().map_or(0, |status| status.state),
            version: version.map_or(0, |version| version.index),
            job_iteration: task.job_iteration.as_ref().map(|version| version.index),
        }
    }
}

/// Numbers of tasks by desired and observed state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCounts {
    /// (desired, observed, number), sorted; numbers are not 0.
    cells: Vec<(i32, i32, u64)>,
}

impl TaskCounts {
    /// All tasks.
    pub fn total(&self) -> u64 {
        self.cells.iter().map(|(_, _, number)| number).sum()
    }

    /// Tasks that are observed in a state.
    pub fn observed(&self, state: TaskState) -> u64 {
        self.sum(|_, observed| observed == state as i32)
    }

    /// Tasks that are wanted in a state.
    pub fn desired(&self, state: TaskState) -> u64 {
        self.sum(|desired, _| desired == state as i32)
    }

    /// Tasks whose desired and observed states, as numbers, satisfy a condition.
    pub fn sum(&self, counts: impl Fn(i32, i32) -> bool) -> u64 {
        self.cells
            .iter()
            .filter(|(desired, observed, _)| counts(*desired, *observed))
            .map(|(_, _, number)| number)
            .sum()
    }

    pub(super) fn add(&mut self, task: &Task) {
        let (desired, observed) = states(task);
        match self.find(desired, observed) {
            Ok(at) => self.cells[at].2 += 1,
            Err(at) => self.cells.insert(at, (desired, observed, 1)),
        }
    }

    pub(super) fn remove(&mut self, task: &Task) {
        let (desired, observed) = states(task);
        if let Ok(at) = self.find(desired, observed) {
            self.cells[at].2 -= 1;
            if self.cells[at].2 == 0 {
                self.cells.remove(at);
            }
        }
    }

    pub(super) fn add_all(&mut self, other: &TaskCounts) {
        for &(desired, observed, number) in &other.cells {
            match self.find(desired, observed) {
                Ok(at) => self.cells[at].2 += number,
                Err(at) => self.cells.insert(at, (desired, observed, number)),
            }
        }
    }

    fn find(&self, desired: i32, observed: i32) -> Result<usize, usize> {
        self.cells
            .binary_search_by_key(&(desired, observed), |(d, o, _)| (*d, *o))
    }
}

fn states(task: &Task) -> (i32, i32) {
    let observed = task.status.as_ref().map_or(0, |status| status.state);
    (task.desired_state, observed)
}

/// The tasks of one service, summed up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceTasks {
    pub counts: TaskCounts,
    /// Lower-cased service names that tasks of this service are called after; perhaps more than are
    /// still in use.
    pub names: Vec<String>,
    /// There were more than [`SERVICE_NAMES_MAX`] names, or one of unusual length: any name may occur.
    pub any_name: bool,
}

impl Record for ServiceTasks {
    const KIND: &'static str = "service tasks";
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 1 << 20;
}

/// Number of objects in each table, in table order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableCounts(pub [u64; 10]);

impl Record for TableCounts {
    const KIND: &'static str = "table counts";
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 128;
}

impl TableCounts {
    /// Number of objects in a table.
    pub fn of(&self, table: Table) -> u64 {
        self.0[table as usize - 1]
    }
}

/// Entries that were committed but discarded, by index; the newest few.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discarded(pub Vec<u64>);

impl Record for Discarded {
    const KIND: &'static str = "discarded entries";
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 16 << 10;
}

impl Discarded {
    /// More than ever occur; each fits in 9 bytes of the record.
    const MAX: usize = 1024;

    pub fn note(&mut self, index: u64) {
        self.0.push(index);
        let excess = self.0.len().saturating_sub(Discarded::MAX);
        self.0.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{TaskStatus, Version};
    use crate::storage::codec;

    fn task(desired: TaskState, observed: TaskState) -> Task {
        Task {
            desired_state: desired as i32,
            status: Some(TaskStatus {
                state: observed as i32,
                ..Default::default()
            }),
            job_iteration: Some(Version { index: 4 }),
            slot: 7,
            ..Default::default()
        }
    }

    #[test]
    fn counts_add_up_and_come_back_to_nothing() {
        let running = task(TaskState::Running, TaskState::Running);
        let failed = task(TaskState::Shutdown, TaskState::Failed);
        let mut counts = TaskCounts::default();
        for task in [&running, &running, &failed] {
            counts.add(task);
        }
        assert_eq!(counts.observed(TaskState::Running), 2);
        assert_eq!(counts.desired(TaskState::Shutdown), 1);
        let mut twice = counts.clone();
        twice.add_all(&counts);
        assert_eq!((counts.total(), twice.total()), (3, 6));
        for task in [&failed, &running, &running] {
            counts.remove(task);
        }
        assert_eq!(counts, TaskCounts::default());
        counts.remove(&running);
        assert_eq!(counts.total(), 0);
    }

    #[test]
    fn records_round_trip_and_stay_small() {
        let digest = TaskDigest::of(&task(TaskState::Running, TaskState::Pending));
        let bytes = codec::encode(&digest).unwrap();
        assert_eq!(codec::decode::<TaskDigest>(&bytes).unwrap(), digest);
        assert_eq!((digest.slot, digest.job_iteration), (7, Some(4)));

        let mut discarded = Discarded::default();
        for index in 0..5000 {
            discarded.note(u64::MAX - 5000 + index);
        }
        assert_eq!(discarded.0.len(), Discarded::MAX);
        assert_eq!(discarded.0.last(), Some(&(u64::MAX - 1)));
        codec::encode(&discarded).unwrap();
    }
}
