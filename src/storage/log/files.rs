//! How the log engine reaches its files.
//!
//! [`Disk`] works on real files: mode 0600, closed in child processes, synced with fdatasync. Failpoints
//! stand where a disk can fail. [`Overlay`] keeps every change in memory: an engine opened through it
//! sees a normal file system, and the files on disk stay as they are, byte for byte.

use super::super::state_dir::FILE_MODE;
use fail::fail_point;
use parking_lot::RwLock;
use raft_engine::env::{FileSystem, Handle, Permission, WriteExt};
use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// Real files.
pub struct Disk;

/// A real, open log file.
pub struct DiskFile(File);

impl FileSystem for Disk {
    type Handle = DiskFile;
    type Reader = Cursor<DiskFile>;
    type Writer = Cursor<DiskFile>;

    fn create<P: AsRef<Path>>(&self, path: P) -> Result<DiskFile> {
        fail_point!("log::create", |_| Err(no_space()));
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(path)
            .map(DiskFile)
    }

    fn open<P: AsRef<Path>>(&self, path: P, permission: Permission) -> Result<DiskFile> {
        OpenOptions::new()
            .read(true)
            .write(permission == Permission::ReadWrite)
            .open(path)
            .map(DiskFile)
    }

    fn delete<P: AsRef<Path>>(&self, path: P) -> Result<()> {
        fs::remove_file(path)
    }

    fn rename<P: AsRef<Path>>(&self, from: P, to: P) -> Result<()> {
        fs::rename(from, to)
    }

    fn new_reader(&self, handle: Arc<DiskFile>) -> Result<Cursor<DiskFile>> {
        Ok(Cursor { handle, offset: 0 })
    }

    fn new_writer(&self, handle: Arc<DiskFile>) -> Result<Cursor<DiskFile>> {
        Ok(Cursor { handle, offset: 0 })
    }
}

/// A file that is read and written at given places.
pub trait RandomAccess {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize>;
    fn truncate_to(&self, size: u64) -> Result<()>;
    fn size(&self) -> Result<u64>;
    fn reserve(&self, offset: u64, bytes: u64) -> Result<()>;
}

impl RandomAccess for DiskFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        fail_point!("log::read", |_| Err(Error::other("injected read error")));
        self.0.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        fail_point!("log::write::no_space", |_| Err(no_space()));
        fail_point!("log::write::short", |_| {
            // Half of the bytes get through before the disk is full.
            self.0.write_all_at(&bytes[..bytes.len() / 2], offset)?;
            Err(no_space())
        });
        self.0.write_at(bytes, offset)
    }

    fn truncate_to(&self, size: u64) -> Result<()> {
        self.0.set_len(size)
    }

    fn size(&self) -> Result<u64> {
        self.0.metadata().map(|metadata| metadata.len())
    }

    fn reserve(&self, offset: u64, bytes: u64) -> Result<()> {
        let mode = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&self.0, mode, offset, bytes) {
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            result => result.map_err(Error::from),
        }
    }
}

impl Handle for DiskFile {
    fn truncate(&self, size: usize) -> Result<()> {
        self.truncate_to(size as u64)
    }

    fn file_size(&self) -> Result<usize> {
        self.size().map(|size| size as usize)
    }

    fn sync(&self) -> Result<()> {
        fail_point!("log::sync", |_| Err(Error::other("injected sync error")));
        self.0.sync_data()
    }
}

#[cfg(feature = "failpoints")]
fn no_space() -> Error {
    Error::from(rustix::io::Errno::NOSPC)
}

/// A position in an open file.
pub struct Cursor<H> {
    handle: Arc<H>,
    offset: u64,
}

impl<H: RandomAccess> Read for Cursor<H> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let read = self.handle.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl<H: RandomAccess> Write for Cursor<H> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let written = self.handle.write_at(bytes, self.offset)?;
        self.offset += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl<H: RandomAccess> Seek for Cursor<H> {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(delta) => self.offset.checked_add_signed(delta),
            SeekFrom::End(delta) => self.handle.size()?.checked_add_signed(delta),
        };
        self.offset = target.ok_or_else(|| Error::from(ErrorKind::InvalidInput))?;
        Ok(self.offset)
    }
}

impl<H: RandomAccess> WriteExt for Cursor<H> {
    fn truncate(&mut self, offset: usize) -> Result<()> {
        self.handle.truncate_to(offset as u64)?;
        self.offset = offset as u64;
        Ok(())
    }

    fn allocate(&mut self, offset: usize, size: usize) -> Result<()> {
        self.handle.reserve(offset as u64, size as u64)
    }
}

/// Files that are read from disk and changed in memory only.
pub struct Overlay;

/// A file of an [`Overlay`].
pub enum OverlayFile {
    /// Opened for reading: on disk.
    Disk(File),
    /// Created, or opened for writing: its content was read into memory.
    Memory(RwLock<Vec<u8>>),
}

impl FileSystem for Overlay {
    type Handle = OverlayFile;
    type Reader = Cursor<OverlayFile>;
    type Writer = Cursor<OverlayFile>;

    fn create<P: AsRef<Path>>(&self, _path: P) -> Result<OverlayFile> {
        Ok(OverlayFile::Memory(RwLock::new(Vec::new())))
    }

    fn open<P: AsRef<Path>>(&self, path: P, permission: Permission) -> Result<OverlayFile> {
        match permission {
            Permission::ReadOnly => File::open(path).map(OverlayFile::Disk),
            Permission::ReadWrite => {
                fs::read(path).map(|content| OverlayFile::Memory(RwLock::new(content)))
            }
        }
    }

    fn delete<P: AsRef<Path>>(&self, _path: P) -> Result<()> {
        Ok(())
    }

    fn rename<P: AsRef<Path>>(&self, _from: P, _to: P) -> Result<()> {
        Ok(())
    }

    fn new_reader(&self, handle: Arc<OverlayFile>) -> Result<Cursor<OverlayFile>> {
        Ok(Cursor { handle, offset: 0 })
    }

    fn new_writer(&self, handle: Arc<OverlayFile>) -> Result<Cursor<OverlayFile>> {
        Ok(Cursor { handle, offset: 0 })
    }
}

impl RandomAccess for OverlayFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match self {
            OverlayFile::Disk(file) => file.read_at(buffer, offset),
            OverlayFile::Memory(content) => {
                let content = content.read();
                let start = usize::try_from(offset)
                    .unwrap_or(usize::MAX)
                    .min(content.len());
                let read = buffer.len().min(content.len() - start);
                buffer[..read].copy_from_slice(&content[start..start + read]);
                Ok(read)
            }
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        let mut content = self.memory()?.write();
        let start = offset as usize;
        if content.len() < start + bytes.len() {
            content.resize(start + bytes.len(), 0);
        }
        content[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn truncate_to(&self, size: u64) -> Result<()> {
        // The engine also cuts a file that it opened for reading, when it meets damage in it.
        if let OverlayFile::Memory(content) = self {
            content.write().resize(size as usize, 0);
        }
        Ok(())
    }

    fn size(&self) -> Result<u64> {
        match self {
            OverlayFile::Disk(file) => file.metadata().map(|metadata| metadata.len()),
            OverlayFile::Memory(content) => Ok(content.read().len() as u64),
        }
    }

    fn reserve(&self, _offset: u64, _bytes: u64) -> Result<()> {
        Ok(())
    }
}

impl OverlayFile {
    fn memory(&self) -> Result<&RwLock<Vec<u8>>> {
        match self {
            OverlayFile::Disk(_) => Err(Error::from(ErrorKind::PermissionDenied)),
            OverlayFile::Memory(content) => Ok(content),
        }
    }
}

impl Handle for OverlayFile {
    fn truncate(&self, size: usize) -> Result<()> {
        self.truncate_to(size as u64)
    }

    fn file_size(&self) -> Result<usize> {
        self.size().map(|size| size as usize)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
