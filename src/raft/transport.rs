//! Carries messages between the members of the group, over mutual TLS.
//!
//! Each other member has a bounded queue and a task of its own that sends one message after another (spec 03
//! section 9), so that a slow or dead member delays nobody else. What cannot be delivered is dropped and
//! reported to the library, which then probes instead of streaming. A member from which nothing was heard
//! for a moment is asked for its health, so that every member knows whom it could reach, not only the leader.
//!
//! A snapshot goes its own way beside the queue, so that heartbeats are not held up; at most
//! [`peer::SNAPSHOTS_MAX`] are under way, each read piece by piece from a view of the store.
//!
//! The members come from the committed configuration. A member that has just joined has none yet; until it
//! has read of its own admission it uses what the leader told it, or it could not answer.

mod peer;
mod snapshot;

use super::handle::Handle;
use super::membership::Book;
use super::outbox::Outbox;
use crate::api::raftpb;
use crate::api::types::RaftMember;
use crate::identity::SecurityConfig;
use crate::storage::Store;
use parking_lot::Mutex;
use peer::Peer;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use tokio::sync::Semaphore;

/// The transport of one member: an [`Outbox`] for its raft thread.
pub struct Transport {
    shared: Arc<Shared>,
    own: u64,
    peers: BTreeMap<u64, Peer>,
}

/// What the peers' tasks share.
struct Shared {
    security: Arc<SecurityConfig>,
    runtime: tokio::runtime::Handle,
    /// Where snapshots are read from.
    store: Store,
    snapshots: Arc<Semaphore>,
    /// Set right after the member has started.
    member: OnceLock<Handle>,
    /// Who answered last time.
    active: Mutex<BTreeMap<u64, bool>>,
}

impl Shared {
    /// Notes whether a peer can be reached; reports the loss of contact to the library.
    fn note(&self, raft_id: u64, active: bool) {
        let before = self.active.lock().insert(raft_id, active);
        if before != Some(active) {
            let id = format!("{raft_id:x}");
            match active {
                true => tracing::info!(raft_id = id, "the manager can be reached"),
                false => tracing::warn!(raft_id = id, "the manager cannot be reached"),
            }
        }
        if !active && let Some(member) = self.member.get() {
            member.report_unreachable(raft_id);
        }
    }

    /// Reports what became of a snapshot.
    fn snapshot_sent(&self, raft_id: u64, delivered: bool) {
        if let Some(member) = self.member.get() {
            member.report_snapshot(raft_id, delivered);
        }
    }

    /// Another member says that this one was removed.
    fn removed(&self) {
        if let Some(member) = self.member.get() {
            member.report_removed();
        }
    }
}

/// Gives the transport the member that it works for.
pub struct Attach(Arc<Shared>);

impl Attach {
    pub fn attach(self, member: &Handle) {
        let _ = self.0.member.set(member.clone());
    }
}

impl Transport {
    /// A transport for the member `own`. `known` are members that it was told of, for as long as it does not
    /// find itself in the group's configuration. Must be called within the runtime.
    pub fn new(
        own: u64,
        security: Arc<SecurityConfig>,
        store: Store,
        known: &[RaftMember],
    ) -> (Transport, Attach) {
        let shared = Arc::new(Shared {
            security,
            runtime: tokio::runtime::Handle::current(),
            store,
            snapshots: Arc::new(Semaphore::new(peer::SNAPSHOTS_MAX)),
            member: OnceLock::new(),
            active: Mutex::default(),
        });
        let mut transport = Transport {
            shared: shared.clone(),
            own,
            peers: BTreeMap::new(),
        };
        for member in known {
            transport.keep(member);
        }
        (transport, Attach(shared))
    }

    /// Has a peer for a member, at its present address.
    fn keep(&mut self, member: &RaftMember) {
        let (id, addr) = (member.raft_id, member.addr.as_str());
        if id == self.own || id == 0 || addr.is_empty() {
            return;
        }
        if self.peers.get(&id).is_some_and(|peer| peer.addr() == addr) {
            return;
        }
        self.peers
            .insert(id, Peer::start(self.shared.clone(), id, addr));
    }
}

impl Outbox for Transport {
    fn send(&mut self, messages: Vec<raftpb::Message>) {
        for message in messages {
            let to = message.to.unwrap_or_default();
            match self.peers.get(&to) {
                Some(peer) if peer.send(message) => {}
                Some(_) => self.shared.note(to, false),
                None => tracing::debug!(
                    to = format!("{to:x}"),
                    "dropping a raft message for an unknown member"
                ),
            }
        }
    }

    fn follow(&mut self, book: &Book) {
        for member in book.members() {
            self.keep(member);
        }
        if book.member(self.own).is_none() {
            return;
        }
        let gone: Vec<u64> = self
            .peers
            .keys()
            .copied()
            .filter(|id| book.member(*id).is_none())
            .collect();
        for id in gone {
            if let Some(peer) = self.peers.remove(&id) {
                peer.retire();
            }
            self.shared.active.lock().remove(&id);
        }
    }

    fn is_active(&self, raft_id: u64) -> Option<bool> {
        Some(self.shared.active.lock().get(&raft_id) == Some(&true))
    }
}
