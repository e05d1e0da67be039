//! Starts, supervises and ends all leader-gated services of a term.
//!
//! A [`Term`] is created when leadership is won and ended as a whole when it is lost; the next term
//! starts only after every task of the old one has ended. The services of a term are data: one ordered
//! list, started front to back, each only after the one before it has loaded its state, and ended back
//! to front. A service that fails, panics or returns early ends the term: there is never half a leader.

use crate::storage::Store;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long one service may take to load its state before the term is given up. Loading reads the
/// store's indexes and digests, seconds at a million tasks; a minute means that it hangs.
const LOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a service may take to return after its cancellation before its task is dropped. An orderly
/// stop of the whole manager has ten seconds.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

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

/// How a term ended.
#[derive(Debug)]
pub enum TermEnd {
    /// `term.cancel` fired: leadership was lost or the manager stops.
    Cancelled,
    /// A service could not go on; leadership should be handed over.
    Failed {
        service: &'static str,
        reason: String,
    },
}

/// One started service of a term.
struct Running {
    name: &'static str,
    cancel: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

/// Runs all `services` for the length of `term`. Returns only after every one of them has ended.
pub async fn run_term(term: &Term, services: &[Arc<dyn LeaderService>]) -> TermEnd {
    let mut running = Vec::with_capacity(services.len());
    let end = match start_all(term, services, &mut running).await {
        Ok(()) => {
            tracing::info!(
                term = term.raft_term,
                services = running.len(),
                "leader services are running"
            );
            supervise(term, &mut running).await
        }
        Err(end) => end,
    };
    stop_all(running).await;
    end
}

/// Starts the services in order, waiting for each to load before the next begins.
async fn start_all(
    term: &Term,
    services: &[Arc<dyn LeaderService>],
    running: &mut Vec<Running>,
) -> Result<(), TermEnd> {
    for service in services {
        let name = service.name();
        let cancel = CancellationToken::new();
        let scope = Term {
            cancel: cancel.clone(),
            ..term.clone()
        };
        let (loaded_tx, loaded) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(service.run(scope, Ready(loaded_tx)));
        running.push(Running { name, cancel, task });
        tokio::select! {
            biased;
            _ = term.cancel.cancelled() => return Err(TermEnd::Cancelled),
            end = first_end(running) => return Err(end),
            outcome = tokio::time::timeout(LOAD_TIMEOUT, loaded) => match outcome {
                Ok(Ok(())) => tracing::debug!(service = name, "loaded"),
                // The sender was dropped: the service is ending, its own result says why.
                Ok(Err(_)) => return Err(first_end(running).await),
                Err(_) => return Err(TermEnd::Failed {
                    service: name,
                    reason: format!("did not load its state within {} s", LOAD_TIMEOUT.as_secs()),
                }),
            },
        }
    }
    Ok(())
}

/// Waits for the end of the term: its cancellation, or the first service that ends by itself.
async fn supervise(term: &Term, running: &mut [Running]) -> TermEnd {
    tokio::select! {
        biased;
        _ = term.cancel.cancelled() => TermEnd::Cancelled,
        end = first_end(running) => end,
    }
}

/// The first service of `running` to end, as the reason to end the term. Never returns while all run.
async fn first_end(running: &mut [Running]) -> TermEnd {
    let tasks = running.iter_mut().map(|service| {
        let name = service.name;
        (&mut service.task)
            .map(move |outcome| (name, outcome))
            .boxed()
    });
    let ((service, outcome), _, _) = futures::future::select_all(tasks).await;
    let reason = match outcome {
        Ok(Ok(())) => "ended before its term did".to_string(),
        Ok(Err(error)) => format!("{error:#}"),
        Err(join) => panic_text(join),
    };
    TermEnd::Failed { service, reason }
}

/// Ends all services in reverse order of their start.
async fn stop_all(running: Vec<Running>) {
    for Running { name, cancel, task } in running.into_iter().rev() {
        cancel.cancel();
        if task.is_finished() {
            continue;
        }
        let abort = task.abort_handle();
        match tokio::time::timeout(STOP_TIMEOUT, task).await {
            Ok(Ok(Ok(()))) => tracing::debug!(service = name, "ended"),
            Ok(Ok(Err(error))) => {
                tracing::warn!(
                    service = name,
                    error = format!("{error:#}"),
                    "ended with an error"
                )
            }
            Ok(Err(join)) => {
                tracing::error!(
                    service = name,
                    error = panic_text(join),
                    "panicked while ending"
                )
            }
            Err(_) => {
                tracing::error!(service = name, "did not end in time and was dropped");
                abort.abort();
            }
        }
    }
}

/// What a task that did not return left behind, in words.
fn panic_text(join: tokio::task::JoinError) -> String {
    if !join.is_panic() {
        return "was cancelled from outside".to_string();
    }
    let payload = join.into_panic();
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| text.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_string());
    format!("panicked: {text}")
}

#[cfg(test)]
mod tests;
