//! The loop that begins and ends leadership terms.
//!
//! One term at a time: the next begins only after every service of the last one has ended. A term that
//! failed while this member still leads begins anew after a pause that grows with each failure.

use crate::api::types::node_spec::Availability;
use crate::identity::SecurityConfig;
use crate::identity::start::cluster_is_stored;
use crate::raft::{Handle, Leadership};
use crate::services::founding::{self, Founder};
use crate::services::leader::{LeaderService, Term, TermEnd, run_term};
use crate::services::metrics::Metrics;
use crate::storage::Store;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Pause after the first failure of a term; doubled by each further one.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// Longest pause: an operator who looks sees the reason in the log every half minute.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A term that ran this long was healthy: the next failure counts as the first again.
const HEALTHY: Duration = Duration::from_secs(60);

/// What the terms of one manager share.
pub struct Terms {
    pub member: Handle,
    pub store: Store,
    pub security: Arc<SecurityConfig>,
    /// In the order in which they start.
    pub services: Vec<Arc<dyn LeaderService>>,
    pub availability: Availability,
    pub heartbeat_ticks: u32,
    pub election_ticks: u32,
    pub state_dir: PathBuf,
    pub metrics: Option<Arc<Metrics>>,
}

/// Runs terms until `stop` fires.
pub async fn run(terms: Terms, stop: CancellationToken) {
    let mut leadership = terms.member.leadership();
    let mut pause = PAUSE_MIN;
    while let Some(raft_term) = won(&mut leadership, &stop).await {
        terms.show_leader(true);
        let cancel = stop.child_token();
        let begin = tokio::time::Instant::now();
        let end = {
            let running = terms.run_one(raft_term, cancel.clone());
            tokio::pin!(running);
            tokio::select! {
                end = &mut running => end,
                () = lost(&mut leadership, raft_term) => {
                    cancel.cancel();
                    running.await
                }
            }
        };
        terms.show_leader(false);
        match end {
            TermEnd::Cancelled => tracing::info!(term = raft_term, "leadership ended"),
            TermEnd::Failed { service, reason } => {
                if begin.elapsed() >= HEALTHY {
                    pause = PAUSE_MIN;
                }
                tracing::error!(
                    term = raft_term,
                    service,
                    reason,
                    ?pause,
                    "the term failed; starting afresh"
                );
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = stop.cancelled() => {}
                }
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

impl Terms {
    /// One term: founding, then all services.
    async fn run_one(&self, raft_term: u64, cancel: CancellationToken) -> TermEnd {
        let credentials = self.security.current();
        let founder = Founder {
            credentials: credentials.clone(),
            availability: self.availability,
            heartbeat_ticks: self.heartbeat_ticks,
            election_ticks: self.election_ticks,
        };
        let founded = tokio::select! {
            biased;
            () = cancel.cancelled() => return TermEnd::Cancelled,
            founded = founding::found(&self.store, &founder) => founded,
        };
        match founded {
            Ok(is_new) => {
                tracing::info!(term = raft_term, new_cluster = is_new, "this manager leads");
                if let Err(error) = cluster_is_stored(&self.state_dir) {
                    tracing::warn!(%error, "the sealed copy of the CA key could not be removed; it is not needed any more");
                }
            }
            Err(error) => {
                return TermEnd::Failed {
                    service: "founding",
                    reason: error.to_string(),
                };
            }
        }
        let term = Term {
            raft_term,
            store: self.store.clone(),
            cluster_id: credentials.cluster_id().to_owned(),
            node_id: credentials.node_id().to_owned(),
            cancel,
        };
        run_term(&term, &self.services).await
    }

    fn show_leader(&self, leads: bool) {
        if let Some(metrics) = &self.metrics {
            metrics.leader.set(leads.into());
        }
    }
}

/// Waits until this member leads; `None` when the loop should end.
async fn won(
    leadership: &mut watch::Receiver<Leadership>,
    stop: &CancellationToken,
) -> Option<u64> {
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        state = leadership.wait_for(|state| state.term().is_some()) => state.ok()?.term(),
    }
}

/// Waits until this member no longer leads in `raft_term`.
async fn lost(leadership: &mut watch::Receiver<Leadership>, raft_term: u64) {
    // An error means that the member is gone, and with it the leadership.
    let _ = leadership
        .wait_for(|state| state.term() != Some(raft_term))
        .await;
}
