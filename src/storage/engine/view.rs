//! Consistent views of the database that own what they look at.

use super::{Db, DbError, Family, decode_record, engine_error, range_options, rows};
use crate::storage::codec::Record;
use rocksdb::{DB, DBRawIterator, Snapshot};
use std::mem::ManuallyDrop;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

/// The database as it was at one moment; later writes do not show.
pub struct View {
    /// Borrows from `db`, and is dropped before it.
    snapshot: ManuallyDrop<Snapshot<'static>>,
    db: Arc<Db>,
}

impl View {
    pub(super) fn new(db: Arc<Db>) -> View {
        let engine: *const DB = &db.db;
        // SAFETY: `engine` points into the allocation that `db` keeps alive and never moves. The
        // snapshot is only reachable through `self`, never outlives it, and `drop` releases it before
        // `db` is dropped.
        let snapshot = unsafe { (*engine).snapshot() };
        View {
            snapshot: ManuallyDrop::new(snapshot),
            db,
        }
    }

    pub fn db(&self) -> &Arc<Db> {
        &self.db
    }

    /// The value of a key.
    pub fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, DbError> {
        let family = self.db.family(family)?;
        self.snapshot
            .get_cf(family, key)
            .map_err(|error| engine_error("read from", self.db.path(), error))
    }

    /// The values of several keys, in their order.
    pub fn get_many<'k>(
        &self,
        family: Family,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) -> Result<Vec<Option<Vec<u8>>>, DbError> {
        let family = self.db.family(family)?;
        self.snapshot
            .multi_get_cf(keys.into_iter().map(|key| (family, key)))
            .into_iter()
            .collect::<Result<_, _>>()
            .map_err(|error| engine_error("read from", self.db.path(), error))
    }

    /// A local record.
    pub fn record<R: Record>(&self, key: &[u8]) -> Result<Option<R>, DbError> {
        self.get(Family::Meta, key)?
            .map(|bytes| decode_record(self.db.path(), key, &bytes))
            .transpose()
    }

    /// The rows of a range of keys, in key order.
    pub fn rows(
        &self,
        family: Family,
        from: Bound<&[u8]>,
        until: Bound<&[u8]>,
    ) -> Result<Rows<'_>, DbError> {
        let handle = self.db.family(family)?;
        let mut iterator = self
            .snapshot
            .raw_iterator_cf_opt(handle, range_options(from, until));
        iterator.seek_to_first();
        Ok(rows(&self.db, iterator))
    }

    /// The rows whose keys start with `prefix`, in key order.
    pub fn rows_with_prefix(&self, family: Family, prefix: &[u8]) -> Result<Rows<'_>, DbError> {
        match end_of_prefix(prefix) {
            Some(end) => self.rows(family, Bound::Included(prefix), Bound::Excluded(&end)),
            None => self.rows(family, Bound::Included(prefix), Bound::Unbounded),
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: dropped exactly once, here, while `db` is still alive; not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.snapshot) }
    }
}

/// The smallest key greater than every key with this prefix, if there is one.
fn end_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// Key and value of a row.
pub type Row<'a> = (&'a [u8], &'a [u8]);

/// Rows of a range, one at a time.
pub struct Rows<'a> {
    path: &'a Path,
    iterator: DBRawIterator<'a>,
    /// The current row has been handed out: move on before looking again.
    taken: bool,
}

impl<'a> Rows<'a> {
    pub(super) fn new(path: &'a Path, iterator: DBRawIterator<'a>) -> Rows<'a> {
        Rows {
            path,
            iterator,
            taken: false,
        }
    }

    /// The next key and value; `None` at the end of the range. An engine that meets damage stops as at
    /// the end: here that is an error.
    pub fn next_row(&mut self) -> Result<Option<Row<'_>>, DbError> {
        if self.taken {
            self.iterator.next();
        }
        self.taken = self.iterator.valid();
        if !self.taken {
            self.iterator
                .status()
                .map_err(|error| engine_error("scan", self.path, error))?;
        }
        Ok(self.iterator.item())
    }

    /// Goes to the first row at or after `key` within the range; [`Rows::next_row`] gives it.
    pub fn seek(&mut self, key: &[u8]) {
        self.iterator.seek(key);
        self.taken = false;
    }
}
