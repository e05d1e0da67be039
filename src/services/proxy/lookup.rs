//! Who leads now: looked up at once if it is known, waited for if it is not, refused if it cannot be.
//!
//! Nothing is polled: a look-up wakes on changes of leadership. How long there has been no leader is kept
//! by a task of its own, because a caller that comes late must be told at once.

use crate::raft::{Handle, Leadership, RaftError};
use crate::services::control::Member;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

/// The addresses of members and the wait for a lost quorum are looked at this often while waiting.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Shortest time without a leader that counts as a lost quorum; 10 ticks if those are longer (settled R1).
const LOST_QUORUM_MIN: Duration = Duration::from_secs(3);
/// Ticks without a leader that count as a lost quorum (spec 03 section 1).
const LOST_QUORUM_TICKS: u32 = 10;

/// What has to be known of the raft group.
pub trait Group: Send + Sync + 'static {
    fn raft_id(&self) -> u64;
    fn leadership(&self) -> watch::Receiver<Leadership>;
    /// All members as this one sees them; `None` if it is not (or no longer) one.
    fn members(&self) -> Option<Vec<Member>>;
}

impl Group for Handle {
    fn raft_id(&self) -> u64 {
        Handle::raft_id(self)
    }

    fn leadership(&self) -> watch::Receiver<Leadership> {
        Handle::leadership(self)
    }

    fn members(&self) -> Option<Vec<Member>> {
        if !self.is_member() {
            return None;
        }
        let status = self.status();
        // The book may be newer than the status, which is published once a tick.
        let book = self.book();
        let members = book.members().map(|known| {
            let seen = status
                .members
                .iter()
                .find(|seen| seen.raft_id == known.raft_id);
            Member {
                raft_id: known.raft_id,
                node_id: known.node_id.clone(),
                addr: known.addr.clone(),
                leader: status.leader == Some(known.raft_id),
                reachable: seen.is_some_and(|seen| seen.reachable),
            }
        });
        Some(members.collect())
    }
}

/// Where a call goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// This manager leads.
    Here,
    Leader(Peer),
}

/// The manager that leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub raft_id: u64,
    pub addr: String,
}

/// Finds the leader. Cheap to clone.
#[derive(Clone)]
pub struct LeaderLookup {
    shared: Arc<Shared>,
}

struct Shared {
    group: Arc<dyn Group>,
    leadership: watch::Receiver<Leadership>,
    leaderless_since: Mutex<Option<Instant>>,
    lost_after: Duration,
    /// What people call a node.
    name_of: Box<dyn Fn(&str) -> String + Send + Sync>,
}

impl LeaderLookup {
    /// A look-up in this group, whose ticks have this length.
    pub fn new(
        group: Arc<dyn Group>,
        tick: Duration,
        name_of: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> LeaderLookup {
        let leadership = group.leadership();
        let shared = Arc::new(Shared {
            group,
            leadership: leadership.clone(),
            leaderless_since: Mutex::new(None),
            lost_after: LOST_QUORUM_MIN.max(tick * LOST_QUORUM_TICKS),
            name_of: Box::new(name_of),
        });
        tokio::spawn(follow(Arc::downgrade(&shared), leadership));
        LeaderLookup { shared }
    }

    /// Whether this manager leads and is ready to.
    pub fn leads(&self) -> bool {
        self.shared.leadership.borrow().term().is_some()
    }

    /// Changes of leadership from now on.
    pub fn changes(&self) -> watch::Receiver<Leadership> {
        let mut changes = self.shared.leadership.clone();
        changes.mark_unchanged();
        changes
    }

    /// The leader's raft ID as known now.
    pub(super) fn leader(&self) -> Option<u64> {
        match *self.shared.leadership.borrow() {
            Leadership::Leader { .. } => Some(self.shared.group.raft_id()),
            Leadership::Follower { leader } => leader,
        }
    }

    /// Waits until it is known who leads and whether that is this manager, ready to. Fails at once if the
    /// group has been without a leader for long, or if this node is not one of it.
    pub async fn route(&self, path: &str, deadline: Instant) -> Result<Route, Status> {
        let mut changes = self.shared.leadership.clone();
        loop {
            let state = *changes.borrow_and_update();
            if let Some(route) = self.shared.judge(state, path)? {
                return Ok(route);
            }
            if Instant::now() >= deadline {
                return Err(Status::unavailable(
                    "no manager has taken over the lead in time; try again",
                ));
            }
            let _ = tokio::time::timeout(LOOK_INTERVAL, changes.changed()).await;
        }
    }
}

impl Shared {
    fn judge(&self, state: Leadership, path: &str) -> Result<Option<Route>, Status> {
        let leader = match state {
            Leadership::Leader { .. } => return Ok(Some(Route::Here)),
            Leadership::Follower { leader } => leader,
        };
        let Some(members) = self.group.members() else {
            let text = RaftError::NoRaftMember.to_string();
            return Err(match path.ends_with("/Join") {
                true => Status::failed_precondition(text),
                false => Status::unavailable(text),
            });
        };
        match leader {
            // Elected, but not ready yet.
            Some(id) if id == self.group.raft_id() => Ok(None),
            // An address that is not known yet comes with the log.
            Some(id) => Ok(members
                .into_iter()
                .find(|member| member.raft_id == id)
                .map(|member| {
                    Route::Leader(Peer {
                        raft_id: id,
                        addr: member.addr,
                    })
                })),
            None if self.is_lost() => Err(Status::unknown(quorum_loss(&members, &*self.name_of))),
            None => Ok(None),
        }
    }

    /// Remembers since when there is no leader.
    fn note(&self, state: Leadership) {
        let mut since = self.leaderless_since.lock();
        match (state, *since) {
            (Leadership::Follower { leader: None }, None) => *since = Some(Instant::now()),
            (Leadership::Follower { leader: None }, Some(_)) => {}
            _ => *since = None,
        }
    }

    fn is_lost(&self) -> bool {
        let since = *self.leaderless_since.lock();
        since.is_some_and(|since| since.elapsed() > self.lost_after)
    }
}

/// Keeps the moment since when there is no leader, until the look-up is gone.
async fn follow(shared: std::sync::Weak<Shared>, mut leadership: watch::Receiver<Leadership>) {
    loop {
        let state = *leadership.borrow_and_update();
        match shared.upgrade() {
            Some(shared) => shared.note(state),
            None => return,
        }
        if leadership.changed().await.is_err() {
            return;
        }
    }
}

/// What is told when the group has no leader: who is missing, how many are needed, what helps.
pub fn quorum_loss(members: &[Member], name_of: &dyn Fn(&str) -> String) -> String {
    let needed = members.len() / 2 + 1;
    let reachable = members.iter().filter(|member| member.reachable).count();
    let missing: Vec<String> = members
        .iter()
        .filter(|member| !member.reachable)
        .map(|member| format!("{} at {}", name_of(&member.node_id), member.addr))
        .collect();
    let missing = match missing.is_empty() {
        true => String::new(),
        false => format!(", missing: {}", missing.join(", ")),
    };
    format!(
        "The swarm does not have a leader. Too few managers may be online: {reachable} of {} managers \
         reachable, {needed} needed{missing}. Make sure that more than half of the managers are online; \
         if they are lost for good, stop this manager and start it with --force-new-cluster",
        members.len()
    )
}
