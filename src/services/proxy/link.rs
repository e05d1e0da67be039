//! The connection to the leader, and one request over it.
//!
//! All calls share one connection, which is made when the first of them needs it and given up when it
//! breaks or another member leads. What is still under way on it is then cut: a leader that is gone
//! without a word must not hold its callers.

use super::lookup::{LeaderLookup, Peer};
use crate::identity::SecurityConfig;
use crate::identity::connect::{ConnectError, connect_manager};
use http::{Request, Response};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::body::Body;
use tonic::transport::Channel;
use tower::{Service as _, ServiceExt as _};

/// How long calls may still be answered by a manager that does not lead any more.
const LAST_ANSWERS_TIME: Duration = Duration::from_millis(500);

/// What became of one try.
pub enum Sent {
    /// The answer has begun. The token fires when the manager no longer leads.
    Answered(Response<Body>, CancellationToken),
    /// The request never reached the leader.
    NotDelivered(String),
    /// The request may have reached the leader, whose answer did not come.
    Unknown(String),
}

/// An open connection.
#[derive(Clone)]
struct Open {
    peer: Peer,
    channel: Channel,
    cut: CancellationToken,
}

/// Connects to whoever leads.
pub struct LeaderLink {
    security: Arc<SecurityConfig>,
    leader: LeaderLookup,
    open: Mutex<Option<Open>>,
    /// Ends what is under way when the link is dropped.
    end: CancellationToken,
    _end_all: DropGuard,
}

impl LeaderLink {
    pub fn new(security: Arc<SecurityConfig>, leader: LeaderLookup) -> LeaderLink {
        let end = CancellationToken::new();
        let end_all = end.clone().drop_guard();
        LeaderLink {
            security,
            leader,
            open: Mutex::default(),
            end,
            _end_all: end_all,
        }
    }

    /// Sends one request to this leader.
    pub async fn send(&self, peer: &Peer, request: Request<Body>) -> Sent {
        let open = match self.open(peer).await {
            Ok(open) => open,
            Err(error) => return Sent::NotDelivered(error.to_string()),
        };
        let mut channel = open.channel.clone();
        let answer = async {
            match channel.ready().await {
                Ok(ready) => ready.call(request).await,
                Err(error) => Err(error),
            }
        };
        let result = tokio::select! {
            result = answer => result,
            () = after_a_moment(&open.cut) => {
                return Sent::Unknown(format!("manager {} does not lead any more", peer.addr));
            }
        };
        match result {
            Ok(response) => Sent::Answered(response, open.cut),
            Err(error) => {
                self.give_up(&open).await;
                let reason = format!("the connection to the leader {} broke: {error}", peer.addr);
                match was_delivered(&error) {
                    true => Sent::Unknown(reason),
                    false => Sent::NotDelivered(reason),
                }
            }
        }
    }

    /// The connection to this leader; callers that come meanwhile wait for the same attempt.
    async fn open(&self, peer: &Peer) -> Result<Open, ConnectError> {
        let mut slot = self.open.lock().await;
        if let Some(open) = &*slot
            && open.peer == *peer
            && !open.cut.is_cancelled()
        {
            return Ok(open.clone());
        }
        let channel = connect_manager(&self.security, &peer.addr).await?;
        let open = Open {
            peer: peer.clone(),
            channel,
            cut: self.end.child_token(),
        };
        if let Some(old) = slot.replace(open.clone()) {
            old.cut.cancel();
        }
        tokio::spawn(cut_when_deposed(
            self.leader.clone(),
            open.peer.raft_id,
            open.cut.clone(),
        ));
        Ok(open)
    }

    /// Forgets a connection that broke. Other calls on it notice by themselves.
    async fn give_up(&self, broken: &Open) {
        let mut slot = self.open.lock().await;
        if slot.as_ref().is_some_and(|open| open.peer == broken.peer) {
            *slot = None;
        }
    }
}

/// A leader that hands over answers the calls it still has, that it did them or not; it is given a moment.
async fn after_a_moment(cut: &CancellationToken) {
    cut.cancelled().await;
    tokio::time::sleep(LAST_ANSWERS_TIME).await;
}

/// Cuts a connection when somebody else is known to lead. A group that is between two leaders may well
/// elect the same one again.
async fn cut_when_deposed(leader: LeaderLookup, raft_id: u64, cut: CancellationToken) {
    let mut changes = leader.changes();
    loop {
        if leader.leader().is_some_and(|now| now != raft_id) {
            cut.cancel();
            return;
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                cut.cancel();
                return;
            },
            () = cut.cancelled() => return,
        }
    }
}

/// Whether a request that failed may have been read by the leader. It certainly was not if there was no
/// connection, or if the connection ended before the request was written.
fn was_delivered(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(found) = cause {
        if found.is::<tonic::ConnectError>() {
            return false;
        }
        if let Some(error) = found.downcast_ref::<hyper::Error>()
            && error.is_canceled()
        {
            return false;
        }
        cause = found.source();
    }
    true
}
