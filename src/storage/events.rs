//! Subscriptions to committed changes.
//!
//! Every committed entry with at least one change yields one immutable [`EventBatch`]; a subscriber
//! receives, in log order, the batches that touch what it registered for, reduced to the matching
//! changes. Its queue is bounded: a subscriber that falls behind is told so and resynchronises through
//! `Store::view_and_watch`.

use super::object::{Action, AnyObject, StoreObject, Table};
use std::sync::Arc;

/// One change of one object. `old` is absent for creates and for updates replayed from history;
/// for a removal `object` is the last stored object.
#[derive(Debug, Clone)]
pub struct Change {
    pub action: Action,
    pub object: AnyObject,
    pub old: Option<AnyObject>,
}

impl Change {
    /// The object, if it is of kind `T`.
    pub fn get<T: StoreObject>(&self) -> Option<&Arc<T>> {
        T::from_any(&self.object)
    }
    /// The previous object, if it is known and of kind `T`.
    pub fn old<T: StoreObject>(&self) -> Option<&Arc<T>> {
        self.old.as_ref().and_then(T::from_any)
    }
}

/// The matching changes of one committed entry, in call order. Its end is the commit.
#[derive(Debug, Clone)]
pub struct EventBatch {
    /// Index of the log entry (of the snapshot after a restore).
    pub index: u64,
    pub changes: Vec<Arc<Change>>,
}

/// What a subscriber wants to hear of. A change matches if its new or its old object does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Interest {
    /// Every change of every table.
    All,
    Table(Table),
    Object(Table, String),
    /// Tasks assigned to this node.
    TaskNode(String),
    /// Tasks of this service.
    TaskService(String),
}

/// Why nothing more arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    #[error("the subscriber fell behind at index {0}")]
    Lagged(u64),
    #[error("the store is closed")]
    Closed,
}

/// A stream of [`EventBatch`]es; dropping it unsubscribes.
pub struct Subscription {}

impl Subscription {
    /// The next batch. After `Lagged` the subscription is over.
    pub async fn recv(&mut self) -> Result<EventBatch, RecvError> {
        todo!()
    }
    /// The next batch if one is queued.
    pub fn try_recv(&mut self) -> Result<Option<EventBatch>, RecvError> {
        todo!()
    }
}
