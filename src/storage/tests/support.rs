//! Objects for tests.

use crate::api::types::store_action::Target;
use crate::api::types::*;
use crate::storage::testing::TestStore;
use crate::storage::{By, CommittedEntry, Payload, Store, StoreError, StoreObject};
use prost::Message;
use std::sync::Arc;
use tokio::task::JoinHandle;

pub fn annotations(name: &str) -> Option<Annotations> {
    Some(Annotations {
        name: name.into(),
        ..Default::default()
    })
}

pub fn service(id: &str, name: &str) -> Service {
    Service {
        id: id.into(),
        spec: Some(ServiceSpec {
            annotations: annotations(name),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub fn node(id: &str, hostname: &str) -> Node {
    Node {
        id: id.into(),
        description: Some(NodeDescription {
            hostname: hostname.into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub fn task(id: &str, service_id: &str, slot: u64) -> Task {
    Task {
        id: id.into(),
        service_id: service_id.into(),
        slot,
        service_annotations: annotations(&format!("name-of-{service_id}")),
        ..Default::default()
    }
}

pub use StoreActionKind::{StoreActionCreate as CREATE, StoreActionRemove as REMOVE};

/// An entry that another manager proposed.
pub fn entry(
    index: u64,
    actions: impl IntoIterator<Item = (StoreActionKind, Target)>,
) -> CommittedEntry {
    let actions = actions.into_iter().map(|(kind, target)| StoreAction {
        action: kind as i32,
        target: Some(target),
    });
    let request = InternalRaftRequest {
        id: index,
        action: actions.collect(),
    };
    CommittedEntry {
        index,
        term: 9,
        payload: Payload::Request(request.encode_to_vec()),
    }
}

/// Begins to create a service in a held store; it is proposed and not applied when this returns.
pub async fn held_create(
    store: &TestStore,
    new: Service,
) -> JoinHandle<Result<Arc<Service>, StoreError>> {
    store.hold();
    let shared = store.store();
    let creating =
        tokio::spawn(async move { shared.update::<_, StoreError>(|tx| tx.create(new)).await });
    while store.proposer().waiting() < 1 {
        tokio::task::yield_now().await;
    }
    creating
}

/// Share of the full counts to run (a tenth unless told otherwise), at least one.
pub fn scaled(full: u64) -> u64 {
    let scale = std::env::var("SWARM_TEST_SCALE")
        .ok()
        .and_then(|scale| scale.parse::<f64>().ok())
        .unwrap_or(0.1);
    ((full as f64 * scale) as u64).max(1)
}

/// IDs of what a selector finds, in its order.
pub fn ids<T: StoreObject>(store: &Store, by: By) -> Vec<String> {
    let found = store.view(|tx| tx.find::<T>(by)).unwrap();
    found.iter().map(|object| object.id().to_owned()).collect()
}

/// Creates one object as a transaction of its own.
pub async fn create<T: StoreObject>(store: &Store, object: T) -> std::sync::Arc<T> {
    let created = store.update::<_, StoreError>(|tx| tx.create(object)).await;
    created.unwrap()
}
