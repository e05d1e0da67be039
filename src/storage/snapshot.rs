//! The whole state as a stream: out of a consistent view of the database, and into a new database.
//!
//! The form is the peer's `Snapshot` message, cut into pieces that are each a message of their own: protobuf
//! merges them, so all pieces after each other are the whole, and neither side ever holds more than one
//! piece in memory (spec 03 section 10.1, settled S12).
//!
//! An incoming snapshot is first spooled below `raft/incoming`, sealed like everything else. It becomes the
//! state of this member in one step, while the member is stopped: [`install`] builds a new database beside
//! the old one and then makes it the active one by replacing one small file (settled S11). A kill at any
//! point leaves the old state or the new one; what was begun is done again or removed.

use super::apply::{CommittedEntry, Payload};
use super::engine::{Applied, Db, DbError, DbOptions, Family, meta};
use super::object::{Action, Table};
use super::read::State;
use super::seal::DekRing;
use super::state_dir::{self, FILE_MODE, StateDir, StateDirError};
use super::{Membership, Store, StoreError, request};
use super::{engines, files, rows};
use crate::api::raftpb;
use crate::api::types::{ClusterSnapshot, Snapshot};
use parking_lot::Mutex;
use parts::Parts;
use prost::Message as _;
use prost::bytes::{BufMut, Bytes};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of objects gathered into one piece; a single larger object is a piece of its own.
const PIECE_BYTES: usize = 256 * 1024;
/// Largest piece that is taken in: an object is part of one log entry, which has at most 1.5 MiB.
const PIECE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Free space that a spooled snapshot must leave.
const RESERVE_BYTES: u64 = 96 * 1024 * 1024;
/// Fields of `Snapshot`.
const FIELD_VERSION: u32 = 1;
const FIELD_MEMBERSHIP: u32 = 2;
const FIELD_STORE: u32 = 3;
/// Name of the spool while it is written, when it is complete, and when it is to become the state.
const PART: &str = "part";
const RECEIVED: &str = "received";
const ACCEPTED: &str = "accepted";
/// Context under which pieces are sealed.
const CONTEXT: &[&[u8]] = &[b"incoming snapshot"];

/// Why a snapshot could not be taken in.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("cannot {attempt} the incoming snapshot {path}: {error}", path = .path.display())]
    File {
        attempt: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    #[error("the disk has no room for the incoming snapshot")]
    Full,
    #[error("the incoming snapshot is damaged: {0}")]
    Damaged(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Db(#[from] DbError),
    #[error(transparent)]
    Dir(#[from] StateDirError),
}

fn damaged(reason: impl ToString) -> SnapshotError {
    SnapshotError::Damaged(reason.to_string())
}

/// The field of `StoreSnapshot` that holds objects of a table.
fn field_of(table: Table) -> u32 {
    match table {
        Table::Node => 1,
        Table::Service => 2,
        Table::Network => 3,
        Table::Task => 4,
        Table::Cluster => 5,
        Table::Secret => 6,
        Table::Resource => 7,
        Table::Extension => 8,
        Table::Config => 9,
        Table::Volume => 10,
    }
}

// ---------------------------------------------------------------------------------------------------
// Out

/// The state at one log entry.
pub struct OutgoingSnapshot {
    state: Arc<State>,
    membership: Membership,
}

impl Store {
    /// The state as it is now, to be written out.
    pub fn outgoing_snapshot(&self) -> Result<OutgoingSnapshot, StoreError> {
        let state = self.inner.state.load_full();
        let membership = rows::read_membership(&state.view)?;
        Ok(OutgoingSnapshot { state, membership })
    }
}

impl OutgoingSnapshot {
    /// What the consensus library has to know of it.
    pub fn metadata(&self) -> raftpb::SnapshotMetadata {
        raftpb::SnapshotMetadata {
            conf_state: Some(self.membership.conf_state.clone()),
            index: Some(self.state.applied),
            term: Some(self.state.applied_term),
        }
    }

    /// Hands the pieces out one after another, until `take` says no; whether it took all. Blocks on the
    /// disk.
    pub fn write(&self, mut take: impl FnMut(Vec<u8>) -> bool) -> Result<bool, StoreError> {
        let head = Snapshot {
            membership: Some(ClusterSnapshot {
                members: self.membership.members.clone(),
                removed: self.membership.removed.clone(),
            }),
            ..Snapshot::default()
        };
        if !take(head.encode_to_vec()) {
            return Ok(false);
        }
        let view = &self.state.view;
        let mut objects = Vec::with_capacity(PIECE_BYTES);
        for family in [Family::Obj, Family::Task] {
            let mut found = view.rows(family, Bound::Unbounded, Bound::Unbounded)?;
            while let Some((key, sealed)) = found.next_row()? {
                let table = rows::table_of(key)
                    .ok_or_else(|| StoreError::Disk("a row of an unknown table".to_owned()))?;
                let payload = rows::open(view.db(), key, sealed)?.payload;
                let bytes = payload.len() + encoded_len_varint(payload.len() as u64) + 2;
                if !objects.is_empty()
                    && objects.len() + bytes > PIECE_BYTES
                    && !take(piece_of(&std::mem::take(&mut objects)))
                {
                    return Ok(false);
                }
                encode_key(field_of(table), WireType::LengthDelimited, &mut objects);
                encode_varint(payload.len() as u64, &mut objects);
                objects.put_slice(&payload);
            }
        }
        Ok(objects.is_empty() || take(piece_of(&objects)))
    }
}

/// A `Snapshot` message whose store has these objects.
fn piece_of(objects: &[u8]) -> Vec<u8> {
    let mut piece = Vec::with_capacity(objects.len() + 8);
    encode_key(FIELD_STORE, WireType::LengthDelimited, &mut piece);
    encode_varint(objects.len() as u64, &mut piece);
    piece.put_slice(objects);
    piece
}

// ---------------------------------------------------------------------------------------------------
// In

/// Takes in one snapshot at a time, below `raft/incoming`.
pub struct Incoming {
    dir: PathBuf,
    state_dir: Arc<StateDir>,
    db: Arc<Db>,
    received: Received,
}

/// Index and term of the snapshot that lies complete in the directory. Held while files are renamed.
type Received = Arc<Mutex<Option<(u64, u64)>>>;

/// A snapshot on its way in.
pub struct Spool {
    dir: PathBuf,
    state_dir: Arc<StateDir>,
    db: Arc<Db>,
    file: BufWriter<File>,
    at: (u64, u64),
    received: Received,
}

impl Incoming {
    /// `db` seals what is spooled.
    pub fn new(state_dir: Arc<StateDir>, db: Arc<Db>) -> Incoming {
        Incoming {
            dir: state_dir.raft_incoming(),
            state_dir,
            db,
            received: Received::default(),
        }
    }

    /// Begins to spool a snapshot; what an earlier attempt has left is forgotten.
    pub fn begin(&self, metadata: &raftpb::SnapshotMetadata) -> Result<Spool, SnapshotError> {
        state_dir::create_dir(&self.dir)?;
        let path = self.dir.join(PART);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(FILE_MODE)
            .open(&path)
            .map_err(failed("create", &path))?;
        let mut spool = Spool {
            dir: self.dir.clone(),
            state_dir: self.state_dir.clone(),
            db: self.db.clone(),
            file: BufWriter::new(file),
            at: (metadata.index(), metadata.term()),
            received: self.received.clone(),
        };
        spool.push(&metadata.encode_to_vec())?;
        Ok(spool)
    }

    /// The snapshot of this place in the log becomes the state of this member at its next start. False if
    /// another one has been received since: then nothing changes, and the leader sends again.
    pub fn accept(&self, index: u64, term: u64) -> Result<bool, SnapshotError> {
        let mut received = self.received.lock();
        if *received != Some((index, term)) {
            return Ok(false);
        }
        rename(&self.dir, RECEIVED, ACCEPTED)?;
        *received = None;
        Ok(true)
    }
}

impl Spool {
    /// Takes a piece.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), SnapshotError> {
        let path = self.dir.join(PART);
        if piece.len() > PIECE_BYTES_MAX {
            return Err(damaged(format!("a piece of {} bytes", piece.len())));
        }
        if self.state_dir.free_bytes()? < RESERVE_BYTES + piece.len() as u64 {
            return Err(SnapshotError::Full);
        }
        let sealed = self.db.sealer().seal(CONTEXT, &[], piece);
        let sealed = sealed.map_err(damaged)?;
        let length = u32::try_from(sealed.len()).map_err(damaged)?;
        self.file
            .write_all(&length.to_be_bytes())
            .and_then(|()| self.file.write_all(&sealed))
            .map_err(failed("write", &path))
    }

    /// The snapshot is complete.
    pub fn finish(mut self) -> Result<(), SnapshotError> {
        let path = self.dir.join(PART);
        self.file
            .flush()
            .and_then(|()| self.file.get_ref().sync_all())
            .map_err(failed("sync", &path))?;
        let mut received = self.received.lock();
        *received = None;
        rename(&self.dir, PART, RECEIVED)?;
        *received = Some(self.at);
        Ok(())
    }
}

fn failed<'a>(
    attempt: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> SnapshotError + use<'a> {
    move |error| SnapshotError::File {
        attempt,
        path: path.to_owned(),
        error,
    }
}

fn rename(dir: &Path, from: &str, to: &str) -> Result<(), SnapshotError> {
    let path = dir.join(from);
    fs::rename(&path, dir.join(to)).map_err(failed("rename", &path))?;
    Ok(state_dir::sync_dir(dir)?)
}

/// Makes an accepted snapshot the state, if there is one; returns its place in the log. To be called before
/// the engines are opened, which then begin the log anew behind it. Blocks.
pub fn install(
    dir: &StateDir,
    active: impl FnOnce() -> Result<Option<(u64, Db)>, SnapshotError>,
    ring: &DekRing,
    options: &DbOptions,
) -> Result<Option<u64>, SnapshotError> {
    let incoming = dir.raft_incoming();
    let accepted = incoming.join(ACCEPTED);
    if !accepted.exists() {
        clear(&incoming)?;
        return Ok(None);
    }
    match install_accepted(dir, &accepted, active, ring, options) {
        Ok(at) => {
            clear(&incoming)?;
            tracing::info!(
                index = at,
                "the state that another manager sent is in place"
            );
            Ok(Some(at))
        }
        // What was there before is still in place; the leader sends again.
        Err(SnapshotError::Damaged(reason)) => {
            tracing::error!(
                reason,
                "a received snapshot cannot be used and is forgotten"
            );
            clear(&incoming)?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn install_accepted(
    dir: &StateDir,
    accepted: &Path,
    active: impl FnOnce() -> Result<Option<(u64, Db)>, SnapshotError>,
    ring: &DekRing,
    options: &DbOptions,
) -> Result<u64, SnapshotError> {
    let Some((number, old)) = active()? else {
        return Err(damaged("there is no database beside it"));
    };
    let file = File::open(accepted).map_err(failed("open", accepted))?;
    let mut pieces = Pieces {
        file: BufReader::new(file),
        path: accepted.to_owned(),
        db: old,
    };
    let path = engines::database_path(dir, number + 1);
    remove(&path)?;
    let db = Arc::new(Db::create(&path, ring, options)?);
    let at = build(&mut pieces, db.clone())?;
    // The database has no other user: the store that built it is gone.
    db.flush()?;
    drop((db, pieces));
    engines::set_active(dir, number + 1)?;
    Ok(at)
}

/// Forgets whatever was received.
fn clear(incoming: &Path) -> Result<(), SnapshotError> {
    remove(incoming)?;
    Ok(state_dir::create_dir(incoming)?)
}

fn remove(path: &Path) -> Result<(), SnapshotError> {
    files::remove_directory(path).map_err(failed("remove", path))
}

/// The pieces of a spooled snapshot.
struct Pieces {
    file: BufReader<File>,
    path: PathBuf,
    /// Opens what it has sealed.
    db: Db,
}

impl Pieces {
    fn next(&mut self) -> Result<Option<Bytes>, SnapshotError> {
        let mut length = [0; 4];
        match self.file.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(failed("read", &self.path)(error)),
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > 2 * PIECE_BYTES_MAX {
            return Err(damaged(format!("a piece of {length} bytes")));
        }
        let mut sealed = vec![0; length];
        self.file
            .read_exact(&mut sealed)
            .map_err(failed("read", &self.path))?;
        let opened = self.db.sealer().open(CONTEXT, 0, &sealed);
        Ok(Some(Bytes::from(opened.map_err(damaged)?.body)))
    }
}

/// Fills an empty database from the pieces; returns the place in the log that it stands for.
fn build(pieces: &mut Pieces, db: Arc<Db>) -> Result<u64, SnapshotError> {
    let first = pieces.next()?.ok_or_else(|| damaged("it is empty"))?;
    let metadata = raftpb::SnapshotMetadata::decode(first).map_err(damaged)?;
    let (index, term) = (metadata.index(), metadata.term());
    let store = Store::open(db.clone())?;
    let mut parts = Parts::default();
    let mut runs = 0;
    while let Some(piece) = pieces.next()? {
        let objects = parts.take(&piece)?;
        let bytes = objects
            .iter()
            .map(|(table, payload)| request::change_bytes(*table, payload.len()))
            .sum();
        let changes = objects
            .iter()
            .map(|(table, payload)| (Action::Create, *table, payload));
        let data = request::encode(0, bytes, changes);
        runs += 1;
        if runs >= index {
            return Err(damaged("it has more pieces than the log had entries"));
        }
        store.apply(vec![CommittedEntry {
            index: runs,
            term,
            payload: Payload::Request(data),
        }])?;
    }
    let cluster = parts.finish()?;
    if store.apply_errors().count() > 0 {
        return Err(damaged("its objects contradict each other"));
    }
    let membership = Membership {
        conf_state: metadata.conf_state.unwrap_or_default(),
        members: cluster.members,
        removed: cluster.removed,
    };
    store.apply(vec![CommittedEntry {
        index,
        term,
        payload: Payload::Membership(membership),
    }])?;
    store.close();
    let mut changes = db.changes();
    changes.put_record(meta::INSTALLING, &Applied { index, term })?;
    changes.commit_synced()?;
    Ok(index)
}

mod parts;
#[cfg(test)]
mod tests;
