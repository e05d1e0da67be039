//! `view`, `update` and `watch`: the store as services see it.
//!
//! Reads never wait: the applier publishes an immutable [`State`] after every run of entries, and a view
//! holds on to one. Writers take turns only for their closure and for queueing the proposal; the next
//! transaction builds on those that are still waiting for their commit (see `head`).

use super::StoreError;
use super::apply::ApplyErrors;
use super::cache::ObjectCache;
use super::check::{self, Report};
use super::digest::{TaskCounts, TaskDigest};
use super::engine::Db;
use super::events::{Interest, Registry, Subscription};
use super::head::{Head, Writer};
use super::keys::Id;
use super::membership::Membership;
use super::object::{StoreObject, Table};
use super::overlay::Overlay;
use super::proposer::{ProposeError, Proposer};
use super::read::{Reader, State};
use super::rows;
use super::summary::Summary;
use crate::api::types::{NodeRole, TaskState};
use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;

pub use super::batch::Batch;
pub use super::tx::Tx;

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

/// Ceilings of the store's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreOptions {
    /// Decoded objects that are kept for reading, estimated.
    pub object_cache_bytes: usize,
}

impl Default for StoreOptions {
    /// Settled S2.
    fn default() -> StoreOptions {
        StoreOptions {
            object_cache_bytes: 128 << 20,
        }
    }
}

/// The store of one manager. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    pub(super) inner: Arc<Inner>,
}

/// What all clones of a [`Store`] share.
pub(super) struct Inner {
    /// The newest applied state. Readers take it without a lock.
    pub state: ArcSwap<State>,
    pub head: Mutex<Head>,
    /// Held while a closure runs and its proposal is queued, never while anybody waits for the disk.
    pub writer: tokio::sync::Mutex<Writer>,
    /// Wakes the writer that waits for room among the pending transactions.
    pub room: Notify,
    pub cache: Arc<ObjectCache>,
    pub proposer: RwLock<Option<Arc<dyn Proposer>>>,
    pub events: Arc<Registry>,
    /// Held while entries are applied.
    pub applier: Mutex<()>,
    pub apply_errors: ApplyErrors,
    pub membership: RwLock<Membership>,
    /// The next request ID, without its top bit. A random start keeps requests of different runs and
    /// members apart.
    pub next_request: AtomicU64,
    pub closed: AtomicBool,
}

/// A consistent, immutable view.
pub struct ReadTx {
    state: Arc<State>,
    /// Empty: a view shows what is committed.
    overlay: Overlay,
}

impl ReadTx {
    fn new(state: Arc<State>) -> ReadTx {
        ReadTx {
            state,
            overlay: Overlay::default(),
        }
    }

    fn reader(&self) -> Reader<'_> {
        Reader {
            state: &self.state,
            overlays: [&self.overlay; 2],
        }
    }

    pub fn get<T: StoreObject>(&self, id: &str) -> Result<Option<Arc<T>>, StoreError> {
        self.reader().get_as(id)
    }

    /// Matching objects in index-key order, each once.
    pub fn find<T: StoreObject>(&self, by: By) -> Result<Vec<Arc<T>>, StoreError> {
        self.reader().find(&by)
    }

    /// Calls `f` with every object that [`ReadTx::find`] would return, in that order, one at a time: for
    /// walks over tables that need not fit into memory.
    pub fn each<T: StoreObject>(
        &self,
        by: By,
        mut f: impl FnMut(&Arc<T>),
    ) -> Result<(), StoreError> {
        self.reader().each(T::TABLE, &by, |object| {
            if let Some(object) = T::from_any(&object) {
                f(object);
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Number of matching objects; of a whole table from a counter.
    pub fn count<T: StoreObject>(&self, by: By) -> Result<usize, StoreError> {
        self.reader().count(T::TABLE, &by)
    }

    /// ID and digest of the matching tasks, without reading the tasks themselves.
    pub fn task_digests(&self, by: By) -> Result<Vec<(Id, TaskDigest)>, StoreError> {
        self.reader().task_digests(&by)
    }

    /// Numbers of a service's tasks by state, from counters.
    pub fn tasks_of_service(&self, service_id: &str) -> TaskCounts {
        self.state.summary.tasks_of(service_id)
    }

    /// Numbers of all tasks by state, from counters.
    pub fn task_totals(&self) -> &TaskCounts {
        self.state.summary.task_totals()
    }

    /// The entry index this view shows.
    pub fn applied(&self) -> u64 {
        self.state.applied
    }
}

impl Store {
    /// The store in an open database, with the usual ceilings.
    pub fn open(db: Arc<Db>) -> Result<Store, StoreError> {
        Store::open_with(db, &StoreOptions::default())
    }

    /// The store in an open database. Reads names and counts, but no objects.
    pub fn open_with(db: Arc<Db>, options: &StoreOptions) -> Result<Store, StoreError> {
        let cache = Arc::new(ObjectCache::new(options.object_cache_bytes));
        let view = db.view();
        let applied = db.applied()?;
        let membership = rows::read_membership(&view)?;
        let summary = Summary::load(&view)?;
        let state = State {
            view,
            applied: applied.index,
            applied_term: applied.term,
            summary,
            cache: cache.clone(),
        };
        Ok(Store {
            inner: Arc::new(Inner {
                state: ArcSwap::from_pointee(state),
                head: Mutex::new(Head::new()),
                writer: tokio::sync::Mutex::default(),
                room: Notify::new(),
                cache,
                proposer: RwLock::new(None),
                events: Registry::new(),
                applier: Mutex::new(()),
                apply_errors: ApplyErrors::default(),
                membership: RwLock::new(membership),
                next_request: AtomicU64::new(rand::random()),
                closed: AtomicBool::new(false),
            }),
        })
    }

    /// Runs `f` on the last committed state. Never blocks writers.
    pub fn view<R>(&self, f: impl FnOnce(&ReadTx) -> R) -> R {
        f(&ReadTx::new(self.inner.state.load_full()))
    }

    /// Runs `f` as one transaction and returns once it is committed and applied here. An error of `f`
    /// is returned unchanged and nothing is written. `f` may not do I/O. Dropping the future does not
    /// withdraw a proposal.
    pub async fn update<R, E>(&self, f: impl FnOnce(&mut Tx) -> Result<R, E> + Send) -> Result<R, E>
    where
        R: Send,
        E: From<StoreError> + Send,
    {
        let (value, outcome) = {
            let mut writer = self.lock_writer().await?;
            self.flush_open(&mut writer, None);
            let (mut tx, origin) = self.begin();
            let value = f(&mut tx)?;
            (value, self.submit(tx, origin)?)
        };
        outcome.wait().await?;
        Ok(value)
    }

    /// Starts a batch; see [`Batch`].
    pub fn batch(&self) -> Batch {
        Batch::new(self.clone())
    }

    pub fn watch(&self, interests: &[Interest]) -> Subscription {
        self.inner.events.subscribe(interests)
    }

    /// Runs `f` on a state S; the subscription delivers exactly what leads from S onwards.
    pub fn view_and_watch<R>(
        &self,
        interests: &[Interest],
        f: impl FnOnce(&ReadTx) -> R,
    ) -> (R, Subscription) {
        // Events are published after their state: what the state does not hold is still to come.
        let mut subscription = self.watch(interests);
        let view = ReadTx::new(self.inner.state.load_full());
        subscription.skip_through(view.applied());
        (f(&view), subscription)
    }

    /// Recounts all indexes and records of the present state from its objects; see [`check`]. Takes long
    /// with many objects: call it from a blocking context.
    ///
    /// [`check`]: super::check
    pub fn check(&self) -> Result<Report, StoreError> {
        check::check(&self.inner.state.load_full().view)
    }

    /// Number of objects of a table, from a counter.
    pub fn len(&self, table: Table) -> u64 {
        self.inner.state.load().summary.count(table)
    }

    /// Number and estimated bytes of the decoded objects that are kept for reading.
    pub fn cached_objects(&self) -> (usize, usize) {
        self.inner.cache.usage()
    }

    /// Index of the last applied entry.
    pub fn applied(&self) -> u64 {
        self.inner.state.load().applied
    }

    /// Term of the last applied entry.
    pub fn applied_term(&self) -> u64 {
        self.inner.state.load().applied_term
    }

    /// Sets who replicates transactions. Without one (offline tools, plain unit tests) transactions are
    /// applied directly, and objects are neither stamped nor compared.
    pub fn set_proposer(&self, proposer: Arc<dyn Proposer>) {
        *self.inner.proposer.write() = Some(proposer);
    }

    /// Ends all subscriptions and refuses further transactions. Those that wait are failed.
    pub fn close(&self) {
        self.inner.closed.store(true, Ordering::Release);
        self.end_term(ProposeError::Stopped);
        self.inner.events.close();
    }
}
