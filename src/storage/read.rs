//! Reading: one published state, and a reader that looks through an overlay at it.
//!
//! All selectors are answered here, for views (no overlay) and for transactions alike. Results come in
//! ascending order of the scanned index key, ties by ID.

use super::cache::ObjectCache;
use super::digest::TaskDigest;
use super::engine::View;
use super::keys::{self, Id, Index, Key, ValueBuilder};
use super::object::{AnyObject, StoreObject, Table};
use super::overlay::{IndexState, Overlay};
use super::summary::Summary;
use super::tables::{self, NameRule, check_selector};
use super::{By, StoreError, records, rows};
use crate::api::naming::lower;
use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The store as of one entry. Immutable; readable as long as somebody holds it.
pub struct State {
    pub view: View,
    /// Index and term of the last applied entry.
    pub applied: u64,
    pub applied_term: u64,
    pub summary: Summary,
    pub cache: Arc<ObjectCache>,
}

impl State {
    fn get(&self, key: &[u8]) -> Result<Option<AnyObject>, StoreError> {
        if let Some(object) = self.cache.get(key, self.applied) {
            return Ok(Some(object));
        }
        match self.view.get(rows::family_of_row(key), key)? {
            Some(sealed) => self.open(key, &sealed, true).map(Some),
            None => Ok(None),
        }
    }

    /// Opens a row that the cache does not hold, and keeps it there if asked to.
    fn open(&self, key: &[u8], sealed: &[u8], keep: bool) -> Result<AnyObject, StoreError> {
        let row = rows::open(self.view.db(), key, sealed)?;
        let object = row.decode(key)?;
        if keep {
            let bytes = row.payload.len();
            self.cache
                .keep(key, &object, bytes, row.index, self.applied);
        }
        Ok(object)
    }

    /// The rest of every index key behind a plain `T I value` prefix, in order.
    fn suffixes(&self, plain_value: &[u8]) -> Result<Vec<Key>, StoreError> {
        let mut suffixes = Vec::new();
        rows::each_suffix(&self.view, plain_value, |suffix| {
            suffixes.push(Key::from(suffix));
            Ok(())
        })?;
        Ok(suffixes)
    }
}

/// A state seen through the changes of transactions that are not in it.
pub struct Reader<'a> {
    pub state: &'a State,
    /// From the oldest to the newest: a later one hides what an earlier one says.
    pub overlays: [&'a Overlay; 2],
}

impl Reader<'_> {
    pub fn get(&self, table: Table, id: &str) -> Result<Option<AnyObject>, StoreError> {
        let key = keys::row(table, id);
        for overlay in self.overlays.iter().rev() {
            if let Some(row) = overlay.rows.get(key.as_slice()) {
                return Ok(row.stored.as_ref().map(|stored| stored.object.clone()));
            }
        }
        self.state.get(&key)
    }

    pub fn get_as<T: StoreObject>(&self, id: &str) -> Result<Option<Arc<T>>, StoreError> {
        Ok(self
            .get(T::TABLE, id)?
            .as_ref()
            .and_then(T::from_any)
            .cloned())
    }

    pub fn find<T: StoreObject>(&self, by: &By) -> Result<Vec<Arc<T>>, StoreError> {
        let mut found = Vec::new();
        self.each(T::TABLE, by, |object| {
            found.extend(T::from_any(&object).cloned());
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// Calls `f` with every matching object, in order.
    pub fn each(
        &self,
        table: Table,
        by: &By,
        mut f: impl FnMut(AnyObject) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<(), StoreError> {
        check_selector(table, by)?;
        match by {
            By::All => self.each_row(table, "", f),
            By::IdPrefix(prefix) => self.each_row(table, prefix, f),
            _ => {
                for id in self.ids(table, by)? {
                    // An index entry without its row is damage that a check finds; it is no result.
                    if let Some(object) = self.get(table, &id)?
                        && f(object)?.is_break()
                    {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    /// Number of matching objects.
    pub fn count(&self, table: Table, by: &By) -> Result<usize, StoreError> {
        check_selector(table, by)?;
        if matches!(by, By::All) && self.overlays.iter().all(|overlay| overlay.is_empty()) {
            return Ok(self.state.summary.count(table) as usize);
        }
        Ok(self.ids(table, by)?.len())
    }

    /// ID and digest of the matching tasks. Not for transactions: digests are those of the state.
    pub fn task_digests(&self, by: &By) -> Result<Vec<(Id, TaskDigest)>, StoreError> {
        check_selector(Table::Task, by)?;
        let mut found = Vec::new();
        if matches!(by, By::All) {
            records::each_digest(&self.state.view, |id, digest| {
                found.push((Id::from(id), digest));
                Ok(())
            })?;
            return Ok(found);
        }
        for id in self.ids(Table::Task, by)? {
            if let Some(digest) = records::digest(&self.state.view, &id)? {
                found.push((id, digest));
            }
        }
        Ok(found)
    }

    /// The owner of a unique value, given as plain `T I value`.
    pub fn unique_owner(&self, value: &[u8]) -> Result<Option<Id>, StoreError> {
        for overlay in self.overlays.iter().rev() {
            if let Some(entry) = overlay.index.get(value) {
                return Ok(entry.owner.clone());
            }
        }
        Ok(rows::unique_owner(&self.state.view, value)?.map(Id::from))
    }

    /// IDs of the matching objects, in order, each once. The selector has been checked.
    pub fn ids(&self, table: Table, by: &By) -> Result<Vec<Id>, StoreError> {
        let value = |index| ValueBuilder::new(table, index);
        let exact = |index, text: &str| self.exact(value(index).text(text).bytes(), 0);
        let number = |index, number| self.exact(value(index).number(number).bytes(), 0);
        match by {
            By::All => self.row_ids(table, ""),
            By::IdPrefix(prefix) => self.row_ids(table, prefix),
            By::Or(members) => {
                let mut seen = HashSet::new();
                let mut found = Vec::new();
                for member in members {
                    let ids = self.ids(table, member)?;
                    found.extend(ids.into_iter().filter(|id| seen.insert(id.clone())));
                }
                Ok(found)
            }
            By::Name(name) => match tables::names(table) {
                NameRule::Unique => {
                    let value = value(Index::Name).text(&lower(name)).bytes();
                    Ok(self.unique_owner(&value)?.into_iter().collect())
                }
                NameRule::Shared => exact(Index::Name, &lower(name)),
            },
            By::NamePrefix(prefix) => {
                let prefix = lower(prefix);
                let scanned = value(Index::Name).text_prefix(&prefix);
                let derived = match table {
                    Table::Task => self.derived_names(&prefix)?,
                    _ => BTreeMap::new(),
                };
                Ok(self.prefix(&scanned, derived))
            }
            By::Custom { index, value: text } => {
                let custom = value(Index::Custom).text(index).text(text);
                self.exact(custom.bytes(), 0)
            }
            By::CustomPrefix { index, value: text } => {
                let scanned = value(Index::Custom).text(index).text_prefix(text);
                Ok(unique_ids(self.prefix(&scanned, BTreeMap::new())))
            }
            By::Role(role) => number(Index::Role, *role as i32),
            By::Membership(membership) => number(Index::Membership, *membership),
            By::Kind(kind) => exact(Index::Kind, kind),
            By::Runtime(runtime) => exact(Index::Runtime, &lower(runtime)),
            By::ReferencedNetwork(id) => exact(Index::Network, id),
            By::ReferencedSecret(id) => exact(Index::Secret, id),
            By::ReferencedConfig(id) => exact(Index::Config, id),
            By::ServiceId(id) => {
                const SLOT_BYTES: usize = 8;
                let service = value(Index::ServiceSlot).text(id).bytes();
                let mut ids = self.exact(service, SLOT_BYTES)?;
                ids.sort_unstable();
                Ok(ids)
            }
            By::Slot { service_id, slot } => {
                let slot = value(Index::ServiceSlot).text(service_id).slot(*slot);
                self.exact(slot.bytes(), 0)
            }
            By::NodeId(id) => exact(Index::Node, id),
            By::DesiredState(state) => number(Index::DesiredState, *state as i32),
            By::TaskState(state) => number(Index::TaskState, *state as i32),
            By::VolumeAttachment(id) => exact(Index::Volume, id),
            By::VolumeGroup(group) => exact(Index::VolumeGroup, group),
            By::Driver(driver) => exact(Index::Driver, driver),
        }
    }

    /// IDs behind the plain `T I value`, where `skip` more bytes stand in front of each ID.
    fn exact(&self, value: Vec<u8>, skip: usize) -> Result<Vec<Id>, StoreError> {
        let stored = self.state.suffixes(&value)?;
        let mut changed = self.changed_index(&value).peekable();
        if changed.peek().is_none() {
            return stored
                .iter()
                .map(|suffix| suffix_id(suffix, skip))
                .collect();
        }
        let mut suffixes: BTreeMap<&[u8], ()> =
            stored.iter().map(|suffix| (suffix.as_ref(), ())).collect();
        for (key, entry) in changed {
            let suffix = &key[value.len()..];
            match entry.owner {
                Some(_) => suffixes.insert(suffix, ()),
                None => suffixes.remove(suffix),
            };
        }
        suffixes
            .keys()
            .map(|suffix| suffix_id(suffix, skip))
            .collect()
    }

    /// Owners of all entries whose plain key begins with `prefix`, given what only the caller knows.
    fn prefix(&self, prefix: &[u8], mut entries: BTreeMap<Key, Id>) -> Vec<Id> {
        for (key, owner) in self.state.summary.prefix(prefix) {
            entries.insert(key.clone(), owner.clone());
        }
        for (key, entry) in self.changed_index(prefix) {
            match &entry.owner {
                Some(owner) => entries.insert(key.clone(), owner.clone()),
                None => entries.remove(key),
            };
        }
        entries.into_values().collect()
    }

    /// Changed entries whose plain key begins with `prefix`; a later one replaces an earlier one.
    fn changed_index<'s>(
        &'s self,
        prefix: &[u8],
    ) -> impl Iterator<Item = (&'s Key, &'s IndexState)> {
        let [below, above] = self.overlays;
        below.index_from(prefix).chain(above.index_from(prefix))
    }

    /// Name entries of the stored tasks that are called after their service and match a prefix.
    fn derived_names(&self, prefix: &str) -> Result<BTreeMap<Key, Id>, StoreError> {
        let mut entries = BTreeMap::new();
        for service in self.state.summary.services_named(prefix) {
            let value = ValueBuilder::new(Table::Task, Index::ServiceSlot).text(&service);
            for suffix in self.state.suffixes(&value.bytes())? {
                let id = suffix_id(&suffix, 8)?;
                let Some(object) = self.state.get(&keys::row(Table::Task, &id))? else {
                    continue;
                };
                let name = object.lower_name().unwrap_or_default();
                if name.starts_with(prefix) {
                    let key = ValueBuilder::new(Table::Task, Index::Name).text(&name);
                    entries.insert(key.with_id(&id), id);
                }
            }
        }
        Ok(entries)
    }

    /// IDs of a table's objects that begin with a prefix, in order.
    fn row_ids(&self, table: Table, id_prefix: &str) -> Result<Vec<Id>, StoreError> {
        let mut ids = Vec::new();
        self.merge_rows(table, id_prefix, |key, _| {
            ids.push(Id::from(rows::id_of(&key[1..])?));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(ids)
    }

    /// Calls `f` with every object of a table whose ID has a prefix, in the order of the IDs.
    fn each_row(
        &self,
        table: Table,
        id_prefix: &str,
        mut f: impl FnMut(AnyObject) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<(), StoreError> {
        // Walking over all tasks must not push out what is in use.
        let keep = table != Table::Task;
        self.merge_rows(table, id_prefix, |key, row| match row {
            Merged::Changed(object) => f(object.clone()),
            Merged::Stored(sealed) => match self.state.cache.get(key, self.state.applied) {
                Some(object) => f(object),
                None => f(self.state.open(key, sealed, keep)?),
            },
        })
    }

    /// Walks the stored rows and those of the overlay together.
    fn merge_rows(
        &self,
        table: Table,
        id_prefix: &str,
        mut f: impl FnMut(&[u8], Merged<'_>) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<(), StoreError> {
        let prefix = keys::row(table, id_prefix);
        // Not many: what is proposed and not yet applied.
        let mut changed = BTreeMap::new();
        for overlay in self.overlays {
            changed.extend(overlay.rows_from(&prefix));
        }
        let mut changed = changed.into_iter().peekable();
        let mut stored = self
            .state
            .view
            .rows_with_prefix(rows::family_of(table), &prefix)?;
        while let Some((key, sealed)) = stored.next_row()? {
            let mut hidden = false;
            while let Some((changed_key, row)) = changed.next_if(|(other, _)| other.as_ref() <= key)
            {
                hidden = changed_key.as_ref() == key;
                if let Some(stored) = &row.stored
                    && f(changed_key, Merged::Changed(&stored.object))?.is_break()
                {
                    return Ok(());
                }
            }
            if !hidden && f(key, Merged::Stored(sealed))?.is_break() {
                return Ok(());
            }
        }
        for (key, row) in changed {
            if let Some(stored) = &row.stored
                && f(key, Merged::Changed(&stored.object))?.is_break()
            {
                break;
            }
        }
        Ok(())
    }
}

/// A row on its way through [`Reader::merge_rows`].
enum Merged<'a> {
    Changed(&'a AnyObject),
    Stored(&'a [u8]),
}

fn unique_ids(mut ids: Vec<Id>) -> Vec<Id> {
    let mut seen = HashSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    ids
}

fn suffix_id(suffix: &[u8], skip: usize) -> Result<Id, StoreError> {
    rows::id_of(suffix.get(skip..).unwrap_or_default()).map(Id::from)
}
