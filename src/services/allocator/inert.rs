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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{EndpointSpec, NetworkAttachmentConfig, PortConfig};
    use crate::services::testing::objects;

    fn publishing(mode: PublishMode) -> Service {
        let mut service = objects::service("web");
        service.spec.get_or_insert_default().endpoint = Some(EndpointSpec {
            ports: vec![PortConfig {
                target_port: 80,
                published_port: 8080,
                publish_mode: mode as i32,
                ..PortConfig::default()
            }],
            ..EndpointSpec::default()
        });
        service
    }

    #[test]
    fn services_without_ports_need_nothing() {
        let mut service = objects::service("web");
        assert_eq!(service_need(&service), ServiceNeed::Nothing);
        service.spec.get_or_insert_default().endpoint = Some(EndpointSpec::default());
        assert_eq!(service_need(&service), ServiceNeed::Nothing);
    }

    #[test]
    fn host_ports_are_copied_once() {
        let mut service = publishing(PublishMode::Host);
        let ServiceNeed::Endpoint(Some(endpoint)) = service_need(&service) else {
            panic!("no endpoint");
        };
        let spec = service.spec.as_ref().and_then(|spec| spec.endpoint.clone());
        assert_eq!(endpoint.ports, spec.clone().unwrap_or_default().ports);
        assert_eq!(endpoint.spec, spec);
        assert!(endpoint.virtual_ips.is_empty());
        service.endpoint = Some(endpoint);
        assert_eq!(service_need(&service), ServiceNeed::Nothing);
        service.spec.get_or_insert_default().endpoint = None;
        assert_eq!(service_need(&service), ServiceNeed::Endpoint(None));
    }

    #[test]
    fn networks_and_ingress_ports_are_refused() {
        assert_eq!(
            service_need(&publishing(PublishMode::Ingress)),
            ServiceNeed::Unsupported
        );
        let network = NetworkAttachmentConfig::default();
        let mut attached = objects::service("web");
        let spec = attached.spec.get_or_insert_default();
        spec.task
            .get_or_insert_default()
            .networks
            .push(network.clone());
        assert_eq!(service_need(&attached), ServiceNeed::Unsupported);
        let mut legacy = objects::service("web");
        legacy.spec.get_or_insert_default().networks.push(network);
        assert_eq!(service_need(&legacy), ServiceNeed::Unsupported);
        let task = Task {
            spec: attached.spec.and_then(|spec| spec.task),
            ..Task::default()
        };
        assert!(is_attached(&task));
        assert!(!is_attached(&Task::default()));
    }
}
