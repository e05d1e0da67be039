//! What can go wrong in the store, with the texts that API clients see (spec: they travel verbatim).

use super::ProposeError;
use super::engine::DbError;

/// Errors of reads and transactions. `Display` of the first six variants is part of the wire contract.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Create with an ID that is already present.
    #[error("object already exists")]
    Exist,
    /// Update or delete of an unknown ID.
    #[error("object does not exist")]
    NotExist,
    /// Create or update whose lower-cased name belongs to another object.
    #[error("name conflicts with an existing object")]
    NameConflict,
    /// A selector that the table does not support.
    #[error("invalid find argument type")]
    InvalidFindBy,
    /// Update with a stale `meta.version`; both stamps are kept for the caller's message.
    #[error("update out of sequence")]
    SequenceConflict { given: u64, stored: u64 },
    /// A resource whose kind has no extension.
    #[error("object kind is unregistered")]
    NoKind,
    /// A rule of one table (immutable extensions, an extension in use, a volume without driver).
    #[error("{0}")]
    Rule(&'static str),
    /// The transaction could not be replicated; the outcome may be unknown (see [`ProposeError`]).
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// The disk or a stored record is damaged or unreadable: what was attempted, on what, why.
    #[error("{0}")]
    Disk(String),
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
}

impl From<DbError> for StoreError {
    fn from(error: DbError) -> StoreError {
        StoreError::Disk(error.to_string())
    }
}
