//! The raft log on disk: sealed entries and the few records beside them, kept by raft-engine.
//!
//! One batch, one sync: what the consensus library wants durable together (entries, hard state) is
//! written as one batch and synced before [`RaftLog::append`] returns. **Nothing is ever written
//! unsynced.** A commit index that moved alone is kept in memory and travels with the next batch, so at
//! most the very last batch on disk can be torn by a crash; that is what lets an opening tell a torn write
//! from damage (see [`scan`]).
//!
//! A failed sync ends the thread (the engine panics: after it the page cache cannot be trusted). A full
//! disk is an ordinary error: nothing was acknowledged and the same append may be tried again.
//!
//! Indexes are checked before the engine sees them, because it panics on gaps. `ts`, the truncated
//! state, is the authority for where the log begins.

use super::codec::{self, CodecError, Record};
use super::seal::{KeyId, Sealer};
use raft::eraftpb::{Entry, HardState};
use raft_engine::env::FileSystem;
use raft_engine::{Command, Engine, LogBatch, MessageExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod error;
mod files;
mod mark;
mod open;
mod records;
mod repair;
mod reseal;
pub mod scan;

pub use error::LogError;
use error::{ADVICE_DAMAGED, ADVICE_DISK};
pub(super) use files::{Disk, Overlay};
pub(super) use mark::{Mark, MarkError, MarkFile};
use records::{HardStateRecord, key};
pub use records::{Identity, LogPosition};

#[cfg(test)]
mod tests;

/// The engine can keep many groups; a manager is a member of one.
const GROUP: u64 = 1;

/// Sizes of the log's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOptions {
    /// A file is closed when it has grown beyond this.
    pub file_bytes: u64,
    /// Files are given back once the log is larger than this and its oldest entries are forgotten.
    pub purge_bytes: u64,
}

impl Default for LogOptions {
    /// The sizes of spec 01 section 8.
    fn default() -> LogOptions {
        LogOptions {
            file_bytes: 16 << 20,
            purge_bytes: 64 << 20,
        }
    }
}

/// Tells the log engine how to find an entry's index.
struct EntryFormat;

impl MessageExt for EntryFormat {
    type Entry = Entry;

    fn index(entry: &Entry) -> u64 {
        entry.index
    }
}

/// The open log. Used by one thread.
pub struct RaftLog<F: FileSystem = Disk> {
    dir: PathBuf,
    engine: Engine<F>,
    sealer: Arc<Sealer>,
    mark_path: PathBuf,
    /// `None` until the log is claimed, and in a log that is only read.
    mark: Option<MarkFile>,
    purge_bytes: u64,
    identity: Option<Identity>,
    truncated: LogPosition,
    last: LogPosition,
    hard_state: HardStateRecord,
    /// The commit index in memory is newer than the one on disk.
    commit_unwritten: bool,
    /// Salt of a log that has no records yet; they will hold it.
    salt: Vec<u8>,
}

impl<F: FileSystem> RaftLog<F> {
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whose log this is; `None` until [`RaftLog::claim`].
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// The entry behind which the log begins.
    pub fn truncated(&self) -> LogPosition {
        self.truncated
    }

    /// The newest entry; the truncated state if there is none.
    pub fn last(&self) -> LogPosition {
        self.last
    }

    /// Index after the last forgotten entry; 1 for a log that never forgot any.
    pub fn first_index(&self) -> u64 {
        self.truncated.index + 1
    }

    /// Index of the newest entry; `first_index() - 1` if there is none.
    pub fn last_index(&self) -> u64 {
        self.last.index
    }

    /// The hard state, with the newest commit index that was handed in.
    pub fn hard_state(&self) -> HardState {
        HardState {
            term: self.hard_state.term,
            vote: self.hard_state.vote,
            commit: self.hard_state.commit,
            ..HardState::default()
        }
    }

    /// Seals entries of this log; its keys can be exchanged while it is in use.
    pub fn sealer(&self) -> &Arc<Sealer> {
        &self.sealer
    }

    /// Bytes of all log files on disk.
    pub fn size_bytes(&self) -> u64 {
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten();
        entries
            .filter_map(|entry| entry.ok()?.metadata().ok())
            .map(|metadata| metadata.len())
            .sum()
    }

    /// Term of an entry, or of the last forgotten one.
    pub fn term(&self, index: u64) -> Result<u64, LogError> {
        if index == self.truncated.index {
            return Ok(self.truncated.term);
        }
        if index == self.last.index {
            return Ok(self.last.term);
        }
        self.check_range(index, index + 1)?;
        self.read_entry(index).map(|entry| entry.term)
    }

    /// Entries of `[low, high)`: at least the first one, then as many as fit into `bytes_max` bytes.
    pub fn entries(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<Entry>, LogError> {
        if high <= low {
            return Ok(Vec::new());
        }
        self.check_range(low, high)?;
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let mut entries = Vec::new();
        self.engine
            .fetch_entries_to::<EntryFormat>(GROUP, low, high, Some(bytes_max), &mut entries)
            .map_err(|error| self.read_error(low + entries.len() as u64, error.to_string()))?;
        for entry in &mut entries {
            self.unseal(entry)?;
        }
        Ok(entries)
    }

    fn check_range(&self, low: u64, high: u64) -> Result<(), LogError> {
        if low < self.first_index() {
            return Err(LogError::Compacted {
                index: low,
                first: self.first_index(),
            });
        }
        if high > self.last.index + 1 {
            return Err(LogError::Unavailable {
                index: high - 1,
                last: self.last.index,
            });
        }
        Ok(())
    }

    /// An entry as it is on disk, still sealed.
    fn read_entry(&self, index: u64) -> Result<Entry, LogError> {
        self.engine
            .get_entry::<EntryFormat>(GROUP, index)
            .map_err(|error| self.read_error(index, error.to_string()))?
            .ok_or_else(|| self.read_error(index, "it is missing".into()))
    }

    fn unseal(&self, entry: &mut Entry) -> Result<(), LogError> {
        let context = Context::of(entry);
        let opened = self
            .sealer
            .open(&context.parts(), 0, &entry.data)
            .map_err(|error| self.read_error(entry.index, error.to_string()))?;
        entry.data = opened.body.into();
        Ok(())
    }

    /// Names the file of an entry that cannot be read.
    fn read_error(&self, index: u64, reason: String) -> LogError {
        let reason = format!("entry {index} cannot be read: {reason}");
        match scan::locate(&self.dir, index) {
            Some(place) => LogError::Damaged {
                file: place.file.display().to_string(),
                offset: place.offset,
                reason,
                advice: ADVICE_DAMAGED,
            },
            None => LogError::Engine {
                attempt: "read from",
                dir: self.dir.display().to_string(),
                reason,
                advice: ADVICE_DAMAGED,
            },
        }
    }

    /// ID of the data key that sealed the newest entry; `None` without entries.
    pub fn key_of_last(&self) -> Option<KeyId> {
        let entry = self
            .engine
            .get_entry::<EntryFormat>(GROUP, self.last.index)
            .ok()??;
        Some(Sealer::peek(0, &entry.data).ok()?.key_id)
    }

    /// Text of a one-shot marker.
    pub fn marker(&self, name: &str) -> Result<Option<String>, LogError> {
        let marker: Option<records::Marker> = self.record(&marker_key(name))?;
        Ok(marker.map(|marker| marker.0))
    }

    fn record<R: Record>(&self, key: &[u8]) -> Result<Option<R>, LogError> {
        self.engine
            .get(GROUP, key)
            .map(|bytes| codec::decode(&bytes))
            .transpose()
            .map_err(|error| self.record_error(key, error))
    }

    fn record_error(&self, key: &[u8], error: CodecError) -> LogError {
        LogError::Record {
            record: String::from_utf8_lossy(key).into_owned(),
            dir: self.dir.display().to_string(),
            error,
        }
    }
}

impl RaftLog {
    /// Makes this the log of a member: writes its identity, its first hard state and its first entries
    /// (none for a member that joins), durably and at once.
    pub fn claim(
        &mut self,
        identity: Identity,
        hard_state: &HardState,
        entries: &[Entry],
    ) -> Result<(), LogError> {
        if let Some(owner) = &self.identity {
            return Err(LogError::Taken {
                dir: self.dir.display().to_string(),
                raft_id: owner.raft_id,
            });
        }
        self.mark = Some(MarkFile::create(&self.mark_path, Mark::default())?);
        let mut batch = LogBatch::default();
        let salt = self.salt.clone();
        self.put(&mut batch, key::SALT, salt)?;
        self.put_record(
            &mut batch,
            key::FORMAT,
            &records::Format {
                version: records::FORMAT_VERSION,
                created_by: env!("CARGO_PKG_VERSION").to_owned(),
            },
        )?;
        self.put_record(&mut batch, key::IDENTITY, &identity)?;
        self.put_record(&mut batch, key::TRUNCATED, &self.truncated)?;
        let hard_state = HardStateRecord::of(hard_state);
        self.put_record(&mut batch, key::HARD_STATE, &hard_state)?;
        let last = self.add_entries(&mut batch, entries)?;
        self.write(batch, "write the first records of")?;
        self.identity = Some(identity);
        self.last = last.unwrap_or(self.last);
        self.hard_state = hard_state;
        Ok(())
    }

    /// Replaces the identity, durably; the raft ID of a restored member, or its new address.
    pub fn set_identity(&mut self, identity: Identity) -> Result<(), LogError> {
        let mut batch = LogBatch::default();
        self.put_record(&mut batch, key::IDENTITY, &identity)?;
        self.write(batch, "write the identity of")?;
        self.identity = Some(identity);
        Ok(())
    }

    /// Writes or removes a one-shot marker, durably.
    pub fn set_marker(&mut self, name: &str, text: Option<&str>) -> Result<(), LogError> {
        let mut batch = LogBatch::default();
        match text {
            Some(text) => {
                let marker = records::Marker(text.to_owned());
                self.put_record(&mut batch, &marker_key(name), &marker)?;
            }
            None => batch.delete(GROUP, marker_key(name)),
        }
        self.write(batch, "write a marker of")
    }

    /// Writes entries, cutting off what the log held from the first of them on, and the hard state, as
    /// one batch, durably. Without entries and with nothing but a new commit index it writes nothing:
    /// the index is kept for the next batch.
    pub fn append(
        &mut self,
        entries: &[Entry],
        hard_state: Option<&HardState>,
    ) -> Result<(), LogError> {
        if self.identity.is_none() {
            return Err(LogError::Unclaimed {
                dir: self.dir.display().to_string(),
            });
        }
        let next = hard_state.map_or(self.hard_state, HardStateRecord::of);
        let promise = (next.term, next.vote) != (self.hard_state.term, self.hard_state.vote);
        if entries.is_empty() && !promise {
            self.commit_unwritten |= next.commit != self.hard_state.commit;
            self.hard_state = next;
            return Ok(());
        }
        let mut batch = LogBatch::default();
        let last = self.add_entries(&mut batch, entries)?;
        if next != self.hard_state || self.commit_unwritten {
            self.put_record(&mut batch, key::HARD_STATE, &next)?;
        }
        if let Some(first) = entries
            .first()
            .filter(|first| first.index <= self.last.index)
        {
            self.lower_mark(first.index - 1)?;
        }
        self.write(batch, "append to")?;
        self.last = last.unwrap_or(self.last);
        self.hard_state = next;
        self.commit_unwritten = false;
        Ok(())
    }

    /// Forgets the entries up to and including `index`, durably. Whoever calls this knows that the state
    /// machine holds their effect durably.
    pub fn compact(&mut self, index: u64) -> Result<(), LogError> {
        if index <= self.truncated.index {
            return Ok(());
        }
        let truncated = LogPosition {
            index,
            term: self.term(index)?,
        };
        let mut batch = LogBatch::default();
        self.put_record(&mut batch, key::TRUNCATED, &truncated)?;
        batch.add_command(GROUP, Command::Compact { index: index + 1 });
        self.write(batch, "compact")?;
        self.truncated = truncated;
        Ok(())
    }

    /// Forgets the whole log and begins anew behind `at`, the place of an installed snapshot, durably.
    /// The term of the hard state does not go back; the vote is kept if the term stays.
    pub fn reset(&mut self, at: LogPosition) -> Result<(), LogError> {
        let mut hard_state = self.hard_state;
        if at.term > hard_state.term {
            (hard_state.term, hard_state.vote) = (at.term, 0);
        }
        hard_state.commit = at.index;
        let beyond = at.index.max(self.last.index) + 1;
        let mut batch = LogBatch::default();
        self.put_record(&mut batch, key::TRUNCATED, &at)?;
        self.put_record(&mut batch, key::HARD_STATE, &hard_state)?;
        batch.add_command(GROUP, Command::Compact { index: beyond });
        if let Some(marked) = self.mark.as_ref().map(MarkFile::mark)
            && marked.last.index >= at.index
        {
            self.set_mark(Mark { last: at, ..marked })?;
        }
        self.write(batch, "reset")?;
        (self.truncated, self.last) = (at, at);
        self.hard_state = hard_state;
        self.commit_unwritten = false;
        Ok(())
    }

    /// Gives the space of forgotten entries back. Call it after compactions and every minute.
    pub fn purge(&mut self) -> Result<(), LogError> {
        if (self.engine.get_used_size() as u64) <= self.purge_bytes {
            return Ok(());
        }
        // Written again, the records no longer hold on to old files.
        self.write(self.all_records()?, "purge")?;
        self.commit_unwritten = false;
        self.engine
            .purge_expired_files()
            .map(drop)
            .map_err(|error| self.engine_error("purge", &error))
    }

    /// All small records as they are.
    fn all_records(&self) -> Result<LogBatch, LogError> {
        let mut batch = LogBatch::default();
        self.put_record(&mut batch, key::HARD_STATE, &self.hard_state)?;
        let mut copied = Ok(());
        self.engine
            .scan_raw_messages(GROUP, None, None, false, |key, value| {
                if key != key::HARD_STATE {
                    copied = batch.put(GROUP, key.to_vec(), value.to_vec());
                }
                copied.is_ok()
            })
            .and(copied)
            .map_err(|error| self.engine_error("read from", &error))?;
        Ok(batch)
    }

    /// Makes the present end of the log known to the next opening, durably. Call it about once a
    /// second and before an orderly stop; it does nothing if nothing changed.
    pub fn mark(&mut self) -> Result<(), LogError> {
        self.set_mark(Mark {
            last: self.last,
            hard_state_term: self.hard_state.term,
        })
    }

    /// Writes what is still only in memory; the last act before an orderly stop.
    pub fn close(&mut self) -> Result<(), LogError> {
        if self.commit_unwritten {
            let mut batch = LogBatch::default();
            self.put_record(&mut batch, key::HARD_STATE, &self.hard_state)?;
            self.write(batch, "close")?;
            self.commit_unwritten = false;
        }
        self.mark()
    }

    /// Lets the mark promise no more than the entries up to `index`, before the others are cut off.
    fn lower_mark(&mut self, index: u64) -> Result<(), LogError> {
        let marked = match &self.mark {
            Some(file) => file.mark(),
            None => return Ok(()),
        };
        if marked.last.index <= index {
            return Ok(());
        }
        let last = LogPosition {
            index,
            term: self.term(index)?,
        };
        self.set_mark(Mark { last, ..marked })
    }

    fn set_mark(&mut self, mark: Mark) -> Result<(), LogError> {
        match &mut self.mark {
            Some(file) if file.mark() != mark => Ok(file.write(mark)?),
            _ => Ok(()),
        }
    }

    /// Seals entries and adds them to a batch; returns the place of the last one.
    fn add_entries(
        &self,
        batch: &mut LogBatch,
        entries: &[Entry],
    ) -> Result<Option<LogPosition>, LogError> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return Ok(None);
        };
        let continuous = entries
            .windows(2)
            .all(|pair| pair[0].index + 1 == pair[1].index);
        let fits = (self.first_index()..=self.last.index + 1).contains(&first.index);
        if !continuous || !fits {
            return Err(LogError::Gap {
                first: first.index,
                last: last.index,
                log_first: self.first_index(),
                log_last: self.last.index,
            });
        }
        let sealed = entries
            .iter()
            .map(|entry| self.seal(entry))
            .collect::<Result<Vec<_>, _>>()?;
        batch
            .add_entries::<EntryFormat>(GROUP, &sealed)
            .map_err(|error| self.engine_error("append to", &error))?;
        Ok(Some(LogPosition {
            index: last.index,
            term: last.term,
        }))
    }

    /// The entry as it goes to disk: data sealed, fields that no peer keeps left out.
    fn seal(&self, entry: &Entry) -> Result<Entry, LogError> {
        let context = Context::of(entry);
        let data = self
            .sealer
            .seal(&context.parts(), b"", &entry.data)
            .map_err(|error| LogError::Seal {
                index: entry.index,
                error,
            })?;
        Ok(Entry {
            entry_type: entry.entry_type,
            term: entry.term,
            index: entry.index,
            data: data.into(),
            ..Entry::default()
        })
    }

    fn put_record<R: Record>(
        &self,
        batch: &mut LogBatch,
        key: &[u8],
        record: &R,
    ) -> Result<(), LogError> {
        let bytes = codec::encode(record).map_err(|error| self.record_error(key, error))?;
        self.put(batch, key, bytes)
    }

    fn put(&self, batch: &mut LogBatch, key: &[u8], bytes: Vec<u8>) -> Result<(), LogError> {
        batch
            .put(GROUP, key.to_vec(), bytes)
            .map_err(|error| self.engine_error("write to", &error))
    }

    fn write(&self, mut batch: LogBatch, attempt: &'static str) -> Result<(), LogError> {
        fail::fail_point!("log::before_append");
        self.engine
            .write(&mut batch, true)
            .map_err(|error| self.engine_error(attempt, &error))?;
        fail::fail_point!("log::after_append");
        Ok(())
    }

    fn engine_error(&self, attempt: &'static str, error: &raft_engine::Error) -> LogError {
        let dir = self.dir.display().to_string();
        match error {
            raft_engine::Error::Io(io) if io.kind() == std::io::ErrorKind::StorageFull => {
                LogError::NoSpace {
                    dir,
                    reason: io.to_string(),
                }
            }
            error => LogError::Engine {
                attempt,
                dir,
                reason: error.to_string(),
                advice: ADVICE_DISK,
            },
        }
    }
}

fn marker_key(name: &str) -> Vec<u8> {
    [key::MARKER, name.as_bytes()].concat()
}

impl HardStateRecord {
    fn of(state: &HardState) -> HardStateRecord {
        HardStateRecord {
            term: state.term,
            vote: state.vote,
            commit: state.commit,
        }
    }
}

/// What a sealed entry is bound to.
struct Context {
    group: [u8; 8],
    index: [u8; 8],
    term: [u8; 8],
    kind: [u8; 1],
}

impl Context {
    fn of(entry: &Entry) -> Context {
        Context {
            group: GROUP.to_be_bytes(),
            index: entry.index.to_be_bytes(),
            term: entry.term.to_be_bytes(),
            kind: [entry.entry_type as u8],
        }
    }

    fn parts(&self) -> [&[u8]; 4] {
        [&self.group, &self.index, &self.term, &self.kind]
    }
}
