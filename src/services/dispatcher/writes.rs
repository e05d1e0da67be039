//! What the dispatcher writes, and how each write changes the object it finds.
//!
//! A write is applied inside a transaction to the object as it is then, never to a copy from
//! before, so writes can be repeated, merged and split at will. One that would change nothing
//! writes nothing: after a change of leadership every agent reports every status again.

use std::sync::Arc;

use prost::Message as _;
use prost_types::Timestamp;
use tokio::sync::oneshot;

use super::refusal::Refusal;
use crate::api::types::node_status::State as NodeState;
use crate::api::types::{Node, NodeDescription, NodeStatus, Task, TaskState, TaskStatus};
use crate::storage::{StoreError, Tx};

/// A task's status as its node reported it.
#[derive(Debug, Clone)]
pub struct TaskReport {
    pub node_id: Arc<str>,
    pub task_id: String,
    pub status: TaskStatus,
}

impl TaskReport {
    /// Bytes this report takes in a queue, roughly.
    pub fn bytes(&self) -> usize {
        self.status.encoded_len() + self.task_id.len()
    }
}

/// New facts about a node.
#[derive(Debug, Default)]
pub struct NodeUpdate {
    pub state: NodeState,
    pub message: &'static str,
    /// `None` keeps the stored address.
    pub addr: Option<String>,
    /// `None` keeps the stored description.
    pub description: Option<NodeDescription>,
    /// Who wants to know when it is written. At most one for each registration under way.
    pub waiters: Vec<Waiter>,
}

/// Learns the outcome of a node's write.
pub type Waiter = oneshot::Sender<Result<(), Refusal>>;

impl NodeUpdate {
    /// Joins two updates of a node. The newer state wins; an address or a description that only the
    /// older one has is kept, and so are all that wait.
    pub fn merge(older: NodeUpdate, mut newer: NodeUpdate) -> NodeUpdate {
        newer.addr = newer.addr.or(older.addr);
        newer.description = newer.description.or(older.description);
        newer.waiters.extend(older.waiters);
        newer.waiters.retain(|waiter| !waiter.is_closed());
        newer
    }
}

/// One change of one object.
#[derive(Debug)]
pub enum Write {
    Node(Arc<str>, NodeUpdate),
    Task(TaskReport),
    /// The node, and a task of it that is given up.
    Orphan(Arc<str>, String),
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Changed,
    /// The object is as it should be already, or has moved on.
    Unchanged,
    /// There is no such object any more.
    Gone,
}

/// What a write needs to know besides the object.
pub struct WriteContext<'a> {
    /// Node ID of the leader.
    pub applied_by: &'a str,
    pub now: Timestamp,
    /// Whether a node is down at this moment.
    pub is_down: &'a (dyn Fn(&str) -> bool + Sync),
}

impl Write {
    /// What is written, for messages.
    pub fn subject(&self) -> String {
        match self {
            Write::Node(node_id, _) => format!("status of node {node_id}"),
            Write::Task(report) => format!("status of task {}", report.task_id),
            Write::Orphan(_, task_id) => format!("orphaned state of task {task_id}"),
        }
    }

    /// Applies the write within a transaction.
    pub fn apply(&self, tx: &mut Tx, context: &WriteContext<'_>) -> Result<Outcome, StoreError> {
        match self {
            Write::Node(node_id, update) => {
                let node = tx.get::<Node>(node_id)?;
                store(tx, node, |node| node_with(node, update))
            }
            Write::Task(report) => {
                let task = tx.get::<Task>(&report.task_id)?;
                store(tx, task, |task| task_with(task, report, context))
            }
            Write::Orphan(node_id, task_id) => {
                if !(context.is_down)(node_id) {
                    return Ok(Outcome::Unchanged);
                }
                let task = tx.get::<Task>(task_id)?;
                store(tx, task, |task| orphaned(task, node_id))
            }
        }
    }
}

fn store<T: crate::storage::StoreObject>(
    tx: &mut Tx,
    found: Option<Arc<T>>,
    change: impl FnOnce(&T) -> Option<T>,
) -> Result<Outcome, StoreError> {
    let Some(object) = found else {
        return Ok(Outcome::Gone);
    };
    match change(&object) {
        Some(changed) => tx.update(changed).map(|_| Outcome::Changed),
        None => Ok(Outcome::Unchanged),
    }
}

/// The node with an update applied, or `None` if that changes nothing.
pub fn node_with(node: &Node, update: &NodeUpdate) -> Option<Node> {
    let old_status = node.status.clone().unwrap_or_default();
    let known_addr = update.addr.as_ref().filter(|addr| !addr.is_empty());
    let status = NodeStatus {
        state: update.state as i32,
        message: update.message.to_owned(),
        addr: known_addr.cloned().unwrap_or(old_status.addr.clone()),
    };
    let same_description = update.description.is_none() || update.description == node.description;
    if same_description && status == old_status {
        return None;
    }
    let mut node = node.clone();
    node.status = Some(status);
    if update.description.is_some() {
        node.description = update.description.clone();
    }
    Some(node)
}

/// The task with a reported status, or `None` if the report is void: the task belongs to another
/// node, its stored state is further on, or nothing else differs but who applied it and when.
pub fn task_with(task: &Task, report: &TaskReport, context: &WriteContext<'_>) -> Option<Task> {
    let stored_state = observed(task);
    if task.node_id.as_str() != &*report.node_id || report.status.state < stored_state {
        return None;
    }
    let mut status = report.status.clone();
    if let Some(stored) = &task.status {
        status.applied_by.clone_from(&stored.applied_by);
        status.applied_at = stored.applied_at;
        if status == *stored {
            return None;
        }
    }
    status.applied_by = context.applied_by.to_owned();
    status.applied_at = Some(context.now);
    let mut task = task.clone();
    task.status = Some(status);
    Some(task)
}

/// The task of a node that was down too long, or `None` if it was not under way there. Everything
/// else in its status stays as the node reported it.
pub fn orphaned(task: &Task, node_id: &str) -> Option<Task> {
    let under_way =
        (TaskState::Assigned as i32..=TaskState::Running as i32).contains(&observed(task));
    if task.node_id != node_id || !under_way {
        return None;
    }
    let mut task = task.clone();
    task.status.get_or_insert_default().state = TaskState::Orphaned as i32;
    Some(task)
}

/// A task's observed state, as a number that only grows.
pub fn observed(task: &Task) -> i32 {
    task.status
        .as_ref()
        .map_or(TaskState::New as i32, |status| status.state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        Node {
            id: "n1".to_owned(),
            status: Some(NodeStatus {
                state: NodeState::Unknown as i32,
                message: "since a change of leader".to_owned(),
                addr: "10.0.0.1".to_owned(),
            }),
            description: Some(named("old")),
            ..Default::default()
        }
    }

    fn named(hostname: &str) -> NodeDescription {
        NodeDescription {
            hostname: hostname.to_owned(),
            ..Default::default()
        }
    }

    fn task(state: TaskState) -> Task {
        Task {
            id: "t1".to_owned(),
            node_id: "n1".to_owned(),
            desired_state: TaskState::Running as i32,
            status: Some(TaskStatus {
                message: "stored".to_owned(),
                ..status(state)
            }),
            ..Default::default()
        }
    }

    fn status(state: TaskState) -> TaskStatus {
        TaskStatus {
            state: state as i32,
            ..Default::default()
        }
    }

    fn report(node_id: &str, status: TaskStatus) -> TaskReport {
        TaskReport {
            node_id: Arc::from(node_id),
            task_id: "t1".to_owned(),
            status,
        }
    }

    fn context() -> WriteContext<'static> {
        WriteContext {
            applied_by: "leader",
            now: Timestamp {
                seconds: 7,
                nanos: 0,
            },
            is_down: &|_| true,
        }
    }

    // 08-A8, the description
    #[test]
    fn a_ready_node_gets_its_new_address_and_description_and_an_empty_message() {
        let update = NodeUpdate {
            state: NodeState::Ready,
            addr: Some("10.0.0.2".to_owned()),
            description: Some(named("new")),
            ..Default::default()
        };
        let ready = node_with(&node(), &update).unwrap();
        let status = ready.status.clone().unwrap();
        assert_eq!(status.state(), NodeState::Ready);
        assert_eq!(
            (status.message.as_str(), status.addr.as_str()),
            ("", "10.0.0.2")
        );
        assert_eq!(ready.description, Some(named("new")));
        assert_eq!(node_with(&ready, &update), None);
    }

    #[test]
    fn an_unknown_address_or_description_keeps_the_stored_one() {
        for addr in [None, Some(String::new())] {
            let update = NodeUpdate {
                state: NodeState::Down,
                message: "heartbeat failure",
                addr,
                ..Default::default()
            };
            let down = node_with(&node(), &update).unwrap();
            assert_eq!(down.status.unwrap().addr, "10.0.0.1");
            assert_eq!(down.description, Some(named("old")));
        }
    }

    #[tokio::test]
    async fn a_node_that_expires_keeps_what_is_queued_for_it() {
        let (waiter, waiting) = oneshot::channel();
        let (left, _) = oneshot::channel();
        let ready = NodeUpdate {
            state: NodeState::Ready,
            addr: Some("10.0.0.2".to_owned()),
            description: Some(named("new")),
            waiters: vec![waiter, left],
            ..Default::default()
        };
        let down = NodeUpdate {
            state: NodeState::Down,
            message: "heartbeat failure",
            ..Default::default()
        };
        let mut merged = NodeUpdate::merge(ready, down);
        assert_eq!(
            (merged.state, merged.message),
            (NodeState::Down, "heartbeat failure")
        );
        assert_eq!(merged.description, Some(named("new")));
        assert_eq!(merged.addr.as_deref(), Some("10.0.0.2"));
        assert_eq!(
            merged.waiters.len(),
            1,
            "nobody waits for the other any more"
        );
        merged.waiters.pop().unwrap().send(Ok(())).unwrap();
        assert!(waiting.await.unwrap().is_ok());
    }

    // 08-A24
    #[test]
    fn a_report_replaces_the_status_and_is_signed_by_the_leader() {
        let reported = TaskStatus {
            applied_by: "somebody else".to_owned(),
            ..status(TaskState::Running)
        };
        let updated = task_with(
            &task(TaskState::Starting),
            &report("n1", reported),
            &context(),
        );
        let updated = updated.unwrap();
        let status = updated.status.clone().unwrap();
        assert_eq!(status.state(), TaskState::Running);
        assert_eq!(status.message, "", "the whole status is replaced");
        assert_eq!(status.applied_by, "leader");
        assert_eq!(status.applied_at, Some(context().now));
        assert_eq!(updated.desired_state(), TaskState::Running);
    }

    // 08-A24
    #[test]
    fn a_report_of_an_earlier_state_or_another_node_is_void() {
        let stored = task(TaskState::Shutdown);
        let earlier = report("n1", status(TaskState::Running));
        assert_eq!(task_with(&stored, &earlier, &context()), None);
        let foreign = report("n2", status(TaskState::Failed));
        assert_eq!(task_with(&stored, &foreign, &context()), None);
        let equal = report("n1", status(TaskState::Shutdown));
        assert!(task_with(&stored, &equal, &context()).is_some());
    }

    // 08-A25, one task
    #[test]
    fn the_same_report_again_writes_nothing() {
        let same = report("n1", status(TaskState::Running));
        let stored = task_with(&task(TaskState::Starting), &same, &context()).unwrap();
        assert_eq!(task_with(&stored, &same, &context()), None);
    }

    // 08-A9, one task of each state
    #[test]
    fn only_tasks_under_way_on_the_node_are_orphaned() {
        for (state, expected) in [
            (TaskState::New, false),
            (TaskState::Pending, false),
            (TaskState::Assigned, true),
            (TaskState::Running, true),
            (TaskState::Complete, false),
            (TaskState::Rejected, false),
            (TaskState::Orphaned, false),
        ] {
            let given_up = orphaned(&task(state), "n1");
            assert_eq!(given_up.is_some(), expected, "{state:?}");
            if let Some(task) = given_up {
                let status = task.status.unwrap();
                assert_eq!(status.state(), TaskState::Orphaned);
                assert_eq!(status.message, "stored");
            }
        }
        assert_eq!(orphaned(&task(TaskState::Running), "n2"), None);
    }
}
