//! Cluster volumes. One without a driver cannot be stored.

use super::{KeySink, NameRule, Schema};
use crate::api::types::{Annotations, Volume};
use crate::storage::keys::Index;
use crate::storage::{By, StoreError};
use std::borrow::Cow;

impl Schema for Volume {
    const NAMES: NameRule = NameRule::Unique;

    fn name(&self) -> Option<Cow<'_, str>> {
        let name = self.annotations().map_or("", |a| a.name.as_str());
        Some(Cow::Borrowed(name))
    }

    fn annotations(&self) -> Option<&Annotations> {
        self.spec.as_ref()?.annotations.as_ref()
    }

    fn own_keys(&self, keys: &mut KeySink) -> Result<(), StoreError> {
        let spec = self.spec.as_ref();
        let group = spec.map_or("", |spec| spec.group.as_str());
        keys.text(Index::VolumeGroup, group);
        let driver = spec
            .and_then(|spec| spec.driver.as_ref())
            .ok_or(StoreError::Rule("a volume needs a driver"))?;
        keys.text(Index::Driver, &driver.name);
        Ok(())
    }

    fn answers(by: &By) -> bool {
        matches!(by, By::VolumeGroup(_) | By::Driver(_))
    }
}
