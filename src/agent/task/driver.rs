//! Drives one task: asks the state machine what is due, lets the controller do it, reports the status.
//!
//! One tokio task per assigned task. It owns the controller. A newer version of the task interrupts the
//! running step (by dropping it) and is shown to the controller before the next one; so does the request
//! to end. Ending is either *closing* (the workload goes on without us, as when the agent stops) or
//! *removing* (nothing of the task is left on this node afterwards).

use super::machine::{self, Retry, Step};
use crate::agent::executor::{Controller, Executor, TaskError};
use crate::api::time;
use crate::api::types::task_status::RuntimeStatus;
use crate::api::types::{ContainerStatus, Task, TaskState, TaskStatus};
use rand::Rng as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// First delay before a failed step is tried again (spec 08 section 17.2); doubles each time.
const RETRY_DELAY_MIN: Duration = Duration::from_secs(1);
/// Longest delay before a failed step is tried again.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);

/// Where new statuses go. Must not block.
pub trait StatusSink: Send + Sync + 'static {
    fn put(&self, task_id: &str, status: TaskStatus);
}

/// How a task's driver is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Leave the workload alone.
    Close,
    /// Remove everything.
    Remove,
}

/// A running driver. Dropping the handle closes it.
pub struct TaskHandle {
    task: watch::Sender<Arc<Task>>,
    end: watch::Sender<Option<End>>,
    status: watch::Receiver<TaskStatus>,
}

impl TaskHandle {
    /// Starts to drive a task from the status it carries. The join handle completes when the driver has
    /// ended.
    pub fn spawn(
        task: Arc<Task>,
        executor: Arc<dyn Executor>,
        sink: Arc<dyn StatusSink>,
    ) -> (TaskHandle, JoinHandle<()>) {
        let status = watch::Sender::new(task.status.clone().unwrap_or_default());
        let handle = TaskHandle {
            task: watch::Sender::new(task.clone()),
            end: watch::Sender::new(None),
            status: status.subscribe(),
        };
        let driver = Driver {
            current: task,
            updates: handle.task.subscribe(),
            end: handle.end.subscribe(),
            status,
            executor,
            sink,
            attempts: 0,
        };
        (handle, tokio::spawn(driver.run()))
    }

    /// The newest version of the task that was handed over; its status is that of the beginning.
    pub fn task(&self) -> Arc<Task> {
        self.task.borrow().clone()
    }

    /// The current status.
    pub fn status(&self) -> TaskStatus {
        self.status.borrow().clone()
    }

    /// Hands over a newer version. Returns whether it changes anything.
    pub fn update(&self, update: Arc<Task>) -> bool {
        self.task.send_if_modified(|current| {
            let counts = machine::is_update(current, &update);
            if counts {
                *current = update;
            }
            counts
        })
    }

    /// Ends the driver and leaves the workload alone.
    pub fn close(&self) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(End::Close);
            first
        });
    }

    /// Ends the workload whatever its state, frees what it has, and ends the driver.
    pub fn remove(&self) {
        self.end.send_replace(Some(End::Remove));
    }
}

struct Driver {
    current: Arc<Task>,
    updates: watch::Receiver<Arc<Task>>,
    end: watch::Receiver<Option<End>>,
    status: watch::Sender<TaskStatus>,
    executor: Arc<dyn Executor>,
    sink: Arc<dyn StatusSink>,
    /// Temporary failures in a row.
    attempts: u32,
}

impl Driver {
    async fn run(mut self) {
        let mut end = self.end.clone();
        let controller = tokio::select! {
            biased;
            () = ended(&mut end) => None,
            controller = self.resolve() => controller,
        };
        match controller {
            Some(controller) => {
                tokio::select! {
                    biased;
                    () = ended(&mut end) => {}
                    () = self.progress(&*controller) => {}
                }
                self.finish(Some(controller)).await;
            }
            None => {
                ended(&mut end).await;
                self.finish(None).await;
            }
        }
    }

    /// The task's controller, or `None` if there can be none; then the status says why.
    async fn resolve(&mut self) -> Option<Arc<dyn Controller>> {
        loop {
            match self.executor.controller(self.current.clone()).await {
                Ok(controller) => {
                    let accepted = machine::accepted(&self.status.borrow());
                    if let Some(status) = accepted {
                        self.publish(status);
                    }
                    return Some(controller);
                }
                Err(TaskError::Temporary(reason)) => {
                    let mut status = self.status.borrow().clone();
                    status.err = reason;
                    self.publish(status);
                    self.attempts = self.attempts.saturating_add(1);
                    tokio::time::sleep(retry_delay(self.attempts - 1)).await;
                }
                Err(error) => {
                    let status = machine::unresolvable(&self.status.borrow(), &error.to_string());
                    if let Some(status) = status {
                        self.publish(status);
                    }
                    return None;
                }
            }
        }
    }

    /// One step after another, for as long as the driver lives.
    async fn progress(&mut self, controller: &dyn Controller) {
        loop {
            self.take_update(controller).await;
            let step = machine::next(self.current.desired_state, self.status.borrow().state);
            let mut updates = self.updates.clone();
            if step == Step::Pause {
                changed(&mut updates).await;
                continue;
            }
            let retry = tokio::select! {
                biased;
                () = changed(&mut updates) => None,
                result = perform(step, controller) => self.settle(step, result, controller).await,
            };
            let Some(delay) = retry else { continue };
            tokio::select! {
                biased;
                () = changed(&mut updates) => {}
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Shows a newer version of the task to the controller.
    async fn take_update(&mut self, controller: &dyn Controller) {
        let newest = self.updates.borrow_and_update().clone();
        if Arc::ptr_eq(&newest, &self.current) {
            return;
        }
        self.current = newest;
        self.attempts = 0;
        if let Err(error) = controller.update(self.current.clone()).await {
            tracing::warn!(task = %self.current.id, %error, "the controller refused a newer version of its task");
        }
    }

    /// Turns the end of a step into the new status. Returns how long to wait before it is tried again.
    async fn settle(
        &mut self,
        step: Step,
        result: Result<(), TaskError>,
        controller: &dyn Controller,
    ) -> Option<Duration> {
        let exit_code = match &result {
            Err(TaskError::Exit { code, .. }) => Some(*code),
            _ => None,
        };
        let before = self.status.borrow().clone();
        let outcome = machine::after(step, &before, result, self.attempts);
        let mut status = outcome.status;
        if status.state >= TaskState::Starting as i32 {
            add_details(&mut status, controller, exit_code).await;
        }
        if status.state == TaskState::Running as i32
            && before.state < status.state
            && let Some(warning) = controller.warning()
        {
            status.message = format!("{} (warning: {warning})", status.message);
        }
        self.publish(status);
        match outcome.retry {
            None => {
                self.attempts = 0;
                None
            }
            Some(Retry::Cancelled) => Some(RETRY_DELAY_MIN),
            Some(Retry::Temporary) => {
                let delay = retry_delay(self.attempts);
                self.attempts = self.attempts.saturating_add(1);
                Some(delay)
            }
        }
    }

    fn publish(&self, status: TaskStatus) {
        let stamped = machine::stamp(&self.status.borrow(), status, time::now());
        if let Some(status) = stamped {
            self.status.send_replace(status.clone());
            self.sink.put(&self.current.id, status);
        }
    }

    /// Carries out the request to end.
    async fn finish(self, controller: Option<Arc<dyn Controller>>) {
        let remove = *self.end.borrow() == Some(End::Remove);
        let controller = match controller {
            // A task without a controller may still have left something behind in an earlier life.
            None if remove => self.executor.controller(self.current.clone()).await.ok(),
            known => known,
        };
        let Some(controller) = controller else { return };
        if remove {
            self.remove(&*controller).await;
        }
        controller.close().await;
    }

    /// Removes until it works: a task that cannot be removed is still there.
    async fn remove(&self, controller: &dyn Controller) {
        let mut attempt = 0;
        while let Err(error) = controller.remove().await {
            if error == TaskError::Closed {
                return;
            }
            tracing::warn!(task = %self.current.id, %error, "cannot remove the task from this node; trying again");
            tokio::time::sleep(retry_delay(attempt)).await;
            attempt = attempt.saturating_add(1);
        }
    }
}

async fn perform(step: Step, controller: &dyn Controller) -> Result<(), TaskError> {
    match step {
        Step::Pause | Step::Advance(..) => Ok(()),
        Step::Prepare => controller.prepare().await,
        Step::Start => controller.start().await,
        Step::Wait => controller.wait().await,
        Step::Shutdown => controller.shutdown().await,
    }
}

/// Adds what the driver knows about the running or ended workload.
async fn add_details(status: &mut TaskStatus, controller: &dyn Controller, exit_code: Option<i32>) {
    let mut container = controller.container_status().await;
    if let Some(code) = exit_code {
        container
            .get_or_insert_with(ContainerStatus::default)
            .exit_code = code;
    }
    if let Some(container) = container {
        status.runtime_status = Some(RuntimeStatus::Container(container));
    }
    status.port_status = controller.port_status().await;
}

/// Resolves once an end was asked for, or the handle is gone.
async fn ended(end: &mut watch::Receiver<Option<End>>) {
    // An error means that the handle was dropped.
    let _ = end.wait_for(Option::is_some).await;
}

/// Resolves with the next version of the task; never, if the handle is gone.
async fn changed(updates: &mut watch::Receiver<Arc<Task>>) {
    if updates.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Delay before the try after `attempt` failed ones (counted from 0): doubling, a quarter either way.
fn retry_delay(attempt: u32) -> Duration {
    let exact = RETRY_DELAY_MIN
        .saturating_mul(1u32.checked_shl(attempt).unwrap_or(u32::MAX))
        .min(RETRY_DELAY_MAX);
    exact.mul_f64(rand::rng().random_range(0.75..1.25))
}

#[cfg(test)]
mod tests;
