//! Opens database and log of a manager together, and decides whether they may be used.
//!
//! Each engine can lose data in its own way and open as if nothing had happened; only together do they
//! show it. Before raft starts, [`Engines::open`] therefore walks the log's files, compares what both
//! engines and the watermark say, and reads and checks every entry that is not applied yet. What does not
//! fit is refused with the file, the index and the way out. It never panics and never serves what it
//! cannot vouch for.
//!
//! With `accept_log_loss` a manager that is alone can be started on what is left; the damaged files are
//! kept beside it and the loss is reported ([`LogLoss`]).

use super::engine::{Applied, Db, DbError, DbOptions, Family, meta};
use super::log::scan::{self, Scan};
use super::log::{Disk, LogError, LogOptions, Mark, MarkFile, RaftLog};
use super::rows;
use super::seal::DekRing;
use super::snapshot::{self, SnapshotError};
use super::state_dir::{self, Access, FILE_MODE, StateDir, StateDirError};
use judge::{Seen, Verdict, judge};
use raft_engine::env::FileSystem;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod judge;
mod loss;
mod read_only;

pub use judge::Refusal;
pub use loss::LogLoss;
pub use read_only::ReadOnlyEngines;

#[cfg(test)]
mod tests;

/// Text in front of the number in `FORMAT`.
const FORMAT_TEXT: &str = "swarm-manager raft data, format ";
/// How the log engine names files that it keeps for later use when it is closed.
const RECYCLED_SUFFIX: &str = ".raftlog.reserved";
/// Bytes that both engines together reserve and write when they open: a new write-ahead log of 9 MiB, a
/// step of 2 MiB of the raft log, small files.
const OPEN_BYTES_MIN: u64 = 16 << 20;
/// Number of the first database; each installed snapshot takes the next.
const FIRST_NUMBER: u64 = 1;
/// Layout of `raft/` that this program writes.
const FORMAT_VERSION: u32 = 1;
/// Rounds of giving up one thing after another; each kind of loss is met at most once.
const LOSS_ROUNDS_MAX: usize = 8;

/// How the engines are opened.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    pub db: DbOptions,
    pub log: LogOptions,
    /// The cluster this node's certificate names; data of another cluster is refused.
    pub cluster_id: Option<String>,
    /// Start on what is left of a damaged log. Only for a manager that is alone in its group.
    pub accept_log_loss: bool,
}

/// Both engines, ready for use.
pub struct Engines {
    pub db: Arc<Db>,
    pub log: RaftLog,
    /// The last applied entry; raft goes on behind it.
    pub applied: Applied,
    /// What was given up, if `accept_log_loss` had anything to accept.
    pub loss: Option<LogLoss>,
}

/// Why the engines were not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Files(#[from] StateDirError),
    #[error(transparent)]
    Db(#[from] DbError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The engines write when they open, and do not survive a disk that is full then.
    #[error(
        "the raft data in {dir} is not opened: {free_mib} MiB are free on its file system and \
         {needed_mib} MiB are needed; nothing was changed, free some space and start again"
    )]
    NoSpace {
        dir: String,
        free_mib: u64,
        needed_mib: u64,
    },
    #[error("the raft data in {dir} cannot be used: {refusal}")]
    Refused { dir: String, refusal: Refusal },
    /// The error of one part, where it is repeated in a verdict about the whole.
    #[error("{0}")]
    Part(String),
}

impl Engines {
    /// Opens what lies under `raft/`, or creates it. A new log belongs to no member until
    /// [`RaftLog::claim`]. Takes longer the more the log holds that is not applied yet.
    pub fn open(
        dir: &StateDir,
        ring: &DekRing,
        options: &EngineOptions,
    ) -> Result<Engines, OpenError> {
        debug_assert_eq!(dir.access(), Access::Exclusive);
        require_space(dir)?;
        prepare(dir)?;
        remove_recycled(dir)?;
        install_snapshot(dir, ring, options)?;
        let db = match active_database(dir)? {
            Some(path) => Some(Arc::new(open_db(dir, &path, ring, options)?)),
            None => None,
        };
        let mut loss = LogLoss::default();
        if let Some(damage) = scan_log(dir)?.damage {
            let refusal = Refusal::Damage(damage.clone());
            may_lose(dir, db.as_ref(), options, &refusal)?;
            loss.set_aside(&dir.raft_log(), &damage)?;
        }
        let (mark, mark_file) = match MarkFile::open(&dir.raft_mark(), true) {
            Ok(file) => (Ok(file.mark()), Some(file)),
            Err(error) => (Err(error.to_string()), None),
        };
        let (files, log_dir) = (Arc::new(Disk), dir.raft_log());
        let mut log = RaftLog::open_with(dir, &log_dir, files, mark_file, ring, &options.log)?;
        let db = match db {
            Some(db) => db,
            None => Arc::new(create_db(dir, ring, options, log.identity().is_some())?),
        };
        check_owner(dir, &db, &log, &mark, options)?;
        let applied = match log.identity() {
            Some(_) => settle(dir, &db, &mut log, mark, options, &mut loss)?,
            None => Applied::default(),
        };
        Ok(Engines {
            db,
            log,
            applied,
            loss: loss.into_option(),
        })
    }
}

/// Refuses to open on a file system that is all but full: what the database's own log holds becomes
/// table files first.
fn require_space(dir: &StateDir) -> Result<(), OpenError> {
    let unflushed = match active_database(dir)? {
        Some(path) => write_ahead_bytes(&path),
        None => 0,
    };
    let (free, needed) = (dir.free_bytes()?, unflushed + OPEN_BYTES_MIN);
    if free < needed {
        return Err(OpenError::NoSpace {
            dir: dir.raft().display().to_string(),
            free_mib: free >> 20,
            needed_mib: needed.div_ceil(1 << 20),
        });
    }
    Ok(())
}

/// Removes the log files that wait to be written over. They hold entries that were forgotten long ago,
/// perhaps sealed with a data key that has been exchanged since (settled S15).
fn remove_recycled(dir: &StateDir) -> Result<(), OpenError> {
    let root = dir.raft_log();
    let failed = |error| StateDirError::read(&root, error);
    for entry in fs::read_dir(&root).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.to_string_lossy().ends_with(RECYCLED_SUFFIX) {
            fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}

/// Bytes of the write-ahead logs of a database; 0 if they cannot be told.
fn write_ahead_bytes(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let logs = entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "log"));
    let sizes = logs.filter_map(|entry| Some(entry.metadata().ok()?.len()));
    sizes.sum()
}

/// Makes log and database agree, or refuses.
fn settle(
    dir: &StateDir,
    db: &Arc<Db>,
    log: &mut RaftLog,
    mark: Result<Mark, String>,
    options: &EngineOptions,
    loss: &mut LogLoss,
) -> Result<Applied, OpenError> {
    let mut seen = see(db, log, mark)?;
    for _ in 0..LOSS_ROUNDS_MAX {
        let applied = seen.applied;
        match judge(&seen) {
            Verdict::Start { commit } => {
                log.raise_commit(commit);
                forget_installation(db, &seen)?;
                verify(dir, db, log, applied, options, loss)?;
                return Ok(applied);
            }
            Verdict::FinishInstall { at } => {
                tracing::info!(index = at.index, "finishing the installation of a snapshot");
                log.reset(at)?;
            }
            Verdict::Refuse(refusal) => {
                may_lose(dir, Some(db), options, &refusal)?;
                loss.give_up(log, applied, &refusal)?;
            }
        }
        let mark = MarkFile::open(&dir.raft_mark(), false)
            .map(|file| file.mark())
            .map_err(|error| error.to_string());
        seen = see(db, log, mark)?;
    }
    Err(OpenError::Part(format!(
        "the raft data in {} cannot be made to agree; restore a backup",
        dir.raft().display()
    )))
}

/// Reads every entry that is not applied yet.
fn verify(
    dir: &StateDir,
    db: &Arc<Db>,
    log: &mut RaftLog,
    applied: Applied,
    options: &EngineOptions,
    loss: &mut LogLoss,
) -> Result<(), OpenError> {
    match log.verify(applied.index + 1) {
        Ok(()) => Ok(()),
        Err((index, error)) if options.accept_log_loss => {
            require_alone(dir, db)?;
            loss.cut_entries(log, index, &error)
        }
        Err((_, error)) => Err(error.into()),
    }
}

/// Refuses, unless the loss of log entries was accepted and this manager is alone.
fn may_lose(
    dir: &StateDir,
    db: Option<&Arc<Db>>,
    options: &EngineOptions,
    refusal: &Refusal,
) -> Result<(), OpenError> {
    if !options.accept_log_loss || !refusal.is_log_loss() {
        return Err(refused(dir, refusal.clone()));
    }
    match db {
        Some(db) => require_alone(dir, db),
        None => Ok(()),
    }
}

/// A member of a group that forgot what it promised could make the group lose acknowledged writes.
fn require_alone(dir: &StateDir, db: &Arc<Db>) -> Result<(), OpenError> {
    let membership =
        rows::read_membership(&db.view()).map_err(|error| OpenError::Part(error.to_string()))?;
    match membership.conf_state.voters.len() {
        0 | 1 => Ok(()),
        voters => Err(refused(dir, Refusal::NotAlone { voters })),
    }
}

/// Removes the marker of an installation that the log has followed.
fn forget_installation(db: &Db, seen: &Seen) -> Result<(), OpenError> {
    if seen.installing.is_some() {
        let mut changes = db.changes();
        changes.delete(Family::Meta, meta::INSTALLING);
        changes.commit_synced()?;
    }
    Ok(())
}

/// Gathers what [`judge()`] needs.
fn see<F: FileSystem>(
    db: &Db,
    log: &RaftLog<F>,
    mark: Result<Mark, String>,
) -> Result<Seen, OpenError> {
    let applied = db.applied()?;
    let term_at = |index: u64| {
        let known = (log.truncated().index..=log.last_index()).contains(&index);
        known.then(|| log.term(index)).transpose()
    };
    let hard_state = log.hard_state();
    Ok(Seen {
        applied,
        installing: db.record(meta::INSTALLING)?,
        truncated: log.truncated(),
        last: log.last(),
        term_at_applied: term_at(applied.index)?,
        hard_state_term: hard_state.term,
        commit: hard_state.commit,
        term_at_mark: match &mark {
            Ok(mark) => term_at(mark.last.index)?,
            Err(_) => None,
        },
        mark,
    })
}

/// Refuses data that belongs to nobody or to another cluster.
fn check_owner<F: FileSystem>(
    dir: &StateDir,
    db: &Db,
    log: &RaftLog<F>,
    mark: &Result<Mark, String>,
    options: &EngineOptions,
) -> Result<(), OpenError> {
    let Some(identity) = log.identity() else {
        let marked = mark.as_ref().is_ok_and(|mark| mark.last.index > 0);
        if marked || db.applied()?.index > 0 {
            return Err(refused(dir, Refusal::NoIdentity));
        }
        return Ok(());
    };
    match &options.cluster_id {
        Some(expected) if *expected != identity.cluster_id => Err(refused(
            dir,
            Refusal::OtherCluster {
                found: identity.cluster_id.clone(),
                expected: expected.clone(),
            },
        )),
        _ => Ok(()),
    }
}

fn refused(dir: &StateDir, refusal: Refusal) -> OpenError {
    OpenError::Refused {
        dir: dir.raft().display().to_string(),
        refusal,
    }
}

fn scan_log(dir: &StateDir) -> Result<Scan, OpenError> {
    scan::scan(&dir.raft_log()).map_err(|error| StateDirError::read(&dir.raft_log(), error).into())
}

/// Creates what is missing of an empty `raft/` and checks the format of an existing one.
fn prepare(dir: &StateDir) -> Result<(), OpenError> {
    for path in [dir.raft_log(), dir.raft_db(), dir.raft_incoming()] {
        state_dir::create_dir(&path)?;
    }
    if dir.raft_format().exists() {
        return read_format(dir);
    }
    if !is_empty(&dir.raft_log())? || !is_empty(&dir.raft_db())? {
        return Err(refused(
            dir,
            Refusal::Format("is missing, but data is present".into()),
        ));
    }
    let text = format!("{FORMAT_TEXT}{FORMAT_VERSION}\n");
    Ok(state_dir::write_atomic(
        &dir.raft_format(),
        text.as_bytes(),
        FILE_MODE,
    )?)
}

/// Refuses a layout that this program does not know.
fn read_format(dir: &StateDir) -> Result<(), OpenError> {
    let path = dir.raft_format();
    let text = fs::read(&path).map_err(|error| StateDirError::read(&path, error))?;
    let text = String::from_utf8_lossy(&text);
    let version = text
        .trim_end()
        .strip_prefix(FORMAT_TEXT)
        .and_then(|number| number.parse::<u32>().ok());
    let reason = match version {
        Some(FORMAT_VERSION) => return Ok(()),
        Some(other) => {
            format!("says format {other}, this release knows format {FORMAT_VERSION}")
        }
        None => "is unreadable".into(),
    };
    Err(refused(dir, Refusal::Format(reason)))
}

fn is_empty(path: &Path) -> Result<bool, OpenError> {
    let mut entries = fs::read_dir(path).map_err(|error| StateDirError::read(path, error))?;
    Ok(entries.next().is_none())
}

/// Where the database of a number lies.
pub(super) fn database_path(dir: &StateDir, number: u64) -> PathBuf {
    dir.raft_db().join(number.to_string())
}

/// Makes a database the one that the next opening uses, durably.
pub(super) fn set_active(dir: &StateDir, number: u64) -> Result<(), StateDirError> {
    let text = format!("{number}\n");
    state_dir::write_atomic(&dir.raft_active(), text.as_bytes(), FILE_MODE)
}

/// The database that `ACTIVE` names; `None` if there is no such file.
fn active_database(dir: &StateDir) -> Result<Option<PathBuf>, OpenError> {
    let number = active_number(dir)?;
    Ok(number.map(|number| database_path(dir, number)))
}

fn active_number(dir: &StateDir) -> Result<Option<u64>, OpenError> {
    let path = dir.raft_active();
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StateDirError::read(&path, error).into()),
    };
    let number = String::from_utf8_lossy(&text).trim_end().parse::<u64>();
    let number = number.map_err(|error| refused(dir, Refusal::NoDatabase(error.to_string())))?;
    Ok(Some(number))
}

/// Puts a snapshot in place that was received and accepted before the last stop.
fn install_snapshot(
    dir: &StateDir,
    ring: &DekRing,
    options: &EngineOptions,
) -> Result<(), OpenError> {
    let active = || {
        let part = |error: OpenError| SnapshotError::Damaged(error.to_string());
        let Some(number) = active_number(dir).map_err(part)? else {
            return Ok(None);
        };
        let path = database_path(dir, number);
        Ok(Some((number, Db::open(&path, ring, &options.db)?)))
    };
    snapshot::install(dir, active, ring, &options.db)?;
    Ok(())
}

/// Opens the active database and removes what an interrupted installation left.
fn open_db(
    dir: &StateDir,
    path: &Path,
    ring: &DekRing,
    options: &EngineOptions,
) -> Result<Db, OpenError> {
    let db = Db::open(path, ring, &options.db)?;
    remove_databases_except(dir, Some(path))?;
    Ok(db)
}

/// Creates the first database, beside a log that belongs to nobody yet.
fn create_db(
    dir: &StateDir,
    ring: &DekRing,
    options: &EngineOptions,
    claimed: bool,
) -> Result<Db, OpenError> {
    if claimed {
        return Err(refused(dir, Refusal::NoDatabase("no such file".into())));
    }
    remove_databases_except(dir, None)?;
    let db = Db::create(&database_path(dir, FIRST_NUMBER), ring, &options.db)?;
    set_active(dir, FIRST_NUMBER)?;
    Ok(db)
}

fn remove_databases_except(dir: &StateDir, keep: Option<&Path>) -> Result<(), OpenError> {
    let root = dir.raft_db();
    let failed = |error| StateDirError::read(&root, error);
    for entry in fs::read_dir(&root).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() && Some(path.as_path()) != keep {
            fs::remove_dir_all(&path).map_err(failed)?;
        }
    }
    Ok(())
}
