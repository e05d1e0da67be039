//! Decisions that meet a store which has moved on.

use std::sync::Arc;

use tokio::time::Instant;

use super::{node, state, task};
use crate::api::types::node_spec::Availability;
use crate::api::types::{Node, Task};
use crate::services::orchestrator::task::{ASSIGNED, PENDING, SHUTDOWN, observed};
use crate::services::reconcile::Now;
use crate::services::scheduler::commit::{self, Written};
use crate::services::scheduler::state::State;
use crate::services::testing::objects;
use crate::storage::testing::TestStore;
use crate::storage::{Interest, StoreError, StoreObject, Table, Tx};

async fn write<T: StoreObject>(store: &TestStore, object: T) {
    let written: Result<_, StoreError> = store
        .update(|tx: &mut Tx| {
            let Some(stored) = tx.get::<T>(object.id())? else {
                return tx.create(object);
            };
            let mut object = object;
            *object.meta_mut() = stored.meta().cloned();
            tx.update(object)
        })
        .await;
    written.expect("write");
}

async fn decide(store: &TestStore, state: &mut State) -> Vec<(Arc<str>, Written)> {
    let now = Now::system();
    let (decisions, _) = state.pass(now.instant);
    let written = commit::write(store.store(), decisions, now.wall).await;
    written.expect("commit")
}

fn settle(state: &mut State, written: Vec<(Arc<str>, Written)>) {
    for (id, written) in written {
        if let Written::Refused(task) = written {
            state.refuse(&id, task.as_deref(), Instant::now());
        }
    }
}

fn stored(store: &TestStore, id: &str) -> Arc<Task> {
    store
        .view(|view| view.get::<Task>(id))
        .expect("read")
        .expect("task")
}

/// One node and one task that waits, in the store and in the scheduler's knowledge.
async fn one_of_each() -> (TestStore, State) {
    let store = TestStore::new();
    write(&store, node("n1", 4, &[])).await;
    write(&store, objects::service("web")).await;
    write(&store, task("t", "web", 1, &[])).await;
    let state = state(vec![node("n1", 4, &[])], vec![task("t", "web", 1, &[])]);
    (store, state)
}

// 07-A17
#[tokio::test]
async fn a_task_that_changed_in_between_is_assigned_once() {
    let (store, mut state) = one_of_each().await;
    let mut events = store.watch(&[Interest::Table(Table::Task)]);
    let mut changed = Task::clone(&stored(&store, "t"));
    changed.status.as_mut().unwrap().message = "changed".to_owned();
    write(&store, changed).await;

    let written = decide(&store, &mut state).await;
    settle(&mut state, written);
    while let Some(batch) = events.try_recv().expect("events") {
        for change in &batch.changes {
            state.observe(change, Instant::now());
        }
    }
    assert_eq!(stored(&store, "t").node_id, "n1");
    assert!(state.pass(Instant::now()).0.is_empty());
    let counts = state.nodes.counts();
    assert!(
        counts.contains(&"service web on Some(\"n1\"): 1".to_owned()),
        "{counts:?}"
    );
}

// 07-A17
#[tokio::test]
async fn a_node_that_was_drained_in_between_gets_nothing() {
    let (store, mut state) = one_of_each().await;
    let mut drained = node("n1", 4, &[]);
    drained.spec.get_or_insert_default().availability = Availability::Drain as i32;
    write(&store, drained.clone()).await;

    let written = decide(&store, &mut state).await;
    assert!(matches!(written[0].1, Written::Refused(Some(_))));
    settle(&mut state, written);
    assert_eq!(observed(&stored(&store, "t")), PENDING);
    assert!(
        state.debounce.due().is_some(),
        "it is tried again without another event"
    );

    // Once the news is heard, it waits with a reason; when the node is back, it is placed.
    state.observe_node(&Arc::new(drained), false);
    let written = decide(&store, &mut state).await;
    settle(&mut state, written);
    let reason = "no suitable node (1 node not available for new tasks)";
    assert_eq!(stored(&store, "t").status.as_ref().unwrap().err, reason);
    let back = node("n1", 4, &[]);
    write(&store, back.clone()).await;
    state.observe_node(&Arc::new(back), false);
    decide(&store, &mut state).await;
    assert_eq!(observed(&stored(&store, "t")), ASSIGNED);
}

#[tokio::test]
async fn withdrawn_and_deleted_tasks_give_back_what_they_held() {
    let (store, mut state) = one_of_each().await;
    write(&store, task("u", "web", 1, &[])).await;
    state.observe_task(&task("u", "web", 1, &[]), Instant::now());
    let mut withdrawn = Task::clone(&stored(&store, "t"));
    withdrawn.desired_state = SHUTDOWN;
    write(&store, withdrawn).await;
    let gone: Result<(), StoreError> = store.update(|tx: &mut Tx| tx.delete::<Task>("u")).await;
    gone.expect("delete");

    let written = decide(&store, &mut state).await;
    assert!(
        written
            .iter()
            .all(|(_, written)| matches!(written, Written::Refused(_)))
    );
    settle(&mut state, written);
    let empty = super::state(vec![node("n1", 4, &[])], Vec::new());
    assert_eq!(state.nodes.counts(), empty.nodes.counts());
    assert!(state.queue.is_empty());
    assert_eq!(stored(&store, "t").node_id, "");
}

// 07-A16
#[tokio::test]
async fn the_same_reason_is_written_once() {
    let store = TestStore::new();
    write(&store, objects::service("web")).await;
    write(&store, task("t", "web", 1, &[])).await;
    let mut first = state(Vec::new(), vec![task("t", "web", 1, &[])]);
    decide(&store, &mut first).await;
    let told = stored(&store, "t");
    assert_eq!(told.status.as_ref().unwrap().err, "no suitable node");
    // A new leader does not know that it was told already, and comes to the same conclusion.
    let mut second = state(Vec::new(), vec![Task::clone(&told)]);
    decide(&store, &mut second).await;
    assert_eq!(stored(&store, "t").version(), told.version());
    assert!(
        store
            .view(|view| view.get::<Node>("n1"))
            .expect("read")
            .is_none()
    );
}
