//! What is allocated while networks are not built: nothing but what needs no network.
//!
//! Decides, pure, on services and tasks (spec 09 sections 1, 6.2 and 8.2; settled V4). A service with host-mode
//! ports gets them copied into its endpoint, since the node publishes those by itself. Services and tasks
//! with networks or ingress ports are refused with a reason. The ingress network counts as allocated as it
//! is, and nodes get no attachments.

use crate::api::types::port_config::PublishMode;
use crate::api::types::{Endpoint, Service, Task, TaskSpec};

/// Why a task stays as it is. The text is part of the interface.
pub const UNSUPPORTED: &str = "network support is unavailable";

/// What a service needs.
#[derive(Debug, Clone, PartialEq)]
pub enum ServiceNeed {
    /// Nothing: it is allocated.
    Nothing,
    /// This endpoint, to be stored in place of the present one.
    Endpoint(Option<Endpoint>),
    /// Something that is not there.
    Unsupported,
}

/// What a service needs to be allocated.
pub fn service_need(service: &Service) -> ServiceNeed {
    let Some(spec) = &service.spec else {
        return ServiceNeed::Nothing;
    };
    let ports = spec.endpoint.iter().flat_map(|endpoint| &endpoint.ports);
    let has_ingress = ports
        .clone()
        .any(|port| port.publish_mode == PublishMode::Ingress as i32);
    if has_ingress || has_networks(spec.task.as_ref()) || !spec.networks.is_empty() {
        return ServiceNeed::Unsupported;
    }
    let host_ports: Vec<_> = ports.cloned().collect();
    let present = service.endpoint.as_ref();
    if host_ports.is_empty() && present.is_none_or(|present| present.ports.is_empty()) {
        return ServiceNeed::Nothing;
    }
    // A service that no longer publishes anything has no endpoint, like one that never did.
    let wanted = (!host_ports.is_empty()).then(|| Endpoint {
        spec: spec.endpoint.clone(),
        ports: host_ports,
        virtual_ips: Vec::new(),
    });
    if wanted.as_ref() == present {
        ServiceNeed::Nothing
    } else {
        ServiceNeed::Endpoint(wanted)
    }
}

/// Whether a task itself, whatever its service, is attached to networks.
pub fn is_attached(task: &Task) -> bool {
    !task.networks.is_empty() || has_networks(task.spec.as_ref())
}

fn has_networks(spec: Option<&TaskSpec>) -> bool {
    spec.is_some_and(|spec| !spec.networks.is_empty())
}
