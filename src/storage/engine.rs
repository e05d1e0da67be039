//! The database of the state machine: RocksDB with the families of this product.
//!
//! [`Db`] is what the store works with: consistent views, atomic batches, range scans. It keeps its own
//! write-ahead log on but unsynced: after a crash of the process nothing is lost; after a power loss it
//! shows an earlier, consistent moment, and the raft log brings it forward. [`Db::sync_wal`] makes what
//! was written so far durable, which must happen before the raft log forgets it.
//!
//! All families are flushed together, so that even a damaged manifest cannot leave one family newer than
//! another. Payloads are sealed by the caller with [`Db::sealer`] before they get here, so RocksDB's own
//! compression is on for index rows only.
//!
//! This room knows neither tables nor raft. It never writes a payload it was given in any other form.

use super::codec::{self, Record};
use super::seal::{DekRing, IndexHasher, SealError, Sealer, new_salt};
use super::state_dir;
use rocksdb::{
    Cache, ColumnFamily, CompactOptions, DB, DBRawIterator, WriteBatch, WriteOptions,
    checkpoint::Checkpoint,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod error;
mod options;
mod view;
pub use error::DbError;
use error::{ADVICE_DAMAGED, engine_error};
pub use options::DbOptions;
use options::{database_options, families, new_cache, range_options};
pub use view::{Row, Rows, View};

#[cfg(test)]
mod tests;

/// Keys of the `meta` family.
pub mod meta {
    /// [`super::Applied`]: the last applied entry.
    pub const APPLIED: &[u8] = b"applied";
    /// Members, removed raft IDs and the library's configuration at the applied index.
    pub const MEMBERSHIP: &[u8] = b"membership";
    /// [`super::Applied`] of a snapshot whose installation has not reached the raft log yet (settled
    /// S9); absent otherwise.
    pub const INSTALLING: &[u8] = b"installing";
    /// [`super::Schema`]: how rows are laid out.
    pub const SCHEMA: &[u8] = b"schema";
    /// Random public salt of this database, raw bytes.
    pub const SALT: &[u8] = b"salt";
    /// The sealed key of index hashes (settled S3).
    pub const INDEX_KEY: &[u8] = b"index-key";
}

/// Layout of rows and indexes that this program writes; raised with every incompatible change.
const SCHEMA_VERSION: u32 = 1;

/// A column family (settled S1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Local records: applied index, membership, schema. Keys in [`meta`].
    Meta,
    /// Rows of all tables but tasks.
    Obj,
    /// Rows of tasks.
    Task,
    /// Unique index entries.
    Uniq,
    /// All other index entries and task digests.
    Idx,
}

impl Family {
    pub const ALL: [Family; 5] = [
        Family::Meta,
        Family::Obj,
        Family::Task,
        Family::Uniq,
        Family::Idx,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Family::Meta => "meta",
            Family::Obj => "obj",
            Family::Task => "task",
            Family::Uniq => "uniq",
            Family::Idx => "idx",
        }
    }
}

/// The last entry whose effect the database holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Applied {
    pub index: u64,
    pub term: u64,
}

impl Record for Applied {
    const KIND: &'static str = "applied index";
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 32;
}

/// What wrote the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    pub version: u32,
    /// Release that created the database.
    pub created_by: String,
}

impl Record for Schema {
    const KIND: &'static str = "schema";
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 256;
}

/// The open database. Shared by reference; all methods may be called from any thread, but only the
/// applier writes.
pub struct Db {
    db: DB,
    path: PathBuf,
    read_only: bool,
    sealer: Arc<Sealer>,
    hasher: Arc<IndexHasher>,
    schema: Schema,
    /// Shared by all families; kept to report its use.
    cache: Cache,
}

impl Db {
    /// Creates an empty database in `path`, which must not exist or be empty, durably.
    pub fn create(path: &Path, ring: &DekRing, options: &DbOptions) -> Result<Db, DbError> {
        state_dir::create_dir(path)?;
        let cache = new_cache(path, options)?;
        let mut engine_options = database_options(path, options)?;
        engine_options.create_if_missing(true);
        engine_options.create_missing_column_families(true);
        engine_options.set_error_if_exists(true);
        let db = DB::open_cf_descriptors(&engine_options, path, families(options, &cache))
            .map_err(|error| engine_error("create", path, error))?;

        let salt = new_salt().map_err(|error| sealed_error(path, meta::SALT, error))?;
        let sealer = rows_sealer(path, ring, &salt)?;
        let index_key = IndexHasher::generate_key()
            .map_err(|error| sealed_error(path, meta::INDEX_KEY, error))?;
        let sealed_key = sealer
            .seal(&[b"meta", meta::INDEX_KEY], b"", &index_key[..])
            .map_err(|error| sealed_error(path, meta::INDEX_KEY, error))?;
        let schema = Schema {
            version: SCHEMA_VERSION,
            created_by: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let db = Db {
            db,
            path: path.to_owned(),
            read_only: false,
            sealer: Arc::new(sealer),
            hasher: Arc::new(IndexHasher::new(&index_key)),
            schema,
            cache,
        };
        let mut first = db.changes();
        first.put(Family::Meta, meta::SALT, &salt);
        first.put(Family::Meta, meta::INDEX_KEY, &sealed_key);
        first.put_record(meta::SCHEMA, &db.schema)?;
        first.put_record(meta::APPLIED, &Applied::default())?;
        first.commit_synced()?;
        Ok(db)
    }

    /// Opens an existing database for reading and writing.
    pub fn open(path: &Path, ring: &DekRing, options: &DbOptions) -> Result<Db, DbError> {
        let cache = new_cache(path, options)?;
        let db = DB::open_cf_descriptors(
            &database_options(path, options)?,
            path,
            families(options, &cache),
        )
        .map_err(|error| engine_error("open", path, error))?;
        Db::opened(db, path, ring, cache, false)
    }

    /// Opens an existing database for reading. Changes nothing in its directory: the engine's own
    /// messages go to `messages`, a directory that the caller removes. Works on a read-only mount.
    pub fn open_read_only(
        path: &Path,
        ring: &DekRing,
        options: &DbOptions,
        messages: &Path,
    ) -> Result<Db, DbError> {
        let cache = new_cache(path, options)?;
        let mut engine_options = database_options(path, options)?;
        engine_options.set_db_log_dir(messages);
        let db = DB::open_cf_descriptors_read_only(
            &engine_options,
            path,
            families(options, &cache),
            false,
        )
        .map_err(|error| engine_error("open", path, error))?;
        Db::opened(db, path, ring, cache, true)
    }

    fn opened(
        db: DB,
        path: &Path,
        ring: &DekRing,
        cache: Cache,
        read_only: bool,
    ) -> Result<Db, DbError> {
        let raw = RawMeta { db: &db, path };
        let schema: Schema = raw.record(meta::SCHEMA)?;
        if schema.version != SCHEMA_VERSION {
            return Err(DbError::Unusable {
                path: path.display().to_string(),
                reason: format!(
                    "has layout {}, this release knows layout {SCHEMA_VERSION}",
                    schema.version
                ),
                advice: "start the release that wrote it",
            });
        }
        let salt = raw.bytes(meta::SALT)?;
        let sealer = rows_sealer(path, ring, &salt)?;
        let sealed_key = raw.bytes(meta::INDEX_KEY)?;
        let opened = sealer
            .open(&[b"meta", meta::INDEX_KEY], 0, &sealed_key)
            .map_err(|error| sealed_error(path, meta::INDEX_KEY, error))?;
        let index_key: [u8; IndexHasher::KEY_BYTES] =
            opened.body.as_slice().try_into().map_err(|_| {
                sealed_error(
                    path,
                    meta::INDEX_KEY,
                    SealError::Format("wrong length".into()),
                )
            })?;
        Ok(Db {
            db,
            path: path.to_owned(),
            read_only,
            sealer: Arc::new(sealer),
            hasher: Arc::new(IndexHasher::new(&index_key)),
            schema,
            cache,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Seals rows of this database.
    pub fn sealer(&self) -> &Arc<Sealer> {
        &self.sealer
    }

    /// Hashes what enters index keys of this database.
    pub fn hasher(&self) -> &Arc<IndexHasher> {
        &self.hasher
    }

    /// Seals from now on with the new current key. The key of index hashes is sealed anew, durably;
    /// rows are the store's to rewrite.
    pub fn set_keys(&self, ring: DekRing) -> Result<(), DbError> {
        let path = &self.path;
        let sealed = self.required(meta::INDEX_KEY)?;
        let context: [&[u8]; 2] = [b"meta", meta::INDEX_KEY];
        let key = self
            .sealer
            .open(&context, 0, &sealed)
            .and_then(|opened| {
                self.sealer.set_keys(ring)?;
                self.sealer.seal(&context, b"", &opened.body)
            })
            .map_err(|error| sealed_error(path, meta::INDEX_KEY, error))?;
        let mut changes = self.changes();
        changes.put(Family::Meta, meta::INDEX_KEY, &key);
        changes.commit_synced()
    }

    /// Writes all unflushed changes into table files, and merges the table files, so that no file holds
    /// what has been replaced. Old write-ahead logs go as well. Takes long with many rows.
    pub fn drop_replaced(&self) -> Result<(), DbError> {
        self.flush()?;
        let mut options = CompactOptions::default();
        // Ordinary work of the engine may go on beside it.
        options.set_exclusive_manual_compaction(false);
        for family in [Family::Meta, Family::Obj, Family::Task, Family::Idx] {
            let handle = self.family(family)?;
            self.db
                .compact_range_cf_opt(handle, None::<&[u8]>, None::<&[u8]>, &options);
        }
        Ok(())
    }

    /// The value of a key in the latest state.
    pub fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, DbError> {
        let family = self.family(family)?;
        self.db
            .get_cf(family, key)
            .map_err(|error| engine_error("read from", &self.path, error))
    }

    /// A local record of the latest state.
    pub fn record<R: Record>(&self, key: &[u8]) -> Result<Option<R>, DbError> {
        self.get(Family::Meta, key)?
            .map(|bytes| decode_record(&self.path, key, &bytes))
            .transpose()
    }

    /// The last applied entry.
    pub fn applied(&self) -> Result<Applied, DbError> {
        decode_record(&self.path, meta::APPLIED, &self.required(meta::APPLIED)?)
    }

    fn required(&self, key: &[u8]) -> Result<Vec<u8>, DbError> {
        RawMeta {
            db: &self.db,
            path: &self.path,
        }
        .bytes(key)
    }

    /// A consistent view of this moment. It holds back the deletion of replaced files: keep it briefly.
    pub fn view(self: &Arc<Self>) -> View {
        View::new(self.clone())
    }

    /// Starts a batch of changes.
    pub fn changes(&self) -> Changes<'_> {
        Changes {
            db: self,
            batch: WriteBatch::default(),
            missing: None,
        }
    }

    /// Makes everything written so far durable.
    pub fn sync_wal(&self) -> Result<(), DbError> {
        fail::fail_point!("db::sync_wal", |_| Err(DbError::Files(
            "injected failure of a database sync".into()
        )));
        self.db
            .flush_wal(true)
            .map_err(|error| engine_error("sync", &self.path, error))
    }

    /// Writes all unflushed changes of all families to table files.
    pub fn flush(&self) -> Result<(), DbError> {
        // A flush by hand takes one family only; `meta`, which says what is applied, comes last.
        for family in Family::ALL.into_iter().rev() {
            let handle = self.family(family)?;
            self.db
                .flush_cf(handle)
                .map_err(|error| engine_error("flush", &self.path, error))?;
        }
        Ok(())
    }

    /// Writes a copy of the present state into the new directory `target`, with hard links where the
    /// file system allows it.
    pub fn checkpoint(&self, target: &Path) -> Result<(), DbError> {
        Checkpoint::new(&self.db)
            .and_then(|checkpoint| checkpoint.create_checkpoint(target))
            .map_err(|error| engine_error("copy", &self.path, error))
    }

    /// A number that RocksDB reports about a family, such as `rocksdb.estimate-num-keys`.
    pub fn property(&self, family: Family, name: &str) -> Result<Option<u64>, DbError> {
        let family = self.family(family)?;
        self.db
            .property_int_value_cf(family, name)
            .map_err(|error| engine_error("ask", &self.path, error))
    }

    /// Bytes of the block cache in use.
    pub fn block_cache_bytes(&self) -> usize {
        self.cache.get_usage()
    }

    fn family(&self, family: Family) -> Result<&ColumnFamily, DbError> {
        self.db
            .cf_handle(family.name())
            .ok_or_else(|| DbError::Unusable {
                path: self.path.display().to_string(),
                reason: format!("has no family {}", family.name()),
                advice: ADVICE_DAMAGED,
            })
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        if !self.read_only
            && let Err(error) = self.sync_wal()
        {
            tracing::warn!(%error, "the database was closed without a last sync");
        }
        self.db.cancel_all_background_work(true);
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Db({})", self.path.display())
    }
}

/// Changes that happen together or not at all.
pub struct Changes<'a> {
    db: &'a Db,
    batch: WriteBatch,
    /// First family that could not be found; reported by the commit.
    missing: Option<DbError>,
}

impl Changes<'_> {
    pub fn put(&mut self, family: Family, key: &[u8], value: &[u8]) {
        match self.db.family(family) {
            Ok(family) => self.batch.put_cf(family, key, value),
            Err(error) => self.missing = Some(error),
        }
    }

    pub fn delete(&mut self, family: Family, key: &[u8]) {
        match self.db.family(family) {
            Ok(family) => self.batch.delete_cf(family, key),
            Err(error) => self.missing = Some(error),
        }
    }

    /// Puts a local record into `meta`.
    pub fn put_record<R: Record>(&mut self, key: &[u8], record: &R) -> Result<(), DbError> {
        let bytes = codec::encode(record).map_err(|error| DbError::Record {
            record: String::from_utf8_lossy(key).into_owned(),
            path: self.db.path.display().to_string(),
            error,
        })?;
        self.put(Family::Meta, key, &bytes);
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Number of changes so far.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Bytes of the changes so far.
    pub fn size_bytes(&self) -> usize {
        self.batch.size_in_bytes()
    }

    /// Writes the batch: it survives the end of the process at once, a power loss after the next sync.
    pub fn commit(self) -> Result<(), DbError> {
        self.write(false)
    }

    /// Writes the batch, and makes it and everything before it durable.
    pub fn commit_synced(self) -> Result<(), DbError> {
        self.write(true)
    }

    fn write(self, sync: bool) -> Result<(), DbError> {
        if let Some(error) = self.missing {
            return Err(error);
        }
        fail::fail_point!("db::write", |_| Err(DbError::Files(
            "injected failure of a database write".into()
        )));
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        self.db
            .db
            .write_opt(self.batch, &options)
            .map_err(|error| engine_error("write to", &self.db.path, error))
    }
}

/// Reads `meta` of a database that is being opened.
struct RawMeta<'a> {
    db: &'a DB,
    path: &'a Path,
}

impl RawMeta<'_> {
    fn bytes(&self, key: &[u8]) -> Result<Vec<u8>, DbError> {
        let missing = || DbError::Unusable {
            path: self.path.display().to_string(),
            reason: format!("has no record {}", String::from_utf8_lossy(key)),
            advice: ADVICE_DAMAGED,
        };
        let family = self.db.cf_handle(Family::Meta.name()).ok_or_else(missing)?;
        self.db
            .get_cf(family, key)
            .map_err(|error| engine_error("read from", self.path, error))?
            .ok_or_else(missing)
    }

    fn record<R: Record>(&self, key: &[u8]) -> Result<R, DbError> {
        decode_record(self.path, key, &self.bytes(key)?)
    }
}

fn decode_record<R: Record>(path: &Path, key: &[u8], bytes: &[u8]) -> Result<R, DbError> {
    codec::decode(bytes).map_err(|error| DbError::Record {
        record: String::from_utf8_lossy(key).into_owned(),
        path: path.display().to_string(),
        error,
    })
}

fn rows_sealer(path: &Path, ring: &DekRing, salt: &[u8]) -> Result<Sealer, DbError> {
    Sealer::new(ring.clone(), salt, "rows").map_err(|error| sealed_error(path, meta::SALT, error))
}

fn sealed_error(path: &Path, key: &[u8], error: SealError) -> DbError {
    DbError::Sealed {
        record: String::from_utf8_lossy(key).into_owned(),
        path: path.display().to_string(),
        error,
    }
}

/// Turns the engine's iterator into rows, or its error.
fn rows<'a>(db: &'a Db, iterator: DBRawIterator<'a>) -> Rows<'a> {
    Rows::new(db.path(), iterator)
}
