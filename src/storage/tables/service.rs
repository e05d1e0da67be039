//! Services, found by what their task template refers to.

use super::{KeySink, NameRule, Schema};
use crate::api::types::{Annotations, Service};
use crate::storage::keys::Index;
use crate::storage::{By, StoreError};
use std::borrow::Cow;

impl Schema for Service {
    const NAMES: NameRule = NameRule::Unique;

    fn name(&self) -> Option<Cow<'_, str>> {
        let name = self.annotations().map_or("", |a| a.name.as_str());
        Some(Cow::Borrowed(name))
    }

    fn annotations(&self) -> Option<&Annotations> {
        self.spec.as_ref()?.annotations.as_ref()
    }

    fn own_keys(&self, keys: &mut KeySink) -> Result<(), StoreError> {
        let Some(spec) = &self.spec else {
            return Ok(());
        };
        let template = spec.task.as_ref();
        // The service's own list is the old place of the networks and counts only if the other is empty.
        let networks = match template.map(|task| &task.networks) {
            Some(networks) if !networks.is_empty() => networks,
            _ => &spec.networks,
        };
        for network in networks {
            keys.text(Index::Network, &network.target);
        }
        if let Some(template) = template {
            keys.template(template);
        }
        Ok(())
    }

    fn answers(by: &By) -> bool {
        matches!(
            by,
            By::Runtime(_)
                | By::ReferencedNetwork(_)
                | By::ReferencedSecret(_)
                | By::ReferencedConfig(_)
        )
    }
}
