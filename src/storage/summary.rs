//! What is kept in memory of the whole store: counts, and the ordered names for prefix look-ups.
//!
//! Index keys on disk hold only hashes of what people wrote, so a prefix can be looked up in memory
//! only. The maps are persistent: every published state of the store has its own, at no cost, and a
//! view therefore finds exactly what it can read. Tasks usually have no name of their own; of them only
//! the distinct service names and the explicit names are kept, and the store filters the candidates by
//! the full name.

use super::engine::View;
use super::keys::{Id, Index, Key, prefix_range};
use super::object::{Action, AnyObject, Table};
use super::overlay::{TxChange, range};
use super::{StoreError, rows, tables};
use crate::api::naming::lower;
use imbl::{OrdMap, OrdSet};
use std::ops::Bound;

#[derive(Clone, Default)]
pub(super) struct Summary {
    /// Plain keys of the name and custom indexes with the owner; of tasks only explicit names.
    prefixes: OrdMap<Key, Id>,
    /// (lower-cased service name, service ID) of all tasks that are called after their service. May hold
    /// more than is stored.
    service_names: OrdSet<(Id, Id)>,
    counts: [u64; Table::ALL.len()],
}

impl Summary {
    /// Number of objects of a table.
    pub fn count(&self, table: Table) -> u64 {
        self.counts[table as usize - 1]
    }

    /// Takes a change of the store in.
    pub fn apply(&mut self, change: &TxChange) {
        let count = &mut self.counts[change.table() as usize - 1];
        match change.change.action {
            Action::Create => *count += 1,
            Action::Remove => *count = count.saturating_sub(1),
            Action::Update => {}
        }
        let object = &change.change.object;
        let keep_names = has_own_name(object);
        for (key, owner) in &change.index {
            match owner {
                Some(owner) if is_prefix_key(&key.plain, keep_names) => {
                    self.prefixes.insert(key.plain.clone(), owner.clone());
                }
                Some(_) => {}
                None => {
                    self.prefixes.remove(&key.plain);
                }
            }
        }
        if change.change.action != Action::Remove {
            self.note_service_name(object);
        }
    }

    /// Reads what is stored.
    pub fn load(view: &View) -> Result<Summary, StoreError> {
        let mut summary = Summary::default();
        for table in Table::ALL {
            let mut stored = view.rows_with_prefix(rows::family_of(table), &[table as u8])?;
            while let Some((key, sealed)) = stored.next_row()? {
                let row = rows::open(view.db(), key, sealed)?;
                summary.take(&row.decode(table, rows::id_of(&key[1..])?)?)?;
            }
        }
        Ok(summary)
    }

    fn take(&mut self, object: &AnyObject) -> Result<(), StoreError> {
        self.counts[object.table() as usize - 1] += 1;
        let keep_names = has_own_name(object);
        for key in object.index_keys()? {
            if is_prefix_key(&key.plain, keep_names) {
                self.prefixes.insert(key.plain, Id::from(object.id()));
            }
        }
        self.note_service_name(object);
        Ok(())
    }

    fn note_service_name(&mut self, object: &AnyObject) {
        let AnyObject::Task(task) = object else {
            return;
        };
        if let Some(name) = tables::service_name(task) {
            let entry = (Id::from(lower(name)), Id::from(task.service_id.as_str()));
            if !self.service_names.contains(&entry) {
                self.service_names.insert(entry);
            }
        }
    }

    /// Entries of the name or custom index whose plain key begins with `prefix`.
    pub fn prefix(&self, prefix: &[u8]) -> impl Iterator<Item = (&Key, &Id)> {
        self.prefixes.range::<_, [u8]>(range(&prefix_range(prefix)))
    }

    /// IDs of the services that tasks may be called after whose lower-cased name begins with `prefix`.
    pub fn services_named(&self, prefix: &str) -> Vec<Id> {
        let mut found = Vec::new();
        // The service's name is at least as long as the prefix ...
        let from = (Id::from(prefix), Id::from(""));
        let longer = self
            .service_names
            .range((Bound::Included(from), Bound::Unbounded));
        for (name, service) in longer {
            if !name.starts_with(prefix) {
                break;
            }
            found.push(service.clone());
        }
        // ... or ends at one of its dots.
        for (dot, _) in prefix.match_indices('.') {
            let name = Id::from(&prefix[..dot]);
            let from = (name.clone(), Id::from(""));
            let same = self
                .service_names
                .range((Bound::Included(from), Bound::Unbounded));
            found.extend(
                same.take_while(|(other, _)| *other == name)
                    .map(|(_, service)| service.clone()),
            );
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Whether the object's full name is kept for prefix look-ups.
fn has_own_name(object: &AnyObject) -> bool {
    match object {
        AnyObject::Task(task) => tables::service_name(task).is_none(),
        _ => true,
    }
}

fn is_prefix_key(plain: &[u8], keep_names: bool) -> bool {
    match plain.get(1) {
        Some(&index) if index == Index::Name as u8 => keep_names,
        Some(&index) => index == Index::Custom as u8,
        None => false,
    }
}
