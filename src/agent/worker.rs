//! Turns assignments into running task drivers (spec 08 sections 15.5, 17.3).
//!
//! One actor owns the set of tasks. Each assignment message is applied in this order: dependencies, then
//! the database (one synced write), then the drivers. Nothing acts on a message that is not on the disk.
//! Removals run beside everything else; a task is forgotten only after nothing of it is left, so that an
//! agent killed in the middle goes on removing when it is back.

use super::db::{Assignments, DbError, StoredTask, TaskDb};
use super::dependencies::Dependencies;
use super::executor::Executor;
use super::reporter::Reporter;
use super::task::driver::{StatusSink, TaskHandle};
use crate::api::types::assignment::Item;
use crate::api::types::assignment_change::AssignmentAction;
use crate::api::types::{Assignment, AssignmentChange, Task, TaskState, TaskStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

#[cfg(test)]
mod tests;

/// Requests waiting for the actor; sessions make one at a time.
const REQUESTS_MAX: usize = 16;

/// A driver that panics once more than this is not started again before the agent is.
const PANICS_MAX: u32 = 2;

/// Whether a list is everything or a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    Complete,
    Incremental,
}

/// The worker is gone or could not store what it was given.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WorkerError {
    #[error("the worker has stopped")]
    Stopped,
    #[error("cannot take assignments: {0}")]
    Db(#[from] DbError),
}

/// What leaving achieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Nothing of any task is left on this node.
    Clean,
    /// This many tasks could not be removed in time.
    Remaining(usize),
}

enum Request {
    Assign {
        kind: ListKind,
        changes: Vec<AssignmentChange>,
        reply: oneshot::Sender<Result<(), WorkerError>>,
    },
    Statuses(oneshot::Sender<Vec<(String, TaskStatus)>>),
    Leave {
        timeout: Duration,
        reply: oneshot::Sender<Left>,
    },
    Stop(oneshot::Sender<()>),
}

/// Talks to the actor.
#[derive(Clone)]
pub struct Worker {
    requests: mpsc::Sender<Request>,
}

impl Worker {
    /// Starts the tasks of an earlier run and then waits for assignments.
    pub fn start(
        db: TaskDb,
        stored: Vec<StoredTask>,
        executor: Arc<dyn Executor>,
        dependencies: Arc<Dependencies>,
        reporter: Arc<Reporter>,
    ) -> (Worker, JoinHandle<()>) {
        let (requests, inbox) = mpsc::channel(REQUESTS_MAX);
        let db = Arc::new(db);
        let mut actor = Actor {
            sink: Arc::new(DbSink(db.clone())),
            db,
            executor,
            dependencies,
            reporter,
            tasks: BTreeMap::new(),
            ended: JoinSet::new(),
            leaving: false,
        };
        let join = tokio::spawn(async move {
            actor.resume(stored);
            actor.run(inbox).await;
            // Closing the database waits for the disk.
            let closed = tokio::task::spawn_blocking(move || drop(actor)).await;
            if closed.is_err() {
                tracing::error!("closing the task database panicked");
            }
        });
        (Worker { requests }, join)
    }

    /// Applies a list. Dropping the future does not stop a list halfway.
    pub async fn assign(
        &self,
        kind: ListKind,
        changes: Vec<AssignmentChange>,
    ) -> Result<(), WorkerError> {
        let request = |reply| Request::Assign {
            kind,
            changes,
            reply,
        };
        self.ask(request).await?
    }

    /// The current status of every task.
    pub async fn statuses(&self) -> Result<Vec<(String, TaskStatus)>, WorkerError> {
        self.ask(Request::Statuses).await
    }

    /// Removes all tasks, and waits for that at most this long.
    pub async fn leave(&self, timeout: Duration) -> Result<Left, WorkerError> {
        self.ask(|reply| Request::Leave { timeout, reply }).await
    }

    /// Ends all drivers, leaves the workloads running, and ends the actor.
    pub async fn stop(&self) -> Result<(), WorkerError> {
        self.ask(Request::Stop).await
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, WorkerError> {
        let (reply, answer) = oneshot::channel();
        self.requests
            .send(request(reply))
            .await
            .map_err(|_| WorkerError::Stopped)?;
        answer.await.map_err(|_| WorkerError::Stopped)
    }
}

/// Statuses go to the database first, which hands them to the reporter.
struct DbSink(Arc<TaskDb>);

impl StatusSink for DbSink {
    fn put(&self, task_id: &str, status: TaskStatus) {
        self.0.put_status(task_id, status);
    }
}

struct Entry {
    handle: TaskHandle,
    driver: AbortHandle,
    /// How often the driver has panicked.
    panics: u32,
    /// The task is being removed; if it is assigned again meanwhile, it starts anew afterwards.
    removing: bool,
    next: Option<Arc<Task>>,
}

struct Actor {
    db: Arc<TaskDb>,
    sink: Arc<dyn StatusSink>,
    executor: Arc<dyn Executor>,
    dependencies: Arc<Dependencies>,
    reporter: Arc<Reporter>,
    tasks: BTreeMap<String, Entry>,
    /// Drivers; yields the ID of each that has ended, and whether it panicked.
    ended: JoinSet<(String, bool)>,
    /// The node leaves: no assignment counts any more.
    leaving: bool,
}

impl Actor {
    /// Goes on with what an earlier run left.
    fn resume(&mut self, stored: Vec<StoredTask>) {
        for StoredTask { task, assigned } in stored {
            let id = task.id.clone();
            self.spawn(Arc::new(task));
            if !assigned {
                self.start_removal(&id);
            }
        }
    }

    async fn run(&mut self, mut inbox: mpsc::Receiver<Request>) {
        loop {
            tokio::select! {
                Some(ended) = self.ended.join_next() => self.driver_ended(ended).await,
                request = inbox.recv() => match request {
                    None => return self.close_all().await,
                    Some(Request::Stop(reply)) => {
                        self.close_all().await;
                        // The caller may have given up waiting.
                        let _ = reply.send(());
                        return;
                    }
                    Some(Request::Assign { kind, changes, reply }) => {
                        let _ = reply.send(self.assign(kind, changes).await);
                    }
                    Some(Request::Statuses(reply)) => {
                        let _ = reply.send(self.statuses());
                    }
                    Some(Request::Leave { timeout, reply }) => {
                        let _ = reply.send(self.leave(timeout).await);
                    }
                }
            }
        }
    }

    async fn assign(
        &mut self,
        kind: ListKind,
        changes: Vec<AssignmentChange>,
    ) -> Result<(), WorkerError> {
        if self.leaving {
            return Err(WorkerError::Stopped);
        }
        match kind {
            ListKind::Complete => self.dependencies.replace(&changes),
            ListKind::Incremental => self.dependencies.update(&changes),
        }
        let (updates, mut removals) = split(changes);
        if kind == ListKind::Complete {
            let unlisted = self.tasks.keys().filter(|id| !updates.contains_key(*id));
            removals.extend(unlisted.cloned());
        }
        removals.retain(|id| self.tasks.get(id).is_some_and(|entry| !entry.removing));
        let put: Vec<Arc<Task>> = updates
            .into_values()
            .filter(|task| self.says_something(task))
            .collect();
        self.db
            .assign(Assignments {
                put: put.clone(),
                unassign: removals.iter().cloned().collect(),
            })
            .await?;
        for task in put {
            self.put(task);
        }
        for id in &removals {
            self.start_removal(id);
        }
        if kind == ListKind::Complete {
            let ids: BTreeSet<String> = self.tasks.keys().cloned().collect();
            self.executor.retain(ids).await;
        }
        Ok(())
    }

    /// Whether a listed task is unknown here or differs from what is known.
    fn says_something(&self, task: &Task) -> bool {
        match self.tasks.get(&task.id) {
            Some(entry) if !entry.removing => {
                super::task::machine::is_update(&entry.handle.task(), task)
            }
            _ => true,
        }
    }

    fn put(&mut self, task: Arc<Task>) {
        match self.tasks.get_mut(&task.id) {
            Some(entry) if entry.removing => entry.next = Some(task),
            Some(entry) => {
                entry.handle.update(task);
            }
            None => self.spawn(task),
        }
    }

    fn spawn(&mut self, task: Arc<Task>) {
        let id = task.id.clone();
        let (handle, join) = TaskHandle::spawn(task, self.executor.clone(), self.sink.clone());
        let entry = Entry {
            handle,
            driver: join.abort_handle(),
            panics: 0,
            removing: false,
            next: None,
        };
        self.tasks.insert(id.clone(), entry);
        self.ended.spawn(async move {
            let panicked = join.await.is_err_and(|error| error.is_panic());
            (id, panicked)
        });
    }

    fn start_removal(&mut self, id: &str) {
        if let Some(entry) = self.tasks.get_mut(id) {
            entry.removing = true;
            entry.next = None;
            entry.handle.remove();
        }
        self.reporter.forget(id);
    }

    /// A driver ended: its task is removed, or it panicked.
    async fn driver_ended(&mut self, ended: Result<(String, bool), tokio::task::JoinError>) {
        let Ok((id, panicked)) = ended else { return };
        let Some(entry) = self.tasks.remove(&id) else {
            return;
        };
        if panicked {
            self.restart_after_panic(&id, entry);
            return;
        }
        if !entry.removing {
            return;
        }
        if let Err(error) = self.db.delete(vec![id.clone()]).await {
            // The next start removes it again, which is harmless.
            tracing::warn!(task = %id, %error, "cannot forget a removed task");
        }
        self.reporter.forget(&id);
        if let Some(task) = entry.next {
            let again = Assignments {
                put: vec![task.clone()],
                unassign: Vec::new(),
            };
            match self.db.assign(again).await {
                Ok(()) => self.spawn(task),
                Err(error) => {
                    tracing::error!(task = %id, %error, "cannot store a task that came back")
                }
            }
        }
    }

    /// A panic in a driver is a bug; the task fails for it and the node goes on.
    fn restart_after_panic(&mut self, id: &str, entry: Entry) {
        tracing::error!(task = %id, "the driver of a task panicked; the task counts as failed");
        let mut task = Task::clone(&entry.handle.task());
        let mut status = entry.handle.status();
        if status.state <= TaskState::Running as i32 {
            status.state = TaskState::Failed as i32;
            status.err = "internal error of the agent".to_owned();
            status.timestamp = Some(crate::api::time::now());
            self.db.put_status(id, status.clone());
        }
        task.status = Some(status);
        if entry.panics >= PANICS_MAX {
            return;
        }
        self.spawn(Arc::new(task));
        if let Some(again) = self.tasks.get_mut(id) {
            again.panics = entry.panics + 1;
        }
        if entry.removing {
            self.start_removal(id);
        }
    }

    fn statuses(&self) -> Vec<(String, TaskStatus)> {
        self.tasks
            .iter()
            .filter(|(_, entry)| !entry.removing)
            .map(|(id, entry)| (id.clone(), entry.handle.status()))
            .collect()
    }

    async fn leave(&mut self, timeout: Duration) -> Left {
        if let Err(error) = self.assign(ListKind::Complete, Vec::new()).await {
            tracing::warn!(%error, "cannot store that all tasks go");
            let ids: Vec<String> = self.tasks.keys().cloned().collect();
            ids.iter().for_each(|id| self.start_removal(id));
        }
        self.leaving = true;
        let all_gone = async {
            while !self.tasks.is_empty() {
                match self.ended.join_next().await {
                    Some(ended) => self.driver_ended(ended).await,
                    None => return,
                }
            }
        };
        // What is left then is counted below.
        let _ = tokio::time::timeout(timeout, all_gone).await;
        match self.tasks.len() {
            0 => Left::Clean,
            remaining => Left::Remaining(remaining),
        }
    }

    /// Ends all drivers; those that are removing a task go on with it after the next start.
    async fn close_all(&mut self) {
        for entry in self.tasks.values() {
            if entry.removing {
                entry.driver.abort();
            } else {
                entry.handle.close();
            }
        }
        while self.ended.join_next().await.is_some() {}
        self.tasks.clear();
    }
}

/// Tasks to have (by ID, the last one wins) and tasks to remove.
fn split(changes: Vec<AssignmentChange>) -> (BTreeMap<String, Arc<Task>>, BTreeSet<String>) {
    let mut updates = BTreeMap::new();
    let mut removals = BTreeSet::new();
    for change in changes {
        let Some(Assignment {
            item: Some(Item::Task(task)),
        }) = change.assignment
        else {
            continue;
        };
        if change.action == AssignmentAction::Update as i32 {
            removals.remove(&task.id);
            updates.insert(task.id.clone(), Arc::new(task));
        } else {
            updates.remove(&task.id);
            removals.insert(task.id);
        }
    }
    (updates, removals)
}
