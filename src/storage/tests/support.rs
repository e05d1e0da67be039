//! Objects for tests.

use crate::api::types::store_action::Target;
use crate::api::types::*;
use crate::storage::{CommittedEntry, Payload};
use prost::Message;

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

pub use StoreActionKind::StoreActionRemove as REMOVE;

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
