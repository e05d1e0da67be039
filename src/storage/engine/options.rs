//! How RocksDB is set up: budgets, families, read options (spec 01 section 10, settled S1, S2, S5).

use super::Family;
use super::error::{DbError, engine_error};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType, DBRecoveryMode, Env,
    LogLevel, Options, ReadOptions,
};
use std::ops::Bound;
use std::path::Path;

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

pub(super) fn new_cache(path: &Path, options: &DbOptions) -> Result<Cache, DbError> {
    Cache::new_lru_cache(options.block_cache_bytes)
        .map_err(|error| engine_error("make the block cache of", path, error))
}

/// Disk space that a manifest takes at a time; the engine's default of 4 MiB is for large databases.
const MANIFEST_STEP_BYTES: usize = 64 << 10;

/// Options of the whole database (spec 01 section 10).
pub(super) fn database_options(path: &Path, options: &DbOptions) -> Result<Options, DbError> {
    let mut db = tracking_options(path)?;
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
    Ok(db)
}

/// Default options with the one that no call sets: the manifest lists the write-ahead logs that were
/// synced, and an opening that misses one, or its end, fails. Without it the engine would go on as if
/// what stood there had never been written.
const TRACKING: &str = "\
[Version]
  rocksdb_version=7.8.3
  options_file_version=1.1
[DBOptions]
  track_and_verify_wals_in_manifest=true
[CFOptions \"default\"]
";

/// Has the engine read [`TRACKING`] from a file, the only way to set that option.
fn tracking_options(path: &Path) -> Result<Options, DbError> {
    let failed = |error: std::io::Error| {
        DbError::Files(format!(
            "cannot prepare the options of the database {}: {error}; is there space for temporary files?",
            path.display()
        ))
    };
    let dir = tempfile::tempdir().map_err(failed)?;
    std::fs::write(dir.path().join("OPTIONS-000001"), TRACKING).map_err(failed)?;
    let read = |error| engine_error("set the options of", path, error);
    let env = Env::new().map_err(read)?;
    let cache = Cache::new_lru_cache(0).map_err(read)?;
    let (options, _) = Options::load_latest(dir.path(), env, true, cache).map_err(read)?;
    Ok(options)
}

pub(super) fn families(options: &DbOptions, cache: &Cache) -> Vec<ColumnFamilyDescriptor> {
    let mut descriptors = vec![ColumnFamilyDescriptor::new(
        rocksdb::DEFAULT_COLUMN_FAMILY_NAME,
        family_options(Family::Meta, options, cache),
    )];
    descriptors.extend(Family::ALL.map(|family| {
        ColumnFamilyDescriptor::new(family.name(), family_options(family, options, cache))
    }));
    descriptors
}

/// Share of a write buffer for the filter of its keys; ten bits each for rows of half a kilobyte.
const MEMTABLE_FILTER_RATIO: f64 = 0.01;

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
    // Most look-ups of a transaction are for what must not exist yet: a filter answers those without a
    // walk through the buffer.
    cf.set_memtable_prefix_bloom_ratio(MEMTABLE_FILTER_RATIO);
    cf.set_memtable_whole_key_filtering(true);
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
pub(super) fn range_options(from: Bound<&[u8]>, until: Bound<&[u8]>) -> ReadOptions {
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
