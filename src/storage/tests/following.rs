//! Subscriptions: from a view, from the past, and those of a slow reader.

use super::support::*;
use crate::api::types::*;
use crate::storage::events::QUEUE_CHANGES_MAX;
use crate::storage::proposer::HistoryError;
use crate::storage::testing::TestStore;
use crate::storage::{
    Action, AnyObject, By, EventBatch, Interest, RecvError, ResumeError, Store, StoreError, Table,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// IDs of the changed objects behind the index of their entry.
fn seen(batch: &EventBatch) -> (u64, Vec<String>) {
    let ids = batch.changes.iter();
    (
        batch.index,
        ids.map(|change| change.object.id().to_owned()).collect(),
    )
}

/// One transaction that creates a node and a service.
async fn create_pair(store: &Store, number: usize) {
    let created = store
        .update::<_, StoreError>(|tx| {
            tx.create(node(&format!("id{number}"), "host"))?;
            tx.create(service(&format!("id{number}"), &format!("name{number}")))
        })
        .await;
    created.unwrap();
}

// 04-A24
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_and_its_events_make_the_final_state() {
    let store = TestStore::new();
    let transactions = scaled(10_000);
    let writer = tokio::spawn({
        let store = store.store();
        async move {
            for number in 0..transactions {
                let id = format!("{:03}", number % 97);
                let changed =
                    store.update::<_, StoreError>(|tx| match (tx.get::<Task>(&id)?, number % 5) {
                        (None, _) => tx.create(task(&id, "s", number)).map(drop),
                        (Some(_), 0) => tx.delete::<Task>(&id),
                        (Some(old), _) => {
                            let slot = number;
                            tx.update(Task {
                                slot,
                                ..(*old).clone()
                            })
                            .map(drop)
                        }
                    });
                changed.await.unwrap();
            }
        }
    });
    // Several followers begin at different moments of the writing.
    let mut followers = Vec::new();
    while !writer.is_finished() && followers.len() < 50 {
        let (state, events) = store.view_and_watch(&[Interest::Table(Table::Task)], |tx| {
            let tasks = tx.find::<Task>(By::All).unwrap().into_iter();
            let tasks: BTreeMap<_, _> = tasks.map(|task| (task.id.clone(), task)).collect();
            (tx.applied(), tasks)
        });
        followers.push((state, events));
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    writer.await.unwrap();
    let tasks = store.view(|tx| tx.find::<Task>(By::All)).unwrap();
    let expected: BTreeMap<_, _> = tasks
        .into_iter()
        .map(|task| (task.id.clone(), task))
        .collect();
    for ((viewed, mut state), mut events) in followers {
        let mut last = viewed;
        while let Some(batch) = events.try_recv().unwrap() {
            assert!(batch.index > last, "{} after {last}", batch.index);
            last = batch.index;
            for change in &batch.changes {
                let AnyObject::Task(task) = &change.object else {
                    panic!("a change of another table");
                };
                let before = match change.action {
                    Action::Remove => state.remove(&task.id),
                    _ => state.insert(task.id.clone(), task.clone()),
                };
                assert_eq!(before.is_some(), change.action != Action::Create);
                if change.action == Action::Update {
                    assert_eq!(change.old::<Task>(), before.as_ref());
                }
            }
        }
        assert_eq!(state, expected);
    }
}

// 04-A25
#[tokio::test]
async fn watching_from_a_version_replays_and_goes_on() {
    let store = TestStore::new();
    for number in 0..5 {
        create_pair(&store, number).await;
    }
    let nodes = [Interest::Table(Table::Node)];
    let services = [Interest::Table(Table::Service)];
    let mut late_nodes = store.watch_from(10, &nodes).await.unwrap();
    let mut late_services = store.watch_from(13, &services).await.unwrap();
    let ids = |id: &str| vec![id.to_owned()];
    let mut next = seen(&late_nodes.recv().await.unwrap());
    assert_eq!(next, (12, ids("id3")));
    next = seen(&late_nodes.recv().await.unwrap());
    assert_eq!(next, (15, ids("id4")));
    next = seen(&late_services.recv().await.unwrap());
    assert_eq!(next, (15, ids("id4")));

    create_pair(&store, 5).await;
    next = seen(&late_nodes.recv().await.unwrap());
    assert_eq!(next, (18, ids("id5")));
    assert!(late_nodes.is_live());
    next = seen(&late_services.recv().await.unwrap());
    assert_eq!(next, (18, ids("id5")));

    // The present is always valid, even if the log holds nothing any more.
    store.proposer().compact(18);
    let mut now = store.watch_from(18, &nodes).await.unwrap();
    create_pair(&store, 6).await;
    next = seen(&now.recv().await.unwrap());
    assert_eq!(next, (21, ids("id6")));

    let failure = |version| {
        let store = store.store();
        async move {
            match store.watch_from(version, &[Interest::All]).await {
                Err(ResumeError::History(error)) => error,
                Err(ResumeError::Live(error)) => panic!("{error}"),
                Ok(_) => panic!("version {version} was accepted"),
            }
        }
    };
    assert!(matches!(failure(5000).await, HistoryError::OutOfBounds));
    assert!(matches!(failure(17).await, HistoryError::Compacted));
    let alone = TestStore::without_proposer();
    assert!(matches!(
        alone.watch_from(0, &[Interest::All]).await,
        Err(ResumeError::History(HistoryError::NoVersioning))
    ));
}

/// A replayed update carries no old object, a removal the object as it was; what was discarded had no
/// effect and does not show.
// 04-A25
#[tokio::test]
async fn a_replay_shows_what_took_effect() {
    let store = TestStore::new();
    let first = create(&store, service("a", "one")).await;
    let updated = store
        .update::<_, StoreError>(|tx| tx.update((*first).clone()))
        .await
        .unwrap();
    let removed: Result<(), StoreError> = store.update(|tx| tx.delete::<Service>("a")).await;
    removed.unwrap();
    let clash = held_create(&store, service("b", "two")).await;
    let mut late = store.lose_leadership();
    assert!(clash.await.unwrap().is_err());
    // By the time it commits, the name is somebody else's.
    let taken = store_action::Target::Service(service("c", "TWO"));
    store.apply(vec![entry(10, [(CREATE, taken)])]).unwrap();
    late[0].index = 12;
    store.proposer().record(late.clone());
    store.apply(late).unwrap();
    assert_eq!(store.apply_errors().count(), 1);

    let mut events = store.watch_from(0, &[Interest::All]).await.unwrap();
    let create = events.recv().await.unwrap();
    assert_eq!(create.changes[0].action, Action::Create);
    assert_eq!(create.changes[0].get::<Service>(), Some(&first));
    let update = events.recv().await.unwrap();
    assert_eq!(update.changes[0].action, Action::Update);
    assert!(update.changes[0].old.is_none());
    let remove = events.recv().await.unwrap();
    assert_eq!(remove.changes[0].action, Action::Remove);
    assert_eq!(remove.changes[0].get::<Service>(), Some(&updated));
    assert!(events.is_live(), "the discarded entry is left out");
}

/// A history far longer than any queue is replayed whole, while more is being written.
// 04-A25
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_history_is_replayed_without_gap() {
    let store = TestStore::new();
    let write = |store: Store, from: u64, count: u64| async move {
        for number in from..from + count {
            create(&store, task(&format!("{number:06}"), "s", number)).await;
        }
    };
    write(store.store(), 0, 3000).await;
    let more = tokio::spawn(write(store.store(), 3000, 500));
    let mut events = store.watch_from(0, &[Interest::All]).await.unwrap();
    for number in 0..3500 {
        let batch = events.recv().await.unwrap();
        assert_eq!(
            seen(&batch),
            ((number + 1) * 3, vec![format!("{number:06}")])
        );
    }
    more.await.unwrap();
    assert!(events.is_live());
}

// 04-A31
#[tokio::test]
async fn a_subscriber_that_never_reads_is_ended_and_nobody_else() {
    let store = TestStore::new();
    let mut idle = store.watch(&[Interest::All]);
    let mut other = store.watch(&[Interest::Table(Table::Task)]);
    let mut elsewhere = store.watch(&[Interest::Table(Table::Node)]);
    let transactions = QUEUE_CHANGES_MAX / 100 + 1;
    for number in 0..transactions {
        let written: Result<(), StoreError> = store
            .update(|tx| {
                for slot in 0..100 {
                    tx.create(task(&format!("{number}-{slot}"), "s", slot))?;
                }
                Ok(())
            })
            .await;
        written.unwrap();
        assert_eq!(other.recv().await.unwrap().changes.len(), 100);
    }
    let overflow = transactions as u64 * 3;
    assert_eq!(idle.recv().await.unwrap_err(), RecvError::Lagged(overflow));
    assert_eq!(idle.recv().await.unwrap_err(), RecvError::Lagged(overflow));
    assert!(elsewhere.try_recv().unwrap().is_none());
    let arrived = create(&store, node("n", "host")).await;
    let batch = elsewhere.recv().await.unwrap();
    assert_eq!(batch.changes[0].get::<Node>(), Some(&Arc::clone(&arrived)));
}
