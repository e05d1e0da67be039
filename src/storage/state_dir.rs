//! The state directory of one node: where everything lies, who may use it, how files are replaced.
//!
//! ```text
//! LOCK            held by whoever uses the directory, with its process ID
//! certificates/   root CA, node certificate, node key          state.json
//! raft/FORMAT     version of everything below
//! raft/MARK       how far the log is known to reach
//! raft/log/       the raft log                 raft/incoming/  snapshots on their way in
//! raft/db/ACTIVE  number of the database in use                raft/db/<n>/
//! worker/         key and tasks of the agent
//! ```
//!
//! `LOCK` is taken exclusively by the node before anything else and by every tool that writes; tools that
//! only read take it shared if it exists and never create it. The kernel drops the lock with the
//! process, however it ends. The directory is accessible to its owner only (mode 0700), which covers
//! every file below it whatever its own mode.

use super::files;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// Mode of every directory we create: the owner's only.
const DIR_MODE: u32 = 0o700;
/// Mode of every file we create, unless its purpose asks for another.
pub const FILE_MODE: u32 = 0o600;
/// How long a second opener waits for the first to go away, 500 ms: a killed process may still be
/// releasing its files when its successor starts, and nobody waits longer for the message.
const LOCK_WAIT: Duration = Duration::from_millis(500);
/// Pause between two tries of the lock.
const LOCK_RETRY: Duration = Duration::from_millis(20);
/// Longest text of `LOCK`, in bytes: a process ID.
const LOCK_TEXT_BYTES_MAX: u64 = 32;
/// What a directory may already contain when a node is first started in it.
const KNOWN_NAMES: [&str; 6] = [
    "LOCK",
    "certificates",
    "state.json",
    "raft",
    "worker",
    "lost+found",
];

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    #[error(
        "the state directory {path} is in use by {holder}; stop that process first, or choose another directory"
    )]
    InUse { path: String, holder: String },
    #[error("there is no state directory at {path}; check the path")]
    Missing { path: String },
    #[error("{path} {reason}; choose another state directory")]
    Unsuitable { path: String, reason: String },
    #[error("cannot {attempt} {path}: {error}{advice}")]
    Io {
        attempt: &'static str,
        path: String,
        error: io::Error,
        /// What to do next; starts with "; " or is empty.
        advice: &'static str,
    },
}

impl StateDirError {
    pub(super) fn read(path: &Path, error: io::Error) -> StateDirError {
        StateDirError::io("read", path, error)
    }

    pub(super) fn copy(path: &Path, error: io::Error) -> StateDirError {
        StateDirError::io("make a copy beside", path, error)
    }

    fn io(attempt: &'static str, path: &Path, error: io::Error) -> StateDirError {
        let advice = match error.kind() {
            io::ErrorKind::PermissionDenied => "; run as the user who owns the state directory",
            io::ErrorKind::StorageFull => "; free space on this file system",
            io::ErrorKind::ReadOnlyFilesystem => "; mount the file system writable",
            _ => "",
        };
        StateDirError::Io {
            attempt,
            path: path.display().to_string(),
            error,
            advice,
        }
    }
}

/// How a state directory was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Alone, for writing.
    Exclusive,
    /// Beside other readers, for reading.
    Shared,
}

/// An open state directory. The lock is held until this is dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    access: Access,
    _lock: Option<File>,
}

impl StateDir {
    /// Opens the directory alone, for writing; creates it if it is missing. Waits up to half a second
    /// for another user to go away.
    pub fn open(path: impl AsRef<Path>) -> Result<StateDir, StateDirError> {
        let path = path.as_ref();
        prepare_root(path)?;
        let path = canonical(path)?;
        let lock_path = path.join("LOCK");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(&lock_path)
            .map_err(|error| StateDirError::io("open", &lock_path, error))?;
        take_lock(&path, &mut lock, FlockOperation::NonBlockingLockExclusive)?;
        write_holder(&lock).map_err(|error| StateDirError::io("write", &lock_path, error))?;
        Ok(StateDir {
            path,
            access: Access::Exclusive,
            _lock: Some(lock),
        })
    }

    /// Opens an existing directory for reading, beside other readers. Changes nothing.
    pub fn open_shared(path: impl AsRef<Path>) -> Result<StateDir, StateDirError> {
        let path = path.as_ref();
        if !path.is_dir() {
            return Err(StateDirError::Missing {
                path: path.display().to_string(),
            });
        }
        let path = canonical(path)?;
        let lock_path = path.join("LOCK");
        let lock = match File::open(&lock_path) {
            Ok(mut lock) => {
                take_lock(&path, &mut lock, FlockOperation::NonBlockingLockShared)?;
                Some(lock)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(StateDirError::io("open", &lock_path, error)),
        };
        Ok(StateDir {
            path,
            access: Access::Shared,
            _lock: lock,
        })
    }

    pub fn access(&self) -> Access {
        self.access
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn certificates(&self) -> PathBuf {
        self.path.join("certificates")
    }

    pub fn state_json(&self) -> PathBuf {
        self.path.join("state.json")
    }

    pub fn worker(&self) -> PathBuf {
        self.path.join("worker")
    }

    pub fn raft(&self) -> PathBuf {
        self.path.join("raft")
    }

    pub fn raft_format(&self) -> PathBuf {
        self.raft().join("FORMAT")
    }

    pub fn raft_mark(&self) -> PathBuf {
        self.raft().join("MARK")
    }

    pub fn raft_log(&self) -> PathBuf {
        self.raft().join("log")
    }

    pub fn raft_db(&self) -> PathBuf {
        self.raft().join("db")
    }

    /// The file that names the database in use.
    pub fn raft_active(&self) -> PathBuf {
        self.raft_db().join("ACTIVE")
    }

    pub fn raft_incoming(&self) -> PathBuf {
        self.raft().join("incoming")
    }

    /// Bytes that this user may still write on the file system of the state directory.
    pub fn free_bytes(&self) -> Result<u64, StateDirError> {
        rustix::fs::statvfs(&self.path)
            .map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize))
            .map_err(|error| {
                StateDirError::io("ask for the free space of", &self.path, error.into())
            })
    }
}

/// Creates the state directory, or makes sure that an existing one may be used as such.
fn prepare_root(path: &Path) -> Result<(), StateDirError> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_dir(path)?;
            return Ok(());
        }
        Err(error) => return Err(StateDirError::io("look at", path, error)),
        Ok(metadata) => {
            let unsuitable = |reason: String| StateDirError::Unsuitable {
                path: path.display().to_string(),
                reason,
            };
            if !metadata.is_dir() {
                return Err(unsuitable("is not a directory".into()));
            }
            if !path.join("LOCK").exists() {
                refuse_foreign(path)?;
            }
            if metadata.uid() != rustix::process::geteuid().as_raw() {
                return Err(unsuitable(format!(
                    "belongs to user {}, not to the user of this process",
                    metadata.uid()
                )));
            }
            if metadata.mode() & 0o777 != DIR_MODE {
                fs::set_permissions(path, fs::Permissions::from_mode(DIR_MODE))
                    .map_err(|error| StateDirError::io("restrict the mode of", path, error))?;
            }
        }
    }
    Ok(())
}

/// A directory that holds anything else is somebody's: it is neither locked nor restricted.
fn refuse_foreign(path: &Path) -> Result<(), StateDirError> {
    let entries = fs::read_dir(path).map_err(|error| StateDirError::io("list", path, error))?;
    for entry in entries {
        let name = entry
            .map_err(|error| StateDirError::io("list", path, error))?
            .file_name();
        if !KNOWN_NAMES.iter().any(|known| name == *known) {
            return Err(StateDirError::Unsuitable {
                path: path.display().to_string(),
                reason: format!(
                    "is not empty and not a state directory (it contains {})",
                    name.display()
                ),
            });
        }
    }
    Ok(())
}

fn canonical(path: &Path) -> Result<PathBuf, StateDirError> {
    fs::canonicalize(path).map_err(|error| StateDirError::io("resolve", path, error))
}

fn take_lock(path: &Path, lock: &mut File, how: FlockOperation) -> Result<(), StateDirError> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match flock(&*lock, how) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_RETRY);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(StateDirError::InUse {
                    path: path.display().to_string(),
                    holder: holder(lock),
                });
            }
            Err(error) => return Err(StateDirError::io("lock", path, error.into())),
        }
    }
}

/// Who holds the lock, as far as `LOCK` tells.
fn holder(lock: &mut File) -> String {
    let mut text = String::new();
    let read = lock.take(LOCK_TEXT_BYTES_MAX).read_to_string(&mut text);
    match (read, text.trim().parse::<u32>()) {
        (Ok(_), Ok(pid)) => format!("process {pid}"),
        _ => "another process".into(),
    }
}

fn write_holder(mut lock: &File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.write_all(format!("{}\n", std::process::id()).as_bytes())
}

/// Creates a directory with mode 0700 and makes its name durable; an existing one is left as it is.
/// Missing parents are created the same way.
pub fn create_dir(path: &Path) -> Result<(), StateDirError> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = files::parent_of(path);
    create_dir(parent)?;
    match DirBuilder::new().mode(DIR_MODE).create(path) {
        Ok(()) => sync_dir(parent),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(StateDirError::io("create", path, error)),
    }
}

/// Makes the names inside a directory durable.
pub fn sync_dir(path: &Path) -> Result<(), StateDirError> {
    files::sync_directory(path).map_err(|error| StateDirError::io("sync", path, error))
}

/// Replaces a file by new content, durably and at once; see [`files::replace`].
pub fn write_atomic(path: &Path, content: &[u8], mode: u32) -> Result<(), StateDirError> {
    files::replace(path, content, mode).map_err(|error| StateDirError::io("write", path, error))
}
