//! The dispatcher: where the nodes' agents report, and learn what to run.
//!
//! An agent opens a **session**, which makes its node ready, and keeps it alive with heartbeats.
//! Within the session it follows its **assignments** and reports the **status** of its tasks. All of
//! this happens on the leader; a node that falls silent is written as down, and a node that stays
//! down loses its tasks.
//!
//! ```text
//! Session ───────▶ registration ──▶ registry (sessions, deadlines) ──▶ timers ─┐
//!    ▲                  │                                                      │
//!    └─ session_stream  └────────▶ writer (few, large transactions) ◀──────────┤
//! Heartbeat ─────▶ registry                ▲                                   │
//! UpdateTaskStatus ────────────────────────┘            node down, tasks orphaned
//! Assignments ◀── assignment_stream ◀── assignment_set ◀── the store's events
//! ```
//!
//! What it guarantees:
//!
//! - No call is answered before the whole state of the new leader is there. Engines delete every
//!   container that is missing in a complete assignment, so a half-restored one must never be sent.
//! - A session exists only once its node is committed as ready, and ends at once, with all its
//!   streams, when the node registers again, expires or is removed, or the term ends.
//! - A task's observed state only goes forward.
//! - Memory is bounded by the number of nodes and of their open streams. There is one timer.
//!
//! What it never does: decide what should run (it leaves `desired_state` alone), or keep anything
//! beyond its term. The next leader starts from the store, and agents tell it the rest.

mod active;
mod assignment_set;
mod assignment_stream;
mod batching;
mod counters;
mod feed;
mod live_session;
mod refusal;
mod registration;
mod registry;
mod rpc;
mod session_stream;
pub mod settings;
mod task_stream;
mod writer;
mod writes;

use std::sync::Arc;

use anyhow::bail;
use arc_swap::ArcSwapOption;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;

use active::ActiveTerm;
use counters::Counters;
use refusal::Refusal;

pub use counters::Totals;
pub use live_session::End;
pub use registry::{NodeReport, SessionRecord};
pub use settings::Settings;

use super::leader::{LeaderService, Ready, Term};
use crate::api::types::WeightedPeer;

/// Weight of every manager in the lists that sessions carry (spec 08 section 2).
pub const MANAGER_WEIGHT: i64 = 10;

/// The dispatcher of one manager: serves the gRPC service `Dispatcher` all the time, and runs
/// during its leaderships as a [`LeaderService`]. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    managers: watch::Receiver<Vec<WeightedPeer>>,
    counters: Arc<Counters>,
    active: ArcSwapOption<ActiveTerm>,
    /// Held while a term runs.
    running: tokio::sync::Mutex<()>,
}

impl Dispatcher {
    /// A dispatcher that is not running yet. `managers` always holds the complete list of managers
    /// with their node IDs and reachable addresses; sessions wait while it is empty.
    pub fn new(settings: Settings, managers: watch::Receiver<Vec<WeightedPeer>>) -> Dispatcher {
        Dispatcher {
            shared: Arc::new(Shared {
                settings,
                managers,
                counters: Arc::default(),
                active: ArcSwapOption::empty(),
                running: tokio::sync::Mutex::new(()),
            }),
        }
    }

    /// Counts since the process started.
    pub fn totals(&self) -> Totals {
        self.shared.counters.totals()
    }

    /// Nodes with a session; `None` when this manager does not lead.
    pub fn registered_count(&self) -> Option<usize> {
        let active = self.shared.active.load_full()?;
        Some(active.registry.lock().registered_count())
    }

    /// What this leader knows of a node, for inspection.
    pub fn node_report(&self, node_id: &str) -> Option<NodeReport> {
        let active = self.shared.active.load_full()?;
        active.registry.lock().report(node_id, Instant::now())
    }

    /// The running term, which calls work on.
    fn active(&self) -> Result<Arc<ActiveTerm>, Refusal> {
        let active = self.shared.active.load_full().ok_or(Refusal::Stopped)?;
        if active.cancel.is_cancelled() {
            return Err(Refusal::Stopped);
        }
        Ok(active)
    }

    async fn run_term(self, term: Term, ready: Ready) -> anyhow::Result<()> {
        let Ok(_running) = self.shared.running.try_lock() else {
            bail!("dispatcher is already running");
        };
        let shared = &self.shared;
        let (active, events, nodes) = ActiveTerm::load(
            &term,
            shared.settings.clone(),
            shared.managers.clone(),
            Arc::clone(&shared.counters),
        )?;
        // Also closes the door if this future is dropped or panics.
        let door = Door(self.clone(), Arc::clone(&active));
        let open = || {
            shared.active.store(Some(Arc::clone(&active)));
            ready.loaded();
        };
        let result = active.run(events, nodes, open).await;
        drop(door);
        active.shut_down().await;
        result
    }
}

/// Lets no more calls in once it is dropped, and wakes those that wait.
struct Door(Dispatcher, Arc<ActiveTerm>);

impl Drop for Door {
    fn drop(&mut self) {
        self.0.shared.active.store(None);
        self.1.cancel.cancel();
        self.1.registry.lock().end_all();
    }
}

impl LeaderService for Dispatcher {
    fn name(&self) -> &'static str {
        "dispatcher"
    }

    fn run(&self, term: Term, ready: Ready) -> BoxFuture<'static, anyhow::Result<()>> {
        self.clone().run_term(term, ready).boxed()
    }
}

#[cfg(test)]
mod tests;
