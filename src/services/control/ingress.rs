//! The ingress network: the one network that carries the ports which every node publishes.

use crate::api::types::{EndpointSpec, Network, PortConfig, port_config};
use crate::storage::{By, StoreError, Tx};

/// Name of the ingress network that a new cluster gets, and of all of the older kind.
const USUAL_NAME: &str = "ingress";

/// Label by which an ingress network of the older kind is known.
const INTERNAL_LABEL: &str = "com.docker.swarm.internal";

/// Whether a network is an ingress network.
pub(super) fn is_ingress(network: &Network) -> bool {
    let Some(spec) = &network.spec else {
        return false;
    };
    let is_older_kind = spec.annotations.as_ref().is_some_and(|annotations| {
        annotations.name == USUAL_NAME && annotations.labels.contains_key(INTERNAL_LABEL)
    });
    spec.ingress || is_older_kind
}

/// Whether an ingress network exists. It nearly always has the usual name.
pub(super) fn exists(tx: &Tx) -> Result<bool, StoreError> {
    let is_there = |by| -> Result<bool, StoreError> {
        let networks = tx.find::<Network>(by)?;
        Ok(networks.iter().any(|network| is_ingress(network)))
    };
    Ok(is_there(By::Name(USUAL_NAME.into()))? || is_there(By::All)?)
}

/// Whether a port is published through the ingress network.
pub(super) fn is_ingress_port(port: &PortConfig) -> bool {
    port.publish_mode == port_config::PublishMode::Ingress as i32
}

/// Whether an endpoint has ports that need the ingress network.
pub(super) fn is_needed(endpoint: Option<&EndpointSpec>) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.ports.iter().any(is_ingress_port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{Annotations, NetworkSpec};

    #[test]
    fn both_kinds() {
        let network = |name: &str, label: &str, ingress| Network {
            spec: Some(NetworkSpec {
                annotations: Some(Annotations {
                    name: name.into(),
                    labels: [(label.to_owned(), String::new())].into(),
                    ..Default::default()
                }),
                ingress,
                ..Default::default()
            }),
            ..Default::default()
        };
        assert!(is_ingress(&network("any", "", true)));
        assert!(is_ingress(&network("ingress", INTERNAL_LABEL, false)));
        assert!(!is_ingress(&network("other", INTERNAL_LABEL, false)));
        assert!(!is_ingress(&network("ingress", "", false)));
        assert!(!is_ingress(&Network::default()));
    }
}
