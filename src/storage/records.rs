//! Housekeeping records in `idx` and `meta`: digests, names, counts.
//!
//! Their second key byte is one that no index uses, so index scans never meet them. Records that hold
//! what a person wrote are sealed under family and key; the others hold IDs and numbers only.
//!
//! ```text
//! task digest      9 80 id          -> TaskDigest
//! names            T 81 id          -> sealed plain keys of the object's names and custom entries
//! service tasks    9 82 service id  -> sealed ServiceTasks
//! ```

use super::StoreError;
use super::codec::{self, Record};
use super::digest::{Discarded, ServiceTasks, TableCounts, TaskDigest};
use super::engine::{Changes, Db, Family, View};
use super::keys::Key;
use super::object::Table;
use super::rows::{ADVICE, id_of};
use crate::api::types::Task;

const DIGEST: u8 = 0x80;
const NAMES: u8 = 0x81;
const SERVICE_TASKS: u8 = 0x82;

/// What a record kind is called in reports.
pub fn kind_name(kind: u8) -> &'static str {
    match kind {
        DIGEST => TaskDigest::KIND,
        NAMES => NAMES_KIND,
        SERVICE_TASKS => ServiceTasks::KIND,
        _ => "unknown record",
    }
}

/// Whether a key of `idx` belongs to a record, and not to an index.
pub fn is_record(key: &[u8]) -> bool {
    key.get(1).is_some_and(|kind| *kind >= DIGEST)
}

pub fn is_names(key: &[u8]) -> bool {
    key.get(1) == Some(&NAMES)
}

pub fn is_service_tasks(key: &[u8]) -> bool {
    key.get(1) == Some(&SERVICE_TASKS)
}

/// The prefixes of the sealed records in `idx`.
pub fn sealed_prefixes() -> Vec<[u8; 2]> {
    let names = Table::ALL.into_iter().map(|table| [table as u8, NAMES]);
    names.chain([[Table::Task as u8, SERVICE_TASKS]]).collect()
}

const META_COUNTS: &[u8] = b"counts";
const META_DISCARDED: &[u8] = b"discarded";

const NAMES_KIND: &str = "names";
/// First byte of a record of names.
const NAMES_FORMAT: u8 = 1;

fn key(table: u8, kind: u8, id: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(2 + id.len());
    key.push(table);
    key.push(kind);
    key.extend_from_slice(id);
    key
}

fn failed(attempt: &str, kind: &str, key: &[u8], error: impl ToString) -> StoreError {
    let id = String::from_utf8_lossy(key.get(2..).unwrap_or_default());
    StoreError::Disk(format!(
        "cannot {attempt} the record {kind} of {id}: {}; {ADVICE}",
        error.to_string()
    ))
}

fn encode<R: Record>(key: &[u8], record: &R) -> Result<Vec<u8>, StoreError> {
    codec::encode(record).map_err(|error| failed("write", R::KIND, key, error))
}

fn decode<R: Record>(key: &[u8], bytes: &[u8]) -> Result<R, StoreError> {
    codec::decode(bytes).map_err(|error| failed("read", R::KIND, key, error))
}

fn put_sealed<R: Record>(
    changes: &mut Changes<'_>,
    db: &Db,
    key: &[u8],
    record: &R,
) -> Result<(), StoreError> {
    let bytes = encode(key, record)?;
    put_sealed_bytes(changes, db, key, &bytes, R::KIND)
}

fn put_sealed_bytes(
    changes: &mut Changes<'_>,
    db: &Db,
    key: &[u8],
    bytes: &[u8],
    kind: &str,
) -> Result<(), StoreError> {
    let sealed = db
        .sealer()
        .seal(&[b"idx", key], &[], bytes)
        .map_err(|error| failed("seal", kind, key, error))?;
    changes.put(Family::Idx, key, &sealed);
    Ok(())
}

fn open_sealed<R: Record>(db: &Db, key: &[u8], sealed: &[u8]) -> Result<R, StoreError> {
    let opened = db
        .sealer()
        .open(&[b"idx", key], 0, sealed)
        .map_err(|error| failed("open", R::KIND, key, error))?;
    decode(key, &opened.body)
}

/// The key of the digest of the task with this row key.
pub fn digest_key(row: &[u8]) -> Vec<u8> {
    key(Table::Task as u8, DIGEST, row.get(1..).unwrap_or_default())
}

/// The key of the names of the object with this row key.
pub fn names_key(row: &[u8]) -> Vec<u8> {
    let table = row.first().copied().unwrap_or_default();
    key(table, NAMES, row.get(1..).unwrap_or_default())
}

/// Puts or removes the digest of the task with this row key.
pub fn put_digest(changes: &mut Changes<'_>, row: &[u8], task: Option<&Task>) {
    let key = digest_key(row);
    match task.and_then(encode_digest) {
        Some(digest) => changes.put(Family::Idx, &key, &digest),
        None => changes.delete(Family::Idx, &key),
    }
}

/// The digest of a task. `None` for one whose service or node ID is no ID of any kind but longer than a
/// digest may be: applying an entry may not fail because of what somebody wrote.
pub fn encode_digest(task: &Task) -> Option<Vec<u8>> {
    codec::encode(&TaskDigest::of(task)).ok()
}

/// The digest of a task.
pub fn digest(view: &View, id: &str) -> Result<Option<TaskDigest>, StoreError> {
    let key = key(Table::Task as u8, DIGEST, id.as_bytes());
    match view.get(Family::Idx, &key)? {
        Some(bytes) => Ok(Some(decode(&key, &bytes)?)),
        None => Ok(None),
    }
}

/// Calls `f` with every task's ID and digest, in the order of the IDs.
pub fn each_digest(
    view: &View,
    mut f: impl FnMut(&str, TaskDigest) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    each(view, Table::Task, DIGEST, |id, key, bytes| {
        f(id, decode(key, bytes)?)
    })
}

/// Puts what prefix look-ups have to find of the object with this row key.
pub fn put_names(
    changes: &mut Changes<'_>,
    db: &Db,
    row: &[u8],
    names: &[Key],
) -> Result<(), StoreError> {
    let key = names_key(row);
    if names.is_empty() {
        changes.delete(Family::Idx, &key);
        return Ok(());
    }
    let bytes = encode_names(names);
    put_sealed_bytes(changes, db, &key, &bytes, NAMES_KIND)
}

/// The plain form of a record of names: a format byte, then each key behind its length as u32be. Not a
/// codec record, because an object may have as many custom entries as fit into a request.
pub fn encode_names(names: &[Key]) -> Vec<u8> {
    let mut bytes = vec![NAMES_FORMAT];
    for name in names {
        bytes.extend_from_slice(&(name.len() as u32).to_be_bytes());
        bytes.extend_from_slice(name);
    }
    bytes
}

fn decode_names(bytes: &[u8]) -> Option<Vec<Key>> {
    let (&NAMES_FORMAT, mut rest) = bytes.split_first()? else {
        return None;
    };
    let mut names = Vec::new();
    while !rest.is_empty() {
        let (length, tail) = rest.split_first_chunk::<4>()?;
        let (name, tail) = tail.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        names.push(Key::from(name));
        rest = tail;
    }
    Some(names)
}

/// Calls `f` with the ID and the plain keys of every object of a table that has any.
pub fn each_names(
    view: &View,
    table: Table,
    mut f: impl FnMut(&str, Vec<Key>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    each(view, table, NAMES, |id, key, sealed| {
        f(id, open_names(view.db(), key, sealed)?)
    })
}

/// Opens a record of names.
pub fn open_names(db: &Db, key: &[u8], sealed: &[u8]) -> Result<Vec<Key>, StoreError> {
    let opened = db
        .sealer()
        .open(&[b"idx", key], 0, sealed)
        .map_err(|error| failed("open", NAMES_KIND, key, error))?;
    decode_names(&opened.body)
        .ok_or_else(|| failed("read", NAMES_KIND, key, "it is not a list of names"))
}

/// Opens the summary of a service's tasks.
pub fn open_service_tasks(db: &Db, key: &[u8], sealed: &[u8]) -> Result<ServiceTasks, StoreError> {
    open_sealed(db, key, sealed)
}

/// Puts or removes the summary of a service's tasks.
pub fn put_service_tasks(
    changes: &mut Changes<'_>,
    db: &Db,
    service_id: &str,
    tasks: Option<&ServiceTasks>,
) -> Result<(), StoreError> {
    let key = key(Table::Task as u8, SERVICE_TASKS, service_id.as_bytes());
    match tasks {
        Some(tasks) => put_sealed(changes, db, &key, tasks),
        None => {
            changes.delete(Family::Idx, &key);
            Ok(())
        }
    }
}

/// Calls `f` with the ID and the summary of every service that has tasks.
pub fn each_service_tasks(
    view: &View,
    mut f: impl FnMut(&str, ServiceTasks) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    each(view, Table::Task, SERVICE_TASKS, |id, key, sealed| {
        f(id, open_service_tasks(view.db(), key, sealed)?)
    })
}

fn each(
    view: &View,
    table: Table,
    kind: u8,
    mut f: impl FnMut(&str, &[u8], &[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let prefix = [table as u8, kind];
    let mut records = view.rows_with_prefix(Family::Idx, &prefix)?;
    while let Some((key, value)) = records.next_row()? {
        f(id_of(&key[prefix.len()..])?, key, value)?;
    }
    Ok(())
}

pub fn put_table_counts(changes: &mut Changes<'_>, counts: &TableCounts) -> Result<(), StoreError> {
    Ok(changes.put_record(META_COUNTS, counts)?)
}

/// Number of objects in each table; zeros in a new store.
pub fn table_counts(view: &View) -> Result<TableCounts, StoreError> {
    Ok(view.record(META_COUNTS)?.unwrap_or_default())
}

pub fn put_discarded(changes: &mut Changes<'_>, discarded: &Discarded) -> Result<(), StoreError> {
    Ok(changes.put_record(META_DISCARDED, discarded)?)
}

/// The entries that were discarded.
pub fn discarded(view: &View) -> Result<Discarded, StoreError> {
    Ok(view.record(META_DISCARDED)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_names_round_trip_and_broken_ones_are_refused() {
        let names: Vec<Key> = vec![
            Key::from(*b"a"),
            Key::from(*b""),
            Key::from(vec![7; 2 << 20]),
        ];
        let bytes = encode_names(&names);
        assert_eq!(decode_names(&bytes), Some(names));
        assert_eq!(decode_names(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode_names(&[NAMES_FORMAT, 0, 0, 0]), None);
        assert_eq!(decode_names(&[9]), None);
        assert_eq!(decode_names(&[]), None);
    }
}
