//! Everything that touches the disk, and the typed tables.
//!
//! The store is the replicated state machine of the raft group: ten tables of protobuf objects with
//! unique and secondary indexes, kept in RocksDB, changed only by committed log entries. Services read
//! consistent views, write transactions and subscribe to changes; they never see RocksDB.
//!
//! This room knows nothing of raft: it proposes through the [`Proposer`] trait and is told what was
//! committed through [`Store`]'s apply calls.

pub mod apply;
mod batch;
mod cache;
pub mod check;
pub mod codec;
pub mod digest;
pub mod engine;
pub mod engines;
pub mod error;
pub mod events;
pub mod files;
mod head;
pub mod history;
pub mod inspect;
pub mod keys;
pub mod log;
mod membership;
pub mod object;
mod overlay;
pub mod proposer;
mod read;
mod records;
pub mod request;
pub mod rotation;
mod rows;
pub mod seal;
pub mod snapshot;
pub mod state_dir;
pub mod store;
mod summary;
pub mod tables;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod tx;

pub use apply::{CommittedEntry, Payload};
pub use engines::{EngineOptions, Engines, OpenError};
pub use error::StoreError;
pub use events::{Change, EventBatch, Interest, RecvError, Subscription};
pub use history::{ResumeError, Resumption};
pub use membership::Membership;
pub use object::{Action, AnyObject, StoreObject, Table};
pub use proposer::{Position, Proposal, ProposeError, Proposer};
pub use store::{Batch, By, ReadTx, Store, StoreOptions, Tx};
