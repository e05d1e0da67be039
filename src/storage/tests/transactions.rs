//! Transactions, pending ones and their end.

use super::support::*;
use crate::api::types::*;
use crate::storage::testing::TestStore;
use crate::storage::{Interest, StoreError, Table};

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
    store.hold();
    let create = tokio::spawn({
        let store = store.store();
        async move {
            store
                .update::<_, StoreError>(|tx| tx.create(service("a", "web")))
                .await
        }
    });
    while store.proposer().waiting() < 1 {
        tokio::task::yield_now().await;
    }
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
