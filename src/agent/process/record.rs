//! The small files by which a task's supervisor (the shim) and the agent know of each other.
//!
//! In the control directory of a task, `worker/run/<task id>/`, on disk:
//!
//! | File | Written by | Says |
//! |---|---|---|
//! | `lock` | shim, held while it lives | at most one shim per task |
//! | `shim.json` | shim, before and after it starts the program | who supervises, what runs |
//! | `exit.json` | shim, once, at the end | how the program ended |
//! | `void` | agent | this task must never be started any more |
//!
//! None of them holds anything a person wrote. `exit.json` is prepared while there is room on the disk
//! (`exit.json.new`, of full size) and only filled in and renamed at the end, so that a full disk does not
//! lose an exit code.

use crate::storage::files;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Size of `exit.json`: the record and blanks, written over what is there already.
const EXIT_BYTES: usize = 512;
/// Largest record that is read.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// A process, named so that another one with a recycled number is never taken for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) pid: i32,
    /// Start time in clock ticks since boot.
    pub(crate) start: u64,
    /// Random ID of the boot.
    pub(crate) boot: String,
}

impl ProcessId {
    /// The process with this number, if there is one.
    pub(crate) fn of(pid: i32) -> io::Result<ProcessId> {
        Ok(ProcessId {
            pid,
            start: Stat::read(pid)?.start,
            boot: boot_id()?,
        })
    }

    /// A handle of the process if it still runs.
    pub(crate) fn open(&self) -> Option<ProcessHandle> {
        let pid = Pid::from_raw(self.pid)?;
        let descriptor = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Compared after opening: from here on the handle cannot come to mean another process.
        let stat = Stat::read(self.pid).ok()?;
        let same = stat.start == self.start && boot_id().ok()? == self.boot;
        (same && stat.runs).then_some(ProcessHandle(descriptor))
    }
}

/// Names one process for as long as it is held. Readable (for polling) when the process has ended.
#[derive(Debug)]
pub(crate) struct ProcessHandle(pub(crate) OwnedFd);

impl ProcessHandle {
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        rustix::process::pidfd_send_signal(&self.0, signal)?;
        Ok(())
    }

    /// Waits until the process has ended.
    pub(crate) async fn ended(self) -> io::Result<()> {
        // SAFETY: an `OwnedFd` is one open descriptor, the same for as long as it lives, and the `AsyncFd`
        // owns it.
        let descriptor = unsafe {
            AsyncFd::register_with_interest(self.0, Interest::READABLE).map_err(io::Error::from)?
        };
        descriptor.readable().await?.retain_ready();
        Ok(())
    }
}

/// What the kernel says about a process.
struct Stat {
    /// Start time in clock ticks since boot.
    start: u64,
    /// False for one that has ended and is not yet reaped.
    runs: bool,
}

impl Stat {
    fn read(pid: i32) -> io::Result<Stat> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name in parentheses may itself hold blanks and parentheses. After it come the state, which
        // is field 3, and, as field 22, the start time.
        let fields = text
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_whitespace());
        let parsed = fields.and_then(|mut fields| {
            let state = fields.next()?;
            Some(Stat {
                start: fields.nth(18)?.parse().ok()?,
                runs: !matches!(state, "Z" | "X"),
            })
        });
        parsed.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "unknown form of /proc/*/stat")
        })
    }
}

fn boot_id() -> io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

/// A port bound for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BoundPort {
    pub(crate) target: u32,
    pub(crate) published: u32,
    /// Wire number of the protocol.
    pub(crate) protocol: i32,
}

/// `shim.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShimRecord {
    pub(crate) shim: ProcessId,
    /// The program, once it is started.
    pub(crate) program: Option<ProcessId>,
    pub(crate) ports: Vec<BoundPort>,
}

/// What could not be done to start a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FailedStep {
    Log,
    Cgroup,
    Program,
}

/// `exit.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExitRecord {
    /// Exit code; 128 + n for an end by signal n; 0 if the program was never started.
    pub(crate) code: i32,
    pub(crate) signal: Option<i32>,
    /// The program could not be started, for this system error.
    pub(crate) failed: Option<(FailedStep, i32)>,
    /// When, in seconds and nanoseconds since 1970.
    pub(crate) time: (i64, i32),
}

/// The control directory of one task.
#[derive(Debug, Clone)]
pub(crate) struct ControlDir(pub(crate) PathBuf);

impl ControlDir {
    pub(crate) fn create(&self) -> io::Result<()> {
        files::create_directory(&self.0, 0o700)
    }

    /// The lock that the shim holds while it lives; `None` if another one holds it.
    pub(crate) fn lock(&self) -> io::Result<Option<File>> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.0.join("lock"))?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn shim(&self) -> io::Result<Option<ShimRecord>> {
        read(&self.0.join("shim.json"))
    }

    pub(crate) fn write_shim(&self, record: &ShimRecord) -> io::Result<()> {
        files::replace(
            &self.0.join("shim.json"),
            &serde_json::to_vec(record)?,
            0o600,
        )
    }

    pub(crate) fn exit(&self) -> io::Result<Option<ExitRecord>> {
        read(&self.0.join("exit.json"))
    }

    /// Reserves the room for `exit.json`.
    pub(crate) fn prepare_exit(&self) -> io::Result<()> {
        files::write_new(&self.prepared_exit(), &[b' '; EXIT_BYTES], 0o600)
    }

    /// Writes `exit.json` over the reserved room and puts it in place.
    pub(crate) fn write_exit(&self, record: &ExitRecord) -> io::Result<()> {
        let mut text = serde_json::to_vec(record)?;
        text.resize(text.len().max(EXIT_BYTES), b' ');
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.prepared_exit())?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(self.prepared_exit(), self.0.join("exit.json"))?;
        files::sync_directory(&self.0)
    }

    fn prepared_exit(&self) -> PathBuf {
        self.0.join("exit.json.new")
    }

    /// Whether the task must not be started any more.
    pub(crate) fn is_void(&self) -> bool {
        self.0.join("void").exists()
    }

    /// Says that the task must not be started any more. Only under the lock.
    pub(crate) fn make_void(&self) -> io::Result<()> {
        files::write_new(&self.0.join("void"), b"", 0o600)?;
        files::sync_directory(&self.0)
    }

    /// Where the log of the task lies.
    pub(crate) fn log_dir(&self) -> PathBuf {
        self.0.join("log")
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    use std::io::Read as _;
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut bytes)?;
    let record = serde_json::from_slice(&bytes).map_err(|error| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{} is damaged: {error}", path.display()),
        )
    })?;
    Ok(Some(record))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_more_than_its_number() {
        let own = std::process::id() as i32;
        let id = ProcessId::of(own).unwrap();
        assert!(id.open().is_some());
        let earlier = ProcessId {
            start: id.start - 1,
            ..id.clone()
        };
        assert!(earlier.open().is_none());
        let other_boot = ProcessId {
            boot: "other".to_owned(),
            ..id
        };
        assert!(other_boot.open().is_none());
    }

    #[test]
    fn exit_records_fit_the_reserved_room() {
        let dir = tempfile::tempdir().unwrap();
        let control = ControlDir(dir.path().to_owned());
        assert_eq!(control.exit().unwrap(), None);
        control.prepare_exit().unwrap();
        assert_eq!(control.exit().unwrap(), None, "prepared, not written");
        let record = ExitRecord {
            code: i32::MIN,
            signal: Some(i32::MAX),
            failed: Some((FailedStep::Program, i32::MAX)),
            time: (i64::MIN, i32::MAX),
        };
        assert!(serde_json::to_vec(&record).unwrap().len() <= EXIT_BYTES);
        control.write_exit(&record).unwrap();
        assert_eq!(control.exit().unwrap(), Some(record));
        assert!(!dir.path().join("exit.json.new").exists());
    }

    #[test]
    fn one_holder_of_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let control = ControlDir(dir.path().to_owned());
        let held = control.lock().unwrap();
        assert!(held.is_some());
        assert!(control.lock().unwrap().is_none());
        drop(held);
        assert!(control.lock().unwrap().is_some());
    }
}
