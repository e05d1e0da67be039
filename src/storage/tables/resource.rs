//! Resources: objects of the kinds that extensions register. Their names are unique across all kinds.

use super::{KeySink, NameRule, Schema};
use crate::api::types::{Annotations, Resource};
use crate::storage::keys::Index;
use crate::storage::{By, StoreError};
use std::borrow::Cow;

impl Schema for Resource {
    const NAMES: NameRule = NameRule::Unique;

    fn name(&self) -> Option<Cow<'_, str>> {
        let name = self.annotations().map_or("", |a| a.name.as_str());
        Some(Cow::Borrowed(name))
    }

    fn annotations(&self) -> Option<&Annotations> {
        self.annotations.as_ref()
    }

    fn kind(&self) -> Option<&str> {
        Some(&self.kind)
    }

    fn own_keys(&self, keys: &mut KeySink) -> Result<(), StoreError> {
        keys.text(Index::Kind, &self.kind);
        Ok(())
    }

    fn answers(by: &By) -> bool {
        matches!(by, By::Kind(_))
    }
}
