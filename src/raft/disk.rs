//! The member on the real stores: the raft log on disk and the object store.

use super::applier::Machine;
use super::bootstrap::{first_log, new_raft_id};
use super::error::RaftError;
use super::handle::Handle;
use super::log_store::{DiskError, LogStore};
use super::member::{Applied, Config, start};
use super::outbox::Outbox;
use super::retention::Retention;
use crate::api::types::{Cluster, RaftMember};

use crate::storage::engine::Db;
use crate::storage::log::{self, Identity, RaftLog};
use crate::storage::seal::DekRing;
use crate::storage::{By, CommittedEntry, Interest, ProposeError, Store, Subscription, Table};
use raft::eraftpb::{Entry, HardState};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Name of the one cluster object whose settings count.
const DEFAULT_CLUSTER: &str = "default";

/// Makes an unclaimed log that of the first member of a new group, and returns its raft ID. `addr` is
/// where other managers will reach this one.
pub fn bootstrap(
    log: &mut RaftLog,
    node_id: &str,
    cluster_id: &str,
    addr: &str,
) -> Result<u64, log::LogError> {
    let raft_id = new_raft_id();
    let member = RaftMember {
        raft_id,
        node_id: node_id.to_owned(),
        addr: addr.to_owned(),
        status: None,
    };
    let (hard_state, entries) = first_log(&[member]);
    let created = SystemTime::now().duration_since(UNIX_EPOCH);
    let identity = Identity {
        raft_id,
        node_id: node_id.to_owned(),
        cluster_id: cluster_id.to_owned(),
        address: addr.to_owned(),
        created_unix_s: created.map_or(0, |since| since.as_secs()),
    };
    log.claim(identity, &hard_state, &entries)?;
    Ok(raft_id)
}

impl Handle {
    /// Starts the member whose log this is, and makes it the store's proposer. Log and database must
    /// have been opened together, which checks them against each other.
    pub fn start(
        config: Config,
        log: RaftLog,
        db: Arc<Db>,
        store: Store,
        outbox: Box<dyn Outbox>,
    ) -> Result<Handle, RaftError> {
        let mut machine = StoreMachine::new(store.clone(), db);
        let applied = Applied {
            index: store.applied(),
            membership: store.membership(),
            retention: machine.retention(),
        };
        // The proposer comes first: the store may be told of a term as soon as the threads run.
        start(config, log, machine, applied, outbox, |handle| {
            store.set_proposer(Arc::new(handle.clone()));
        })
    }
}

impl LogStore for RaftLog {
    fn first_index(&self) -> u64 {
        RaftLog::first_index(self)
    }

    fn last_index(&self) -> u64 {
        RaftLog::last_index(self)
    }

    fn term(&self, index: u64) -> Result<u64, DiskError> {
        Ok(RaftLog::term(self, index)?)
    }

    fn entries(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<Entry>, DiskError> {
        Ok(RaftLog::entries(self, low, high, bytes_max)?)
    }

    fn hard_state(&self) -> HardState {
        RaftLog::hard_state(self)
    }

    fn append(&mut self, entries: &[Entry], hard_state: &HardState) -> Result<(), DiskError> {
        Ok(RaftLog::append(self, entries, Some(hard_state))?)
    }

    fn compact(&mut self, index: u64) -> Result<(), DiskError> {
        Ok(RaftLog::compact(self, index)?)
    }

    fn purge(&mut self) -> Result<(), DiskError> {
        Ok(RaftLog::purge(self)?)
    }

    fn reseal(&mut self, ring: &DekRing, forget: &[u64]) -> Result<Option<u64>, DiskError> {
        Ok(RaftLog::reseal(self, ring.clone(), forget)?)
    }

    fn size_bytes(&self) -> u64 {
        RaftLog::size_bytes(self)
    }

    fn mark(&mut self) -> Result<(), DiskError> {
        Ok(RaftLog::mark(self)?)
    }

    fn close(&mut self) -> Result<(), DiskError> {
        Ok(RaftLog::close(self)?)
    }
}

impl From<log::LogError> for DiskError {
    fn from(error: log::LogError) -> DiskError {
        let text = error.to_string();
        match error {
            log::LogError::NoSpace { .. } => DiskError::Full(text),
            _ => DiskError::Broken(text),
        }
    }
}

/// The object store as state machine.
struct StoreMachine {
    store: Store,
    db: Arc<Db>,
    /// Changes of the cluster object.
    clusters: Subscription,
    retention: Retention,
}

impl StoreMachine {
    fn new(store: Store, db: Arc<Db>) -> StoreMachine {
        let (retention, clusters) = watch_retention(&store);
        StoreMachine {
            store,
            db,
            clusters,
            retention,
        }
    }
}

impl Machine for StoreMachine {
    fn apply(&mut self, entries: Vec<CommittedEntry>) -> Result<(), DiskError> {
        self.store
            .apply(entries)
            .map_err(|error| disk_error(error.to_string()))
    }

    fn begin_term(&mut self, term: u64) {
        self.store.begin_term(term);
    }

    fn end_term(&mut self, why: ProposeError) {
        self.store.end_term(why);
    }

    fn sync(&mut self) -> Result<(), DiskError> {
        self.db
            .sync_wal()
            .map_err(|error| disk_error(error.to_string()))
    }

    /// Looks at the cluster object only when it changed.
    fn retention(&mut self) -> Retention {
        match self.clusters.try_recv() {
            Ok(None) => {}
            // One change or an overrun queue: starting over is right in both cases, and rare.
            Ok(Some(_)) | Err(_) => {
                (self.retention, self.clusters) = watch_retention(&self.store);
            }
        }
        self.retention
    }
}

/// The store's errors are texts by the time they get here. A flush that found no space may be waited out:
/// RocksDB resumes by itself. After a failed append to its write-ahead log it does not, and no further
/// write may reach that file; then only a new start helps.
fn disk_error(text: String) -> DiskError {
    let full = text.contains("No space left");
    match full && !text.contains(".log: No space left") {
        true => DiskError::Full(text),
        false => DiskError::Broken(text),
    }
}

/// The retention in force, and what tells of its changes.
fn watch_retention(store: &Store) -> (Retention, Subscription) {
    store.view_and_watch(&[Interest::Table(Table::Cluster)], |tx| {
        let found = tx.find::<Cluster>(By::Name(DEFAULT_CLUSTER.into()));
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the raft settings of the cluster object");
            Vec::new()
        });
        match found.as_slice() {
            [cluster] => {
                let spec = cluster.spec.as_ref();
                let raft = spec.and_then(|spec| spec.raft.as_ref());
                raft.map(Retention::from).unwrap_or_default()
            }
            // Until there is exactly one, the defaults apply (spec 03 section 1).
            _ => Retention::default(),
        }
    })
}
