//! What one task has on this node, whoever asks: its directories, its shim, its control groups.
//!
//! A [`Site`] knows nothing of the task but its ID; everything it says it reads from the disk and the
//! kernel. It is therefore right after any restart, and good for tasks that nobody knows any more.

use super::cgroup;
use super::record::{ControlDir, ExitRecord, ProcessHandle, ShimRecord};
use crate::agent::executor::TaskError;
use crate::storage::files;
use rustix::process::{Pid, Signal};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pause before looking again for a shim that is just taking its task.
const TAKING_PAUSE: Duration = Duration::from_millis(20);
/// Looks at such a shim before giving up for this time, together 10 s.
const TAKING_LOOKS: u32 = 500;

/// Where the directories of all tasks are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Roots {
    /// Control directories, on disk.
    pub(crate) control: PathBuf,
    /// Directories of the tasks themselves.
    pub(crate) tasks: PathBuf,
    /// The latter is in memory only, so that secrets may be put there.
    pub(crate) volatile: bool,
}

/// The places of one task.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) id: String,
    pub(crate) control: ControlDir,
    /// The task's own directory.
    pub(crate) dir: PathBuf,
}

/// How far a task's program is.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Nobody has started it.
    NotStarted,
    /// A shim supervises it.
    Running(ShimRecord, ProcessHandle),
    Ended(ExitRecord),
    /// The shim was killed, and with it the knowledge how the program ended.
    Lost(ShimRecord),
}

/// How a task's program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    NeverStarted,
    Recorded(ExitRecord),
    Lost,
}

impl Roots {
    /// The places of a task. An ID that is no plain file name has none.
    pub(crate) fn site(&self, id: &str) -> Option<Site> {
        let plain = !id.is_empty()
            && !id.starts_with('.')
            && id.len() <= 128
            && id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        plain.then(|| Site {
            id: id.to_owned(),
            control: ControlDir(self.control.join(id)),
            dir: self.tasks.join(id),
        })
    }

    /// The tasks that have anything here.
    pub(crate) fn all(&self) -> Vec<Site> {
        let names = |dir: &Path| -> Vec<String> {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries
                .filter_map(|entry| entry.file_name().into_string().ok())
                .collect()
        };
        let mut ids = names(&self.control);
        ids.extend(names(&self.tasks));
        ids.sort_unstable();
        ids.dedup();
        ids.iter().filter_map(|id| self.site(id)).collect()
    }
}

fn io_error(attempt: &'static str) -> impl Fn(io::Error) -> TaskError {
    move |error| disk_error(attempt, &error)
}

/// A full disk may be emptied; anything else stays as it is.
pub(crate) fn disk_error(attempt: &str, error: &io::Error) -> TaskError {
    let text = format!("process executor: cannot {attempt}: {error}");
    match error.kind() {
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::OutOfMemory
        | io::ErrorKind::ResourceBusy
        | io::ErrorKind::Interrupted
        | io::ErrorKind::WouldBlock
        | io::ErrorKind::TimedOut => TaskError::Temporary(text),
        _ => TaskError::Fatal(text),
    }
}

impl Site {
    /// How far the program is.
    pub(crate) fn phase(&self) -> Result<Phase, TaskError> {
        let read = io_error("read the records of the task");
        if let Some(exit) = self.control.exit().map_err(&read)? {
            return Ok(Phase::Ended(exit));
        }
        let Some(shim) = self.control.shim().map_err(&read)? else {
            return Ok(Phase::NotStarted);
        };
        if let Some(handle) = shim.shim.open() {
            return Ok(Phase::Running(shim, handle));
        }
        // It may have written the record and ended between our two looks.
        match self.control.exit().map_err(&read)? {
            Some(exit) => Ok(Phase::Ended(exit)),
            None => Ok(Phase::Lost(shim)),
        }
    }

    /// Waits for the end of the program.
    pub(crate) async fn ended(&self) -> Result<End, TaskError> {
        loop {
            match self.phase()? {
                Phase::NotStarted => return Ok(End::NeverStarted),
                Phase::Ended(exit) => return Ok(End::Recorded(exit)),
                Phase::Lost(shim) => {
                    kill_orphan(&shim);
                    return Ok(End::Lost);
                }
                Phase::Running(_, handle) => handle
                    .ended()
                    .await
                    .map_err(io_error("wait for the task's supervisor"))?,
            }
        }
    }

    /// Has the shim stop the program, and waits for its end. A program that was never started never will
    /// be.
    pub(crate) async fn stop(&self, signal: Signal) -> Result<End, TaskError> {
        for _ in 0..TAKING_LOOKS {
            match self.phase()? {
                Phase::NotStarted => {
                    if self.make_void()? {
                        return Ok(End::NeverStarted);
                    }
                    // A shim holds the lock: it is about to say so.
                    tokio::time::sleep(TAKING_PAUSE).await;
                }
                Phase::Running(_, handle) => {
                    handle
                        .signal(signal)
                        .or_else(|error| match error.raw_os_error() {
                            Some(libc::ESRCH) => Ok(()),
                            _ => Err(error),
                        })
                        .map_err(io_error("signal the task's supervisor"))?;
                    return self.ended().await;
                }
                Phase::Ended(_) | Phase::Lost(_) => return self.ended().await,
            }
        }
        Err(TaskError::temporary(
            "process executor: the task is being started and does not get on",
        ))
    }

    /// Makes sure that nobody starts the program any more; `false` if somebody is at it.
    fn make_void(&self) -> Result<bool, TaskError> {
        let attempt = io_error("mark the task as stopped");
        let lock = match self.control.lock() {
            Ok(lock) => lock,
            // Nothing was prepared, and no shim makes this directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(attempt(error)),
        };
        let Some(_lock) = lock else { return Ok(false) };
        if self.control.shim().map_err(&attempt)?.is_some() {
            return Ok(false);
        }
        self.control.make_void().map_err(&attempt)?;
        Ok(true)
    }

    /// Frees everything, after the program has ended. The control directory goes last: while it is there,
    /// a restarted agent finds the task.
    pub(crate) fn delete(&self) -> Result<(), TaskError> {
        for group in cgroup::of_task(&self.id) {
            cgroup::kill_all(&group);
            cgroup::remove(&group);
        }
        files::remove_directory(&self.dir)
            .and_then(|()| files::remove_directory(&self.control.0))
            .map_err(io_error("remove the task's files"))
    }
}

/// The program dies with its shim; what it had started may not have.
fn kill_orphan(shim: &ShimRecord) {
    if let Some(program) = &shim.program
        && program.open().is_some()
        && let Some(group) = Pid::from_raw(program.pid)
    {
        // It may be gone by now.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_have_a_place() {
        let roots = Roots {
            control: PathBuf::from("/c"),
            tasks: PathBuf::from("/t"),
            volatile: false,
        };
        assert_eq!(roots.site("abc123").unwrap().dir, Path::new("/t/abc123"));
        let long = "x".repeat(129);
        for id in ["", "..", ".", "a/b", "../x", "a\0b", long.as_str()] {
            assert!(roots.site(id).is_none(), "{id:?}");
        }
    }

    #[test]
    fn full_disks_pass_and_other_errors_stay() {
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        assert!(matches!(disk_error("x", &full), TaskError::Temporary(_)));
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        assert!(matches!(disk_error("x", &denied), TaskError::Fatal(_)));
    }

    #[tokio::test]
    async fn a_stopped_task_is_never_started() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots {
            control: dir.path().join("run"),
            tasks: dir.path().join("tasks"),
            volatile: false,
        };
        let site = roots.site("t").unwrap();
        assert_eq!(site.stop(Signal::TERM).await, Ok(End::NeverStarted));
        assert!(!site.control.is_void(), "nothing was prepared");
        site.control.create().unwrap();
        assert_eq!(site.stop(Signal::TERM).await, Ok(End::NeverStarted));
        assert!(site.control.is_void());
        site.delete().unwrap();
        assert!(roots.all().is_empty());
    }
}
