//! The agent as a whole: opens the local task database, resumes its tasks, keeps a session.

use super::backoff::Backoff;
use super::connect::Broker;
use super::db::{DbError, TaskDb};
use super::dependencies::Dependencies;
use super::executor::{Executor, ExecutorError};
use super::key::{KeyError, WorkerKey};
use super::remotes::SharedRemotes;
use super::reporter::Reporter;
use super::session::{Session, SessionEnd};
use super::view::{ClusterView, NodeChanges};
use super::worker::{Left, Worker};
use crate::api::types::{NodeDescription, NodeTlsInfo};
use crate::storage::files;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Longest wait for the removal of all tasks when the node leaves (spec 08 section 17.1).
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(60);

/// What an agent needs to run.
pub struct AgentConfig {
    /// Name under which the node is reported; empty for that of the machine.
    pub hostname: String,
    /// `<state directory>/worker`, created 0700 if missing. Holds the task database.
    pub worker_dir: PathBuf,
    /// Key of that directory, from `<worker_dir>/key`.
    pub worker_key: WorkerKey,
    /// `<state directory>/state.json`: where the managers are remembered.
    pub state_file: PathBuf,
    pub broker: Broker,
    pub executor: Arc<dyn Executor>,
    /// The same that the executor was made with.
    pub dependencies: Arc<Dependencies>,
    /// Part of the node's description that depends on its certificates; a change is published at once.
    pub tls_info: watch::Receiver<Option<NodeTlsInfo>>,
    /// The node is just joining: end instead of trying again if the manager that was given is not of the
    /// cluster whose root was downloaded. Applies until the first registration.
    pub fail_if_untrusted: bool,
}

/// The agent could not start, or ended by itself.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AgentError {
    #[error("cannot create the worker directory {}: {reason}", path.display())]
    Directory { path: PathBuf, reason: String },
    #[error(transparent)]
    Key(Arc<KeyError>),
    #[error(transparent)]
    Db(#[from] DbError),
    /// The manager is not one of the cluster that this node wants to join.
    #[error("{0}; this node trusts another cluster: check the address of the manager")]
    Untrusted(String),
    /// Stopped before it was ever registered.
    #[error("the agent has stopped")]
    Stopped,
}

impl From<KeyError> for AgentError {
    fn from(error: KeyError) -> AgentError {
        AgentError::Key(Arc::new(error))
    }
}

/// Where the agent stands.
#[derive(Debug, Clone)]
enum Phase {
    Starting,
    /// Registered at least once.
    Ready,
    Ended(Result<(), AgentError>),
}

/// What the parts of a session share.
pub(crate) struct Context {
    pub(crate) worker: Worker,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) remotes: SharedRemotes,
    pub(crate) view: watch::Sender<ClusterView>,
    pub(crate) tls_info: watch::Receiver<Option<NodeTlsInfo>>,
    hostname: String,
}

impl Context {
    /// The node's complete description (spec 08 section 15.3).
    pub(crate) async fn describe(&self) -> Result<NodeDescription, ExecutorError> {
        let mut description = self.executor.describe().await?;
        if !self.hostname.is_empty() {
            description.hostname.clone_from(&self.hostname);
        }
        description.tls_info = self.tls_info.borrow().clone();
        Ok(description)
    }
}

/// The working half of a node.
pub struct Agent;

impl Agent {
    /// Opens the task database, resumes the tasks it holds and starts to look for a manager.
    ///
    /// The tasks of an earlier run go on at once, manager or not.
    pub async fn start(config: AgentConfig) -> Result<AgentHandle, AgentError> {
        files::create_directory(&config.worker_dir, 0o700).map_err(|error| {
            AgentError::Directory {
                path: config.worker_dir.clone(),
                reason: error.to_string(),
            }
        })?;
        let reporter = Reporter::new();
        let (db, stored) = open_db(&config, reporter.clone()).await?;
        let (worker, worker_task) = Worker::start(
            db,
            stored,
            config.executor.clone(),
            config.dependencies.clone(),
            reporter.clone(),
        );
        let context = Arc::new(Context {
            worker: worker.clone(),
            reporter: reporter.clone(),
            executor: config.executor,
            remotes: config.broker.remotes().clone(),
            view: watch::Sender::new(ClusterView::default()),
            tls_info: config.tls_info,
            hostname: config.hostname,
        });
        let stop = CancellationToken::new();
        let phase = watch::Sender::new(Phase::Starting);
        let handle = AgentHandle {
            view: context.view.subscribe(),
            phase: phase.subscribe(),
            stop: stop.clone(),
            worker,
        };
        let persisting = tokio::spawn(context.remotes.clone().persist(config.state_file));
        let reporting = tokio::spawn(async move { reporter.run().await });
        let loop_ = SessionLoop {
            context: context.clone(),
            broker: config.broker,
            phase: phase.clone(),
            fail_if_untrusted: config.fail_if_untrusted,
        };
        tokio::spawn(async move {
            let ended = tokio::select! {
                biased;
                () = stop.cancelled() => Ok(()),
                error = loop_.run() => Err(error),
            };
            // The worker may have ended already, after a leave.
            let _ = context.worker.stop().await;
            if worker_task.await.is_err() {
                tracing::error!("the worker panicked");
            }
            reporting.abort();
            persisting.abort();
            phase.send_replace(Phase::Ended(ended));
        });
        Ok(handle)
    }
}

/// Opening reads and writes the disk, so it happens beside the runtime.
async fn open_db(
    config: &AgentConfig,
    reporter: Arc<Reporter>,
) -> Result<(TaskDb, Vec<super::db::StoredTask>), AgentError> {
    let path = config.worker_dir.join("tasks");
    let key = config.worker_key.clone();
    let opened = tokio::task::spawn_blocking(move || {
        let on_status = Arc::new(move |id: &str, status: &_| reporter.put(id, status));
        TaskDb::open_or_replace(&path, &key, on_status)
    });
    match opened.await {
        Ok(opened) => Ok(opened?),
        Err(_) => Err(AgentError::Stopped),
    }
}

/// Keeps a session for as long as the agent runs.
struct SessionLoop {
    context: Arc<Context>,
    broker: Broker,
    phase: watch::Sender<Phase>,
    fail_if_untrusted: bool,
}

impl SessionLoop {
    /// Returns only if the agent cannot go on.
    async fn run(mut self) -> AgentError {
        let mut backoff = Backoff::default();
        let mut session_id = String::new();
        loop {
            self.wait(&backoff).await;
            match self.session(&mut backoff, &mut session_id).await {
                Ok(SessionEnd::NewDescription) => {
                    tracing::info!("the node's description changed; telling the managers");
                }
                Ok(SessionEnd::Failed(reason)) => {
                    backoff.grow();
                    tracing::warn!(reason, next_try_within = ?backoff.ceiling(), "session with the managers ended");
                }
                Err(fatal) => return fatal,
            }
        }
    }

    /// Waits out the back-off; a manager that comes up on this very node cuts it short.
    async fn wait(&self, backoff: &Backoff) {
        let delay = backoff.draw(&mut rand::rng());
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = self.broker.local_appeared() => {}
        }
    }

    /// One try to open a session, and the session if it opens.
    async fn session(
        &mut self,
        backoff: &mut Backoff,
        session_id: &mut String,
    ) -> Result<SessionEnd, AgentError> {
        let description = match self.context.describe().await {
            Ok(description) => description,
            Err(error) => return Ok(SessionEnd::Failed(error.to_string())),
        };
        let connection = match self.broker.select().await {
            Ok(connection) => connection,
            Err(error) if error.is_untrusted() && self.fail_if_untrusted => {
                return Err(AgentError::Untrusted(error.to_string()));
            }
            Err(error) => return Ok(SessionEnd::Failed(error.to_string())),
        };
        let registered =
            Session::register(&self.context, connection, description, session_id).await;
        let session = match registered {
            Ok(session) => session,
            Err(end) => return Ok(end),
        };
        session_id.clone_from(&session.id);
        backoff.reset();
        self.fail_if_untrusted = false;
        self.phase.send_if_modified(|phase| {
            let first = matches!(phase, Phase::Starting);
            if first {
                *phase = Phase::Ready;
            }
            first
        });
        tracing::info!(manager = session.target(), "registered with the managers");
        Ok(session.run(&self.context).await)
    }
}

/// A running agent. Dropping the handle does not stop it.
pub struct AgentHandle {
    view: watch::Receiver<ClusterView>,
    phase: watch::Receiver<Phase>,
    stop: CancellationToken,
    worker: Worker,
}

impl AgentHandle {
    /// Waits for the first registration. Fails if the agent ends before.
    pub async fn ready(&self) -> Result<(), AgentError> {
        let mut phase = self.phase.clone();
        let reached = phase
            .wait_for(|phase| !matches!(phase, Phase::Starting))
            .await
            .map_err(|_| AgentError::Stopped)?;
        match &*reached {
            Phase::Ended(Err(error)) => Err(error.clone()),
            Phase::Ended(Ok(())) => Err(AgentError::Stopped),
            Phase::Ready | Phase::Starting => Ok(()),
        }
    }

    /// Waits until the agent has ended, by itself or because it was told to.
    pub async fn ended(&self) -> Result<(), AgentError> {
        let mut phase = self.phase.clone();
        let reached = phase
            .wait_for(|phase| matches!(phase, Phase::Ended(_)))
            .await
            .map_err(|_| AgentError::Stopped)?;
        match &*reached {
            Phase::Ended(result) => result.clone(),
            _ => Err(AgentError::Stopped),
        }
    }

    /// What the managers say about this node and the cluster.
    pub fn view(&self) -> watch::Receiver<ClusterView> {
        self.view.clone()
    }

    /// The changes of that view which the node has to act on, from the very first one.
    pub fn changes(&self) -> NodeChanges {
        NodeChanges::new(self.view.clone())
    }

    /// Ends the session and leaves the tasks running (settled P11). Returns when everything of the agent
    /// has ended.
    pub async fn stop(&self) -> Result<(), AgentError> {
        self.stop.cancel();
        self.ended().await
    }

    /// Removes all tasks, waiting for that at most [`LEAVE_TIMEOUT`], then stops.
    pub async fn leave(&self) -> Result<Left, AgentError> {
        let left = self.worker.leave(LEAVE_TIMEOUT).await;
        self.stop().await?;
        left.map_err(|_| AgentError::Stopped)
    }
}

#[cfg(test)]
mod tests;
