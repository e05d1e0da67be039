//! Starts, supervises and ends all leader-gated services of a term.
//!
//! A [`Term`] is created when leadership is won and ended as a whole when it is lost; the next term
//! starts only after every task of the old one has ended. A service that fails or panics ends the term.

use crate::storage::Store;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

/// The scope of one leadership: everything a leader-gated service may use, and the signal that ends it.
#[derive(Clone)]
pub struct Term {
    /// Raft term of this leadership.
    pub raft_term: u64,
    pub store: Store,
    pub cluster_id: String,
    /// This node's ID.
    pub node_id: String,
    /// Fires when leadership is lost or the manager stops; services return soon after.
    pub cancel: CancellationToken,
}

/// Tells the supervisor that a service has loaded its state and may be relied on; dropped = failed.
pub struct Ready(pub tokio::sync::oneshot::Sender<()>);

impl Ready {
    /// Reports that the service has restored everything it needs before it answers.
    pub fn loaded(self) {
        // The supervisor may already have given up on this term; then nobody listens.
        let _ = self.0.send(());
    }
}

/// A service that runs only on the leader.
pub trait LeaderService: Send + Sync {
    /// Short name for logs, such as `scheduler`.
    fn name(&self) -> &'static str;

    /// Runs until `term.cancel` fires (returns `Ok`) or the service cannot go on (returns `Err`, which
    /// ends the term). Calls `ready.loaded()` once its state is complete.
    fn run(&self, term: Term, ready: Ready) -> BoxFuture<'static, anyhow::Result<()>>;
}
