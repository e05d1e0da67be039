//! Changes that are not yet in the database, laid over it.
//!
//! The tree is persistent: a transaction starts from a copy of the head's overlay, which costs nothing,
//! and a savepoint is another copy. Each entry remembers which transaction wrote it last, so that the
//! entries of an applied transaction can be taken out unless a later one has replaced them.

use super::events::Change;
use super::keys::{self, Id, IndexKey, Key};
use super::object::{Action, AnyObject, Table};
use imbl::OrdMap;
use prost::bytes::Bytes;
use std::ops::Bound;
use std::sync::Arc;

/// An object with the bytes its row holds.
#[derive(Debug, Clone)]
pub struct Stored {
    pub object: AnyObject,
    pub payload: Bytes,
}

/// A row in the overlay; `None` hides the row below.
#[derive(Debug, Clone)]
pub struct RowState {
    /// The transaction that wrote it (in an apply run: the entry).
    pub writer: u64,
    pub stored: Option<Stored>,
}

/// An index entry in the overlay; without an owner it hides the entry below.
#[derive(Debug, Clone)]
pub struct IndexState {
    pub writer: u64,
    pub owner: Option<Id>,
    /// See [`IndexKey::value_end`].
    pub value_end: u32,
}

/// What one call of a transaction changes.
#[derive(Debug, Clone)]
pub struct TxChange {
    pub change: Arc<Change>,
    pub row: Key,
    /// The object as it stands in the request.
    pub payload: Bytes,
    /// Index entries to put (with their owner) and to remove.
    pub index: Vec<(IndexKey, Option<Id>)>,
}

impl TxChange {
    pub fn table(&self) -> Table {
        self.change.object.table()
    }

    fn stored(&self) -> Option<Stored> {
        (self.change.action != Action::Remove).then(|| Stored {
            object: self.change.object.clone(),
            payload: self.payload.clone(),
        })
    }
}

/// Changed rows and index entries, by row key and by plain index key.
#[derive(Debug, Clone, Default)]
pub struct Overlay {
    pub rows: OrdMap<Key, RowState>,
    pub index: OrdMap<Key, IndexState>,
}

impl Overlay {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.index.is_empty()
    }

    pub fn apply(&mut self, change: &TxChange, writer: u64) {
        let stored = change.stored();
        self.rows
            .insert(change.row.clone(), RowState { writer, stored });
        for (key, owner) in &change.index {
            let state = IndexState {
                writer,
                owner: owner.clone(),
                value_end: key.value_end,
            };
            self.index.insert(key.plain.clone(), state);
        }
    }

    pub fn apply_all(&mut self, changes: &[TxChange], writer: u64) {
        for change in changes {
            self.apply(change, writer);
        }
    }

    /// Takes out what `writer` changed last.
    pub fn prune(&mut self, changes: &[TxChange], writer: u64) {
        for change in changes {
            if self
                .rows
                .get(&change.row)
                .is_some_and(|row| row.writer == writer)
            {
                self.rows.remove(&change.row);
            }
            for (key, _) in &change.index {
                let last = self.index.get(&key.plain);
                if last.is_some_and(|entry| entry.writer == writer) {
                    self.index.remove(&key.plain);
                }
            }
        }
    }

    pub fn rows_from(&self, prefix: &[u8]) -> impl Iterator<Item = (&Key, &RowState)> {
        self.rows
            .range::<_, [u8]>(range(&keys::prefix_range(prefix)))
    }

    pub fn index_from(&self, prefix: &[u8]) -> impl Iterator<Item = (&Key, &IndexState)> {
        self.index
            .range::<_, [u8]>(range(&keys::prefix_range(prefix)))
    }
}

/// A prefix range in the form that the ordered maps take.
pub fn range(bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (
        bounds.0.as_ref().map(Vec::as_slice),
        bounds.1.as_ref().map(Vec::as_slice),
    )
}
