//! Subscriptions to committed changes.
//!
//! Every committed entry with at least one change yields one immutable [`EventBatch`]; a subscriber
//! receives, in log order, the batches that touch what it registered for, reduced to the matching
//! changes. Its queue is bounded: a subscriber that falls behind is told so and resynchronises through
//! `Store::view_and_watch`.
//!
//! Subscribers are registered under keys, so that ten thousand watchers of single nodes are not each
//! offered every task: a change is looked up under the few keys of its old and its new object.

use super::object::{Action, AnyObject, StoreObject, Table};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

/// Changes that may wait in one subscriber's queue (spec 04 section 19.7).
pub const QUEUE_CHANGES_MAX: usize = 10_000;

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

    /// Whether somebody with these interests is told of it.
    pub fn matches(&self, interests: &[Interest]) -> bool {
        let own = Interest::of_change(self);
        own.iter().any(|interest| interests.contains(interest))
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

impl Interest {
    /// The interests that a change matches, some perhaps twice.
    fn of_change(change: &Change) -> Vec<Interest> {
        let table = change.object.table();
        let mut interests = Vec::with_capacity(8);
        interests.push(Interest::All);
        interests.push(Interest::Table(table));
        interests.push(Interest::Object(table, change.object.id().to_owned()));
        for object in std::iter::once(&change.object).chain(&change.old) {
            if let AnyObject::Task(task) = object {
                interests.push(Interest::TaskNode(task.node_id.clone()));
                interests.push(Interest::TaskService(task.service_id.clone()));
            }
        }
        interests
    }
}

/// Why nothing more arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    #[error("the subscriber fell behind at index {0}")]
    Lagged(u64),
    #[error("the store is closed")]
    Closed,
}

/// The queue between the publisher and one subscriber.
#[derive(Default)]
struct Queue {
    batches: VecDeque<EventBatch>,
    /// Changes in all of them.
    changes: usize,
    /// Batches up to this entry are part of what the subscriber has already seen.
    skip_through: u64,
    end: Option<RecvError>,
    waker: Option<Waker>,
}

impl Queue {
    /// Ends the subscription; what is queued is lost.
    fn end(&mut self, why: RecvError) {
        self.batches = VecDeque::new();
        self.changes = 0;
        self.end = Some(why);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

type SharedQueue = Arc<Mutex<Queue>>;

/// All subscriptions of a store.
pub(super) struct Registry {
    next: AtomicU64,
    subscribers: Mutex<Subscribers>,
}

#[derive(Default)]
struct Subscribers {
    closed: bool,
    queues: HashMap<u64, SharedQueue>,
    by_interest: HashMap<Interest, BTreeSet<u64>>,
}

impl Registry {
    pub fn new() -> Arc<Registry> {
        Arc::new(Registry {
            next: AtomicU64::new(0),
            subscribers: Mutex::default(),
        })
    }

    /// Registers a subscriber that hears of everything published from now on.
    pub fn subscribe(self: &Arc<Self>, interests: &[Interest]) -> Subscription {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let queue = SharedQueue::default();
        let mut interests = interests.to_vec();
        interests.sort_by_cached_key(|interest| format!("{interest:?}"));
        interests.dedup();
        let mut subscribers = self.subscribers.lock();
        if subscribers.closed {
            queue.lock().end(RecvError::Closed);
        } else {
            subscribers.queues.insert(number, queue.clone());
            for interest in &interests {
                let numbers = subscribers.by_interest.entry(interest.clone());
                numbers.or_default().insert(number);
            }
        }
        drop(subscribers);
        Subscription {
            registry: self.clone(),
            number,
            interests,
            queue,
        }
    }

    /// Hands the changes of one entry to everybody who asked for them.
    pub fn publish(&self, index: u64, changes: &[Arc<Change>]) {
        let mut subscribers = self.subscribers.lock();
        if subscribers.queues.is_empty() {
            return;
        }
        let mut wanted: BTreeMap<u64, Vec<Arc<Change>>> = BTreeMap::new();
        for change in changes {
            for interest in Interest::of_change(change) {
                for number in subscribers.by_interest.get(&interest).into_iter().flatten() {
                    let matching = wanted.entry(*number).or_default();
                    // A subscriber may have asked for one change under several keys.
                    if !matching
                        .last()
                        .is_some_and(|last| Arc::ptr_eq(last, change))
                    {
                        matching.push(change.clone());
                    }
                }
            }
        }
        for (number, changes) in wanted {
            let Some(queue) = subscribers.queues.get(&number).cloned() else {
                continue;
            };
            let mut queue = queue.lock();
            if index <= queue.skip_through {
                continue;
            }
            // One entry alone always fits: its size is bounded where it is proposed.
            if queue.changes > 0 && queue.changes + changes.len() > QUEUE_CHANGES_MAX {
                queue.end(RecvError::Lagged(index));
                subscribers.queues.remove(&number);
                continue;
            }
            queue.changes += changes.len();
            queue.batches.push_back(EventBatch { index, changes });
            queue.wake();
        }
    }

    /// Ends all subscriptions, and those that are still to come.
    pub fn close(&self) {
        let mut subscribers = self.subscribers.lock();
        subscribers.closed = true;
        subscribers.by_interest.clear();
        for (_, queue) in subscribers.queues.drain() {
            queue.lock().end(RecvError::Closed);
        }
    }

    fn unsubscribe(&self, number: u64, interests: &[Interest]) {
        let mut subscribers = self.subscribers.lock();
        subscribers.queues.remove(&number);
        for interest in interests {
            if let Some(numbers) = subscribers.by_interest.get_mut(interest) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    subscribers.by_interest.remove(interest);
                }
            }
        }
    }
}

/// A stream of [`EventBatch`]es; dropping it unsubscribes.
pub struct Subscription {
    registry: Arc<Registry>,
    number: u64,
    interests: Vec<Interest>,
    queue: SharedQueue,
}

impl Subscription {
    /// The next batch. After an error the subscription is over.
    pub async fn recv(&mut self) -> Result<EventBatch, RecvError> {
        poll_fn(|context| {
            let mut queue = self.queue.lock();
            match take(&mut queue) {
                Ok(Some(batch)) => Poll::Ready(Ok(batch)),
                Err(ended) => Poll::Ready(Err(ended)),
                Ok(None) => {
                    queue.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The next batch if one is queued.
    pub fn try_recv(&mut self) -> Result<Option<EventBatch>, RecvError> {
        take(&mut self.queue.lock())
    }

    /// Drops what the subscriber has seen already: batches up to entry `index`.
    pub(super) fn skip_through(&mut self, index: u64) {
        let mut queue = self.queue.lock();
        queue.skip_through = index;
        while let Some(batch) = queue.batches.front()
            && batch.index <= index
        {
            queue.changes -= batch.changes.len();
            queue.batches.pop_front();
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.registry.unsubscribe(self.number, &self.interests);
    }
}

fn take(queue: &mut Queue) -> Result<Option<EventBatch>, RecvError> {
    match queue.batches.pop_front() {
        Some(batch) => {
            queue.changes -= batch.changes.len();
            Ok(Some(batch))
        }
        None => queue.end.map_or(Ok(None), Err),
    }
}
