//! Which slots of a replicated service count as occupied, and which go first when there are too many.
//!
//! Pure functions over the tasks of one service (spec 06 sections 4.2 and 6.2).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::task::{self, REMOVE, RUNNING};
use crate::api::types::Task;

/// The tasks of a service by slot, in two groups.
#[derive(Debug, Default)]
pub struct Slots {
    /// Slots that count as a replica, with the tasks that make them count: those that are meant to run, or
    /// else the last one, if it has ended for good.
    pub occupied: BTreeMap<u64, Vec<Arc<Task>>>,
    /// Slots with nothing but history, which may be forgotten.
    pub dead: BTreeMap<u64, Vec<Arc<Task>>>,
}

/// Sorts the tasks of a service into slots. `may_restart` says whether the policy of a task allows a
/// replacement; `refill` tells to count no slot as occupied by a task that has ended (a rollback wants
/// every slot filled).
pub fn group(
    tasks: Vec<Arc<Task>>,
    refill: bool,
    mut may_restart: impl FnMut(&Task) -> bool,
) -> Slots {
    let mut by_slot: BTreeMap<u64, Vec<Arc<Task>>> = BTreeMap::new();
    for task in tasks {
        by_slot.entry(task.slot).or_default().push(task);
    }
    let mut slots = Slots::default();
    for (slot, tasks) in by_slot {
        let (live, history): (Vec<_>, Vec<_>) =
            tasks.into_iter().partition(|task| task::is_runnable(task));
        if !live.is_empty() {
            slots.occupied.insert(slot, live);
            continue;
        }
        // A task on its way out of the store no longer holds its slot: its end would leave the
        // service one short, and nobody would notice.
        let last = history
            .iter()
            .filter(|task| task.desired_state < REMOVE)
            .max_by_key(|task| task::age(task));
        match last {
            Some(last) if !refill && !may_restart(last) => {
                slots.occupied.insert(slot, vec![Arc::clone(last)]);
            }
            _ => {
                slots.dead.insert(slot, history);
            }
        }
    }
    slots
}

/// The order in which slots are kept when a service shrinks, best first: running ones before others, and
/// on each node the first before the second before the third, so that the fullest nodes give up most.
/// Slots without a node, or with several tasks, go first of all.
pub fn keep_order(occupied: &BTreeMap<u64, Vec<Arc<Task>>>) -> Vec<u64> {
    let mut order: Vec<(u64, &[Arc<Task>])> = occupied
        .iter()
        .map(|(slot, tasks)| (*slot, tasks.as_slice()))
        .collect();
    // Stable, so ties stay in ascending order of slots; `false` sorts first.
    order.sort_by_key(|(_, tasks)| !tasks.iter().any(|task| task::observed(task) == RUNNING));

    let mut seen_on_node: HashMap<&str, u64> = HashMap::new();
    let mut ranked: Vec<(u64, u64)> = Vec::with_capacity(order.len());
    for (slot, tasks) in order {
        let rank = match tasks {
            [only] if !only.node_id.is_empty() => {
                let seen = seen_on_node.entry(&only.node_id).or_default();
                *seen += 1;
                *seen
            }
            _ => u64::MAX,
        };
        ranked.push((rank, slot));
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, slot)| slot).collect()
}

/// Numbers for new slots, ascending from 1, leaving out those that are occupied.
pub fn free_slots(occupied: &BTreeMap<u64, Vec<Arc<Task>>>) -> impl Iterator<Item = u64> {
    let taken: BTreeSet<u64> = occupied.keys().copied().collect();
    (1u64..).filter(move |slot| !taken.contains(slot))
}

#[cfg(test)]
mod tests {
    use super::super::task::{COMPLETE, FAILED, NEW, SHUTDOWN};
    use super::*;
    use crate::api::types::TaskStatus;

    const STARTING: i32 = crate::api::types::TaskState::Starting as i32;

    fn task(id: &str, slot: u64, node_id: &str, observed: i32, desired: i32) -> Arc<Task> {
        Arc::new(Task {
            id: id.to_owned(),
            slot,
            node_id: node_id.to_owned(),
            desired_state: desired,
            status: Some(TaskStatus {
                state: observed,
                ..TaskStatus::default()
            }),
            ..Task::default()
        })
    }

    fn ids(slots: &BTreeMap<u64, Vec<Arc<Task>>>) -> Vec<(u64, Vec<&str>)> {
        let slots = slots.iter();
        slots
            .map(|(slot, tasks)| (*slot, tasks.iter().map(|task| task.id.as_str()).collect()))
            .collect()
    }

    #[test]
    fn live_tasks_hold_their_slot_and_history_does_not() {
        let tasks = || {
            vec![
                task("a1", 1, "n", FAILED, SHUTDOWN),
                task("a2", 1, "n", NEW, RUNNING),
                task("b1", 2, "n", FAILED, SHUTDOWN),
                task("c1", 3, "n", RUNNING, REMOVE),
            ]
        };
        let slots = group(tasks(), false, |_| true);
        assert_eq!(ids(&slots.occupied), [(1, vec!["a2"])]);
        assert_eq!(ids(&slots.dead), [(2, vec!["b1"]), (3, vec!["c1"])]);
        // A task that ended for good holds its slot, unless it is to be removed or a rollback refills.
        let slots = group(tasks(), false, |_| false);
        assert_eq!(ids(&slots.occupied), [(1, vec!["a2"]), (2, vec!["b1"])]);
        assert_eq!(ids(&slots.dead), [(3, vec!["c1"])]);
        let slots = group(tasks(), true, |_| false);
        assert_eq!(ids(&slots.occupied), [(1, vec!["a2"])]);
    }

    // 06-A5 06-A8
    #[test]
    fn the_fullest_nodes_give_up_first() {
        let all = [
            task("task1", 1, "node1", STARTING, RUNNING),
            task("task2", 2, "node2", RUNNING, RUNNING),
            task("task3", 3, "node2", RUNNING, RUNNING),
            task("task4", 4, "node3", RUNNING, RUNNING),
            task("task5", 5, "node3", RUNNING, RUNNING),
            task("task6", 6, "node3", RUNNING, RUNNING),
            task("task7", 7, "", NEW, RUNNING),
        ];
        let keep = |tasks: &[Arc<Task>], count: usize| -> Vec<u64> {
            let slots = group(tasks.to_vec(), false, |_| true);
            let mut kept: Vec<u64> = keep_order(&slots.occupied)
                .into_iter()
                .take(count)
                .collect();
            kept.sort_unstable();
            kept
        };
        assert_eq!(keep(&all, 6), [1, 2, 3, 4, 5, 6]);
        assert_eq!(keep(&all[..6], 4), [1, 2, 3, 4]);
        assert_eq!(keep(&all[..4], 2), [2, 4]);
    }

    #[test]
    fn the_order_is_stable_and_running_comes_first() {
        let tasks = vec![
            task("a", 1, "n1", NEW, RUNNING),
            task("b", 2, "n1", RUNNING, RUNNING),
            task("c", 3, "n2", COMPLETE, RUNNING),
            task("d1", 4, "n2", RUNNING, RUNNING),
            task("d2", 4, "n3", RUNNING, RUNNING),
        ];
        let slots = group(tasks, false, |_| true);
        assert_eq!(keep_order(&slots.occupied), [2, 3, 1, 4]);
    }

    // 06-A6
    #[test]
    fn free_numbers_fill_the_gaps() {
        let tasks = vec![
            task("a", 1, "", NEW, RUNNING),
            task("c", 3, "", NEW, RUNNING),
        ];
        let slots = group(tasks, false, |_| true);
        let free: Vec<u64> = free_slots(&slots.occupied).take(3).collect();
        assert_eq!(free, [2, 4, 5]);
    }
}
