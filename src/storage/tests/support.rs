//! Objects for tests.

use crate::api::types::*;

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
