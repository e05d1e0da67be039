//! Files of the state directory that this room writes: atomically, with their modes, durably.
//!
//! A reader sees the old or the new content, never a mix, and after a power loss the file is one of
//! the two (spec 02 section 6.2).

use crate::storage::files;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Mode of the state directory and of everything that only this program reads.
pub const PRIVATE_DIR: u32 = 0o700;
/// Mode of `certificates/`.
pub const PUBLIC_DIR: u32 = 0o755;
/// Mode of keys.
pub const PRIVATE_FILE: u32 = 0o600;
/// Mode of certificates.
pub const PUBLIC_FILE: u32 = 0o644;

/// An operation on a file that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}", path = path.display())]
pub struct FileError {
    pub action: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl FileError {
    /// Whether the file is not there.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError {
        action,
        path,
        source,
    }
}

/// Replaces a file in one step and makes the change durable.
pub fn write_atomic(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    files::replace(path, content, mode).map_err(failed("replace", path))
}

/// Moves a file over another in the same directory, durably.
pub fn rename(from: &Path, to: &Path) -> Result<(), FileError> {
    fs::rename(from, to).map_err(failed("put in place", to))?;
    sync_dir(to.parent().unwrap_or(Path::new(".")))
}

/// Removes a file; one that is not there is fine.
pub fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Reads a whole file.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(failed("read", path))
}

/// Reads a file that need not be there.
pub fn read_if_present(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    match read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates a directory and its missing parents with this mode. An existing one is left as it is.
pub fn ensure_dir(path: &Path, mode: u32) -> Result<(), FileError> {
    files::create_directory(path, mode).map_err(failed("create the directory", path))
}

/// Removes what interrupted writes have left in a directory.
pub fn sweep_temporary(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(files::TEMPORARY)
        {
            // Only tidiness depends on it.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether others than the owner may read a file.
pub fn readable_by_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}

fn sync_dir(dir: &Path) -> Result<(), FileError> {
    files::sync_directory(dir).map_err(failed("make durable the directory", dir))
}
