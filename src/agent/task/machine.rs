//! The life of a task on its node, as a pure function (spec 08 section 15.6).
//!
//! Two questions are answered here and nowhere else: given where the managers want a task to be and where
//! it is, which step is due ([`next`]); and given how a step ended, what is the task's new status
//! ([`after`]). The state only ever moves forward.

use crate::agent::executor::TaskError;
use crate::api::types::{Task, TaskState, TaskStatus};
use prost_types::Timestamp;

/// What to do next with a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing until the managers want something else.
    Pause,
    /// Only the state moves on.
    Advance(TaskState, &'static str),
    Prepare,
    Start,
    Wait,
    Shutdown,
}

/// The step that is due. States are wire numbers, so that unknown ones sort where they belong.
pub fn next(desired: i32, state: i32) -> Step {
    if desired >= TaskState::Shutdown as i32 {
        return if state < TaskState::Complete as i32 {
            Step::Shutdown
        } else {
            Step::Pause
        };
    }
    if desired < state {
        return Step::Pause;
    }
    // These three go on even if the managers want no more than the state itself.
    match TaskState::try_from(state) {
        Ok(TaskState::Preparing) => return Step::Prepare,
        Ok(TaskState::Starting) => return Step::Start,
        Ok(TaskState::Running) => return Step::Wait,
        _ => {}
    }
    if desired == state {
        return Step::Pause;
    }
    match TaskState::try_from(state) {
        Ok(TaskState::New | TaskState::Pending | TaskState::Assigned) => {
            Step::Advance(TaskState::Accepted, "accepted")
        }
        Ok(TaskState::Accepted) => Step::Advance(TaskState::Preparing, "preparing"),
        Ok(TaskState::Ready) => Step::Advance(TaskState::Starting, "starting"),
        _ => Step::Pause,
    }
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The task's status after the step, timestamp not set.
    pub status: TaskStatus,
    /// The step is to be tried again, after a while.
    pub retry: Option<Retry>,
}

/// Why a step is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// It was interrupted.
    Cancelled,
    /// It failed in a way that may pass.
    Temporary,
}

/// The status after a step. `attempt` is how often in a row the step has failed temporarily before.
pub fn after(
    step: Step,
    before: &TaskStatus,
    result: Result<(), TaskError>,
    attempt: u32,
) -> Outcome {
    let settled = |status| Outcome {
        status,
        retry: None,
    };
    let error = match result {
        Ok(()) => return settled(succeeded(step, before)),
        Err(TaskError::AlreadyPrepared) if step == Step::Prepare => {
            return settled(succeeded(step, before));
        }
        Err(TaskError::AlreadyStarted) if step == Step::Start => {
            return settled(succeeded(step, before));
        }
        Err(error) => error,
    };
    let mut status = before.clone();
    match error {
        TaskError::Cancelled => Outcome {
            status,
            retry: Some(Retry::Cancelled),
        },
        TaskError::Temporary(reason) => {
            let message = base_message(&before.message).to_owned();
            status.message = format!("{message}{ATTEMPT_PREFIX}{})", attempt + 1);
            status.err = reason;
            Outcome {
                status,
                retry: Some(Retry::Temporary),
            }
        }
        error => {
            let started = before.state >= TaskState::Starting as i32;
            status.state = if started {
                TaskState::Failed
            } else {
                TaskState::Rejected
            } as i32;
            status.message = base_message(&before.message).to_owned();
            status.err = error.to_string();
            settled(status)
        }
    }
}

/// Follows a status message while a step is tried again.
const ATTEMPT_PREFIX: &str = " (attempt ";

/// A status message without its count of attempts.
fn base_message(message: &str) -> &str {
    message
        .rfind(ATTEMPT_PREFIX)
        .map_or(message, |end| &message[..end])
}

fn succeeded(step: Step, before: &TaskStatus) -> TaskStatus {
    let (state, message) = match step {
        Step::Pause => return before.clone(),
        Step::Advance(state, message) => (state, message),
        Step::Prepare => (TaskState::Ready, "prepared"),
        Step::Start => (TaskState::Running, "started"),
        Step::Wait => (TaskState::Complete, "finished"),
        Step::Shutdown => (TaskState::Shutdown, "shutdown"),
    };
    let mut status = before.clone();
    status.state = state as i32;
    status.message = message.to_owned();
    status.err.clear();
    status
}

/// The status of a task that this node has just taken, or (`None`) no change.
pub fn accepted(before: &TaskStatus) -> Option<TaskStatus> {
    (before.state < TaskState::Accepted as i32)
        .then(|| succeeded(Step::Advance(TaskState::Accepted, "accepted"), before))
}

/// The status of a task for which no controller can be made, or (`None`) no change.
pub fn unresolvable(before: &TaskStatus, reason: &str) -> Option<TaskStatus> {
    let state = if before.state < TaskState::Starting as i32 {
        TaskState::Rejected
    } else if before.state <= TaskState::Running as i32 {
        TaskState::Failed
    } else {
        return None;
    };
    Some(TaskStatus {
        state: state as i32,
        message: "resolving controller failed".to_owned(),
        err: reason.to_owned(),
        ..before.clone()
    })
}

/// The new status if it says anything new, stamped with `now`; the timestamp changes if and only if
/// anything else does. A status that would move the state back is dropped.
pub fn stamp(before: &TaskStatus, mut after: TaskStatus, now: Timestamp) -> Option<TaskStatus> {
    after.timestamp = before.timestamp;
    if after == *before || after.state < before.state {
        return None;
    }
    after.timestamp = Some(now);
    Some(after)
}

/// The same task, bookkeeping and status aside (spec 08 section 7.3).
pub fn same(one: &Task, other: &Task) -> bool {
    let bare = |task: &Task| Task {
        meta: None,
        status: None,
        ..task.clone()
    };
    bare(one) == bare(other)
}

/// Whether a newer version of a task changes what the agent does.
pub fn is_update(current: &Task, update: &Task) -> bool {
    current.id == update.id
        && update.desired_state >= current.desired_state
        && !same(current, update)
}

#[cfg(test)]
mod tests;
