//! Small helpers for the agent's files: replaced as a whole, synced, with the mode asked for.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Replaces a file atomically: temporary file beside it, sync, rename, sync of the directory.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let directory = parent(path)?;
    let temporary = temporary_path(path)?;
    let written = write_new(&temporary, content, mode).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        // What is left of the attempt is useless, and the next attempt may come much later.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_directory(directory)
}

/// The name under which [`replace`] builds the new content.
fn temporary_path(path: &Path) -> io::Result<std::path::PathBuf> {
    let name = path.file_name().ok_or_else(|| no_file(path))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(".new");
    Ok(path.with_file_name(temporary))
}

/// Writes and syncs a file that nobody else has a handle of.
pub(crate) fn write_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)?;
    // The mode given at creation passes through the umask, and does nothing to an existing file.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()
}

/// Makes renames and new names in a directory durable.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Creates a directory, and missing parents, with this mode. An existing directory keeps its own.
pub(crate) fn create_directory(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
}

/// Removes a directory with all it holds; a missing one is fine.
pub(crate) fn remove_directory(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn parent(path: &Path) -> io::Result<&Path> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Ok(Path::new(".")),
        Some(parent) => Ok(parent),
        None => Err(no_file(path)),
    }
}

fn no_file(path: &Path) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{} does not name a file", path.display()),
    )
}
