//! Rows that were changed or exchanged on the disk: named at the first read, never served.

use super::support::*;
use crate::api::types::*;
use crate::storage::engine::Family;
use crate::storage::rotation::{KeyHolder, LogKeys, RotationError, rotate};
use crate::storage::seal::{Dek, DekRing};
use crate::storage::testing::{TestStore, ring};
use crate::storage::{By, Interest, StoreError, Table, keys};
use std::ops::ControlFlow;

fn row(store: &TestStore, id: &str) -> Vec<u8> {
    let key = keys::row(Table::Service, id);
    store.db().get(Family::Obj, &key).unwrap().unwrap()
}

fn put_row(store: &TestStore, id: &str, sealed: &[u8]) {
    let db = store.db();
    let mut changes = db.changes();
    changes.put(Family::Obj, &keys::row(Table::Service, id), sealed);
    changes.commit().unwrap();
}

/// A store with services `a`, `b` and `c`, whose rows `damage` has changed behind its back.
async fn damaged(damage: impl FnOnce(&TestStore)) -> TestStore {
    let store = TestStore::new();
    for id in ["a", "b", "c"] {
        create(&store, service(id, &format!("name-{id}"))).await;
    }
    damage(&store);
    store.reopen()
}

fn unreadable(store: &TestStore, id: &str) {
    let wanted = format!("the row of service {id}");
    let read = store.view(|tx| tx.get::<Service>(id));
    let listed = store.view(|tx| tx.find::<Service>(By::All));
    for error in [read.unwrap_err(), listed.unwrap_err()] {
        let StoreError::Disk(text) = error else {
            panic!("{error}");
        };
        assert!(text.contains(&wanted), "{text}");
        assert!(text.contains("swarm-db check"), "{text}");
    }
    let report = store.check().unwrap();
    let found = report.faults.iter().any(|fault| fault.id == id);
    assert!(found && !report.is_clean(), "{report:?}");
}

// 01-A31
#[tokio::test]
async fn exchanged_rows_are_named() {
    let store = damaged(|store| {
        let (a, b) = (row(store, "a"), row(store, "b"));
        put_row(store, "a", &b);
        put_row(store, "b", &a);
    })
    .await;
    unreadable(&store, "a");
    let read = store.view(|tx| tx.get::<Service>("b"));
    assert!(matches!(read, Err(StoreError::Disk(_))));
    // The others are served, and a write beside the damage goes on.
    assert!(store.view(|tx| tx.get::<Service>("c")).unwrap().is_some());
    create(&store, service("d", "name-d")).await;
    // A write that needs the damaged row does not.
    let mut events = store.watch(&[Interest::All]);
    let deleted: Result<(), StoreError> = store.update(|tx| tx.delete::<Service>("a")).await;
    assert!(matches!(deleted, Err(StoreError::Disk(_))));
    assert!(events.try_recv().unwrap().is_none());
}

#[tokio::test]
async fn every_changed_byte_of_a_row_is_noticed() {
    let bytes = {
        let store = TestStore::new();
        create(&store, service("a", "name-a")).await;
        row(&store, "a").len()
    };
    for at in (0..bytes).step_by((bytes / scaled(100) as usize).max(1)) {
        let store = damaged(|store| {
            let mut sealed = row(store, "a");
            let at = at.min(sealed.len() - 1);
            sealed[at] ^= 0x10;
            put_row(store, "a", &sealed);
        })
        .await;
        unreadable(&store, "a");
    }
}

/// A key file in memory.
struct Keys(DekRing);

impl KeyHolder for Keys {
    fn begin(&self) -> Result<DekRing, RotationError> {
        Ok(self.0.clone())
    }

    fn finish(&self) -> Result<(), RotationError> {
        Ok(())
    }
}

struct NoLog;

impl LogKeys for NoLog {
    fn reseal(&self, _: DekRing, _: u64) -> Result<Option<u64>, RotationError> {
        Ok(Some(0))
    }
}

/// An exchange of the data key meets all rows: it names the damaged ones and saves the others.
#[tokio::test]
async fn an_exchange_of_the_key_names_what_is_damaged() {
    let store = damaged(|store| {
        let mut sealed = row(store, "b");
        let last = sealed.len() - 1;
        sealed[last] ^= 1;
        put_row(store, "b", &sealed);
    })
    .await;
    let new = Dek::generate().unwrap();
    let both = DekRing::new(new, vec![ring().current().clone()]);
    let done = rotate(&Keys(both), &store, &NoLog, &mut |_| {
        ControlFlow::Continue(())
    });
    let done = done.unwrap();
    assert_eq!(done.damaged, 1);
    assert!(done.damaged_named[0].contains("service b"), "{done:?}");
    for id in ["a", "c"] {
        assert!(store.view(|tx| tx.get::<Service>(id)).unwrap().is_some());
    }
    unreadable(&store, "b");
}
