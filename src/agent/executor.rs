//! What the agent needs from a driver that runs tasks, and what drivers may say when they fail.
//!
//! An [`Executor`] describes the node and makes one [`Controller`] per task. A controller knows how to
//! carry out single steps (prepare, start, wait, ...); *when* each step is due is decided by the task's
//! state machine ([`super::task::machine`]), never here.
//!
//! Every future of a controller is **cancelled by dropping it**, at any await point, and every step may
//! be asked for again afterwards, also by another agent process after a restart: steps are idempotent.

use crate::api::types::{ContainerStatus, EncryptionKey, Node, NodeDescription, PortStatus, Task};
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How a step of a task ended if not simply well (spec 08 section 17.2).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// May succeed later: the step is tried again with growing delay.
    #[error("{0}")]
    Temporary(String),
    /// The task's process ended with a code other than 0. Ends killed by signal `n` have code `128 + n`.
    #[error("task: non-zero exit ({code}){}", cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default())]
    Exit { code: i32, cause: Option<String> },
    /// The step was interrupted from outside; it is tried again.
    #[error("cancelled")]
    Cancelled,
    /// Nothing to prepare; counts as success.
    #[error("already prepared")]
    AlreadyPrepared,
    /// Runs or has run; counts as success.
    #[error("already started")]
    AlreadyStarted,
    /// The controller was closed before.
    #[error("the controller of this task is closed")]
    Closed,
    /// The task cannot go on. The text ends up in the task's status.
    #[error("{0}")]
    Fatal(String),
}

impl TaskError {
    /// A fatal error with this text.
    pub fn fatal(text: impl Into<String>) -> TaskError {
        TaskError::Fatal(text.into())
    }

    /// An error worth another try.
    pub fn temporary(text: impl Into<String>) -> TaskError {
        TaskError::Temporary(text.into())
    }
}

/// The node cannot be described or configured.
#[derive(Debug, Clone, thiserror::Error)]
#[error("executor {executor}: cannot {attempt}: {reason}")]
pub struct ExecutorError {
    /// Name of the driver, such as `process`.
    pub executor: &'static str,
    pub attempt: String,
    pub reason: String,
}

/// A driver that runs tasks.
pub trait Executor: Send + Sync + 'static {
    /// What this node offers: platform, resources, plugins. The agent adds host name and TLS part.
    fn describe(&self) -> BoxFuture<'_, Result<NodeDescription, ExecutorError>>;

    /// The node object changed (anything but status and bookkeeping).
    fn configure(&self, node: Arc<Node>) -> BoxFuture<'_, Result<(), ExecutorError>>;

    /// New keys for overlay networks. Drivers without overlays ignore them.
    fn set_network_keys(
        &self,
        keys: Arc<Vec<EncryptionKey>>,
    ) -> BoxFuture<'_, Result<(), ExecutorError>>;

    /// The controller of one task. An error means the task can never run here.
    fn controller(&self, task: Arc<Task>) -> BoxFuture<'_, Result<Arc<dyn Controller>, TaskError>>;

    /// Frees whatever belongs to tasks other than these. Called after a complete list of assignments was
    /// taken, with every task that is assigned or being removed.
    fn retain(&self, task_ids: BTreeSet<String>) -> BoxFuture<'_, ()>;
}

/// Carries out the steps of one task.
pub trait Controller: Send + Sync + 'static {
    /// The task object changed; the next step acts on the new one.
    fn update(&self, task: Arc<Task>) -> BoxFuture<'_, Result<(), TaskError>>;

    /// Gets everything ready to start.
    fn prepare(&self) -> BoxFuture<'_, Result<(), TaskError>>;

    /// Returns when the task runs and, if it has a health check, is healthy.
    fn start(&self) -> BoxFuture<'_, Result<(), TaskError>>;

    /// Returns when the task has ended: with `Ok` for exit code 0.
    fn wait(&self) -> BoxFuture<'_, Result<(), TaskError>>;

    /// Stops the task politely, then, after its grace period, by force. Returns when it has ended.
    fn shutdown(&self) -> BoxFuture<'_, Result<(), TaskError>>;

    /// Kills the task now. Returns when it has ended.
    fn terminate(&self) -> BoxFuture<'_, Result<(), TaskError>>;

    /// Ends the task if need be and frees everything it has on this node.
    fn remove(&self) -> BoxFuture<'_, Result<(), TaskError>>;

    /// Drops handles; the task itself goes on. Further calls fail with [`TaskError::Closed`].
    fn close(&self) -> BoxFuture<'_, ()>;

    /// What runs, if anything does or did.
    fn container_status(&self) -> BoxFuture<'_, Option<ContainerStatus>> {
        Box::pin(std::future::ready(None))
    }

    /// Ports bound on the node itself.
    fn port_status(&self) -> BoxFuture<'_, Option<PortStatus>> {
        Box::pin(std::future::ready(None))
    }

    /// Something the user should know although the task runs, such as a limit that is not enforced.
    fn warning(&self) -> Option<String> {
        None
    }
}
