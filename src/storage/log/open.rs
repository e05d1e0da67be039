//! Opening the log: reads the engine's state into a [`RaftLog`]. It judges nothing and repairs nothing.

use super::records::{self, HardStateRecord, Identity, LogPosition, key};
use super::{ADVICE_DAMAGED, ADVICE_DISK, GROUP, LogError, LogOptions, MarkFile, RaftLog};
use crate::storage::codec;
use crate::storage::seal::{DekRing, SealError, Sealer, new_salt};
use crate::storage::state_dir::StateDir;
use raft_engine::env::FileSystem;
use raft_engine::{Command, Config, Engine, LogBatch, ReadableSize, RecoveryMode};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

impl<F: FileSystem> RaftLog<F> {
    /// Opens the log whose files [`super::scan::scan`] has found in order. `engine_dir` is where the engine
    /// looks for them through `files`, which is `dir` itself unless they are opened for reading only.
    pub(in crate::storage) fn open_with(
        dir: &StateDir,
        engine_dir: &Path,
        files: Arc<F>,
        mark: Option<MarkFile>,
        ring: &DekRing,
        options: &LogOptions,
    ) -> Result<RaftLog<F>, LogError> {
        let (mark_path, dir) = (dir.raft_mark(), dir.raft_log());
        let engine = open_engine(&dir, engine_dir, files, options)?;
        let mut log = RaftLog {
            purge_bytes: options.purge_bytes,
            mark_path,
            sealer: Arc::new(sealer(&dir, ring, &[])?),
            dir,
            engine,
            mark,
            identity: None,
            truncated: LogPosition::default(),
            last: LogPosition::default(),
            hard_state: HardStateRecord::default(),
            commit_unwritten: false,
            salt: Vec::new(),
        };
        log.load(ring)?;
        Ok(log)
    }

    /// Reads the records and the ends of the log.
    fn load(&mut self, ring: &DekRing) -> Result<(), LogError> {
        self.identity = self.record::<Identity>(key::IDENTITY)?;
        if self.identity.is_none() {
            return self.load_unclaimed(ring);
        }
        let format: records::Format = self.required(key::FORMAT)?;
        if format.version != records::FORMAT_VERSION {
            return Err(self.unusable(format!(
                "it has format {}, this release knows format {}: start the release that wrote it",
                format.version,
                records::FORMAT_VERSION
            )));
        }
        self.salt = self
            .engine
            .get(GROUP, key::SALT)
            .ok_or_else(|| self.missing(key::SALT))?;
        self.sealer = Arc::new(sealer(&self.dir, ring, &self.salt)?);
        self.hard_state = self.required(key::HARD_STATE)?;
        self.truncated = self.required(key::TRUNCATED)?;
        self.last = self.truncated;
        self.load_entries()
    }

    /// A log without identity is new, or it was created and never used.
    fn load_unclaimed(&mut self, ring: &DekRing) -> Result<(), LogError> {
        let used = self.engine.last_index(GROUP).is_some()
            || self.engine.get(GROUP, key::HARD_STATE).is_some();
        if used {
            return Err(self.missing(key::IDENTITY));
        }
        let salt = new_salt().map_err(|error| LogError::Seal { index: 0, error })?;
        self.salt = salt.to_vec();
        self.sealer = Arc::new(sealer(&self.dir, ring, &salt)?);
        Ok(())
    }

    fn load_entries(&mut self) -> Result<(), LogError> {
        let first = self.first_index();
        if self
            .engine
            .first_index(GROUP)
            .is_some_and(|index| index < first)
        {
            // The truncated state is the authority: drop in memory what it has dropped.
            let mut batch = LogBatch::default();
            batch.add_command(GROUP, Command::Compact { index: first });
            self.engine
                .write(&mut batch, true)
                .map_err(|error| self.unusable(error.to_string()))?;
        }
        let (Some(lowest), Some(highest)) = (
            self.engine.first_index(GROUP),
            self.engine.last_index(GROUP),
        ) else {
            return Ok(());
        };
        if lowest != first {
            return Err(self.unusable(format!(
                "entries {first} to {} are missing; {ADVICE_DAMAGED}",
                lowest - 1
            )));
        }
        let entry = self.read_entry(highest)?;
        self.last = LogPosition {
            index: highest,
            term: entry.term,
        };
        Ok(())
    }

    fn required<R: codec::Record>(&self, key: &[u8]) -> Result<R, LogError> {
        self.record(key)?.ok_or_else(|| self.missing(key))
    }

    fn missing(&self, key: &[u8]) -> LogError {
        self.unusable(format!(
            "its record {} is missing; {ADVICE_DAMAGED}",
            String::from_utf8_lossy(key)
        ))
    }

    fn unusable(&self, reason: String) -> LogError {
        LogError::Engine {
            attempt: "open",
            dir: self.dir.display().to_string(),
            reason,
            advice: ADVICE_DISK,
        }
    }

    /// Reads every entry from `from` on, which checks its checksum and its seal.
    pub(in crate::storage) fn verify(&self, from: u64) -> Result<(), (u64, LogError)> {
        let mut next = from.max(self.first_index());
        while next <= self.last_index() {
            let entries = self
                .entries(next, self.last_index() + 1, VERIFY_BYTES)
                .map_err(|error| (self.first_unreadable(next), error))?;
            next += entries.len() as u64;
        }
        Ok(())
    }

    /// The first entry from `from` on that cannot be read by itself.
    fn first_unreadable(&self, from: u64) -> u64 {
        (from..=self.last_index())
            .find(|index| self.entries(*index, index + 1, 1).is_err())
            .unwrap_or(from)
    }
}

const ADVICE_OPEN: &str = "wait until its other user has closed it";

/// Bytes of entries read at once while the log is verified, 4 MiB.
const VERIFY_BYTES: u64 = 4 << 20;

fn sealer(dir: &Path, ring: &DekRing, salt: &[u8]) -> Result<Sealer, LogError> {
    Sealer::new(ring.clone(), salt, "log").map_err(|error: SealError| LogError::Engine {
        attempt: "derive the keys of",
        dir: dir.display().to_string(),
        reason: error.to_string(),
        advice: ADVICE_DISK,
    })
}

/// Opens the engine. It panics on some kinds of damage; the scan before it finds those, and what it
/// might miss becomes an error here.
fn open_engine<F: FileSystem>(
    dir: &Path,
    engine_dir: &Path,
    files: Arc<F>,
    options: &LogOptions,
) -> Result<Engine<F>, LogError> {
    let failed = |reason: String| LogError::Engine {
        attempt: "open",
        dir: dir.display().to_string(),
        reason,
        advice: ADVICE_DAMAGED,
    };
    let Some(path) = engine_dir.to_str() else {
        return Err(failed("its path is not valid UTF-8".into()));
    };
    let config = Config {
        dir: path.to_owned(),
        recovery_mode: RecoveryMode::TolerateTailCorruption,
        // Entries are sealed and do not compress.
        batch_compression_threshold: ReadableSize(0),
        target_file_size: ReadableSize(options.file_bytes),
        purge_threshold: ReadableSize(options.purge_bytes),
        recovery_threads: 2,
        ..Config::default()
    };
    let opened = catch_unwind(AssertUnwindSafe(|| {
        Engine::open_with_file_system(config, files)
    }));
    let error = match opened {
        Ok(Ok(engine)) => return Ok(engine),
        Ok(Err(error)) => error,
        Err(_) => {
            return Err(failed(
                "the log engine cannot make sense of its files".into(),
            ));
        }
    };
    let (reason, advice) = match &error {
        raft_engine::Error::Io(io) => (io.to_string(), ADVICE_DISK),
        // The only way to tell; the engine has no error of its own for it.
        other if other.to_string().contains("Failed to lock file") => {
            ("it is open already".to_owned(), ADVICE_OPEN)
        }
        other => (other.to_string(), ADVICE_DAMAGED),
    };
    Err(LogError::Engine {
        attempt: "open",
        dir: dir.display().to_string(),
        reason,
        advice,
    })
}
