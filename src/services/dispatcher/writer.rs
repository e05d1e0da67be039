//! Collects what the nodes report and writes it in few, large transactions.
//!
//! A report waits at most [`Settings::write_interval`] for its write; the first one after a quiet
//! time does not wait at all. Reports about one object replace each other while they wait, so the
//! queues are bounded by the number of nodes and, for task statuses, by a count and a number of
//! bytes above which reporters wait too.
//!
//! What could not be written because the disk or the group is not ready stays queued. What is
//! queued when the term ends is dropped: agents report everything again to the next leader.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::counters::Counters;
use super::refusal::Refusal;
use super::registry::Registry;
use super::settings::Settings;
use super::writes::{NodeUpdate, Outcome, TaskReport, Write, WriteContext, observed};
use crate::api::time;
use crate::api::types::{Task, TaskState};
use crate::storage::{By, ProposeError, Store, StoreError};

/// Pause after a write that failed, before it is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Queued {
    tasks: HashMap<String, TaskReport>,
    task_bytes: usize,
    nodes: HashMap<Arc<str>, NodeUpdate>,
    orphans: BTreeSet<Arc<str>>,
}

impl Queued {
    fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.nodes.is_empty() && self.orphans.is_empty()
    }

    fn is_full(&self, settings: &Settings) -> bool {
        let items_max = settings.write_items_max;
        self.tasks.len() >= items_max || self.nodes.len() >= items_max
    }

    /// Queues a report unless one with a later state waits already: states only go forward.
    fn put_task(&mut self, report: TaskReport) {
        match self.tasks.get(&report.task_id) {
            Some(queued) if queued.status.state > report.status.state => return,
            Some(queued) => self.task_bytes -= queued.bytes(),
            None => {}
        }
        self.task_bytes += report.bytes();
        self.tasks.insert(report.task_id.clone(), report);
    }

    /// Puts back what could not be written; what came in meanwhile is newer.
    fn put_back(&mut self, write: Write) {
        match write {
            Write::Node(node_id, older) => {
                let update = match self.nodes.remove(&node_id) {
                    Some(newer) => NodeUpdate::merge(older, newer),
                    None => older,
                };
                self.nodes.insert(node_id, update);
            }
            Write::Task(report) => {
                let newer = self.tasks.get(&report.task_id);
                if newer.is_none_or(|newer| newer.status.state < report.status.state) {
                    self.put_task(report);
                }
            }
            Write::Orphan(node_id, _) => {
                self.orphans.insert(node_id);
            }
        }
    }
}

/// The queues, and the task that empties them.
pub struct Writer {
    store: Store,
    settings: Settings,
    /// Node ID of this leader, which signs what it applies.
    applied_by: String,
    registry: Arc<Mutex<Registry>>,
    counters: Arc<Counters>,
    queued: Mutex<Queued>,
    filled: Notify,
    emptied: Notify,
}

impl Writer {
    pub fn new(
        store: Store,
        settings: Settings,
        applied_by: String,
        registry: Arc<Mutex<Registry>>,
        counters: Arc<Counters>,
    ) -> Writer {
        Writer {
            store,
            settings,
            applied_by,
            registry,
            counters,
            queued: Mutex::default(),
            filled: Notify::new(),
            emptied: Notify::new(),
        }
    }

    /// Queues new facts about a node.
    pub fn update_node(&self, node_id: Arc<str>, update: NodeUpdate) {
        self.queue(|queued| {
            let update = match queued.nodes.remove(&node_id) {
                Some(older) => NodeUpdate::merge(older, update),
                None => update,
            };
            queued.nodes.insert(node_id, update);
        });
    }

    /// Queues new facts about a node; the receiver learns when they are committed.
    pub fn update_node_and_tell(
        &self,
        node_id: Arc<str>,
        mut update: NodeUpdate,
    ) -> oneshot::Receiver<Result<(), Refusal>> {
        let (sender, receiver) = oneshot::channel();
        update.waiters.push(sender);
        self.update_node(node_id, update);
        receiver
    }

    /// Queues the giving-up of all tasks of a node.
    pub fn orphan_tasks_of(&self, node_id: Arc<str>) {
        self.queue(|queued| {
            queued.orphans.insert(node_id);
        });
    }

    /// Queues reported statuses, all or none, once there is room for them. Gives up after
    /// [`Settings::write_wait_max`].
    pub async fn report_tasks(&self, reports: Vec<TaskReport>) -> Result<(), Refusal> {
        let deadline = Instant::now() + self.settings.write_wait_max;
        let mut waiting = Some(reports);
        loop {
            let emptied = self.emptied.notified();
            self.try_report(&mut waiting);
            if waiting.is_none() {
                return Ok(());
            }
            tokio::time::timeout_at(deadline, emptied)
                .await
                .map_err(|_| Refusal::Busy("task statuses".to_owned()))?;
        }
    }

    /// Takes the reports if there is room. An empty queue has room for any request.
    fn try_report(&self, waiting: &mut Option<Vec<TaskReport>>) {
        self.queue(|queued| {
            let room = queued.tasks.len() < self.settings.queued_reports_max
                && queued.task_bytes < self.settings.queued_report_bytes_max;
            if room {
                for report in waiting.take().into_iter().flatten() {
                    queued.put_task(report);
                }
            }
        });
    }

    fn queue(&self, put: impl FnOnce(&mut Queued)) {
        let mut queued = self.queued.lock();
        let (was_empty, was_full) = (queued.is_empty(), queued.is_full(&self.settings));
        put(&mut queued);
        let started = was_empty && !queued.is_empty();
        let filled_up = !was_full && queued.is_full(&self.settings);
        drop(queued);
        if started || filled_up {
            self.filled.notify_one();
        }
    }

    /// Writes until the term ends. An error means that the store cannot be used any more.
    pub async fn run(&self, cancel: CancellationToken) -> anyhow::Result<()> {
        tokio::select! {
            () = cancel.cancelled() => Ok(()),
            result = self.write_all() => result,
        }
    }

    async fn write_all(&self) -> anyhow::Result<()> {
        let mut next = Instant::now();
        loop {
            self.gather(next).await;
            next = Instant::now() + self.settings.write_interval;
            if let Err(error) = self.flush().await {
                if matches!(error, StoreError::Closed | StoreError::Disk(_)) {
                    return Err(error).context("writing what the nodes reported");
                }
                warn!(%error, "reports of nodes are not written yet, trying again");
                next = Instant::now() + RETRY_PAUSE;
                tokio::time::sleep_until(next).await;
            }
        }
    }

    /// Waits until something is queued and either its time has come or there is enough of it.
    async fn gather(&self, due: Instant) {
        loop {
            let (empty, full) = {
                let queued = self.queued.lock();
                (queued.is_empty(), queued.is_full(&self.settings))
            };
            if full || (!empty && Instant::now() >= due) {
                return;
            }
            if empty {
                self.filled.notified().await;
            } else {
                tokio::select! {
                    () = self.filled.notified() => {}
                    () = tokio::time::sleep_until(due) => {}
                }
            }
        }
    }

    /// Writes everything that is queued now: nodes first, because agents wait for them.
    async fn flush(&self) -> Result<(), StoreError> {
        let queued = std::mem::take(&mut *self.queued.lock());
        self.emptied.notify_waiters();
        let nodes = queued.nodes.into_iter();
        let tasks = queued.tasks.into_values();
        let nodes =
            self.write_or_requeue(nodes.map(|(id, update)| Write::Node(id, update)).collect());
        let nodes = nodes.await;
        let tasks = self
            .write_or_requeue(tasks.map(Write::Task).collect())
            .await;
        let mut result = nodes.and(tasks);
        for node_id in queued.orphans {
            result = result.and(self.orphan(node_id).await);
        }
        result
    }

    /// Gives up all tasks of one node that is still down.
    async fn orphan(&self, node_id: Arc<str>) -> Result<(), StoreError> {
        let tasks = self
            .store
            .view(|tx| tx.find::<Task>(By::NodeId(node_id.to_string())));
        let writes = tasks?
            .iter()
            .filter(|task| observed(task) <= TaskState::Running as i32)
            .map(|task| Write::Orphan(Arc::clone(&node_id), task.id.clone()))
            .collect();
        self.write_or_requeue(writes).await?;
        self.registry.lock().given_up(&node_id);
        Ok(())
    }

    async fn write_or_requeue(&self, writes: Vec<Write>) -> Result<(), StoreError> {
        if writes.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let mut result = self.write_batch(&writes).await;
        if let Ok(outcomes) = result {
            self.counters.batch(writes.len(), started.elapsed());
            tell_waiters(writes, outcomes);
            return Ok(());
        }
        let mut left = Vec::new();
        if matches!(result, Err(StoreError::Propose(ProposeError::TooLarge))) {
            (result, left) = self.write_singly(writes).await;
        } else {
            left.extend(writes);
        }
        self.queue(|queued| left.into_iter().for_each(|write| queued.put_back(write)));
        result.map(drop)
    }

    /// Writes all in as few log entries as possible. The outcomes are in the order of the writes.
    async fn write_batch(&self, writes: &[Write]) -> Result<Vec<Outcome>, StoreError> {
        let is_down = |node_id: &str| self.registry.lock().is_down(node_id);
        let context = self.context(&is_down);
        let mut batch = self.store.batch();
        let mut outcomes = Vec::with_capacity(writes.len());
        for write in writes {
            match batch.update(|tx| write.apply(tx, &context)).await {
                Ok(outcome) => outcomes.push(outcome),
                Err(error) if is_of_the_batch(&error) => return Err(error),
                Err(error) => {
                    error!(%error, write = write.subject(), "a report cannot be stored");
                    outcomes.push(Outcome::Unchanged);
                }
            }
        }
        batch.commit().await?;
        Ok(outcomes)
    }

    /// Writes one by one, because together they hold something too large for a log entry; only
    /// that one is lost. Returns what is still to be written after another failure.
    async fn write_singly(
        &self,
        writes: Vec<Write>,
    ) -> (Result<Vec<Outcome>, StoreError>, Vec<Write>) {
        let is_down = |node_id: &str| self.registry.lock().is_down(node_id);
        let context = self.context(&is_down);
        let mut writes = writes.into_iter();
        while let Some(write) = writes.next() {
            let result = self.store.update(|tx| write.apply(tx, &context)).await;
            let outcome = match result {
                Ok(outcome) => outcome,
                Err(StoreError::Propose(ProposeError::TooLarge)) => {
                    error!(
                        write = write.subject(),
                        "a report is too large to be stored"
                    );
                    Outcome::Unchanged
                }
                Err(error) if is_of_the_batch(&error) => {
                    let left = std::iter::once(write).chain(writes).collect();
                    return (Err(error), left);
                }
                Err(error) => {
                    error!(%error, write = write.subject(), "a report cannot be stored");
                    Outcome::Unchanged
                }
            };
            tell_waiters(vec![write], vec![outcome]);
        }
        (Ok(Vec::new()), Vec::new())
    }

    fn context<'a>(&'a self, is_down: &'a (dyn Fn(&str) -> bool + Sync)) -> WriteContext<'a> {
        WriteContext {
            applied_by: &self.applied_by,
            now: time::now(),
            is_down,
        }
    }
}

/// Whether an error is one of the whole transaction and not of the object at hand.
fn is_of_the_batch(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Propose(_) | StoreError::Closed | StoreError::Disk(_)
    )
}

fn tell_waiters(writes: Vec<Write>, outcomes: Vec<Outcome>) {
    for (write, outcome) in writes.into_iter().zip(outcomes) {
        let Write::Node(_, update) = write else {
            continue;
        };
        for waiter in update.waiters {
            let result = match outcome {
                Outcome::Gone => Err(Refusal::NodeNotFound),
                Outcome::Changed | Outcome::Unchanged => Ok(()),
            };
            // Who no longer waits does not want to know.
            let _ = waiter.send(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::TaskStatus;
    use crate::api::types::node_status::State as NodeState;

    fn report(state: TaskState, message: &str) -> TaskReport {
        TaskReport {
            node_id: Arc::from("n1"),
            task_id: "t1".to_owned(),
            status: TaskStatus {
                state: state as i32,
                message: message.to_owned(),
                ..Default::default()
            },
        }
    }

    fn message(queued: &Queued) -> &str {
        &queued.tasks["t1"].status.message
    }

    #[test]
    fn a_later_report_replaces_an_earlier_one_unless_it_goes_back() {
        let mut queued = Queued::default();
        for (state, text, expected) in [
            (TaskState::Starting, "starting", "starting"),
            (TaskState::Running, "first", "first"),
            (TaskState::Running, "second", "second"),
            (TaskState::Starting, "late", "second"),
        ] {
            queued.put_task(report(state, text));
            assert_eq!(message(&queued), expected);
        }
        assert_eq!(queued.tasks.len(), 1);
        assert_eq!(queued.task_bytes, queued.tasks["t1"].bytes());
    }

    #[test]
    fn what_could_not_be_written_gives_way_to_what_came_since() {
        let mut queued = Queued::default();
        queued.put_task(report(TaskState::Running, "newer"));
        queued.put_back(Write::Task(report(TaskState::Running, "older")));
        assert_eq!(message(&queued), "newer");
        queued.put_back(Write::Task(report(TaskState::Failed, "further on")));
        assert_eq!(message(&queued), "further on");

        let update = |state, addr: Option<&str>| NodeUpdate {
            state,
            addr: addr.map(str::to_owned),
            ..Default::default()
        };
        let node_id: Arc<str> = Arc::from("n1");
        let down = update(NodeState::Down, None);
        queued.nodes.insert(Arc::clone(&node_id), down);
        let older = update(NodeState::Ready, Some("10.0.0.1"));
        queued.put_back(Write::Node(Arc::clone(&node_id), older));
        let merged = &queued.nodes[&node_id];
        assert_eq!(merged.state, NodeState::Down);
        assert_eq!(merged.addr.as_deref(), Some("10.0.0.1"));
    }
}
