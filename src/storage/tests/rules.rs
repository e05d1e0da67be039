//! What may be written, and how it is found.

use super::support::*;
use crate::api::types::*;
use crate::storage::testing::TestStore;
use crate::storage::{By, StoreError};

type Result<T> = std::result::Result<T, StoreError>;

// 04-A1
#[tokio::test]
async fn names_belong_to_one_service() {
    let store = TestStore::new();
    let create = |id, name| store.update(move |tx| tx.create(service(id, name)));
    create("1", "web").await.unwrap();
    assert!(matches!(
        create("2", "WEB").await,
        Err(StoreError::NameConflict)
    ));
    assert!(matches!(create("1", "new").await, Err(StoreError::Exist)));
    assert!(matches!(
        create("1", "Web").await,
        Err(StoreError::NameConflict)
    ));
    assert_eq!(store.len(crate::storage::Table::Service), 1);
}

// 04-A2
#[tokio::test]
async fn hostnames_may_collide() {
    let store = TestStore::new();
    store
        .update::<_, StoreError>(|tx| {
            tx.create(node("b", "name2"))?;
            tx.create(node("a", "name2"))?;
            tx.create(node("c", "name1"))?;
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(ids::<Node>(&store, By::Name("NAME2".into())), ["a", "b"]);
    let prefix = By::NamePrefix("NAME".into());
    assert_eq!(ids::<Node>(&store, prefix), ["c", "a", "b"]);
    assert_eq!(ids::<Node>(&store, By::All), ["a", "b", "c"]);
}

// 04-A3
#[tokio::test]
async fn renames() {
    let store = TestStore::new();
    let outcome: Result<()> = store
        .update(|tx| {
            let a = tx.create(service("a", "one"))?;
            tx.create(service("b", "two"))?;
            let mut taken = (*a).clone();
            taken.spec.as_mut().unwrap().annotations = annotations("TWO");
            assert!(matches!(tx.update(taken), Err(StoreError::NameConflict)));
            let mut free = (*a).clone();
            free.spec.as_mut().unwrap().annotations = annotations("Three");
            tx.update(free)?;
            let find = |name: &str| tx.find::<Service>(By::Name(name.into())).unwrap().len();
            assert_eq!((find("one"), find("three"), find("two")), (0, 1, 1));
            Ok(())
        })
        .await;
    outcome.unwrap();
    assert_eq!(ids::<Service>(&store, By::Name("one".into())), [""; 0]);
    assert_eq!(ids::<Service>(&store, By::Name("three".into())), ["a"]);
}
