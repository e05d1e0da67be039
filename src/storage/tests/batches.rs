//! Batches, and how large an entry may become.

use super::support::*;
use crate::api::types::*;
use crate::storage::proposer::MAX_REQUEST_BYTES;
use crate::storage::testing::TestStore;
use crate::storage::{Action, Interest, ProposeError, StoreError, Subscription, Table, request};
use std::sync::Arc;

/// A service whose stored form is some bytes longer than `padding`.
fn padded(id: &str, padding: usize) -> Service {
    let mut service = service(id, id);
    let labels = [("padding".to_owned(), "x".repeat(padding))];
    let annotations = service.spec.as_mut().unwrap().annotations.as_mut();
    annotations.unwrap().labels = labels.into();
    service
}

/// Index and number of changes of every batch of events that waits.
fn groups(events: &mut Subscription) -> Vec<(u64, usize)> {
    std::iter::from_fn(|| events.try_recv().unwrap())
        .map(|batch| (batch.index, batch.changes.len()))
        .collect()
}

// 04-A14
#[tokio::test]
async fn many_creations_become_few_entries() {
    let store = TestStore::new();
    let mut events = store.watch(&[Interest::All]);
    let mut batch = store.batch();
    for number in 0..405 {
        let object = task(&format!("{number:03}"), "s", number);
        let created = batch.update::<_, StoreError>(|tx| tx.create(object)).await;
        created.unwrap();
    }
    batch.commit().await.unwrap();
    // Each group is one entry; its index closes it.
    assert_eq!(groups(&mut events), [(3, 200), (6, 200), (9, 5)]);
    assert_eq!(store.proposer().history().len(), 3);
    assert_eq!(store.len(Table::Task), 405);
}

// 04-A15
#[tokio::test]
async fn large_changes_are_split_below_the_limit() {
    let store = TestStore::new();
    let mut batch = store.batch();
    for number in 0..100 {
        let object = padded(&format!("s{number:03}"), 100 << 10);
        let created = batch.update::<_, StoreError>(|tx| tx.create(object)).await;
        created.unwrap();
    }
    batch.commit().await.unwrap();
    let history = store.proposer().history();
    assert!(history.len() >= 7, "{} entries", history.len());
    for (index, data) in &history {
        assert!(data.len() <= MAX_REQUEST_BYTES, "{index}: {}", data.len());
    }
    assert_eq!(store.len(Table::Service), 100);
}

// 04-A16
#[tokio::test]
async fn the_largest_request_passes_and_one_byte_more_does_not() {
    let store = TestStore::new();
    let update =
        |padding| store.update::<_, StoreError>(move |tx| tx.create(padded("large", padding)));
    // What one MiB of padding leaves tells the size of the rest.
    let small = update(1 << 20).await.unwrap();
    let (_, data) = store.proposer().history().pop().unwrap();
    let rest = data.len() - (1 << 20);
    let deleted: Result<(), StoreError> = store.update(|tx| tx.delete::<Service>("large")).await;
    deleted.unwrap();
    assert!(small.meta.is_some());

    let mut events = store.watch(&[Interest::All]);
    // The time stamps are of varying length, hence a few tries around the limit.
    let (mut passed, mut refused) = (0, 0);
    for padding in MAX_REQUEST_BYTES - rest - 16..MAX_REQUEST_BYTES - rest + 17 {
        match update(padding).await {
            Ok(_) => {
                let (_, data) = store.proposer().history().pop().unwrap();
                assert!(data.len() <= MAX_REQUEST_BYTES);
                passed = passed.max(data.len());
                let deleted: Result<(), StoreError> =
                    store.update(|tx| tx.delete::<Service>("large")).await;
                deleted.unwrap();
                assert_eq!(groups(&mut events).len(), 2);
            }
            Err(StoreError::Propose(ProposeError::TooLarge)) => {
                refused += 1;
                assert_eq!(store.len(Table::Service), 0);
                assert!(events.try_recv().unwrap().is_none());
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(passed >= MAX_REQUEST_BYTES - 2, "{passed} bytes passed");
    assert!(refused >= 8, "{refused} were refused");
}

/// The exact limit, with objects that are not stamped.
// 04-A16
#[test]
fn a_request_is_counted_to_the_byte() {
    for payload in [0usize, 1, 127, 128, 300, 70_000] {
        let bytes = request::REQUEST_ID_BYTES + request::change_bytes(Table::Service, payload);
        let data = vec![0; payload].into();
        let changes = [(Action::Create, Table::Service, &data)];
        let encoded = request::encode(1 << 63, bytes, changes.into_iter());
        assert_eq!(encoded.len(), bytes);
    }
}

// 04-A17
#[tokio::test]
async fn what_a_batch_committed_before_it_failed_stays() {
    let store = TestStore::new();
    let mut events = store.watch(&[Interest::All]);
    let mut batch = store.batch();
    for number in 1..=209 {
        let result = batch
            .update::<(), StoreError>(|tx| {
                if number == 209 {
                    return Err(StoreError::NoKind);
                }
                tx.create(task(&format!("{number:03}"), "s", number))
                    .map(drop)
            })
            .await;
        match number {
            209 => assert!(matches!(result, Err(StoreError::NoKind))),
            _ => result.unwrap(),
        }
    }
    drop(batch);
    assert_eq!(store.len(Table::Task), 200);
    assert_eq!(groups(&mut events), [(3, 200)]);
    // The writer is free, and what was dropped does not come back.
    create(&store, task("after", "s", 1)).await;
    assert_eq!(store.len(Table::Task), 201);
    assert_eq!(groups(&mut events), [(6, 1)]);
}

// 04-A18
#[tokio::test]
async fn a_failing_call_of_a_batch_leaves_nothing_of_itself() {
    let store = TestStore::new();
    let mut batch = store.batch();
    let first = batch
        .update::<_, StoreError>(|tx| tx.create(service("a", "a")))
        .await;
    first.unwrap();
    let failed = batch
        .update::<(), StoreError>(|tx| {
            tx.create(service("b", "b"))?;
            let renamed = Arc::unwrap_or_clone(tx.create(service("c", "c"))?);
            assert!(tx.get::<Service>("b")?.is_some());
            tx.delete::<Service>("a")?;
            drop(renamed);
            Err(StoreError::NoKind)
        })
        .await;
    assert!(matches!(failed, Err(StoreError::NoKind)));
    let after = batch
        .update::<_, StoreError>(|tx| {
            assert!(tx.get::<Service>("b")?.is_none());
            // Its names are free as well.
            tx.create(service("d", "B"))
        })
        .await;
    after.unwrap();
    batch.commit().await.unwrap();
    assert_eq!(ids::<Service>(&store, crate::storage::By::All), ["a", "d"]);
}

/// A batch that failed once stays failed: nothing is proposed again (spec 04 section 20).
#[tokio::test]
async fn a_batch_whose_commit_failed_is_over() {
    let store = TestStore::new();
    store.proposer().refuse(Some(ProposeError::Dropped));
    let mut batch = store.batch();
    let mut failed = 0;
    for number in 0..450 {
        let object = task(&format!("{number:03}"), "s", number);
        let created = batch.update::<_, StoreError>(|tx| tx.create(object)).await;
        if number == 250 {
            store.proposer().refuse(None);
        }
        failed += u64::from(created.is_err());
    }
    assert!(failed >= 249, "{failed}");
    assert!(matches!(
        batch.commit().await,
        Err(StoreError::Propose(ProposeError::Dropped))
    ));
    assert_eq!(store.len(Table::Task), 0);
    assert!(store.proposer().history().is_empty());
}
