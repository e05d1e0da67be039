//! What is kept in memory of the whole store: counts, and the ordered names for prefix look-ups.
//!
//! Index keys on disk hold only hashes of what people wrote, so a prefix can be looked up in memory
//! only. The maps are persistent: every published state of the store has its own, at no cost, and a
//! view therefore finds exactly what it can read. Tasks usually have no name of their own; of them only
//! explicit names and the names of their services are kept (settled S7), and the reader filters the
//! candidates by the full name.
//!
//! All of it also stands on disk, in small records that are written with the changes they follow from:
//! one per object that has names or custom entries, one per service that has tasks, one of counts.
//! Opening a store reads those and no objects, so it does not take longer because there are many tasks.

use super::digest::{
    SERVICE_NAME_BYTES_MAX, SERVICE_NAMES_MAX, ServiceTasks, TableCounts, TaskCounts,
};
use super::engine::{Changes, Db, View};
use super::keys::{Id, Index, Key, prefix_range};
use super::object::{Action, AnyObject, Table};
use super::overlay::{Overlay, TxChange, range};
use super::{StoreError, records, tables};
use crate::api::naming::lower;
use crate::api::types::Task;
use imbl::{OrdMap, OrdSet};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

#[derive(Clone, Default)]
pub(super) struct Summary {
    /// Plain keys of the name and custom indexes with the owner; of tasks only explicit names.
    prefixes: OrdMap<Key, Id>,
    /// (lower-cased service name, service ID) of all tasks that are called after their service. May hold
    /// more than is stored.
    service_names: OrdSet<(Id, Id)>,
    /// Services whose tasks may have any name.
    any_name: OrdSet<Id>,
    service_tasks: OrdMap<Id, Arc<ServiceTasks>>,
    task_totals: TaskCounts,
    counts: TableCounts,
}

/// Records that follow from the changes of a run and have to be written with them.
#[derive(Default)]
pub(super) struct Dirty {
    services: BTreeSet<Id>,
    /// Row keys, with the plain keys of the object's names and custom entries.
    names: BTreeMap<Key, Vec<Key>>,
    counts: bool,
}

impl Summary {
    /// Number of objects of a table.
    pub fn count(&self, table: Table) -> u64 {
        self.counts.0[table as usize - 1]
    }

    /// All tasks by state.
    pub fn task_totals(&self) -> &TaskCounts {
        &self.task_totals
    }

    /// The tasks of a service by state.
    pub fn tasks_of(&self, service_id: &str) -> TaskCounts {
        self.service_tasks
            .get(service_id)
            .map(|tasks| tasks.counts.clone())
            .unwrap_or_default()
    }

    /// Takes a change of the store in.
    pub fn apply(&mut self, change: &TxChange, dirty: &mut Dirty) {
        let count = &mut self.counts.0[change.table() as usize - 1];
        match change.change.action {
            Action::Create => *count += 1,
            Action::Remove => *count = count.saturating_sub(1),
            Action::Update => {}
        }
        dirty.counts |= change.change.action != Action::Update;
        self.apply_names(change, dirty);
        if change.table() == Table::Task {
            self.apply_task(change, dirty);
        }
    }

    fn apply_names(&mut self, change: &TxChange, dirty: &mut Dirty) {
        let object = &change.change.object;
        let own_name = has_own_name(object);
        let mut changed = false;
        for (key, owner) in &change.index {
            match owner {
                Some(owner) if is_prefix_key(&key.plain, own_name) => {
                    self.prefixes.insert(key.plain.clone(), owner.clone());
                    changed = true;
                }
                None if is_prefix_key(&key.plain, true) => {
                    changed |= self.prefixes.remove(&key.plain).is_some();
                }
                _ => {}
            }
        }
        if changed {
            let keys = match change.change.action {
                Action::Remove => Vec::new(),
                _ => prefix_keys(object),
            };
            dirty.names.insert(change.row.clone(), keys);
        }
    }

    fn apply_task(&mut self, change: &TxChange, dirty: &mut Dirty) {
        let (old, new) = match change.change.action {
            Action::Create => (None, as_task(Some(&change.change.object))),
            Action::Update => (
                as_task(change.change.old.as_ref()),
                as_task(Some(&change.change.object)),
            ),
            Action::Remove => (as_task(Some(&change.change.object)), None),
        };
        if let (Some(old), Some(new)) = (old, new)
            && same_summary(old, new)
        {
            return;
        }
        if let Some(old) = old {
            self.task_totals.remove(old);
        }
        if let Some(new) = new {
            self.task_totals.add(new);
        }
        // A task hardly ever changes its service; then one edit does both.
        match (old, new) {
            (Some(old), Some(new)) if old.service_id == new.service_id => {
                self.edit_service(&new.service_id, dirty, |tasks| {
                    tasks.counts.remove(old);
                    add_task(tasks, new);
                });
            }
            (old, new) => {
                if let Some(old) = old {
                    self.edit_service(&old.service_id, dirty, |tasks| tasks.counts.remove(old));
                }
                if let Some(new) = new {
                    self.edit_service(&new.service_id, dirty, |tasks| add_task(tasks, new));
                }
            }
        }
    }

    fn edit_service(
        &mut self,
        service_id: &str,
        dirty: &mut Dirty,
        edit: impl FnOnce(&mut ServiceTasks),
    ) {
        let id = Id::from(service_id);
        let mut tasks = self.service_tasks.remove(&id).unwrap_or_default();
        let edited = Arc::make_mut(&mut tasks);
        let names = edited.names.len();
        edit(edited);
        if edited.counts.total() == 0 {
            for name in &edited.names {
                self.service_names
                    .remove(&(Id::from(name.as_str()), id.clone()));
            }
            self.any_name.remove(&id);
        } else {
            if edited.names.len() != names || edited.any_name {
                self.note_names(&id, edited);
            }
            self.service_tasks.insert(id.clone(), tasks);
        }
        dirty.services.insert(id);
    }

    fn note_names(&mut self, id: &Id, tasks: &ServiceTasks) {
        for name in &tasks.names {
            self.service_names
                .insert((Id::from(name.as_str()), id.clone()));
        }
        if tasks.any_name {
            self.any_name.insert(id.clone());
        }
    }

    /// Entries of the name or custom index whose plain key begins with `prefix`.
    pub fn prefix(&self, prefix: &[u8]) -> impl Iterator<Item = (&Key, &Id)> {
        self.prefixes.range::<_, [u8]>(range(&prefix_range(prefix)))
    }

    /// IDs of the services whose tasks may have a derived name that begins with `prefix`, which is in
    /// lower case.
    pub fn services_named(&self, prefix: &str) -> Vec<Id> {
        let mut found: Vec<Id> = self.any_name.iter().cloned().collect();
        // The service's name is at least as long as the prefix ...
        let from = |name: &str| Bound::Included((Id::from(name), Id::from("")));
        let longer = self.service_names.range((from(prefix), Bound::Unbounded));
        found.extend(
            longer
                .take_while(|(name, _)| name.starts_with(prefix))
                .map(|(_, service)| service.clone()),
        );
        // ... or ends at one of its dots.
        for (dot, _) in prefix.match_indices('.') {
            let name = &prefix[..dot];
            let same = self.service_names.range((from(name), Bound::Unbounded));
            found.extend(
                same.take_while(|(other, _)| other.as_ref() == name)
                    .map(|(_, service)| service.clone()),
            );
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Reads the records of a store.
    pub fn load(view: &View) -> Result<Summary, StoreError> {
        let mut summary = Summary {
            counts: records::table_counts(view)?,
            ..Summary::default()
        };
        for table in Table::ALL {
            records::each_names(view, table, |id, keys| {
                let owner = Id::from(id);
                for key in keys {
                    summary.prefixes.insert(key, owner.clone());
                }
                Ok(())
            })?;
        }
        records::each_service_tasks(view, |id, tasks| {
            let id = Id::from(id);
            summary.task_totals.add_all(&tasks.counts);
            summary.note_names(&id, &tasks);
            summary.service_tasks.insert(id, Arc::new(tasks));
            Ok(())
        })?;
        Ok(summary)
    }

    /// Puts the records that follow from the changes of a run.
    pub fn write(
        &self,
        dirty: &Dirty,
        overlay: &Overlay,
        db: &Db,
        changes: &mut Changes<'_>,
    ) -> Result<(), StoreError> {
        for (row, keys) in &dirty.names {
            records::put_names(changes, db, row, keys)?;
        }
        for service in &dirty.services {
            let tasks = self.service_tasks.get(service).map(Arc::as_ref);
            records::put_service_tasks(changes, db, service, tasks)?;
        }
        if dirty.counts {
            records::put_table_counts(changes, &self.counts)?;
        }
        for (row, state) in overlay.rows_from(&[Table::Task as u8]) {
            let stored = state.stored.as_ref().map(|stored| &stored.object);
            records::put_digest(changes, row, as_task(stored));
        }
        Ok(())
    }
}

fn as_task(object: Option<&AnyObject>) -> Option<&Task> {
    match object {
        Some(AnyObject::Task(task)) => Some(task),
        _ => None,
    }
}

/// Whether a change of a task leaves everything kept here as it was.
fn same_summary(old: &Task, new: &Task) -> bool {
    let state = |task: &Task| task.status.as_ref().map_or(0, |status| status.state);
    old.desired_state == new.desired_state
        && state(old) == state(new)
        && old.service_id == new.service_id
        && tables::service_name(old) == tables::service_name(new)
}

/// Takes a task into the summary of its service.
pub(super) fn add_task(tasks: &mut ServiceTasks, task: &Task) {
    tasks.counts.add(task);
    let Some(name) = tables::service_name(task).map(lower) else {
        return;
    };
    if tasks.any_name || tasks.names.contains(&name) {
        return;
    }
    if tasks.names.len() < SERVICE_NAMES_MAX && name.len() <= SERVICE_NAME_BYTES_MAX {
        tasks.names.push(name);
    } else {
        tasks.any_name = true;
    }
}

/// Whether the object's full name is kept for prefix look-ups.
fn has_own_name(object: &AnyObject) -> bool {
    match object {
        AnyObject::Task(task) => tables::service_name(task).is_none(),
        _ => true,
    }
}

fn is_prefix_key(plain: &[u8], own_name: bool) -> bool {
    match plain.get(1) {
        Some(&index) if index == Index::Name as u8 => own_name,
        Some(&index) => index == Index::Custom as u8,
        None => false,
    }
}

/// The plain keys of an object that prefix look-ups have to find.
pub(super) fn prefix_keys(object: &AnyObject) -> Vec<Key> {
    let own_name = has_own_name(object);
    // Objects that cannot be indexed cannot be stored.
    let keys = object.index_keys().unwrap_or_default();
    keys.iter()
        .filter(|key| is_prefix_key(key.plain, own_name))
        .map(|key| key.plain.into())
        .collect()
}
