//! Small helpers for the agent's files: replaced as a whole, synced, with the mode asked for.

pub(crate) use crate::storage::files::{create_directory, replace, sync_directory, write_new};
use std::fs;
use std::io;
use std::path::Path;

/// Removes a directory with all it holds; a missing one is fine.
pub(crate) fn remove_directory(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
