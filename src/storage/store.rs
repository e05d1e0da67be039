//! `view`, `update` and `batch`: what a transaction may do.

use super::events::{Interest, Subscription};
use super::object::StoreObject;
use super::{StoreError, Table};
use crate::api::types::{NodeRole, TaskState};
use std::sync::Arc;

/// A selector (spec 04 section 4.1). Tables that do not support it answer `InvalidFindBy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum By {
    All,
    Or(Vec<By>),
    IdPrefix(String),
    /// Case-insensitive.
    Name(String),
    /// Case-insensitive.
    NamePrefix(String),
    Custom {
        index: String,
        value: String,
    },
    CustomPrefix {
        index: String,
        value: String,
    },
    /// Observed role (`node.role`), as enum value.
    Role(NodeRole),
    Membership(i32),
    Kind(String),
    Runtime(String),
    ReferencedNetwork(String),
    ReferencedSecret(String),
    ReferencedConfig(String),
    ServiceId(String),
    NodeId(String),
    Slot {
        service_id: String,
        slot: u64,
    },
    DesiredState(TaskState),
    TaskState(TaskState),
    VolumeAttachment(String),
    VolumeGroup(String),
    Driver(String),
}

/// The store of one manager. Cheap to clone.
#[derive(Clone)]
pub struct Store {}

/// A consistent, immutable view.
pub struct ReadTx {}

/// A write transaction. Reads see its own writes and those of all transactions before it.
pub struct Tx {}

/// A long series of small changes, split into entries of at most 200 changes or 1,179,648 bytes.
pub struct Batch {}

impl ReadTx {
    pub fn get<T: StoreObject>(&self, id: &str) -> Result<Option<Arc<T>>, StoreError> {
        let _ = id;
        todo!()
    }
    /// Matching objects in index-key order, each once.
    pub fn find<T: StoreObject>(&self, by: By) -> Result<Vec<Arc<T>>, StoreError> {
        let _ = by;
        todo!()
    }
    pub fn count<T: StoreObject>(&self, by: By) -> Result<usize, StoreError> {
        let _ = by;
        todo!()
    }
    /// The entry index this view shows.
    pub fn applied(&self) -> u64 {
        todo!()
    }
}

impl Tx {
    pub fn get<T: StoreObject>(&self, id: &str) -> Result<Option<Arc<T>>, StoreError> {
        let _ = id;
        todo!()
    }
    pub fn find<T: StoreObject>(&self, by: By) -> Result<Vec<Arc<T>>, StoreError> {
        let _ = by;
        todo!()
    }
    /// Stores a new object and returns it as stored, with its stamp and times.
    pub fn create<T: StoreObject>(&mut self, object: T) -> Result<Arc<T>, StoreError> {
        let _ = object;
        todo!()
    }
    /// Replaces an object whose version equals the stored one; returns it as stored.
    pub fn update<T: StoreObject>(&mut self, object: T) -> Result<Arc<T>, StoreError> {
        let _ = object;
        todo!()
    }
    pub fn delete<T: StoreObject>(&mut self, id: &str) -> Result<(), StoreError> {
        let _ = id;
        todo!()
    }
}

impl Store {
    /// Runs `f` on the last committed state. Never blocks writers.
    pub fn view<R>(&self, f: impl FnOnce(&ReadTx) -> R) -> R {
        let _ = f;
        todo!()
    }

    /// Runs `f` as one transaction and returns once it is committed and applied here. An error of `f`
    /// is returned unchanged and nothing is written. `f` may not do I/O. Dropping the future does not
    /// withdraw a proposal.
    pub async fn update<R, E>(&self, f: impl FnOnce(&mut Tx) -> Result<R, E> + Send) -> Result<R, E>
    where
        R: Send,
        E: From<StoreError> + Send,
    {
        let _ = f;
        todo!()
    }

    /// Starts a batch; see [`Batch`].
    pub fn batch(&self) -> Batch {
        todo!()
    }

    pub fn watch(&self, interests: &[Interest]) -> Subscription {
        let _ = interests;
        todo!()
    }

    /// Runs `f` on a state S; the subscription delivers exactly what leads from S onwards.
    pub fn view_and_watch<R>(
        &self,
        interests: &[Interest],
        f: impl FnOnce(&ReadTx) -> R,
    ) -> (R, Subscription) {
        let _ = (interests, f);
        todo!()
    }

    /// Number of objects of a table, from a counter.
    pub fn len(&self, table: Table) -> u64 {
        let _ = table;
        todo!()
    }

    /// Index of the last applied entry.
    pub fn applied(&self) -> u64 {
        todo!()
    }
}

impl Batch {
    /// One inner transaction: all of it lands in one entry, or, on an error, none of it. Commits what
    /// is open when it has grown large. After a failed commit every later call returns that error.
    pub async fn update<R, E>(
        &mut self,
        f: impl FnOnce(&mut Tx) -> Result<R, E> + Send,
    ) -> Result<R, E>
    where
        R: Send,
        E: From<StoreError> + Send,
    {
        let _ = f;
        todo!()
    }

    /// Commits what is still open. A batch that is dropped instead leaves it unwritten.
    pub async fn commit(self) -> Result<(), StoreError> {
        todo!()
    }
}
