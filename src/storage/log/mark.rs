//! The watermark: a small file that says how far the log is known to reach (settled S8).
//!
//! The log engine can lose the end of the log to a single damaged byte and open as if nothing had
//! happened. The mark is written and synced after the log itself, at most once a second and on an orderly
//! stop; the next opening compares. Two slots are written in turn, so that a torn write leaves the
//! previous mark. The mark never says more than the log holds: before the log is cut back, the mark is
//! lowered first.

use super::super::state_dir::{self, FILE_MODE, StateDirError};
use super::records::LogPosition;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of one slot. A slot never crosses a disk sector.
const SLOT_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"SWARMRK1";

/// What a mark says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    /// The last entry known to be in the log, durably.
    pub last: LogPosition,
    /// The term of the hard state known to be in the log, durably.
    pub hard_state_term: u64,
}

/// Why the mark cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    #[error("{0} is missing")]
    Missing(String),
    #[error("{0} is damaged in both of its halves")]
    Damaged(String),
    #[error("cannot {attempt} {path}: {error}")]
    Io {
        attempt: &'static str,
        path: String,
        error: io::Error,
    },
    #[error(transparent)]
    Files(#[from] StateDirError),
}

/// The open mark file.
#[derive(Debug)]
pub struct MarkFile {
    path: PathBuf,
    file: File,
    /// Number of the last write; its slot is the number modulo two.
    sequence: u64,
    mark: Mark,
}

impl MarkFile {
    /// Creates the file, or replaces it, durably.
    pub fn create(path: &Path, mark: Mark) -> Result<MarkFile, MarkError> {
        let mut content = encode(1, mark).to_vec();
        content.splice(0..0, encode(0, mark));
        state_dir::write_atomic(path, &content, FILE_MODE)?;
        MarkFile::open(path, true)
    }

    /// Opens an existing file and reads the newest mark.
    pub fn open(path: &Path, writable: bool) -> Result<MarkFile, MarkError> {
        let name = || path.display().to_string();
        let file = OpenOptions::new()
            .read(true)
            .write(writable)
            .open(path)
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => MarkError::Missing(name()),
                _ => MarkError::Io {
                    attempt: "open",
                    path: name(),
                    error,
                },
            })?;
        let mut newest = None;
        for slot in 0..2 {
            let mut bytes = [0; SLOT_BYTES];
            let read = file.read_exact_at(&mut bytes, (slot * SLOT_BYTES) as u64);
            match read {
                Ok(()) => newest = newest.max_by_sequence(decode(&bytes)),
                // A file that is too short lacks the slot.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(error) => {
                    return Err(MarkError::Io {
                        attempt: "read",
                        path: name(),
                        error,
                    });
                }
            }
        }
        let (sequence, mark) = newest.ok_or_else(|| MarkError::Damaged(name()))?;
        Ok(MarkFile {
            path: path.to_owned(),
            file,
            sequence,
            mark,
        })
    }

    /// The newest mark.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Writes a new mark, durably.
    pub fn write(&mut self, mark: Mark) -> Result<(), MarkError> {
        let sequence = self.sequence + 1;
        let offset = (sequence % 2) * SLOT_BYTES as u64;
        self.file
            .write_all_at(&encode(sequence, mark), offset)
            .and_then(|()| self.file.sync_data())
            .map_err(|error| MarkError::Io {
                attempt: "write",
                path: self.path.display().to_string(),
                error,
            })?;
        self.sequence = sequence;
        self.mark = mark;
        Ok(())
    }
}

trait Newest {
    fn max_by_sequence(self, other: Self) -> Self;
}

impl Newest for Option<(u64, Mark)> {
    fn max_by_sequence(self, other: Self) -> Self {
        match (self, other) {
            (Some(one), Some(two)) if one.0 >= two.0 => Some(one),
            (one, None) => one,
            (_, two) => two,
        }
    }
}

fn encode(sequence: u64, mark: Mark) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(MAGIC);
    slot[8..16].copy_from_slice(&sequence.to_be_bytes());
    slot[16..24].copy_from_slice(&mark.last.index.to_be_bytes());
    slot[24..32].copy_from_slice(&mark.last.term.to_be_bytes());
    slot[32..40].copy_from_slice(&mark.hard_state_term.to_be_bytes());
    let checksum = crc32fast::hash(&slot[..SLOT_BYTES - 4]);
    slot[SLOT_BYTES - 4..].copy_from_slice(&checksum.to_be_bytes());
    slot
}

fn decode(slot: &[u8; SLOT_BYTES]) -> Option<(u64, Mark)> {
    let (body, checksum) = slot.split_last_chunk::<4>()?;
    if !body.starts_with(MAGIC) || crc32fast::hash(body) != u32::from_be_bytes(*checksum) {
        return None;
    }
    let number = |at: usize| -> Option<u64> {
        let bytes = body.get(at..at + 8)?;
        Some(u64::from_be_bytes(bytes.try_into().ok()?))
    };
    let mark = Mark {
        last: LogPosition {
            index: number(16)?,
            term: number(24)?,
        },
        hard_state_term: number(32)?,
    };
    Some((number(8)?, mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(index: u64) -> Mark {
        Mark {
            last: LogPosition { index, term: 2 },
            hard_state_term: 3,
        }
    }

    #[test]
    fn the_newest_mark_is_read_and_a_torn_write_leaves_the_previous() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("MARK");
        let mut file = MarkFile::create(&path, mark(0)).unwrap();
        for index in 1..6 {
            file.write(mark(index)).unwrap();
            assert_eq!(MarkFile::open(&path, false).unwrap().mark(), mark(index));
        }
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(whole.len(), 128);
        // Sequence 6 (the fifth write after 0 and 1) lies in slot 0: any damage there leaves 4.
        for at in 0..SLOT_BYTES {
            let mut torn = whole.clone();
            torn[at] ^= 0x10;
            std::fs::write(&path, &torn).unwrap();
            assert_eq!(MarkFile::open(&path, false).unwrap().mark(), mark(4));
        }
    }

    #[test]
    fn a_missing_or_wholly_damaged_mark_is_told_apart() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("MARK");
        assert!(matches!(
            MarkFile::open(&path, false),
            Err(MarkError::Missing(_))
        ));
        for content in [vec![], vec![0; 128], vec![7; 100]] {
            std::fs::write(&path, content).unwrap();
            assert!(matches!(
                MarkFile::open(&path, false),
                Err(MarkError::Damaged(_))
            ));
        }
    }
}
