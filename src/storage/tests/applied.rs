//! Entries of the log, and transactions whose member does not lead (any more).

use super::support::*;
use crate::api::types::store_action::Target;
use crate::api::types::*;
use crate::storage::engine::Family;
use crate::storage::testing::TestStore;
use crate::storage::{By, Interest, Payload, ProposeError, StoreError, Table, keys, rows};
use prost::Message;
use std::sync::Arc;

// 04-A11
#[tokio::test]
async fn a_transaction_without_writes_succeeds_on_a_follower() {
    let store = TestStore::new();
    create(&store, service("a", "web")).await;
    store.lose_leadership();
    let mut events = store.watch(&[Interest::All]);
    let proposed = store.proposer().history().len();
    let found = store
        .update::<_, StoreError>(|tx| tx.get::<Service>("a"))
        .await;
    assert!(found.unwrap().is_some());
    let written = store
        .update::<_, StoreError>(|tx| tx.create(service("b", "b")))
        .await;
    assert!(matches!(
        written,
        Err(StoreError::Propose(ProposeError::NotLeader))
    ));
    assert_eq!(store.proposer().history().len(), proposed);
    assert!(events.try_recv().unwrap().is_none());
}

// 04-A13
#[tokio::test]
async fn without_a_proposer_nothing_is_stamped_or_compared() {
    let store = TestStore::without_proposer();
    let first = create(&store, service("a", "web")).await;
    assert_eq!(first.meta, None);
    for _ in 0..2 {
        let stale = (*first).clone();
        let updated = store.update::<_, StoreError>(|tx| tx.update(stale)).await;
        assert_eq!(updated.unwrap().meta, None);
    }
}

// 04-A19
#[tokio::test]
async fn a_change_whose_leader_was_lost_appears_once() {
    let store = TestStore::new();
    let waiting = held_create(&store, service("a", "web")).await;
    let lost = store.lose_leadership();
    assert!(matches!(
        waiting.await.unwrap(),
        Err(StoreError::Propose(ProposeError::LostLeadership))
    ));
    assert_eq!(store.len(Table::Service), 0);

    // The next leader commits it after all; applying it twice does it once.
    let mut events = store.watch(&[Interest::All]);
    store.apply(lost.clone()).unwrap();
    store.apply(lost).unwrap();
    assert_eq!(ids::<Service>(&store, By::Name("WEB".into())), ["a"]);
    let batch = events.try_recv().unwrap().unwrap();
    assert_eq!((batch.index, batch.changes.len()), (3, 1));
    assert!(events.try_recv().unwrap().is_none());
    assert!(store.check().unwrap().is_clean());
}

/// An entry of somebody else between two of ours: what we built on top of ours is void.
// 04-A19
#[tokio::test]
async fn transactions_built_on_an_outdated_head_fail() {
    let store = TestStore::new();
    let waiting = held_create(&store, service("a", "web")).await;
    let foreign = Target::Service(service("b", "Web"));
    store.apply(vec![entry(3, [(CREATE, foreign)])]).unwrap();
    assert!(matches!(
        waiting.await.unwrap(),
        Err(StoreError::Propose(ProposeError::LostLeadership))
    ));
    // The name is taken: for the log that entry is void.
    let mut late = store.proposer().take_waiting();
    late[0].index = 4;
    store.apply(late).unwrap();
    assert_eq!(ids::<Service>(&store, By::All), ["b"]);
    assert_eq!(store.apply_errors().count(), 1);
    assert_eq!(store.apply_errors().last_index(), 4);
    assert_eq!(store.applied(), 4);
}

// 04-A20
#[tokio::test]
async fn an_entry_that_breaks_a_rule_is_discarded_as_a_whole() {
    let store = TestStore::new();
    create(&store, service("b", "taken")).await;
    let mut events = store.watch(&[Interest::All]);
    let clash = entry(
        4,
        [
            (CREATE, Target::Node(node("a", "host"))),
            (CREATE, Target::Service(service("c", "TAKEN"))),
        ],
    );
    let unset = StoreAction {
        action: CREATE as i32,
        target: None,
    };
    let request = InternalRaftRequest {
        id: 5,
        action: vec![unset],
    };
    let mut unknown = entry(5, []);
    unknown.payload = Payload::Request(request.encode_to_vec());
    let good = entry(6, [(CREATE, Target::Node(node("d", "host")))]);
    store.apply(vec![clash, unknown, good]).unwrap();
    assert_eq!(store.applied(), 6);
    assert_eq!(ids::<Node>(&store, By::All), ["d"]);
    assert_eq!(ids::<Node>(&store, By::Name("host".into())), ["d"]);
    assert_eq!(store.apply_errors().count(), 2);
    let batch = events.try_recv().unwrap().unwrap();
    assert_eq!((batch.index, batch.changes.len()), (6, 1));
    assert!(events.try_recv().unwrap().is_none());
    assert!(store.check().unwrap().is_clean());
}

/// The opened payload of a row.
fn payload(store: &TestStore, table: Table, id: &str) -> Vec<u8> {
    let key = keys::row(table, id);
    let db = store.db();
    let sealed = db.get(Family::Obj, &key).unwrap().unwrap();
    rows::open(&db, &key, &sealed).unwrap().payload
}

// 04-A21
#[tokio::test]
async fn replicas_hold_the_very_bytes_of_the_leader() {
    let (leader, follower) = (TestStore::new(), TestStore::new());
    follower.lose_leadership();
    let mut labelled = service("a", "web");
    let annotations = labelled.spec.as_mut().unwrap().annotations.as_mut();
    annotations.unwrap().labels = (0..20).map(|n| (format!("l{n}"), format!("{n}"))).collect();
    let stored = create(&leader, labelled).await;
    let update = leader.update::<_, StoreError>(|tx| tx.update((*stored).clone()));
    let stored = update.await.unwrap();
    for (index, data) in leader.proposer().history() {
        let mut shipped = entry(index, []);
        shipped.payload = Payload::Request(data);
        follower.apply(vec![shipped]).unwrap();
    }
    let copy = follower.view(|tx| tx.get::<Service>("a")).unwrap().unwrap();
    assert_eq!(copy, stored);
    assert!(
        Arc::unwrap_or_clone(copy)
            .meta
            .unwrap()
            .created_at
            .is_some()
    );
    let bytes = payload(&leader, Table::Service, "a");
    assert_eq!(payload(&follower, Table::Service, "a"), bytes);

    // A field that this release does not know stays where it was.
    let unknown_field = [bytes.as_slice(), &[0xfa, 0x3e, 0x02, 0x08, 0x07]].concat();
    let id = bytes.len() as u64;
    let unknown = raw_entry(9, id, 3, &unknown_field);
    follower.apply(vec![unknown]).unwrap();
    assert_eq!(payload(&follower, Table::Service, "a"), unknown_field);
}

/// An update of a service with these very bytes.
fn raw_entry(index: u64, id: u64, field: u32, object: &[u8]) -> crate::storage::CommittedEntry {
    use prost::encoding::{bytes, uint64};
    let mut action = Vec::new();
    uint64::encode(1, &2, &mut action);
    bytes::encode(field, &object.to_vec(), &mut action);
    let mut request = Vec::new();
    uint64::encode(1, &id, &mut request);
    bytes::encode(2, &action, &mut request);
    let mut made = entry(index, []);
    made.payload = Payload::Request(request);
    made
}
