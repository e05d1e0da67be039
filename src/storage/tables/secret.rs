//! Secrets.

use super::{KeySink, NameRule, Schema};
use crate::api::types::{Annotations, Secret};
use crate::storage::{By, StoreError};
use std::borrow::Cow;

impl Schema for Secret {
    const NAMES: NameRule = NameRule::Unique;

    fn name(&self) -> Option<Cow<'_, str>> {
        let name = self.annotations().map_or("", |a| a.name.as_str());
        Some(Cow::Borrowed(name))
    }

    fn annotations(&self) -> Option<&Annotations> {
        self.spec.as_ref()?.annotations.as_ref()
    }

    fn own_keys(&self, _keys: &mut KeySink) -> Result<(), StoreError> {
        Ok(())
    }

    fn answers(_by: &By) -> bool {
        false
    }
}
