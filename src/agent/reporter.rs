//! Tells the managers what became of the tasks (spec 08 section 15.7).
//!
//! For each task only the newest status counts; it is sent until a manager has taken it. What was taken is
//! not sent again, except after a new registration, when the worker hands over the status of every task
//! anew. One status per call, as Docker Engines do it; when many wait, several per call.
//!
//! [`Pending`] is the pure part; [`Reporter`] sends.

use crate::api::types::dispatcher_client::DispatcherClient;
use crate::api::types::update_task_status_request::TaskStatusUpdate;
use crate::api::types::{TaskStatus, UpdateTaskStatusRequest};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tonic::transport::Channel;
use tonic::{Code, Status};

#[cfg(test)]
mod tests;

/// Statuses per call at most (spec 08, "Do better" 25).
const BATCH_MAX: usize = 1024;
/// Up to this many waiting statuses go one by one, as Docker Engines send them.
const SINGLE_MAX: usize = 8;
/// A manager that has not taken a report by then has failed.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The statuses that wait to be sent, and those that were taken in this session.
#[derive(Debug, Default)]
pub struct Pending {
    waiting: BTreeMap<String, TaskStatus>,
    taken: BTreeMap<String, TaskStatus>,
    /// Task after which the next call begins, so that no task starves.
    cursor: String,
}

impl Pending {
    /// Takes a status in, unless it says nothing new or is behind a newer one.
    pub fn put(&mut self, id: &str, status: TaskStatus) {
        let newest = self.waiting.get(id).or_else(|| self.taken.get(id));
        if newest.is_some_and(|newest| newest.state > status.state || *newest == status) {
            return;
        }
        self.waiting.insert(id.to_owned(), status);
    }

    /// A new registration: everything is worth sending again.
    pub fn start_over(&mut self, statuses: impl IntoIterator<Item = (String, TaskStatus)>) {
        self.taken.clear();
        for (id, status) in statuses {
            self.put(&id, status);
        }
    }

    /// Forgets a task that is gone.
    pub fn forget(&mut self, id: &str) {
        self.waiting.remove(id);
        self.taken.remove(id);
    }

    /// What the next call carries; empty if nothing waits.
    pub fn next_call(&mut self) -> Vec<(String, TaskStatus)> {
        let count = if self.waiting.len() > SINGLE_MAX {
            BATCH_MAX
        } else {
            1
        };
        self.next(count)
    }

    /// Up to `count` waiting statuses, beginning after those that went last.
    fn next(&mut self, count: usize) -> Vec<(String, TaskStatus)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let after = self
            .waiting
            .range::<str, _>((Excluded(self.cursor.as_str()), Unbounded));
        let call: Vec<(String, TaskStatus)> = after
            .chain(self.waiting.iter())
            .take(count.min(self.waiting.len()))
            .map(|(id, status)| (id.clone(), status.clone()))
            .collect();
        if let Some((last, _)) = call.last() {
            self.cursor.clone_from(last);
        }
        call
    }

    /// A manager took these.
    pub fn taken(&mut self, call: Vec<(String, TaskStatus)>) {
        for (id, status) in call {
            if self.waiting.get(&id) == Some(&status) {
                self.waiting.remove(&id);
            }
            self.taken.insert(id, status);
        }
    }

    /// The managers do not want to hear of these.
    pub fn unwanted(&mut self, call: &[(String, TaskStatus)]) {
        for (id, status) in call {
            if self.waiting.get(id) == Some(status) {
                self.waiting.remove(id);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// One registration to report through.
#[derive(Clone)]
pub struct ReportChannel {
    pub client: DispatcherClient<Channel>,
    pub session_id: String,
    /// Told why reports fail, which ends the session.
    pub failed: tokio::sync::mpsc::Sender<Status>,
}

/// Sends statuses through whatever session there is.
pub struct Reporter {
    pending: Mutex<Pending>,
    wake: Notify,
    channel: watch::Sender<Option<ReportChannel>>,
}

impl Reporter {
    pub fn new() -> Arc<Reporter> {
        Arc::new(Reporter {
            pending: Mutex::default(),
            wake: Notify::new(),
            channel: watch::Sender::new(None),
        })
    }

    /// A task has a new status.
    pub fn put(&self, id: &str, status: &TaskStatus) {
        let mut status = status.clone();
        // Only managers fill these in.
        status.applied_by.clear();
        status.applied_at = None;
        self.pending.lock().put(id, status);
        self.wake.notify_one();
    }

    /// A task is gone from this node.
    pub fn forget(&self, id: &str) {
        self.pending.lock().forget(id);
    }

    /// A registration succeeded: report everything through it.
    pub fn session_started(&self, channel: ReportChannel, statuses: Vec<(String, TaskStatus)>) {
        self.pending.lock().start_over(statuses);
        self.channel.send_replace(Some(channel));
        self.wake.notify_one();
    }

    /// The session ended; reports wait for the next one.
    pub fn session_ended(&self) {
        self.channel.send_replace(None);
    }

    /// Sends for ever.
    pub async fn run(&self) {
        let mut channel = self.channel.subscribe();
        loop {
            let Some(current) = channel.borrow_and_update().clone() else {
                if channel.changed().await.is_err() {
                    return;
                }
                continue;
            };
            tokio::select! {
                biased;
                changed = channel.changed() => if changed.is_err() { return },
                () = self.send_all(current) => {}
            }
        }
    }

    /// Sends until the session fails.
    async fn send_all(&self, mut channel: ReportChannel) {
        loop {
            let call = self.pending.lock().next_call();
            if call.is_empty() {
                self.wake.notified().await;
                continue;
            }
            if let Err(status) = self.send(&mut channel, call).await {
                // The session may be ending for another reason already.
                let _ = channel.failed.try_send(status);
                return std::future::pending().await;
            }
        }
    }

    /// Makes one call. An error is one that ends the session.
    async fn send(
        &self,
        channel: &mut ReportChannel,
        call: Vec<(String, TaskStatus)>,
    ) -> Result<(), Status> {
        match report(channel, &call).await {
            Ok(()) => self.pending.lock().taken(call),
            Err(status) if status.code() == Code::NotFound => self.pending.lock().unwanted(&call),
            // One of the tasks is not ours in the managers' eyes. Find out which, so that it does not
            // keep the others from being reported.
            Err(status) if status.code() == Code::PermissionDenied && call.len() > 1 => {
                for single in call {
                    Box::pin(self.send(channel, vec![single])).await?;
                }
            }
            Err(status) => {
                if status.code() == Code::PermissionDenied {
                    self.pending.lock().unwanted(&call);
                }
                return Err(status);
            }
        }
        Ok(())
    }
}

async fn report(channel: &mut ReportChannel, call: &[(String, TaskStatus)]) -> Result<(), Status> {
    let updates = call
        .iter()
        .map(|(id, status)| TaskStatusUpdate {
            task_id: id.clone(),
            status: Some(status.clone()),
        })
        .collect();
    let request = UpdateTaskStatusRequest {
        session_id: channel.session_id.clone(),
        updates,
    };
    match tokio::time::timeout(REPORT_TIMEOUT, channel.client.update_task_status(request)).await {
        Ok(answer) => answer.map(|_| ()),
        Err(_) => Err(Status::deadline_exceeded(
            "the manager did not take a status report in time",
        )),
    }
}
