//! What this node remembers of its tasks across a restart: `worker/tasks`, a small RocksDB.
//!
//! | Family | Key | Value |
//! |---|---|---|
//! | `meta` | `version`, `salt` | `1`, salt of the row keys |
//! | `task` | task ID | sealed protobuf `Task` without status |
//! | `status` | task ID | sealed protobuf `TaskStatus` |
//! | `assigned` | task ID | `0xFF` |
//!
//! Guarantees: the changes of one assignment message are one synced write, done before anybody acts on
//! them. Statuses are written synced, all that wait in one write, and handed to the reporter afterwards;
//! if the disk refuses them, they are handed on all the same and written when it works again, since the
//! managers must not go without news because a worker's disk is full. Task IDs are the only thing readable
//! on disk. This database is a memory, not a record: if it cannot be read, the managers know everything
//! in it.
//!
//! One plain thread does all writing, since each write waits for the disk.

use super::key::WorkerKey;
use crate::api::types::{Task, TaskStatus};
use crate::storage::seal::{SealError, Sealer, new_salt};
use parking_lot::{Condvar, Mutex};
use prost::Message as _;
use rocksdb::{ColumnFamilyDescriptor, DB, IteratorMode, Options, WriteBatch, WriteOptions};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

#[cfg(test)]
mod tests;

const META: &str = "meta";
const TASK: &str = "task";
const STATUS: &str = "status";
const ASSIGNED: &str = "assigned";
const VERSION: &[u8] = b"1";
const ASSIGNED_MARK: &[u8] = &[0xff];

/// Memory for rows not yet in files: four families, few and small rows.
const WRITE_BUFFER_BYTES: usize = 1 << 20;
/// Write-ahead log kept at most before memory is flushed, 4 MiB.
const WAL_BYTES_MAX: u64 = 4 << 20;
/// Disk space that the manifest takes at a time; it stays small.
const MANIFEST_STEP_BYTES: usize = 64 << 10;
/// The database is compacted when more rows than this, and more than there are tasks, were deleted.
const COMPACT_AFTER_DELETES: usize = 1000;
/// Pause before statuses that the disk refused are written again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Changes waiting for the thread; assignment messages come one at a time, so few ever wait.
const CHANGES_MAX: usize = 64;

/// The task database could not be opened, read or written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DbError {
    #[error("cannot {attempt} the task database {}: {reason}", path.display())]
    Engine {
        attempt: &'static str,
        path: PathBuf,
        reason: String,
    },
    /// Not readable: damaged, or sealed with another key.
    #[error("the {family} row of task {id} cannot be read: {reason}")]
    Row {
        family: &'static str,
        id: String,
        reason: String,
    },
    #[error("the task database {} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("the task database has format {found:?}, this program reads \"1\"")]
    Version { found: String },
    #[error("the task database is closed")]
    Closed,
    #[error("the task database is busy: {CHANGES_MAX} changes wait for the disk")]
    Busy,
    #[error("task database: {0}")]
    Seal(#[from] SealError),
}

impl DbError {
    /// What is on disk cannot be read, now or ever: it is worthless to us.
    pub fn is_damage(&self) -> bool {
        matches!(self, DbError::Damaged { .. } | DbError::Row { .. })
    }
}

/// The effect of one assignment message.
#[derive(Debug, Clone, Default)]
pub struct Assignments {
    /// New and changed tasks. The status of a new task is stored too, that of a known one is ours.
    pub put: Vec<Arc<Task>>,
    /// Tasks that are no longer assigned. They stay known until they are removed.
    pub unassign: Vec<String>,
}

/// A task as it was left by an earlier run, with its last status.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredTask {
    pub task: Task,
    /// Whether it was still assigned; if not, its removal was under way.
    pub assigned: bool,
}

enum Change {
    Assign(Assignments),
    /// Everything about these tasks.
    Delete(Vec<String>),
}

type Reply = oneshot::Sender<Result<(), DbError>>;

#[derive(Default)]
struct Queue {
    changes: VecDeque<(Change, Reply)>,
    /// Newest status per task that waits for its write.
    statuses: BTreeMap<String, TaskStatus>,
    closing: bool,
}

/// Called with each status once it is written (or the disk has refused it).
pub type OnStatus = Arc<dyn Fn(&str, &TaskStatus) + Send + Sync>;

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

/// The open task database. Dropping it writes what waits and closes it.
pub struct TaskDb {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl TaskDb {
    /// Like [`TaskDb::open`], but a database that cannot be read is set aside, beside the new one with
    /// the ending `.damaged`, and an empty one takes its place: the managers send everything again, and
    /// what still runs is found by the executor.
    pub fn open_or_replace(
        path: &Path,
        key: &WorkerKey,
        on_status: OnStatus,
    ) -> Result<(TaskDb, Vec<StoredTask>), DbError> {
        match TaskDb::open(path, key, on_status.clone()) {
            Err(error) if error.is_damage() => {
                let aside = path.with_extension("damaged");
                tracing::error!(%error, set_aside = %aside.display(), "starting with an empty task database");
                crate::storage::files::remove_directory(&aside)
                    .and_then(|()| std::fs::rename(path, &aside))
                    .map_err(|error| engine_error("set aside", path, &error))?;
                TaskDb::open(path, key, on_status)
            }
            opened => opened,
        }
    }

    /// Opens or creates the database and reads all of it.
    pub fn open(
        path: &Path,
        key: &WorkerKey,
        on_status: OnStatus,
    ) -> Result<(TaskDb, Vec<StoredTask>), DbError> {
        let disk = Disk::open(path, key)?;
        let stored = disk.read_all()?;
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
        });
        let writer = Writer {
            known: stored.iter().map(|stored| stored.task.id.clone()).collect(),
            deletes: 0,
            disk,
            shared: shared.clone(),
            on_status,
        };
        let thread = std::thread::Builder::new()
            .name("task-db".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| engine_error("start the thread of", path, &error))?;
        let db = TaskDb {
            shared,
            thread: Some(thread),
        };
        Ok((db, stored))
    }

    /// Stores the effect of an assignment message. Once this returns, it is on the disk.
    pub async fn assign(&self, assignments: Assignments) -> Result<(), DbError> {
        self.change(Change::Assign(assignments)).await
    }

    /// Forgets tasks altogether.
    pub async fn delete(&self, ids: Vec<String>) -> Result<(), DbError> {
        self.change(Change::Delete(ids)).await
    }

    /// Stores a status soon. One for a task that is not known is dropped.
    pub fn put_status(&self, id: &str, status: TaskStatus) {
        let mut queue = self.shared.queue.lock();
        if queue.closing {
            return;
        }
        queue.statuses.insert(id.to_owned(), status);
        self.shared.wake.notify_one();
    }

    async fn change(&self, change: Change) -> Result<(), DbError> {
        let (reply, done) = oneshot::channel();
        {
            let mut queue = self.shared.queue.lock();
            if queue.closing {
                return Err(DbError::Closed);
            }
            if queue.changes.len() >= CHANGES_MAX {
                return Err(DbError::Busy);
            }
            queue.changes.push_back((change, reply));
            self.shared.wake.notify_one();
        }
        done.await.map_err(|_| DbError::Closed)?
    }
}

impl Drop for TaskDb {
    fn drop(&mut self) {
        self.shared.queue.lock().closing = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the task database panicked");
        }
    }
}

/// The thread's side.
struct Writer {
    disk: Disk,
    shared: Arc<Shared>,
    on_status: OnStatus,
    known: HashSet<String>,
    /// Tasks deleted since the last compaction.
    deletes: usize,
}

impl Writer {
    fn run(mut self) {
        while let Some((changes, statuses)) = self.next_work() {
            for (change, reply) in changes {
                let result = self.apply(change);
                // Whoever asked may have been cancelled; the change stands all the same.
                let _ = reply.send(result);
            }
            self.write_statuses(statuses);
            self.compact_if_due();
        }
        if let Err(error) = self.disk.db.flush_wal(true) {
            tracing::warn!(%error, "cannot sync the task database on closing");
        }
    }

    /// Waits for work and takes all of it; `None` when closing and everything is done.
    #[allow(clippy::type_complexity)]
    fn next_work(&self) -> Option<(VecDeque<(Change, Reply)>, BTreeMap<String, TaskStatus>)> {
        let mut queue = self.shared.queue.lock();
        while queue.changes.is_empty() && queue.statuses.is_empty() {
            if queue.closing {
                return None;
            }
            self.shared.wake.wait(&mut queue);
        }
        Some((
            std::mem::take(&mut queue.changes),
            std::mem::take(&mut queue.statuses),
        ))
    }

    fn apply(&mut self, change: Change) -> Result<(), DbError> {
        let mut batch = WriteBatch::default();
        match &change {
            Change::Assign(assignments) => {
                for task in &assignments.put {
                    self.disk
                        .put_task(&mut batch, task, !self.known.contains(&task.id))?;
                }
                for id in &assignments.unassign {
                    self.disk.unassign(&mut batch, id)?;
                }
            }
            Change::Delete(ids) => {
                for id in ids {
                    self.disk.delete(&mut batch, id)?;
                }
            }
        }
        self.disk.write(batch)?;
        match change {
            Change::Assign(assignments) => {
                let ids = assignments.put.iter().map(|task| task.id.clone());
                self.known.extend(ids);
            }
            Change::Delete(ids) => {
                self.deletes += ids.len();
                for id in &ids {
                    self.known.remove(id);
                }
            }
        }
        Ok(())
    }

    /// Writes all statuses in one go and hands them on.
    fn write_statuses(&mut self, mut statuses: BTreeMap<String, TaskStatus>) {
        statuses.retain(|id, _| self.known.contains(id));
        if statuses.is_empty() {
            return;
        }
        let mut batch = WriteBatch::default();
        let written = statuses
            .iter()
            .try_for_each(|(id, status)| self.disk.put_status(&mut batch, id, status))
            .and_then(|()| self.disk.write(batch));
        for (id, status) in &statuses {
            (self.on_status)(id, status);
        }
        if let Err(error) = written {
            tracing::warn!(%error, tasks = statuses.len(), "cannot store task statuses; trying again");
            self.put_back(statuses);
        }
    }

    /// Queues refused statuses again, after a pause; newer ones win.
    fn put_back(&mut self, statuses: BTreeMap<String, TaskStatus>) {
        let mut queue = self.shared.queue.lock();
        if queue.closing {
            return;
        }
        if queue.changes.is_empty() {
            self.shared.wake.wait_for(&mut queue, RETRY_PAUSE);
        }
        for (id, status) in statuses {
            queue.statuses.entry(id).or_insert(status);
        }
    }

    fn compact_if_due(&mut self) {
        if self.deletes > COMPACT_AFTER_DELETES.max(self.known.len()) {
            self.disk.compact();
            self.deletes = 0;
        }
    }
}

/// RocksDB and the sealing of rows.
struct Disk {
    db: DB,
    sealer: Sealer,
    path: PathBuf,
}

impl Disk {
    fn open(path: &Path, key: &WorkerKey) -> Result<Disk, DbError> {
        let families = [META, TASK, STATUS, ASSIGNED]
            .map(|name| ColumnFamilyDescriptor::new(name, family_options()));
        let mut options = family_options();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_max_total_wal_size(WAL_BYTES_MAX);
        options.set_max_open_files(64);
        options.set_keep_log_file_num(2);
        options.set_manifest_preallocation_size(MANIFEST_STEP_BYTES);
        options.set_max_background_jobs(2);
        let db = DB::open_cf_descriptors(&options, path, families)
            .map_err(|error| rocks_error("open", path, &error))?;
        let salt = read_or_make_meta(&db, path)?;
        Ok(Disk {
            db,
            sealer: key.row_sealer(&salt)?,
            path: path.to_owned(),
        })
    }

    fn read_all(&self) -> Result<Vec<StoredTask>, DbError> {
        let mut stored = Vec::new();
        let tasks = self.family(TASK)?;
        for row in self.db.iterator_cf(tasks, IteratorMode::Start) {
            let (key, value) = row.map_err(|error| self.error("read", &error))?;
            let id = String::from_utf8_lossy(&key).into_owned();
            let mut task: Task = self.decode(TASK, &id, &value)?;
            task.status = match self.get(STATUS, &id)? {
                Some(value) => Some(self.decode(STATUS, &id, &value)?),
                None => None,
            };
            let assigned = self.get(ASSIGNED, &id)?.is_some();
            stored.push(StoredTask { task, assigned });
        }
        Ok(stored)
    }

    fn put_task(&self, batch: &mut WriteBatch, task: &Task, new: bool) -> Result<(), DbError> {
        let bare = Task {
            status: None,
            ..task.clone()
        };
        self.seal(batch, TASK, &task.id, &bare.encode_to_vec())?;
        if new {
            let status = task.status.clone().unwrap_or_default();
            self.put_status(batch, &task.id, &status)?;
        }
        batch.put_cf(self.family(ASSIGNED)?, &task.id, ASSIGNED_MARK);
        Ok(())
    }

    fn put_status(
        &self,
        batch: &mut WriteBatch,
        id: &str,
        status: &TaskStatus,
    ) -> Result<(), DbError> {
        self.seal(batch, STATUS, id, &status.encode_to_vec())
    }

    fn unassign(&self, batch: &mut WriteBatch, id: &str) -> Result<(), DbError> {
        batch.delete_cf(self.family(ASSIGNED)?, id);
        Ok(())
    }

    fn delete(&self, batch: &mut WriteBatch, id: &str) -> Result<(), DbError> {
        for family in [TASK, STATUS, ASSIGNED] {
            batch.delete_cf(self.family(family)?, id);
        }
        Ok(())
    }

    fn write(&self, batch: WriteBatch) -> Result<(), DbError> {
        let mut options = WriteOptions::default();
        options.set_sync(true);
        self.db
            .write_opt(batch, &options)
            .map_err(|error| self.error("write to", &error))
    }

    fn compact(&self) {
        for name in [TASK, STATUS, ASSIGNED] {
            if let Ok(family) = self.family(name) {
                self.db
                    .compact_range_cf(family, None::<&[u8]>, None::<&[u8]>);
            }
        }
    }

    fn family(&self, name: &'static str) -> Result<&rocksdb::ColumnFamily, DbError> {
        family(&self.db, name, &self.path)
    }

    fn get(&self, family: &'static str, id: &str) -> Result<Option<Vec<u8>>, DbError> {
        self.db
            .get_cf(self.family(family)?, id)
            .map_err(|error| self.error("read", &error))
    }

    fn seal(
        &self,
        batch: &mut WriteBatch,
        family: &'static str,
        id: &str,
        body: &[u8],
    ) -> Result<(), DbError> {
        let sealed = self
            .sealer
            .seal(&[family.as_bytes(), id.as_bytes()], &[], body)?;
        batch.put_cf(self.family(family)?, id, sealed);
        Ok(())
    }

    fn decode<M: prost::Message + Default>(
        &self,
        family: &'static str,
        id: &str,
        sealed: &[u8],
    ) -> Result<M, DbError> {
        let damaged = |reason: String| DbError::Row {
            family,
            id: id.to_owned(),
            reason,
        };
        let opened = self
            .sealer
            .open(&[family.as_bytes(), id.as_bytes()], 0, sealed)
            .map_err(|error| damaged(error.to_string()))?;
        M::decode(opened.body.as_slice()).map_err(|error| damaged(error.to_string()))
    }

    fn error(&self, attempt: &'static str, error: &rocksdb::Error) -> DbError {
        rocks_error(attempt, &self.path, error)
    }
}

fn family<'a>(
    db: &'a DB,
    name: &'static str,
    path: &Path,
) -> Result<&'a rocksdb::ColumnFamily, DbError> {
    db.cf_handle(name)
        .ok_or_else(|| engine_error("find a table of", path, &name))
}

/// Checks the version and returns the salt; a new database gets both.
fn read_or_make_meta(db: &DB, path: &Path) -> Result<Vec<u8>, DbError> {
    let meta = family(db, META, path)?;
    let read = |key: &str| {
        db.get_cf(meta, key)
            .map_err(|error| rocks_error("read", path, &error))
    };
    if let Some(version) = read("version")?
        && version != VERSION
    {
        return Err(DbError::Version {
            found: String::from_utf8_lossy(&version).into_owned(),
        });
    }
    if let Some(salt) = read("salt")? {
        return Ok(salt);
    }
    let salt = new_salt()?.to_vec();
    let mut batch = WriteBatch::default();
    batch.put_cf(meta, "version", VERSION);
    batch.put_cf(meta, "salt", &salt);
    let mut options = WriteOptions::default();
    options.set_sync(true);
    db.write_opt(batch, &options)
        .map_err(|error| rocks_error("write to", path, &error))?;
    Ok(salt)
}

fn family_options() -> Options {
    let mut options = Options::default();
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_write_buffer_number(2);
    options.set_paranoid_checks(true);
    let mut table = rocksdb::BlockBasedOptions::default();
    // Everything is read once, at the start.
    table.disable_cache();
    options.set_block_based_table_factory(&table);
    options
}

fn rocks_error(attempt: &'static str, path: &Path, error: &rocksdb::Error) -> DbError {
    match error.kind() {
        rocksdb::ErrorKind::Corruption => DbError::Damaged {
            path: path.to_owned(),
            reason: error.to_string(),
        },
        _ => engine_error(attempt, path, error),
    }
}

fn engine_error(attempt: &'static str, path: &Path, error: &dyn std::fmt::Display) -> DbError {
    DbError::Engine {
        attempt,
        path: path.to_owned(),
        reason: error.to_string(),
    }
}
