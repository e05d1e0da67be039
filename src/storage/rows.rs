//! Rows and index entries as the database holds them: sealed when written, opened and checked when read.
//!
//! A payload is sealed under its family and key, so a row that is moved or changed does not open. In the
//! clear part of a row stand the index of the entry that wrote it and the plain length. Entries of
//! indexes have no payload; those of unique ones hold the owner's ID.

use super::StoreError;
use super::codec::{self, Record};
use super::engine::{Changes, Db, Family, View, meta};
use super::keys;
use super::membership::Membership;
use super::object::{AnyObject, Table};
use serde::{Deserialize, Serialize};

/// Bytes of the clear part of a row: u64be index of the entry that wrote it, u32be plain length.
pub const HEADER_BYTES: usize = 12;

/// The opened payload of a row.
pub struct OpenRow {
    /// The entry that wrote it.
    pub index: u64,
    /// The object's protobuf bytes.
    pub payload: Vec<u8>,
}

impl OpenRow {
    /// Decodes the object of the row with this key.
    pub fn decode(&self, key: &[u8]) -> Result<AnyObject, StoreError> {
        let undecodable = |reason: String| {
            StoreError::Disk(format!(
                "cannot decode {}: {reason}; {ADVICE}",
                describe(key)
            ))
        };
        let table = table_of(key).ok_or_else(|| undecodable("unknown table".into()))?;
        AnyObject::decode(table, &self.payload).map_err(|error| undecodable(error.to_string()))
    }
}

/// The table that a row or index key belongs to.
pub fn table_of(key: &[u8]) -> Option<Table> {
    let number = key.first()?;
    Table::ALL.into_iter().find(|table| *table as u8 == *number)
}

/// What to do about a damaged record.
pub const ADVICE: &str =
    "check the state directory with `swarm-db check`, then restore a backup or join again";

/// The family that holds the rows of a table.
pub fn family_of(table: Table) -> Family {
    match table {
        Table::Task => Family::Task,
        _ => Family::Obj,
    }
}

/// The family that holds a row.
pub fn family_of_row(key: &[u8]) -> Family {
    match key.first() {
        Some(&table) if table == Table::Task as u8 => Family::Task,
        _ => Family::Obj,
    }
}

/// Puts the row of an object that the entry `index` wrote.
pub fn put(
    changes: &mut Changes<'_>,
    db: &Db,
    key: &[u8],
    index: u64,
    payload: &[u8],
) -> Result<(), StoreError> {
    let family = family_of_row(key);
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&index.to_be_bytes());
    // Requests are far smaller than 4 GiB, and so is every object in one.
    header[8..].copy_from_slice(&(payload.len() as u32).to_be_bytes());
    let sealed = db
        .sealer()
        .seal(&[family.name().as_bytes(), key], &header, payload)
        .map_err(|error| StoreError::Disk(format!("cannot seal {}: {error}", describe(key))))?;
    changes.put(family, key, &sealed);
    Ok(())
}

/// Opens what [`put`] sealed.
pub fn open(db: &Db, key: &[u8], sealed: &[u8]) -> Result<OpenRow, StoreError> {
    let family = family_of_row(key);
    let damaged = |reason: String| {
        StoreError::Disk(format!(
            "cannot read {} in {}: {reason}; {ADVICE}",
            describe(key),
            db.path().display()
        ))
    };
    let opened = db
        .sealer()
        .open(&[family.name().as_bytes(), key], HEADER_BYTES, sealed)
        .map_err(|error| damaged(error.to_string()))?;
    let (index, length) = opened.header.split_at(8);
    let index = index.try_into().map_or(0, u64::from_be_bytes);
    let length = length.try_into().map_or(0, u32::from_be_bytes);
    if opened.body.len() != length as usize {
        return Err(damaged("its length is not the recorded one".into()));
    }
    Ok(OpenRow {
        index,
        payload: opened.body,
    })
}

/// Calls `f` with the rest of every index key behind a plain `T I value` prefix, in order.
pub fn each_suffix(
    view: &View,
    plain_value: &[u8],
    mut f: impl FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let prefix = keys::disk_prefix(plain_value, view.db().hasher());
    let mut rows = view.rows_with_prefix(Family::Idx, &prefix)?;
    while let Some((key, _)) = rows.next_row()? {
        f(&key[prefix.len()..])?;
    }
    Ok(())
}

/// The ID that a unique value belongs to.
pub fn unique_owner(view: &View, plain_value: &[u8]) -> Result<Option<String>, StoreError> {
    let key = keys::disk_prefix(plain_value, view.db().hasher());
    let Some(id) = view.get(Family::Uniq, &key)? else {
        return Ok(None);
    };
    String::from_utf8(id)
        .map(Some)
        .map_err(|_| StoreError::Disk(format!("an entry of a name index holds no ID; {ADVICE}")))
}

/// The ID at the end of a key.
pub fn id_of(bytes: &[u8]) -> Result<&str, StoreError> {
    std::str::from_utf8(bytes)
        .map_err(|_| StoreError::Disk(format!("a key ends in no ID: {bytes:02x?}; {ADVICE}")))
}

/// A row key for messages.
pub fn describe(key: &[u8]) -> String {
    let table = table_of(key);
    let id = String::from_utf8_lossy(key.get(1..).unwrap_or_default());
    match table {
        Some(table) => format!("the row of {} {id}", table.name()),
        None => format!("the row {key:02x?}"),
    }
}

/// The membership as a local record. Sealed, because addresses may hold host names.
#[derive(Serialize, Deserialize)]
struct MembershipRecord {
    conf_state: Vec<u8>,
    members: Vec<Vec<u8>>,
    removed: Vec<u64>,
}

impl Record for MembershipRecord {
    const KIND: &'static str = "membership";
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 1 << 20;
}

const MEMBERSHIP_CONTEXT: [&[u8]; 2] = [b"meta", meta::MEMBERSHIP];

/// Puts the membership.
pub fn put_membership(
    changes: &mut Changes<'_>,
    db: &Db,
    membership: &Membership,
) -> Result<(), StoreError> {
    let failed = |error: String| StoreError::Disk(format!("cannot store the membership: {error}"));
    let record = MembershipRecord {
        conf_state: prost::Message::encode_to_vec(&membership.conf_state),
        members: membership
            .members
            .iter()
            .map(prost::Message::encode_to_vec)
            .collect(),
        removed: membership.removed.clone(),
    };
    let bytes = codec::encode(&record).map_err(|error| failed(error.to_string()))?;
    let sealed = db
        .sealer()
        .seal(&MEMBERSHIP_CONTEXT, &[], &bytes)
        .map_err(|error| failed(error.to_string()))?;
    changes.put(Family::Meta, meta::MEMBERSHIP, &sealed);
    Ok(())
}

/// The membership that the database holds; empty if none was stored yet.
pub fn read_membership(view: &View) -> Result<Membership, StoreError> {
    let failed = |error: String| {
        StoreError::Disk(format!(
            "cannot read the membership in {}: {error}; {ADVICE}",
            view.db().path().display()
        ))
    };
    let Some(sealed) = view.get(Family::Meta, meta::MEMBERSHIP)? else {
        return Ok(Membership::default());
    };
    let opened = view
        .db()
        .sealer()
        .open(&MEMBERSHIP_CONTEXT, 0, &sealed)
        .map_err(|error| failed(error.to_string()))?;
    let record: MembershipRecord =
        codec::decode(&opened.body).map_err(|error| failed(error.to_string()))?;
    let decoded = |error: prost::DecodeError| failed(error.to_string());
    let mut membership = Membership {
        conf_state: prost::Message::decode(record.conf_state.as_slice()).map_err(decoded)?,
        members: Vec::with_capacity(record.members.len()),
        removed: record.removed,
    };
    for member in &record.members {
        let member = prost::Message::decode(member.as_slice()).map_err(decoded)?;
        membership.members.push(member);
    }
    Ok(membership)
}
