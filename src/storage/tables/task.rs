//! Tasks, two orders of magnitude more than anything else. Most have no name of their own and are called
//! after their service; names may collide.

use super::{KeySink, NameRule, Schema};
use crate::api::naming::task_name;
use crate::api::types::{Annotations, Task};
use crate::storage::keys::Index;
use crate::storage::{By, StoreError};
use std::borrow::Cow;

impl Schema for Task {
    const NAMES: NameRule = NameRule::Shared;

    fn name(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Owned(task_name(self)))
    }

    fn annotations(&self) -> Option<&Annotations> {
        self.annotations.as_ref()
    }

    fn own_keys(&self, keys: &mut KeySink) -> Result<(), StoreError> {
        keys.service_slot(&self.service_id, self.slot);
        keys.text(Index::Node, &self.node_id);
        keys.number(Index::DesiredState, self.desired_state);
        let observed = self.status.as_ref().map_or(0, |status| status.state);
        keys.number(Index::TaskState, observed);
        if let Some(spec) = &self.spec {
            for network in &spec.networks {
                keys.text(Index::Network, &network.target);
            }
            keys.template(spec);
        }
        for volume in &self.volumes {
            keys.text(Index::Volume, &volume.id);
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
                | By::ServiceId(_)
                | By::NodeId(_)
                | By::Slot { .. }
                | By::DesiredState(_)
                | By::TaskState(_)
                | By::VolumeAttachment(_)
        )
    }
}

/// The name of the service after which a task is called, or `None` if it has a name of its own.
pub fn service_name(task: &Task) -> Option<&str> {
    match &task.annotations {
        Some(own) if !own.name.is_empty() => None,
        _ => Some(
            task.service_annotations
                .as_ref()
                .map_or("", |service| service.name.as_str()),
        ),
    }
}
