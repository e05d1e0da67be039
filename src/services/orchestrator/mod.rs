//! From services to tasks: how many there should be, which are replaced, which are forgotten.
//!
//! Orchestrators run only on the leader and steer agents in one way alone: they create tasks and raise
//! the desired state of existing ones (spec 06). Where a task runs is the scheduler's matter, what it is
//! doing is the agents'.
//!
//! - [`task`]: what a task is; the one way to change one
//! - [`history`]: how often the tasks of a slot were restarted, and whether they may be once more
//! - [`delays`]: replacements that wait for a delay or for their predecessor to stop
//! - [`restart`]: replacing one task
//! - [`slots`]: which slots of a replicated service count, and which go first
//! - [`repair`]: what a new leader puts right before anything else
//! - [`replicated`]: the orchestrator of replicated services
//! - [`reaper`]: deletes tasks that nobody needs any more
//!
//! Everything here is level-triggered; see [`super::reconcile`].

pub mod delays;
pub mod history;
pub mod reaper;
pub mod repair;
pub mod replicated;
pub mod restart;
pub mod slots;
pub mod task;
