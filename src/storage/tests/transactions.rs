//! Transactions, pending ones and their end.

use super::support::*;
use crate::api::types::store_action::Target;
use crate::api::types::*;
use crate::storage::engine::Family;
use crate::storage::testing::TestStore;
use crate::storage::{Interest, ProposeError, StoreError, Table, keys};

// 04-A12 04-A13
#[tokio::test]
async fn stamps_and_stale_copies() {
    let store = TestStore::new();
    let first = store
        .update::<_, StoreError>(|tx| tx.create(service("a", "web")))
        .await
        .unwrap();
    let meta = first.meta.unwrap();
    assert!(meta.version.is_some());
    assert_eq!(meta.created_at, meta.updated_at);
    let second = store
        .update::<_, StoreError>(|tx| tx.update((*first).clone()))
        .await
        .unwrap();
    let stale = store
        .update::<_, StoreError>(|tx| tx.update((*first).clone()))
        .await;
    assert!(matches!(stale, Err(StoreError::SequenceConflict { .. })));
    store
        .update::<_, StoreError>(|tx| tx.update((*second).clone()))
        .await
        .unwrap();
}

/// A create may say since when the object exists; everything else of its stamp is ours.
// 04-A12
#[tokio::test]
async fn a_given_time_of_creation_is_kept() {
    let store = TestStore::new();
    let since = prost_types::Timestamp {
        seconds: 1_000_000_000,
        nanos: 7,
    };
    let given = Service {
        meta: Some(Meta {
            version: Some(Version { index: 99 }),
            created_at: Some(since),
            updated_at: Some(since),
        }),
        ..service("a", "web")
    };
    let created = create(&store, given).await;
    let first = created.meta.unwrap();
    assert_eq!(first.created_at, Some(since));
    assert!(first.updated_at.unwrap().seconds > since.seconds);
    assert_ne!(first.version, Some(Version { index: 99 }));
    // An update that leaves it out keeps it, and changes the other time.
    let mut cleared = (*created).clone();
    cleared.meta.as_mut().unwrap().created_at = None;
    let update = store.update::<_, StoreError>(|tx| tx.update(cleared));
    let second = update.await.unwrap().meta.unwrap();
    assert_eq!(second.created_at, Some(since));
    assert!(second.version.unwrap().index > first.version.unwrap().index);
}

// 04-A10
#[tokio::test]
async fn a_failing_closure_leaves_nothing() {
    let store = TestStore::new();
    let mut events = store.watch(&[Interest::All]);
    let outcome = store
        .update::<(), StoreError>(|tx| {
            tx.create(task("t", "s", 1))?;
            Err(StoreError::NoKind)
        })
        .await;
    assert!(matches!(outcome, Err(StoreError::NoKind)));
    assert_eq!(store.len(Table::Task), 0);
    assert!(events.try_recv().unwrap().is_none());
    assert!(store.proposer().history().is_empty());
}

#[tokio::test]
async fn transactions_overlap() {
    let store = TestStore::new();
    let create = held_create(&store, service("a", "web")).await;
    let change = tokio::spawn({
        let store = store.store();
        async move {
            store
                .update::<_, StoreError>(|tx| {
                    let service = tx.get::<Service>("a")?.ok_or(StoreError::NotExist)?;
                    tx.update((*service).clone())
                })
                .await
        }
    });
    while store.proposer().waiting() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.len(Table::Service), 0);
    store.release();
    create.await.unwrap().unwrap();
    let changed = change.await.unwrap().unwrap();
    let stored = store.view(|tx| tx.get::<Service>("a")).unwrap().unwrap();
    assert_eq!(stored, changed);
}

/// A run that cannot be written changes nothing, tells its writers, and can be tried again.
#[tokio::test]
async fn a_failed_run_may_be_tried_again() {
    let store = TestStore::new();
    let outcome: Result<(), StoreError> = store
        .update(|tx| tx.create(service("damaged", "damaged")).map(drop))
        .await;
    outcome.unwrap();
    // A row that does not open makes the second entry of the run fail on the disk.
    let db = store.db();
    let mut changes = db.changes();
    changes.put(Family::Obj, &keys::row(Table::Service, "damaged"), b"?");
    changes.commit().unwrap();
    drop(db);
    let store = store.reopen();

    let waiting = held_create(&store, service("a", "web")).await;
    let mut entries = store.proposer().take_waiting();
    let own = entries[0].clone();
    let damaged = Target::Service(service("damaged", "damaged"));
    entries.push(entry(own.index + 1, [(REMOVE, damaged)]));
    assert!(matches!(store.apply(entries), Err(StoreError::Disk(_))));
    assert_eq!(store.pending().0, 1);
    store.end_term(ProposeError::DiskFull("full".into()));
    assert!(matches!(
        waiting.await.unwrap(),
        Err(StoreError::Propose(ProposeError::DiskFull(_)))
    ));
    assert_eq!(store.view(|tx| tx.get::<Service>("a")).unwrap(), None);

    store.apply(vec![own]).unwrap();
    store.release();
    store.lead(3);
    let renamed = store
        .update::<_, StoreError>(|tx| {
            let stored = tx.get::<Service>("a")?.ok_or(StoreError::NotExist)?;
            tx.update((*stored).clone())
        })
        .await
        .unwrap();
    assert_eq!(
        store.view(|tx| tx.get::<Service>("a")).unwrap(),
        Some(renamed)
    );
    assert_eq!(store.pending().0, 0);
}
