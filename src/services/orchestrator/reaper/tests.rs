//! When the reaper works, and what it deletes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{BATCH_ENTRIES_MAX, BATCH_INTERVAL, Reaper};
use crate::api::types::{Service, Task, TaskState, TaskStatus};
use crate::services::orchestrator::task::{RUNNING, SHUTDOWN};
use crate::services::reconcile::{Now, Reconciler};
use crate::services::testing::objects;
use crate::storage::testing::TestStore;
use crate::storage::{Action, Change, EventBatch, StoreError, StoreObject, Tx};

fn created(task: Task) -> EventBatch {
    EventBatch {
        index: 1,
        changes: vec![Arc::new(Change {
            action: Action::Create,
            object: Task::into_any(Arc::new(task)),
            old: None,
        })],
    }
}

fn at(start: Instant, passed: Duration) -> Now {
    Now {
        instant: start + passed,
        ..Now::system()
    }
}

fn task(slot: u64, observed: i32, desired: i32) -> Task {
    Task {
        id: format!("task{slot}"),
        service_id: "web".to_owned(),
        slot,
        desired_state: desired,
        status: Some(TaskStatus {
            state: observed,
            ..TaskStatus::default()
        }),
        ..Task::default()
    }
}

#[test]
fn one_event_makes_one_pass_after_a_quarter_of_a_second() {
    let start = Instant::now();
    let mut reaper = Reaper::default();
    assert_eq!(reaper.next_due(), None);
    reaper.observe(
        &created(task(1, RUNNING, RUNNING)),
        at(start, Duration::ZERO),
    );
    // Later events do not put it off.
    let later = at(start, Duration::from_millis(100));
    reaper.observe(&created(task(2, RUNNING, RUNNING)), later);
    assert_eq!(reaper.next_due(), Some(start + BATCH_INTERVAL));
    assert!(reaper.plan(later).is_none());
    let pass = reaper.plan(at(start, BATCH_INTERVAL)).expect("a pass");
    assert_eq!(pass.slots.len(), 2);
    assert_eq!(reaper.next_due(), None);
}

#[test]
fn a_thousand_and_one_entries_are_not_kept_waiting() {
    let start = Instant::now();
    let mut reaper = Reaper::default();
    for slot in 0..BATCH_ENTRIES_MAX {
        reaper.observe(
            &created(task(slot as u64, RUNNING, RUNNING)),
            at(start, Duration::ZERO),
        );
    }
    assert_eq!(reaper.next_due(), Some(start + BATCH_INTERVAL));
    let now = at(start, Duration::from_millis(1));
    reaper.observe(&created(task(9999, RUNNING, RUNNING)), now);
    assert_eq!(reaper.next_due(), Some(now.instant));
    let pass = reaper.plan(now).expect("a pass");
    assert_eq!(pass.slots.len(), BATCH_ENTRIES_MAX + 1);
    assert_eq!(reaper.next_due(), None);
}

/// With a limit of nothing, which tasks of a slot go: all combinations. 06-A39
#[tokio::test]
async fn whatever_has_ended_or_will_never_run_goes() {
    let states = [
        TaskState::New,
        TaskState::Pending,
        TaskState::Assigned,
        TaskState::Accepted,
        TaskState::Preparing,
        TaskState::Ready,
        TaskState::Starting,
        TaskState::Running,
        TaskState::Complete,
        TaskState::Shutdown,
        TaskState::Failed,
        TaskState::Rejected,
    ];
    for desired in [RUNNING, SHUTDOWN] {
        for state in states {
            let store = TestStore::new();
            let service: Service = objects::service("web");
            let stored: Result<(), StoreError> = store
                .update(|tx: &mut Tx| {
                    tx.create(service)?;
                    tx.create(task(1, state as i32, desired)).map(|_| ())
                })
                .await;
            stored.expect("create");
            let mut reaper = Reaper::default();
            let now = Now::system();
            reaper.observe(&created(task(1, state as i32, desired)), now);
            let work = reaper
                .plan(at(now.instant, BATCH_INTERVAL))
                .expect("a pass");
            let passed = Reaper::perform(store.store(), work).await.expect("pass");
            assert!(passed.crowded.is_empty());

            let ended = state as i32 > RUNNING;
            let never_runs = desired == SHUTDOWN && (state as i32) < TaskState::Assigned as i32;
            let left = store.view(|view| view.get::<Task>("task1")).expect("read");
            assert_eq!(
                left.is_none(),
                ended || never_runs,
                "{state:?}, wanted {desired}"
            );
        }
    }
}
