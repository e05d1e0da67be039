//! Looks at the raft data of a stopped node without changing a byte (settled S16).
//!
//! RocksDB is opened read-only, with its own messages in a temporary directory. The log engine has no
//! such mode; it works in a temporary directory of links, through a file system that keeps every change
//! in memory. Both work on a read-only mount. What one of them cannot open is an error of that part only:
//! the other is still there to be looked at.

use super::judge::{Verdict, judge};
use super::{EngineOptions, OpenError, Refusal, active_database, read_format, refused, see};
use crate::storage::engine::{Applied, Db};
use crate::storage::log::scan::{self, Queue};
use crate::storage::log::{MarkFile, Overlay, RaftLog};
use crate::storage::seal::DekRing;
use crate::storage::state_dir::{StateDir, StateDirError};
use std::io;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use tempfile::TempDir;

/// What could be opened, and what a start of the node would say.
pub struct ReadOnlyEngines {
    pub db: Result<Arc<Db>, OpenError>,
    pub log: Result<RaftLog<Overlay>, OpenError>,
    /// The last applied entry if the node would start, else why it would not.
    pub verdict: Result<Applied, OpenError>,
    /// Holds links and messages of the engines while they are open.
    _scratch: TempDir,
}

impl ReadOnlyEngines {
    /// Opens the raft data of a directory that no node is using.
    pub fn open(
        dir: &StateDir,
        ring: &DekRing,
        options: &EngineOptions,
    ) -> Result<ReadOnlyEngines, OpenError> {
        if !dir.raft().is_dir() {
            return Err(OpenError::Files(StateDirError::Missing {
                path: dir.raft().display().to_string(),
            }));
        }
        read_format(dir)?;
        let scratch = tempfile::Builder::new()
            .prefix("swarm-db-")
            .tempdir()
            .map_err(|error| StateDirError::copy(&std::env::temp_dir(), error))?;
        let db = open_db(dir, ring, options, &scratch);
        let log = open_log(dir, ring, options, &scratch);
        let verdict = verdict(dir, &db, &log, options);
        Ok(ReadOnlyEngines {
            db,
            log,
            verdict,
            _scratch: scratch,
        })
    }
}

fn open_db(
    dir: &StateDir,
    ring: &DekRing,
    options: &EngineOptions,
    scratch: &TempDir,
) -> Result<Arc<Db>, OpenError> {
    let path = active_database(dir)?
        .ok_or_else(|| refused(dir, Refusal::NoDatabase("no such file".into())))?;
    let db = Db::open_read_only(&path, ring, &options.db, scratch.path())?;
    Ok(Arc::new(db))
}

fn open_log(
    dir: &StateDir,
    ring: &DekRing,
    options: &EngineOptions,
    scratch: &TempDir,
) -> Result<RaftLog<Overlay>, OpenError> {
    let links = scratch.path().join("log");
    let link = || -> io::Result<()> {
        std::fs::create_dir(&links)?;
        for queue in [Queue::Append, Queue::Rewrite] {
            for file in scan::list(&dir.raft_log(), queue)? {
                symlink(
                    &file.path,
                    links.join(file.path.file_name().unwrap_or_default()),
                )?;
            }
        }
        Ok(())
    };
    link().map_err(|error| StateDirError::copy(&dir.raft_log(), error))?;
    let overlay = Arc::new(Overlay);
    Ok(RaftLog::open_with(
        dir,
        &links,
        overlay,
        None,
        ring,
        &options.log,
    )?)
}

/// What a start would say.
fn verdict(
    dir: &StateDir,
    db: &Result<Arc<Db>, OpenError>,
    log: &Result<RaftLog<Overlay>, OpenError>,
    options: &EngineOptions,
) -> Result<Applied, OpenError> {
    let found = super::scan_log(dir)?;
    if let Some(damage) = found.damage {
        return Err(refused(dir, Refusal::Damage(damage)));
    }
    let part = |error: &OpenError| OpenError::Part(error.to_string());
    let log = log.as_ref().map_err(part)?;
    let db = db.as_ref().map_err(part)?;
    let mark = MarkFile::open(&dir.raft_mark(), false)
        .map(|file| file.mark())
        .map_err(|error| error.to_string());
    super::check_owner(dir, db, log, &mark, options)?;
    let seen = see(db, log, mark)?;
    if let Verdict::Refuse(refusal) = judge(&seen) {
        return Err(refused(dir, refusal));
    }
    log.verify(seen.applied.index + 1)
        .map_err(|(_, error)| OpenError::Log(error))?;
    Ok(seen.applied)
}
