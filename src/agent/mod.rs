//! The worker: what every node runs to take work from the managers (spec 08 sections 15 and 17).
//!
//! ```text
//!  managers ──Session──▶ view ─────────────▶ node (roles, certificates)
//!     │                   └─▶ remotes, executor configuration
//!     ├──Assignments──▶ sequence ─▶ worker ─▶ task database (synced) ─▶ one driver per task
//!     │                                                                  │ machine: which step is due
//!     │                                                                  ▼ controller: does it
//!     └◀──UpdateTaskStatus── reporter ◀── task database ◀────────── status of the task
//! ```
//!
//! A manager cannot tell this agent from a Docker Engine's. What it adds: the tasks on a node outlive the
//! agent process, its restart and its upgrade; nothing readable of them is kept on the disk; and no
//! status is lost on the way, for it is stored before it is sent and sent until it is taken.
//!
//! - [`run`]: start, stop, leave; the loop that keeps a session
//! - [`session`](self): registration, heartbeats, streams, until the first error
//! - [`connect`], [`remotes`]: which manager, and how to get to it
//! - [`worker`], [`db`], [`dependencies`]: assignments and what is remembered of them
//! - [`task`]: the state machine of a task and its driver
//! - [`reporter`]: statuses on their way to the managers
//! - [`executor`]: what drivers implement
//! - [`process`]: the driver that runs programs of the host; [`none`]: the one that runs nothing

pub mod backoff;
pub mod connect;
pub mod db;
pub mod dependencies;
pub mod executor;
pub mod key;
mod machine;
pub mod none;
pub mod process;
pub mod remotes;
pub mod reporter;
pub mod run;
mod sequence;
mod session;
pub mod task;
#[cfg(test)]
pub(crate) mod testing;
pub mod view;
pub mod worker;

pub use connect::{Broker, ConnectError, Connection, DialError, Dialer};
pub use dependencies::Dependencies;
pub use executor::{Controller, Executor, ExecutorError, TaskError};
pub use key::WorkerKey;
pub use remotes::{Remote, SharedRemotes};
pub use run::{Agent, AgentConfig, AgentError, AgentHandle};
pub use view::{ClusterView, NodeChange};
pub use worker::Left;
