//! The older stream of tasks, for agents that do not know assignments: the whole list each time.
//!
//! It knows no secrets and configs. Current agents use it only if the assignments are refused.

use std::collections::HashMap;
use std::sync::Arc;

use super::active::ActiveTerm;
use super::assignment_set::{Fingerprint, fingerprint};
use super::batching::Batching;
use super::feed::{Feed, Outbox, feed};
use super::live_session::OpenStream;
use super::refusal::Refusal;
use super::writes::observed;
use crate::api::types::{Task, TaskState, TasksMessage};
use crate::storage::{Action, By, Change, Interest, RecvError, Subscription};

/// Starts the stream of tasks of a session.
pub fn start(active: &Arc<ActiveTerm>, session: OpenStream) -> Result<Feed<TasksMessage>, Refusal> {
    let mut stream = TaskStream::watch(active, &session.node_id);
    let first = stream.read()?;
    let (outbox, feed) = feed();
    active.tracker.spawn(run(session, stream, first, outbox));
    Ok(feed)
}

async fn run(
    session: OpenStream,
    mut stream: TaskStream,
    first: TasksMessage,
    outbox: Outbox<TasksMessage>,
) {
    let refusal = tokio::select! {
        biased;
        () = outbox.closed() => return,
        end = session.ended() => end.refusal(),
        refusal = stream.follow(first, &outbox) => refusal,
    };
    outbox.end(refusal);
}

struct TaskStream {
    active: Arc<ActiveTerm>,
    node_id: Arc<str>,
    events: Subscription,
    batching: Batching,
    /// The tasks of the last message.
    known: HashMap<String, Fingerprint>,
}

impl TaskStream {
    /// Subscribes to the tasks of the node. Reading comes after it, so that a change in between is
    /// at worst sent twice.
    fn watch(active: &Arc<ActiveTerm>, node_id: &Arc<str>) -> TaskStream {
        TaskStream {
            events: active
                .store
                .watch(&[Interest::TaskNode(node_id.to_string())]),
            batching: Batching::new(
                active.settings.assignment_quiet,
                active.settings.assignment_events_max,
            ),
            known: HashMap::new(),
            node_id: Arc::clone(node_id),
            active: Arc::clone(active),
        }
    }

    /// All tasks of the node as they are now.
    fn read(&mut self) -> Result<TasksMessage, Refusal> {
        let by_node = By::NodeId(self.node_id.to_string());
        let mut tasks = self.active.store.view(|tx| tx.find::<Task>(by_node))?;
        tasks.retain(|task| observed(task) >= TaskState::Assigned as i32);
        self.known = tasks
            .iter()
            .map(|task| (task.id.clone(), fingerprint(task)))
            .collect();
        Ok(TasksMessage {
            tasks: tasks.into_iter().map(Arc::unwrap_or_clone).collect(),
        })
    }

    async fn follow(&mut self, first: TasksMessage, outbox: &Outbox<TasksMessage>) -> Refusal {
        // A reader that left ends the stream elsewhere.
        outbox.send(first).await;
        loop {
            let due = tokio::select! {
                biased;
                () = self.batching.quiet() => true,
                batch = self.events.recv() => match batch {
                    Ok(batch) => {
                        let relevant = batch.changes.iter().filter(|change| self.concerns(change));
                        let count = relevant.count();
                        (0..count).fold(false, |due, _| self.batching.count() || due)
                    }
                    Err(RecvError::Lagged(_)) => {
                        self.events = TaskStream::watch(&self.active, &self.node_id).events;
                        true
                    }
                    Err(RecvError::Closed) => return Refusal::Stopped,
                },
            };
            if due {
                self.batching.sent();
                match self.read() {
                    Ok(message) => outbox.send(message).await,
                    Err(refusal) => return refusal,
                };
            }
        }
    }

    /// Whether the agent must hear of a change.
    fn concerns(&self, change: &Change) -> bool {
        let Some(task) = change.get::<Task>() else {
            return false;
        };
        let known = self.known.get(&task.id);
        let here = task.node_id.as_str() == &*self.node_id && change.action != Action::Remove;
        let state = observed(task);
        if !here || state < TaskState::Assigned as i32 {
            return known.is_some();
        }
        known != Some(&fingerprint(task)) || state == TaskState::Assigned as i32
    }
}
