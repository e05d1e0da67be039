//! What can go wrong with the database, always with what was attempted, on which database, and what to do
//! next.

use crate::storage::codec::CodecError;
use crate::storage::seal::SealError;
use crate::storage::state_dir::StateDirError;
use rocksdb::ErrorKind;
use std::path::Path;

/// Why the database could not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DbError {
    #[error("cannot {attempt} the database {path}: {reason}; {advice}")]
    Engine {
        attempt: String,
        path: String,
        reason: String,
        /// What to do next.
        advice: &'static str,
        /// The file system is full: reads go on, and writes will once there is space.
        full: bool,
    },
    #[error("cannot read the record {record} of the database {path}: {error}")]
    Record {
        record: String,
        path: String,
        error: CodecError,
    },
    #[error("cannot open the record {record} of the database {path}: {error}")]
    Sealed {
        record: String,
        path: String,
        error: SealError,
    },
    #[error("the database {path} {reason}; {advice}")]
    Unusable {
        path: String,
        reason: String,
        advice: &'static str,
    },
    #[error("{0}")]
    Files(String),
}

impl DbError {
    /// True if nothing but missing disk space is in the way.
    pub fn is_full(&self) -> bool {
        matches!(self, DbError::Engine { full: true, .. })
    }
}

impl From<StateDirError> for DbError {
    fn from(error: StateDirError) -> DbError {
        DbError::Files(error.to_string())
    }
}

pub(super) const ADVICE_DAMAGED: &str = "its files are damaged: look at what is left with `swarm-db inspect`, then restore \
     a backup or let this member join its group again";
const ADVICE_FULL: &str = "free space on the file system";
const ADVICE_IO: &str = "check the disk and the file permissions";
const ADVICE_RETRY: &str = "try again";

/// Adds what was attempted, on what, and what to do next.
pub(super) fn engine_error(attempt: &str, path: &Path, error: rocksdb::Error) -> DbError {
    let full = error.as_ref().contains("No space left");
    let advice = match error.kind() {
        _ if full => ADVICE_FULL,
        ErrorKind::Corruption | ErrorKind::InvalidArgument | ErrorKind::NotSupported => {
            ADVICE_DAMAGED
        }
        ErrorKind::IOError => ADVICE_IO,
        _ => ADVICE_RETRY,
    };
    DbError::Engine {
        attempt: attempt.to_owned(),
        path: path.display().to_string(),
        reason: error.into_string(),
        advice,
        full,
    }
}
