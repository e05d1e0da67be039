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

use super::codec::{self, CodecError, Record};
use super::seal::{DekRing, IndexHasher, SealError, Sealer, new_salt};
use super::state_dir::{self, StateDirError};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType,
    DBRawIterator, DBRecoveryMode, ErrorKind, LogLevel, Options, ReadOptions, WriteBatch,
    WriteOptions, checkpoint::Checkpoint,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod view;
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

/// Ceilings of memory and disk use; all are filled on demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DbOptions {
    /// Unflushed writes of all families together.
    pub write_buffer_bytes: usize,
    /// Blocks read from table files, with their indexes and filters.
    pub block_cache_bytes: usize,
    /// Unsynced or unflushed write-ahead log before a flush is forced.
    pub wal_bytes: u64,
}

impl Default for DbOptions {
    /// The budgets of settled S2 and the log size of spec 01 section 10.
    fn default() -> DbOptions {
        DbOptions {
            write_buffer_bytes: 64 << 20,
            block_cache_bytes: 64 << 20,
            wal_bytes: 64 << 20,
        }
    }
}

/// Why the database could not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DbError {
    #[error("cannot {attempt} the database {path}: {reason}; {advice}")]
    Engine {
        attempt: String,
        path: String,
        reason: String,
        /// What to do next.
        advice: &'static str,
        /// The file system is full: reads go on, and writes will once there is space.
        full: bool,
    },
    #[error("cannot read the record {record} of the database {path}: {error}")]
    Record {
        record: String,
        path: String,
        error: CodecError,
    },
    #[error("cannot open the record {record} of the database {path}: {error}")]
    Sealed {
        record: String,
        path: String,
        error: SealError,
    },
    #[error("the database {path} {reason}; {advice}")]
    Unusable {
        path: String,
        reason: String,
        advice: &'static str,
    },
    #[error("{0}")]
    Files(String),
}

impl DbError {
    /// True if nothing but missing disk space is in the way.
    pub fn is_full(&self) -> bool {
        matches!(self, DbError::Engine { full: true, .. })
    }
}

impl From<StateDirError> for DbError {
    fn from(error: StateDirError) -> DbError {
        DbError::Files(error.to_string())
    }
}

const ADVICE_DAMAGED: &str = "its files are damaged: look at what is left with `swarm-db inspect`, then restore \
     a backup or let this member join its group again";
const ADVICE_FULL: &str = "free space on the file system";
const ADVICE_IO: &str = "check the disk and the file permissions";
const ADVICE_RETRY: &str = "try again";

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
        let mut engine_options = database_options(options);
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
        let db =
            DB::open_cf_descriptors(&database_options(options), path, families(options, &cache))
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
        let mut engine_options = database_options(options);
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
        // With atomic flush, flushing one family flushes all of them.
        let family = self.family(Family::Meta)?;
        self.db
            .flush_cf(family)
            .map_err(|error| engine_error("flush", &self.path, error))
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

/// Adds what was attempted, on what, and what to do next.
fn engine_error(attempt: &str, path: &Path, error: rocksdb::Error) -> DbError {
    let full = error.as_ref().contains("No space left");
    let advice = match error.kind() {
        _ if full => ADVICE_FULL,
        ErrorKind::Corruption | ErrorKind::InvalidArgument | ErrorKind::NotSupported => {
            ADVICE_DAMAGED
        }
        ErrorKind::IOError => ADVICE_IO,
        _ => ADVICE_RETRY,
    };
    DbError::Engine {
        attempt: attempt.to_owned(),
        path: path.display().to_string(),
        reason: error.into_string(),
        advice,
        full,
    }
}

fn new_cache(path: &Path, options: &DbOptions) -> Result<Cache, DbError> {
    Cache::new_lru_cache(options.block_cache_bytes)
        .map_err(|error| engine_error("make the block cache of", path, error))
}

/// Disk space that a manifest takes at a time; the engine's default of 4 MiB is for large databases.
const MANIFEST_STEP_BYTES: usize = 64 << 10;

/// Options of the whole database (spec 01 section 10).
fn database_options(options: &DbOptions) -> Options {
    let mut db = Options::default();
    db.set_paranoid_checks(true);
    db.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    db.set_max_total_wal_size(options.wal_bytes);
    db.set_db_write_buffer_size(options.write_buffer_bytes);
    db.set_atomic_flush(true);
    db.set_max_background_jobs(2);
    db.set_max_open_files(256);
    // Files of a dead manager must not live on in its children.
    db.set_is_fd_close_on_exec(true);
    db.set_keep_log_file_num(3);
    db.set_max_log_file_size(4 << 20);
    db.set_log_level(LogLevel::Info);
    db.set_stats_dump_period_sec(0);
    db.set_stats_persist_period_sec(0);
    // A manifest that is rewritten often stays small; the default is 1 GiB.
    db.set_max_manifest_file_size(1 << 20);
    db.set_manifest_preallocation_size(MANIFEST_STEP_BYTES);
    db
}

fn families(options: &DbOptions, cache: &Cache) -> Vec<ColumnFamilyDescriptor> {
    let mut descriptors = vec![ColumnFamilyDescriptor::new(
        rocksdb::DEFAULT_COLUMN_FAMILY_NAME,
        family_options(Family::Meta, options, cache),
    )];
    descriptors.extend(Family::ALL.map(|family| {
        ColumnFamilyDescriptor::new(family.name(), family_options(family, options, cache))
    }));
    descriptors
}

fn family_options(family: Family, options: &DbOptions, cache: &Cache) -> Options {
    let mut cf = Options::default();
    let buffer_bytes = match family {
        Family::Meta => 1 << 20,
        // An eighth of all unflushed writes: 8 MiB by default (spec 01 section 10). The engine reserves
        // slightly more than this on the disk for its own log, idle or not.
        _ => (options.write_buffer_bytes / 8).max(1 << 20),
    };
    cf.set_write_buffer_size(buffer_bytes);
    cf.set_max_write_buffer_number(3);
    // Memory is taken in pieces of this size: small, so that an idle manager stays small.
    cf.set_arena_block_size(64 << 10);
    cf.set_level_compaction_dynamic_level_bytes(true);
    cf.set_target_file_size_base(8 << 20);
    cf.set_max_bytes_for_level_base(64 << 20);
    match family {
        // Small records and sealed payloads: nothing to gain.
        Family::Meta | Family::Obj | Family::Task => {
            cf.set_compression_type(DBCompressionType::None);
        }
        Family::Uniq | Family::Idx => {
            cf.set_compression_type(DBCompressionType::Lz4);
            cf.set_bottommost_compression_type(DBCompressionType::Zstd);
        }
    }
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_bloom_filter(10.0, false);
    table.set_whole_key_filtering(true);
    table.set_format_version(5);
    cf.set_block_based_table_factory(&table);
    cf
}

/// Read options for one range of keys.
fn range_options(from: Bound<&[u8]>, until: Bound<&[u8]>) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_verify_checksums(true);
    match from {
        Bound::Included(key) => options.set_iterate_lower_bound(key),
        Bound::Excluded(key) => options.set_iterate_lower_bound(after(key)),
        Bound::Unbounded => {}
    }
    match until {
        Bound::Included(key) => options.set_iterate_upper_bound(after(key)),
        Bound::Excluded(key) => options.set_iterate_upper_bound(key),
        Bound::Unbounded => {}
    }
    options
}

/// The smallest key greater than `key`.
fn after(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

/// Turns the engine's iterator into rows, or its error.
fn rows<'a>(db: &'a Db, iterator: DBRawIterator<'a>) -> Rows<'a> {
    Rows::new(db.path(), iterator)
}
