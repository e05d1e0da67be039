//! The stream of assignments: everything a node has to run, then what changes.
//!
//! The first message is complete and taken from one consistent view, and every later one continues
//! the one before without a gap: agents that see a gap open the stream again and again. Whoever
//! falls behind the store is compared with a new view, and the difference is sent as one more
//! message of the same chain.

use std::sync::Arc;

use super::active::ActiveTerm;
use super::assignment_set::{AssignmentSet, Payloads};
use super::batching::Batching;
use super::counters::add;
use super::feed::{Feed, Outbox, feed};
use super::live_session::OpenStream;
use super::refusal::Refusal;
use crate::api::types::{AssignmentsMessage, Config, Secret, Task};
use crate::storage::{
    Action, By, Change, EventBatch, Interest, ReadTx, RecvError, Store, StoreError, Subscription,
};

/// Starts the stream of assignments of a session.
pub fn start(
    active: &Arc<ActiveTerm>,
    session: OpenStream,
) -> Result<Feed<AssignmentsMessage>, Refusal> {
    let (set, events) = view_and_watch(&active.store, &session.node_id, |tx, tasks| {
        let mut set = AssignmentSet::default();
        for task in tasks {
            set.update(&task, tx)?;
        }
        Ok(set)
    });
    let stream = AssignmentStream {
        set: set?,
        events,
        batching: Batching::new(
            active.settings.assignment_quiet,
            active.settings.assignment_events_max,
        ),
        node_id: Arc::clone(&session.node_id),
        active: Arc::clone(active),
    };
    let (outbox, feed) = feed();
    active.tracker.spawn(run(session, stream, outbox));
    Ok(feed)
}

async fn run(
    session: OpenStream,
    mut stream: AssignmentStream,
    outbox: Outbox<AssignmentsMessage>,
) {
    let refusal = tokio::select! {
        biased;
        () = outbox.closed() => return,
        end = session.ended() => end.refusal(),
        refusal = stream.follow(&outbox) => refusal,
    };
    outbox.end(refusal);
}

struct AssignmentStream {
    active: Arc<ActiveTerm>,
    node_id: Arc<str>,
    set: AssignmentSet,
    /// Changes of the node's tasks.
    events: Subscription,
    batching: Batching,
}

impl AssignmentStream {
    /// Sends the complete set and then the changes. Ends when it cannot go on.
    async fn follow(&mut self, outbox: &Outbox<AssignmentsMessage>) -> Refusal {
        self.send(outbox).await;
        loop {
            let handled = tokio::select! {
                biased;
                () = self.batching.quiet() => {
                    self.send(outbox).await;
                    Ok(())
                }
                batch = self.events.recv() => self.handle(batch, outbox).await,
            };
            if let Err(refusal) = handled {
                return refusal;
            }
        }
    }

    async fn handle(
        &mut self,
        batch: Result<EventBatch, RecvError>,
        outbox: &Outbox<AssignmentsMessage>,
    ) -> Result<(), Refusal> {
        let batch = match batch {
            Ok(batch) => batch,
            Err(RecvError::Lagged(_)) => return self.catch_up(outbox).await,
            Err(RecvError::Closed) => return Err(Refusal::Stopped),
        };
        for change in &batch.changes {
            if self.note(change)? && self.batching.count() {
                self.send(outbox).await;
            }
        }
        Ok(())
    }

    /// Takes one change into the set. Says whether the agent must hear of it.
    fn note(&mut self, change: &Change) -> Result<bool, Refusal> {
        let Some(task) = change.get::<Task>() else {
            return Ok(false);
        };
        let here = task.node_id.as_str() == &*self.node_id;
        match change.action {
            // Tasks are never created as assigned.
            Action::Create => Ok(false),
            Action::Update if here => Ok(self.set.update(task, &self.active.store)?),
            Action::Update | Action::Remove => Ok(self.set.remove(&task.id)),
        }
    }

    /// Sends what was missed, as one message.
    async fn catch_up(&mut self, outbox: &Outbox<AssignmentsMessage>) -> Result<(), Refusal> {
        let set = &mut self.set;
        let (relevant, events) = view_and_watch(&self.active.store, &self.node_id, |tx, tasks| {
            set.resynchronise(&tasks, tx)
        });
        self.events = events;
        if relevant? {
            self.send(outbox).await;
        }
        Ok(())
    }

    async fn send(&mut self, outbox: &Outbox<AssignmentsMessage>) {
        self.batching.sent();
        let message = self.set.take_message();
        add(&self.active.counters.assignment_messages, 1);
        add(
            &self.active.counters.assignment_changes,
            message.changes.len(),
        );
        // A reader that left ends the stream elsewhere.
        outbox.send(message).await;
    }
}

/// Works on all tasks of a node. The subscription continues where the view ends.
fn view_and_watch<R>(
    store: &Store,
    node_id: &str,
    work: impl FnOnce(&ReadTx, Vec<Arc<Task>>) -> Result<R, StoreError>,
) -> (Result<R, StoreError>, Subscription) {
    let interests = [Interest::TaskNode(node_id.to_owned())];
    store.view_and_watch(&interests, |tx| {
        let tasks = tx.find::<Task>(By::NodeId(node_id.to_owned()))?;
        work(tx, tasks)
    })
}

impl Payloads for ReadTx {
    fn secret(&self, id: &str) -> Result<Option<Arc<Secret>>, StoreError> {
        self.get(id)
    }

    fn config(&self, id: &str) -> Result<Option<Arc<Config>>, StoreError> {
        self.get(id)
    }
}

/// Looks into the newest state, for the few changes that need it.
impl Payloads for Store {
    fn secret(&self, id: &str) -> Result<Option<Arc<Secret>>, StoreError> {
        self.view(|tx| tx.get(id))
    }

    fn config(&self, id: &str) -> Result<Option<Arc<Config>>, StoreError> {
        self.view(|tx| tx.get(id))
    }
}
