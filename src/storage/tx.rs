//! Write transactions: the rules of every write, and the changes they collect.
//!
//! A transaction reads through its overlay, so it sees its own writes and those of all transactions
//! before it, applied or not. A call that fails leaves no trace. The same code serves two modes: on the
//! leader, where objects are stamped and versions compared, and while applying committed entries, where
//! objects arrive stamped and only the rules that belong to the replicated state machine hold
//! (spec 04 sections 5 and 9: every manager must accept or discard exactly the same entries).

use super::events::Change;
use super::keys::{Id, Index, IndexKey, Key, KeyList, KeyRef, ValueBuilder};
use super::object::{Action, AnyObject, StoreObject, Table};
use super::overlay::{Overlay, TxChange};
use super::read::{Reader, State};
use super::request::{self, REQUEST_ID_BYTES};
use super::tables::{self, NameRule};
use super::{By, StoreError, keys};
use crate::api::naming::lower;
use crate::api::types::{Meta, Version};
use prost::bytes::Bytes;
use prost_types::Timestamp;
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// How a transaction treats the objects it is given.
#[derive(Debug, Clone)]
pub(super) enum Mode {
    /// On behalf of a service: the current version, if there is one, and the time of the writes.
    Propose { stamp: Option<u64>, now: Timestamp },
    /// On behalf of the log.
    Apply,
}

/// Writer number of a transaction's own overlay, which nobody else sees.
const OWN: u64 = 0;

/// A write transaction. Reads see its own writes and those of all transactions before it.
pub struct Tx {
    state: Arc<State>,
    /// What transactions before this one changed.
    below: Overlay,
    /// What this one changed.
    own: Overlay,
    mode: Mode,
    changes: Vec<TxChange>,
    /// Encoded size of the request so far.
    bytes: usize,
}

/// What a transaction looked like before a call.
pub(super) struct Savepoint {
    own: Overlay,
    pub changes: usize,
    pub bytes: usize,
}

impl Tx {
    pub(super) fn new(state: Arc<State>, below: Overlay, mode: Mode) -> Tx {
        Tx {
            state,
            below,
            own: Overlay::default(),
            mode,
            changes: Vec::new(),
            bytes: REQUEST_ID_BYTES,
        }
    }

    pub fn get<T: StoreObject>(&self, id: &str) -> Result<Option<Arc<T>>, StoreError> {
        self.reader().get_as(id)
    }

    /// Matching objects in index-key order, each once.
    pub fn find<T: StoreObject>(&self, by: By) -> Result<Vec<Arc<T>>, StoreError> {
        self.reader().find(&by)
    }

    /// Number of matching objects.
    pub fn count<T: StoreObject>(&self, by: By) -> Result<usize, StoreError> {
        self.reader().count(T::TABLE, &by)
    }

    /// Stores a new object and returns it as stored, with its stamp and times.
    pub fn create<T: StoreObject>(&mut self, mut object: T) -> Result<Arc<T>, StoreError> {
        self.check_create(&Facts::of(&object))?;
        if let Mode::Propose {
            stamp: Some(stamp),
            now,
        } = self.mode
        {
            // A moment of creation that is given is honoured (spec 04 section 7).
            let meta = object.meta_mut().get_or_insert_default();
            meta.version = Some(Version { index: stamp });
            meta.created_at = meta.created_at.or(Some(now));
            meta.updated_at = Some(now);
        }
        let payload = Bytes::from(object.encode_to_vec());
        let object = Arc::new(object);
        self.put(Action::Create, T::into_any(object.clone()), payload, None)?;
        Ok(object)
    }

    /// Replaces an object whose version equals the stored one; returns it as stored.
    pub fn update<T: StoreObject>(&mut self, mut object: T) -> Result<Arc<T>, StoreError> {
        let old = self.check_update(&Facts::of(&object))?;
        if let Mode::Propose {
            stamp: Some(stamp),
            now,
        } = self.mode
        {
            let old_meta = old.meta();
            let stored = version_of(old_meta);
            let given = object.version();
            if given != stored {
                return Err(StoreError::SequenceConflict { given, stored });
            }
            let created_at = old_meta.and_then(|meta| meta.created_at);
            let meta = object.meta_mut().get_or_insert_default();
            meta.version = Some(Version { index: stamp });
            meta.updated_at = Some(now);
            meta.created_at = meta.created_at.or(created_at);
        }
        let payload = Bytes::from(object.encode_to_vec());
        let object = Arc::new(object);
        let stored = T::into_any(object.clone());
        self.put(Action::Update, stored, payload, Some(old))?;
        Ok(object)
    }

    pub fn delete<T: StoreObject>(&mut self, id: &str) -> Result<(), StoreError> {
        self.remove(T::TABLE, id)
    }

    /// Does what a committed action says.
    pub(super) fn replay(
        &mut self,
        action: Action,
        table: Table,
        payload: Bytes,
    ) -> Result<(), ReplayError> {
        let object = AnyObject::decode(table, &payload)?;
        match action {
            Action::Create => {
                self.check_create(&Facts::of_any(&object))?;
                self.put(Action::Create, object, payload, None)?;
            }
            Action::Update => {
                let old = self.check_update(&Facts::of_any(&object))?;
                self.put(Action::Update, object, payload, Some(old))?;
            }
            Action::Remove => self.remove(table, object.id())?,
        }
        Ok(())
    }

    fn remove(&mut self, table: Table, id: &str) -> Result<(), StoreError> {
        let old = self.reader().get(table, id)?.ok_or(StoreError::NotExist)?;
        if table == Table::Extension && self.extension_in_use(&old)? {
            return Err(StoreError::Rule(
                "cannot delete extension because objects of this type exist in the data store",
            ));
        }
        let payload = Bytes::from(old.encode());
        self.put(Action::Remove, old.clone(), payload, Some(old))
    }

    /// Rules of a create, in the order in which their errors win.
    fn check_create(&self, facts: &Facts) -> Result<(), StoreError> {
        self.check_kind(facts)?;
        if tables::names(facts.table) == NameRule::Unique
            && self.name_owner(facts.table, &facts.name)?.is_some()
        {
            return Err(StoreError::NameConflict);
        }
        if facts.table == Table::Extension && self.is_built_in_kind(facts) {
            return Err(StoreError::NameConflict);
        }
        match self.reader().get(facts.table, facts.id)? {
            Some(_) => Err(StoreError::Exist),
            None => Ok(()),
        }
    }

    /// Rules of an update, in the order in which their errors win; returns the stored object.
    fn check_update(&self, facts: &Facts) -> Result<AnyObject, StoreError> {
        self.check_kind(facts)?;
        // The peer does not look at the names of updated resources, so the log may not either.
        let names_checked = match facts.table {
            Table::Extension => return Err(StoreError::Rule("extensions are immutable")),
            Table::Resource => self.is_proposing(),
            table => tables::names(table) == NameRule::Unique,
        };
        if names_checked {
            let owner = self.name_owner(facts.table, &facts.name)?;
            if owner.is_some_and(|owner| &*owner != facts.id) {
                return Err(StoreError::NameConflict);
            }
        }
        self.reader()
            .get(facts.table, facts.id)?
            .ok_or(StoreError::NotExist)
    }

    /// A resource needs an extension that registers its kind.
    fn check_kind(&self, facts: &Facts) -> Result<(), StoreError> {
        let Some(kind) = &facts.kind else {
            return Ok(());
        };
        match self.name_owner(Table::Extension, &lower(kind))? {
            Some(_) => Ok(()),
            None => Err(StoreError::NoKind),
        }
    }

    /// Whether an extension takes the name of a table. We refuse it in any case; the log knows the exact
    /// name only.
    fn is_built_in_kind(&self, facts: &Facts) -> bool {
        Table::ALL
            .into_iter()
            .any(|table| match self.is_proposing() {
                true => table.name() == facts.name,
                false => table.name() == facts.exact_name,
            })
    }

    /// Whether resources of an extension's kind exist: of that very spelling for the log, of any for us.
    fn extension_in_use(&self, extension: &AnyObject) -> Result<bool, StoreError> {
        let name = extension.name().unwrap_or_default();
        let exact = By::Kind(name.to_string());
        if self.reader().count(Table::Resource, &exact)? > 0 {
            return Ok(true);
        }
        if !self.is_proposing() {
            return Ok(false);
        }
        let name = lower(&name);
        let mut used = false;
        self.reader().each(Table::Resource, &By::All, |object| {
            if let AnyObject::Resource(resource) = &object {
                used |= lower(&resource.kind) == name;
            }
            Ok(match used {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            })
        })?;
        Ok(used)
    }

    fn is_proposing(&self) -> bool {
        matches!(self.mode, Mode::Propose { .. })
    }

    fn name_owner(&self, table: Table, lower_name: &str) -> Result<Option<Id>, StoreError> {
        let value = ValueBuilder::new(table, Index::Name).text(lower_name);
        self.reader().unique_owner(&value.bytes())
    }

    /// Records one change whose rules hold.
    fn put(
        &mut self,
        action: Action,
        object: AnyObject,
        payload: Bytes,
        old: Option<AnyObject>,
    ) -> Result<(), StoreError> {
        let table = object.table();
        let before = old
            .as_ref()
            .map_or(Ok(KeyList::default()), AnyObject::index_keys)?;
        let after = match action {
            Action::Remove => KeyList::default(),
            _ => object.index_keys()?,
        };
        let index = index_changes(&object, &before, &after);
        let bytes = request::change_bytes(table, payload.len());
        let change = TxChange {
            row: keys::row(table, object.id()).into(),
            change: Arc::new(Change {
                action,
                old: old.filter(|_| action == Action::Update),
                object,
            }),
            payload,
            index,
        };
        self.own.apply(&change, OWN);
        self.changes.push(change);
        self.bytes += bytes;
        Ok(())
    }

    fn reader(&self) -> Reader<'_> {
        Reader {
            state: &self.state,
            overlays: [&self.below, &self.own],
        }
    }

    pub(super) fn savepoint(&self) -> Savepoint {
        Savepoint {
            own: self.own.clone(),
            changes: self.changes.len(),
            bytes: self.bytes,
        }
    }

    pub(super) fn roll_back(&mut self, to: Savepoint) {
        self.own = to.own;
        self.changes.truncate(to.changes);
        self.bytes = to.bytes;
    }

    pub(super) fn changes(&self) -> &[TxChange] {
        &self.changes
    }

    /// Size of the encoded request.
    pub(super) fn request_bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn into_changes(self) -> Vec<TxChange> {
        self.changes
    }

    /// Cuts off what was written since `at`, as the changes of another transaction. Both have the same
    /// stamp, so they may not touch the same object: then nothing is done.
    pub(super) fn split_off(&mut self, at: &Savepoint) -> Option<Tx> {
        let (first, second) = self.changes.split_at(at.changes);
        let touched: HashSet<&Key> = first.iter().map(|change| &change.row).collect();
        if second.iter().any(|change| touched.contains(&change.row)) {
            return None;
        }
        let rest = Tx {
            state: self.state.clone(),
            below: self.below.clone(),
            own: std::mem::replace(&mut self.own, at.own.clone()),
            mode: self.mode.clone(),
            changes: self.changes.split_off(at.changes),
            bytes: self.bytes - at.bytes + REQUEST_ID_BYTES,
        };
        self.bytes = at.bytes;
        Some(rest)
    }
}

/// Why a committed action could not be applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the object cannot be decoded: {0}")]
    Decode(#[from] prost::DecodeError),
}

/// What the rules look at.
struct Facts<'a> {
    table: Table,
    id: &'a str,
    /// Lower-cased.
    name: String,
    exact_name: String,
    /// Of a resource.
    kind: Option<&'a str>,
}

impl<'a> Facts<'a> {
    fn of<T: StoreObject>(object: &'a T) -> Facts<'a> {
        Facts::new(T::TABLE, object.id(), object.kind(), object.name())
    }

    fn of_any(object: &'a AnyObject) -> Facts<'a> {
        Facts::new(object.table(), object.id(), object.kind(), object.name())
    }

    fn new(
        table: Table,
        id: &'a str,
        kind: Option<&'a str>,
        name: Option<Cow<'_, str>>,
    ) -> Facts<'a> {
        // Only unique names are looked at; those of tasks are long and cost something to build.
        let exact_name = match tables::names(table) {
            NameRule::Unique => name.unwrap_or_default().into_owned(),
            NameRule::Shared => String::new(),
        };
        Facts {
            table,
            id,
            name: lower(&exact_name),
            exact_name,
            kind,
        }
    }
}

fn version_of(meta: Option<&Meta>) -> u64 {
    meta.and_then(|meta| meta.version.as_ref())
        .map_or(0, |version| version.index)
}

/// The index entries to remove and to put when those of an object change from `before` to `after`.
fn index_changes(
    object: &AnyObject,
    before: &KeyList,
    after: &KeyList,
) -> Vec<(IndexKey, Option<Id>)> {
    let mut changes = Vec::new();
    let mut owner = None;
    let mut put = |key: KeyRef<'_>, changes: &mut Vec<_>| {
        let owner = owner.get_or_insert_with(|| Id::from(object.id()));
        changes.push((key.to_owned(), Some(owner.clone())));
    };
    let mut before = before.iter().peekable();
    for key in after.iter() {
        while let Some(gone) = before.next_if(|old| *old < key) {
            changes.push((gone.to_owned(), None));
        }
        let unchanged = before.next_if(|old| *old == key).is_some();
        // An update claims its unique name anew, as the peer does. It matters to resources only, whose
        // names are not checked on update, so that two may come to share one.
        let reclaimed = object.table() == Table::Resource && key.is_unique();
        if !unchanged || reclaimed {
            put(key, &mut changes);
        }
    }
    changes.extend(before.map(|gone| (gone.to_owned(), None)));
    changes
}
