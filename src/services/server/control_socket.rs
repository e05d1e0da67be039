//! The control socket's file: created with its final mode, never stolen from a living process.
//!
//! Whoever can open the socket acts as this node, so its mode is the protection: 0600, or 0660 for a
//! group that was named. Missing parents are created 0700, existing directories are left as they are.
//! A socket file that is already there is replaced only if nobody answers on it (settled P8).

use crate::identity::files::{self, FileError};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};

/// Longest path of a unix socket on Linux.
const PATH_BYTES_MAX: usize = 107;

/// Why the control socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ControlSocketError {
    #[error(
        "the control socket {path} is in use: another process answers on it",
        path = .0.display()
    )]
    InUse(PathBuf),
    #[error("{path} exists and is not a socket; choose another path for the control socket", path = .0.display())]
    NotASocket(PathBuf),
    #[error(
        "the path of the control socket {path} is too long ({len} bytes, at most \
         {PATH_BYTES_MAX}); choose a shorter one",
        path = path.display()
    )]
    TooLong { path: PathBuf, len: usize },
    #[error("cannot {action} the control socket {path}: {source}", path = path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

/// A bound control socket. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of our file, so that a successor's is not removed.
    file: (u64, u64),
}

impl ControlSocket {
    /// Binds the socket; with a group (numeric ID), its members may use it as well.
    pub fn bind(path: &Path, group: Option<u32>) -> Result<ControlSocket, ControlSocketError> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        files::ensure_dir(directory, files::PRIVATE_DIR)?;
        refuse_if_alive(path)?;
        let failed = |action| {
            let path = path.to_owned();
            move |source| ControlSocketError::Io {
                action,
                path,
                source,
            }
        };
        // The file gets its mode inside a directory that only we can enter, and then takes its place
        // in one step. So it is never open to others, whatever the umask, and never missing.
        let staging_dir = tempfile::Builder::new()
            .prefix(".s")
            .tempdir_in(directory)
            .map_err(failed("prepare"))?;
        let staging = staging_dir.path().join("s");
        check_length(path, &staging)?;
        let listener = UnixListener::bind(&staging).map_err(failed("bind"))?;
        let prepared = restrict(&staging, group)
            .and_then(|()| std::fs::symlink_metadata(&staging))
            .and_then(|found| std::fs::rename(&staging, path).map(|()| (found.dev(), found.ino())));
        match prepared {
            Ok(file) => Ok(ControlSocket {
                listener,
                path: path.to_owned(),
                file,
            }),
            Err(source) => Err(failed("put in place")(source)),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept().await?;
        Ok(stream)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.file);
        if ours {
            // A socket that stays behind is recognised as dead by the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn refuse_if_alive(path: &Path) -> Result<(), ControlSocketError> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(ControlSocketError::Io {
                action: "look at",
                path: path.to_owned(),
                source,
            });
        }
    };
    if !found.file_type().is_socket() {
        return Err(ControlSocketError::NotASocket(path.to_owned()));
    }
    match probe(path) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        // An answer, or a queue too full to answer: somebody lives there.
        _ => Err(ControlSocketError::InUse(path.to_owned())),
    }
}

/// Tries to connect, without waiting.
fn probe(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)
}

fn check_length(path: &Path, staging: &Path) -> Result<(), ControlSocketError> {
    let len = path.as_os_str().len().max(staging.as_os_str().len());
    if len > PATH_BYTES_MAX {
        let path = path.to_owned();
        return Err(ControlSocketError::TooLong { path, len });
    }
    Ok(())
}

/// The order matters: nobody but the owner may use the file before it has its group.
fn restrict(path: &Path, group: Option<u32>) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    if let Some(group) = group {
        std::os::unix::fs::chown(path, None, Some(group))?;
        std::fs::set_permissions(path, Permissions::from_mode(0o660))?;
    }
    Ok(())
}
