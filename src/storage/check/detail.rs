//! Names the objects behind an index whose entries do not add up.

use super::{FaultKind, Place, Report, derived, place_of};
use crate::storage::StoreError;
use crate::storage::engine::{Family, View};
use crate::storage::keys::{Form, Index, take_text};
use crate::storage::object::{AnyObject, Table};
use crate::storage::seal::INDEX_HASH_BYTES;
use crate::storage::{keys, records, rows};

/// Compares one index with its objects, entry by entry, in both directions.
pub(super) fn explain(view: &View, place: Place, report: &mut Report) -> Result<(), StoreError> {
    let (family, number, kind) = place;
    let name = place_name(kind);
    let Some(table) = rows::table_of(&[number]) else {
        report.add(
            Table::Cluster,
            "",
            "an index of no table",
            FaultKind::Unexpected,
        );
        return Ok(());
    };
    let mut stored = view.rows_with_prefix(rows::family_of(table), &[number])?;
    while let Some((row, sealed)) = stored.next_row()? {
        let Some(object) = readable(view, row, sealed) else {
            continue;
        };
        for (family, key, value) in derived(view, row, &object)? {
            if place_of(family, &key) != place {
                continue;
            }
            match view.get(family, &key)? {
                None => report.add(table, object.id(), name, FaultKind::Missing),
                Some(found) if plain(view, &key, &found) != value => {
                    report.add(table, object.id(), name, FaultKind::Wrong);
                }
                Some(_) => {}
            }
        }
    }
    let mut entries = view.rows_with_prefix(family, &[number, kind])?;
    while let Some((key, value)) = entries.next_row()? {
        let id = owner(family, kind, key, value);
        if !is_derived(view, table, &id, family, key)? {
            report.add(table, &id, name, FaultKind::Unexpected);
        }
    }
    Ok(())
}

/// Whether the object with this ID exists and asks for the entry.
fn is_derived(
    view: &View,
    table: Table,
    id: &str,
    family: Family,
    key: &[u8],
) -> Result<bool, StoreError> {
    let row = keys::row(table, id);
    let Some(sealed) = view.get(rows::family_of(table), &row)? else {
        return Ok(false);
    };
    // What belongs to an unreadable row cannot be told; that row is a fault already.
    let Some(object) = readable(view, &row, &sealed) else {
        return Ok(true);
    };
    let derived = derived(view, &row, &object)?;
    Ok(derived
        .iter()
        .any(|(other, name, _)| *other == family && name == key))
}

fn readable(view: &View, row: &[u8], sealed: &[u8]) -> Option<AnyObject> {
    rows::open(view.db(), row, sealed).ok()?.decode(row).ok()
}

/// A stored value in the form that [`derived`] gives.
fn plain(view: &View, key: &[u8], value: &[u8]) -> Vec<u8> {
    if !records::is_names(key) {
        return value.to_vec();
    }
    records::open_names(view.db(), key, value)
        .map_or(Vec::new(), |names| records::encode_names(&names))
}

/// The ID that an entry stands for.
fn owner(family: Family, kind: u8, key: &[u8], value: &[u8]) -> String {
    let id = match family {
        Family::Uniq => value,
        _ => key.get(value_bytes(kind, key)..).unwrap_or_default(),
    };
    String::from_utf8_lossy(id).into_owned()
}

/// Bytes in front of the ID in a key of `idx`.
fn value_bytes(kind: u8, key: &[u8]) -> usize {
    let Some(index) = index_of(kind) else {
        return keys::INDEX_HEAD_BYTES;
    };
    let value = key.get(keys::INDEX_HEAD_BYTES..).unwrap_or_default();
    let text = || take_text(value).map_or(0, |(_, rest)| value.len() - rest.len());
    keys::INDEX_HEAD_BYTES
        + match (index.form(), index) {
            (Form::Hashed, _) => INDEX_HASH_BYTES,
            (Form::Reference, _) => keys::reference_bytes(value),
            (Form::Clear, Index::ServiceSlot) => text() + size_of::<u64>(),
            (Form::Clear, Index::Node) => text(),
            (Form::Clear, _) => size_of::<i32>(),
        }
}

fn index_of(kind: u8) -> Option<Index> {
    Index::ALL.into_iter().find(|index| *index as u8 == kind)
}

fn place_name(kind: u8) -> &'static str {
    match index_of(kind) {
        Some(index) => index.name(),
        None => records::kind_name(kind),
    }
}
