//! Nodes. Their name is the hostname, which may collide and is absent until the node first connects.

use super::{KeySink, NameRule, Schema};
use crate::api::types::{Annotations, Node};
use crate::storage::keys::Index;
use crate::storage::{By, StoreError};
use std::borrow::Cow;

impl Schema for Node {
    const NAMES: NameRule = NameRule::Shared;

    fn name(&self) -> Option<Cow<'_, str>> {
        let description = self.description.as_ref()?;
        Some(Cow::Borrowed(&description.hostname))
    }

    fn annotations(&self) -> Option<&Annotations> {
        self.spec.as_ref()?.annotations.as_ref()
    }

    fn own_keys(&self, keys: &mut KeySink) -> Result<(), StoreError> {
        // The role the node has, not the one it is to get.
        keys.number(Index::Role, self.role);
        let membership = self.spec.as_ref().map_or(0, |spec| spec.membership);
        keys.number(Index::Membership, membership);
        Ok(())
    }

    fn answers(by: &By) -> bool {
        matches!(by, By::Role(_) | By::Membership(_))
    }
}
