//! Starting on what is left of a damaged log: only on request, only for a manager that is alone, never
//! without keeping the damaged files and saying what is lost.

use super::{OpenError, Refusal};
use crate::storage::engine::Applied;
use crate::storage::log::scan::{self, Damage, Queue};
use crate::storage::log::{LogError, LogPosition, RaftLog};
use crate::storage::state_dir::{self, StateDirError};
use raft::eraftpb::Entry;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// Names tried for the directory that keeps the damaged files.
const KEPT_MAX: u32 = 10_000;

/// What was given up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogLoss {
    /// What was wrong, in the order it was met.
    pub reasons: Vec<String>,
    /// First and last entry that are known to be lost; entries behind them may be lost as well.
    pub entries: Option<(u64, u64)>,
    /// Where the damaged log files were kept.
    pub kept_in: Option<PathBuf>,
}

impl fmt::Display for LogLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entries {
            Some((first, last)) => write!(
                f,
                "{} log entries are lost ({first} to {last})",
                last - first + 1
            )?,
            None => write!(f, "no log entry is known to be lost")?,
        }
        write!(f, ": {}", self.reasons.join("; "))?;
        match &self.kept_in {
            Some(path) => write!(f, "; the damaged files are kept in {}", path.display()),
            None => Ok(()),
        }
    }
}

impl LogLoss {
    pub(super) fn into_option(self) -> Option<LogLoss> {
        (!self.reasons.is_empty()).then_some(self)
    }

    fn lose(&mut self, first: u64, last: u64) {
        if first > last {
            return;
        }
        let (known_first, known_last) = self.entries.unwrap_or((first, last));
        self.entries = Some((known_first.min(first), known_last.max(last)));
    }

    /// Copies all log files away, then cuts the log at the damage, so that the log engine can open it.
    pub(super) fn set_aside(&mut self, log_dir: &Path, damage: &Damage) -> Result<(), OpenError> {
        let kept = keep_copies(log_dir)?;
        self.reasons
            .push(Refusal::Damage(damage.clone()).to_string());
        self.kept_in = Some(kept);
        cut(log_dir, damage).map_err(|error| {
            OpenError::Log(LogError::Engine {
                attempt: "cut the damaged end off",
                dir: log_dir.display().to_string(),
                reason: error.to_string(),
                advice: "check the disk and the file permissions",
            })
        })?;
        Ok(())
    }

    /// Makes the log agree with what is left.
    pub(super) fn give_up(
        &mut self,
        log: &mut RaftLog,
        applied: Applied,
        refusal: &Refusal,
    ) -> Result<(), OpenError> {
        self.reasons.push(refusal.to_string());
        let at = LogPosition {
            index: applied.index,
            term: applied.term,
        };
        match *refusal {
            Refusal::TailLost { last, expected, .. } => {
                self.lose(last.max(applied.index) + 1, expected);
                if last < applied.index {
                    log.reset(at)?;
                }
                let state = log.hard_state();
                log.force_hard_state(state.term, state.vote, state.commit.min(log.last_index()))?;
            }
            Refusal::OtherTerm { index, .. } if index == applied.index => log.reset(at)?,
            Refusal::TermLost { expected, .. } => {
                log.force_hard_state(expected, 0, log.hard_state().commit)?;
            }
            _ => {}
        }
        log.replace_mark()?;
        Ok(())
    }

    /// Cuts off the entries from `index` on, of which the first cannot be read.
    pub(super) fn cut_entries(
        &mut self,
        log: &mut RaftLog,
        index: u64,
        error: &LogError,
    ) -> Result<(), OpenError> {
        self.reasons.push(error.to_string());
        self.lose(index, log.last_index());
        // An empty entry in its place makes the engine forget it and all that follow.
        let mut empty = Entry::default();
        (empty.index, empty.term) = (index, log.hard_state().term);
        log.append(&[empty], None)?;
        let state = log.hard_state();
        log.force_hard_state(state.term, state.vote, state.commit.min(index))?;
        Ok(())
    }
}

/// Copies the log's files into a new directory beside it.
fn keep_copies(log_dir: &Path) -> Result<PathBuf, OpenError> {
    let parent = log_dir.parent().unwrap_or(log_dir);
    let kept = (1..KEPT_MAX)
        .map(|number| parent.join(format!("log-damaged-{number}")))
        .find(|path| !path.exists())
        .ok_or_else(|| StateDirError::Unsuitable {
            path: parent.display().to_string(),
            reason: format!("already keeps {KEPT_MAX} damaged logs"),
        })?;
    state_dir::create_dir(&kept)?;
    let copy = || -> io::Result<()> {
        for queue in [Queue::Append, Queue::Rewrite] {
            for file in scan::list(log_dir, queue)? {
                let target = kept.join(file.path.file_name().unwrap_or_default());
                fs::copy(&file.path, &target)?;
                File::open(&target)?.sync_all()?;
            }
        }
        Ok(())
    };
    copy().map_err(|error| StateDirError::copy(log_dir, error))?;
    state_dir::sync_dir(&kept)?;
    Ok(kept)
}

/// Cuts the damaged file at the damage and removes the files behind it.
fn cut(log_dir: &Path, damage: &Damage) -> io::Result<()> {
    let damaged = &damage.place.file;
    let queue = match damaged.extension().and_then(|extension| extension.to_str()) {
        Some("rewrite") => Queue::Rewrite,
        _ => Queue::Append,
    };
    for file in scan::list(log_dir, queue)? {
        // Names of one queue sort like their numbers.
        if file.path > *damaged {
            fs::remove_file(&file.path)?;
        }
    }
    match OpenOptions::new().write(true).open(damaged) {
        Ok(file) => {
            file.set_len(damage.place.offset)?;
            file.sync_all()?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    File::open(log_dir)?.sync_all()
}
