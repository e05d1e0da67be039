//! Replacing files: whole, durable, with the mode asked for; and what else is done to files and directories
//! in more than one room. The one place in the program that does it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Prefix of files that are being written; what is left of one after a crash is worthless, and is
/// written over by the next attempt.
pub const TEMPORARY: &str = ".tmp-";

/// Replaces a file by new content, durably and at once: a reader, or a start after a crash at any
/// moment, finds either the old or the new content, whole. Two may not replace the same file at once.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let staged = staged(path)?;
    let written = write_new(&staged, content, mode).and_then(|()| fs::rename(&staged, path));
    if let Err(error) = written {
        // What is left of the attempt is useless, and the next attempt may come much later.
        let _ = fs::remove_file(&staged);
        return Err(error);
    }
    sync_directory(parent_of(path))
}

/// Where the new content is built.
fn staged(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} does not name a file", path.display()),
        )
    })?;
    let mut staged = std::ffi::OsString::from(TEMPORARY);
    staged.push(name);
    Ok(path.with_file_name(staged))
}

/// Writes and syncs a file that nobody else has a handle of.
pub fn write_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
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
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Removes a directory with all it holds; a missing one is fine.
pub fn remove_directory(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The directory that a path lies in.
pub fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Creates a directory, and missing parents, with this mode whatever the umask. An existing directory
/// keeps its own.
pub fn create_directory(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    if path.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        replace(&path, b"one", 0o600).unwrap();
        // What a crash left is written over.
        fs::write(temp.path().join(".tmp-file"), "half of something long").unwrap();
        replace(&path, b"two", 0o640).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);

        let taken = temp.path().join("taken");
        create_directory(&taken.join("deep"), 0o711).unwrap();
        assert!(replace(&taken, b"three", 0o600).is_err());
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 2);
        assert!(replace(Path::new("/"), b"", 0o600).is_err());
    }
}
