//! What a task is: states, slots, ages, creation, and the one way to change a stored task.
//!
//! States are compared as numbers, so that a state which a newer agent reports keeps its place in the
//! order (spec 06 section 1.1). A task's identity (service, slot, spec, version, iteration) never changes
//! after creation; its node is set once; its desired and its observed state only rise.

use std::sync::Arc;
use std::time::Duration;

use prost_types::Timestamp;
use tracing::warn;

use crate::api::defaults;
use crate::api::ids::new_id;
use crate::api::time;
use crate::api::types::node_spec::Availability;
use crate::api::types::node_status;
use crate::api::types::restart_policy::RestartCondition;
use crate::api::types::service_spec::Mode;
use crate::api::types::{
    Cluster, Endpoint, Meta, Node, RestartPolicy, Service, Task, TaskSpec, TaskState, TaskStatus,
};
use crate::storage::{StoreError, Tx};

pub const NEW: i32 = TaskState::New as i32;
pub const PENDING: i32 = TaskState::Pending as i32;
pub const ASSIGNED: i32 = TaskState::Assigned as i32;
pub const READY: i32 = TaskState::Ready as i32;
pub const RUNNING: i32 = TaskState::Running as i32;
pub const COMPLETE: i32 = TaskState::Complete as i32;
pub const SHUTDOWN: i32 = TaskState::Shutdown as i32;
pub const FAILED: i32 = TaskState::Failed as i32;
pub const REJECTED: i32 = TaskState::Rejected as i32;
pub const REMOVE: i32 = TaskState::Remove as i32;
pub const ORPHANED: i32 = TaskState::Orphaned as i32;

/// Name of the one cluster object.
pub const DEFAULT_CLUSTER: &str = "default";

/// The state that the agent (or, before there is one, the manager) last reported.
pub fn observed(task: &Task) -> i32 {
    task.status.as_ref().map_or(NEW, |status| status.state)
}

/// Whether the task has ended, one way or another.
pub fn is_terminal(task: &Task) -> bool {
    observed(task) > RUNNING
}

/// Whether the manager wants the task to run.
pub fn is_runnable(task: &Task) -> bool {
    task.desired_state <= RUNNING
}

/// Whether the task is in nobody's hands: it has ended, or never had a node that could know of it. Such a
/// task may be deleted without an agent noticing.
pub fn is_in_no_hands(task: &Task) -> bool {
    is_terminal(task) || observed(task) < ASSIGNED
}

/// The task's place in the order of ages: the manager's time of its last status, else the agent's.
/// Tasks without any come first.
pub fn age(task: &Task) -> Option<(i64, i32)> {
    status_time(task).map(|time| (time.seconds, time.nanos))
}

/// When the manager took note of the task's last status, else when the agent noted it.
pub fn status_time(task: &Task) -> Option<Timestamp> {
    let status = task.status.as_ref()?;
    status.applied_at.or(status.timestamp)
}

/// The task's place in the order of creation; unknown comes first.
pub fn creation(task: &Task) -> Option<(i64, i32)> {
    let created = task.meta.as_ref()?.created_at?;
    Some((created.seconds, created.nanos))
}

/// The service's mode.
pub fn mode(service: &Service) -> Option<&Mode> {
    service.spec.as_ref()?.mode.as_ref()
}

/// Whether the service runs a given number of replicas for ever.
pub fn is_replicated(service: &Service) -> bool {
    matches!(mode(service), Some(Mode::Replicated(_)))
}

/// Whether the service's tasks run to completion.
pub fn is_job(service: &Service) -> bool {
    matches!(
        mode(service),
        Some(Mode::ReplicatedJob(_) | Mode::GlobalJob(_))
    )
}

/// Replicas that a replicated service wants; none for other modes.
pub fn replicas(service: &Service) -> u64 {
    match mode(service) {
        Some(Mode::Replicated(replicated)) => replicated.replicas,
        _ => 0,
    }
}

/// Whether tasks have no business on a node (any more): it is gone, down or drained. Paused, unknown and
/// disconnected nodes keep what they run.
pub fn is_invalid_node(node: Option<&Node>) -> bool {
    node.is_none_or(|node| is_down(node) || is_drained(node))
}

pub fn is_down(node: &Node) -> bool {
    node.status
        .as_ref()
        .is_some_and(|status| status.state == node_status::State::Down as i32)
}

pub fn is_drained(node: &Node) -> bool {
    node.spec
        .as_ref()
        .is_some_and(|spec| spec.availability == Availability::Drain as i32)
}

/// The restart policy of a task spec, if it has one.
pub fn restart_policy(spec: Option<&TaskSpec>) -> Option<&RestartPolicy> {
    spec?.restart.as_ref()
}

/// On which ends of a task it is restarted. A policy that says nothing says "never"; no policy at all, or
/// one with a condition from the future, says "always".
pub fn restart_condition(task: &Task) -> RestartCondition {
    restart_policy(task.spec.as_ref()).map_or(RestartCondition::Any, |policy| {
        RestartCondition::try_from(policy.condition).unwrap_or(RestartCondition::Any)
    })
}

/// How long a replacement of this task waits before it starts. Absent and negative mean the default.
pub fn restart_delay(task: &Task) -> Duration {
    restart_policy(task.spec.as_ref())
        .and_then(|policy| policy.delay.as_ref())
        .and_then(time::to_std)
        .unwrap_or_else(|| time::to_std_or_zero(Some(&defaults::RESTART_DELAY)))
}

/// Restarts that a policy allows per slot; 0 is "any number".
pub fn restart_attempts_max(spec: Option<&TaskSpec>) -> u64 {
    restart_policy(spec).map_or(0, |policy| policy.max_attempts)
}

/// A task's place in its service: a number (replicated), or a node (global). Key of everything that
/// is remembered per slot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotKey {
    pub service_id: String,
    /// 0 for global services and jobs.
    pub slot: u64,
    /// Empty for replicated services and jobs.
    pub node_id: String,
}

impl SlotKey {
    /// The slot of a task of this service.
    pub fn of(task: &Task, service: &Service) -> SlotKey {
        let by_node = matches!(mode(service), Some(Mode::Global(_) | Mode::GlobalJob(_)));
        SlotKey {
            service_id: task.service_id.clone(),
            slot: if by_node { 0 } else { task.slot },
            node_id: if by_node {
                task.node_id.clone()
            } else {
                String::new()
            },
        }
    }
}

/// Where the IDs of new tasks come from. Random ones, unless a test wants to know them beforehand.
#[derive(Debug, Clone, Copy)]
pub struct IdSource(pub fn() -> String);

impl Default for IdSource {
    fn default() -> IdSource {
        IdSource(new_id)
    }
}

/// Makes new tasks.
#[derive(Debug, Clone)]
pub struct TaskMaker {
    /// Source of defaults.
    pub cluster: Option<Arc<Cluster>>,
    pub ids: IdSource,
    pub now: Timestamp,
}

impl TaskMaker {
    /// A task of the service as it is now, for a slot, or for a node if `node_id` is not empty. It wants to
    /// run; callers that prepare a replacement lower that before they store it.
    pub fn make(&self, service: &Service, slot: u64, node_id: &str) -> Task {
        let spec = service.spec.clone().unwrap_or_default();
        let log_driver = spec
            .task
            .as_ref()
            .and_then(|task| task.log_driver.clone())
            .or_else(|| default_log_driver(self.cluster.as_deref()));
        Task {
            id: (self.ids.0)(),
            meta: Some(Meta {
                created_at: Some(self.now),
                ..Meta::default()
            }),
            spec: spec.task,
            spec_version: service.spec_version,
            service_id: service.id.clone(),
            slot,
            node_id: node_id.to_owned(),
            service_annotations: spec.annotations,
            status: Some(TaskStatus {
                state: NEW,
                timestamp: Some(self.now),
                message: "created".to_owned(),
                ..TaskStatus::default()
            }),
            desired_state: RUNNING,
            endpoint: Some(Endpoint {
                spec: spec.endpoint,
                ..Endpoint::default()
            }),
            log_driver,
            ..Task::default()
        }
    }
}

fn default_log_driver(cluster: Option<&Cluster>) -> Option<crate::api::types::Driver> {
    let spec = cluster?.spec.as_ref()?;
    spec.task_defaults.as_ref()?.log_driver.clone()
}

/// What became of a change to a stored task.
#[derive(Debug)]
pub enum Edited {
    Written,
    /// The closure found nothing to change.
    Unchanged,
    /// There is no such task.
    Gone,
    /// The change would have lowered the desired or the observed state.
    Refused,
}

/// Changes a stored task: reads it again, lets the closure change it (`false`: leave it alone), and writes
/// it unless that would take a state back. All writes to tasks by leader services go through here.
pub fn edit(
    tx: &mut Tx,
    id: &str,
    change: impl FnOnce(&mut Task) -> bool,
) -> Result<Edited, StoreError> {
    let Some(stored) = tx.get::<Task>(id)? else {
        return Ok(Edited::Gone);
    };
    let mut task = Task::clone(&stored);
    if !change(&mut task) {
        return Ok(Edited::Unchanged);
    }
    if task.desired_state < stored.desired_state || observed(&task) < observed(&stored) {
        warn!(
            task = id,
            desired = stored.desired_state,
            desired_asked = task.desired_state,
            observed = observed(&stored),
            observed_asked = observed(&task),
            "a task's state cannot go back; the change was left out"
        );
        return Ok(Edited::Refused);
    }
    tx.update(task)?;
    Ok(Edited::Written)
}

/// Raises a task's desired state; a task that is there already, or beyond, is left alone.
pub fn raise_desired(tx: &mut Tx, id: &str, desired: i32) -> Result<Edited, StoreError> {
    edit(tx, id, |task| {
        let raises = task.desired_state < desired;
        task.desired_state = task.desired_state.max(desired);
        raises
    })
}

/// Lets a prepared replacement run (a job's: run to completion).
pub fn start_now(tx: &mut Tx, id: &str) -> Result<Edited, StoreError> {
    edit(tx, id, |task| {
        if task.desired_state >= RUNNING {
            return false;
        }
        task.desired_state = if task.job_iteration.is_some() {
            COMPLETE
        } else {
            RUNNING
        };
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{
        Annotations, ClusterSpec, Driver, EndpointSpec, NodeSpec, NodeStatus, TaskDefaults, Version,
    };
    use crate::services::testing::objects;
    use crate::storage::testing::TestStore;

    const NOW: Timestamp = Timestamp {
        seconds: 1_700_000_000,
        nanos: 5,
    };

    fn driver(name: &str) -> Option<Driver> {
        Some(Driver {
            name: name.to_owned(),
            ..Driver::default()
        })
    }

    // 06-A1
    #[test]
    fn a_new_task_is_a_copy_of_its_service() {
        let cluster = Cluster {
            spec: Some(ClusterSpec {
                task_defaults: Some(TaskDefaults {
                    log_driver: driver("from-cluster"),
                }),
                ..ClusterSpec::default()
            }),
            ..Cluster::default()
        };
        let mut service = objects::service("web");
        service.spec_version = Some(Version { index: 7 });
        let spec = service.spec.get_or_insert_default();
        spec.endpoint = Some(EndpointSpec::default());
        let annotations = spec.annotations.get_or_insert_with(Annotations::default);
        annotations
            .labels
            .insert("key".to_owned(), "value".to_owned());
        let maker = TaskMaker {
            cluster: Some(Arc::new(cluster)),
            ids: IdSource::default(),
            now: NOW,
        };
        let task = maker.make(&service, 3, "");
        let spec = service.spec.clone().unwrap_or_default();
        assert!(crate::api::ids::is_valid_id(&task.id));
        assert_eq!((observed(&task), task.desired_state), (NEW, RUNNING));
        assert_eq!(
            task.status.as_ref().map(|status| status.message.as_str()),
            Some("created")
        );
        assert_eq!(status_time(&task), Some(NOW));
        assert_eq!((task.slot, task.node_id.as_str()), (3, ""));
        assert_eq!(
            (task.service_annotations.clone(), task.spec.clone()),
            (spec.annotations, spec.task)
        );
        assert_eq!(task.spec_version, Some(Version { index: 7 }));
        assert_eq!(
            task.endpoint.clone().and_then(|endpoint| endpoint.spec),
            spec.endpoint
        );
        assert_eq!(task.log_driver, driver("from-cluster"));
        assert_eq!(task.job_iteration, None);

        let task_spec = service
            .spec
            .get_or_insert_default()
            .task
            .get_or_insert_default();
        task_spec.log_driver = driver("own");
        assert_eq!(maker.make(&service, 1, "").log_driver, driver("own"));
        let bare = TaskMaker {
            cluster: None,
            ..maker
        };
        let task = bare.make(&Service::default(), 0, "node");
        assert_eq!(task.endpoint, Some(Endpoint::default()));
        assert_eq!((task.node_id.as_str(), task.log_driver), ("node", None));
    }

    #[test]
    fn nodes_on_which_tasks_have_no_business() {
        let node = |state: node_status::State, availability: Availability| Node {
            status: Some(NodeStatus {
                state: state as i32,
                ..NodeStatus::default()
            }),
            spec: Some(NodeSpec {
                availability: availability as i32,
                ..NodeSpec::default()
            }),
            ..Node::default()
        };
        use node_status::State;
        assert!(is_invalid_node(None));
        assert!(is_invalid_node(Some(&node(
            State::Down,
            Availability::Active
        ))));
        assert!(is_invalid_node(Some(&node(
            State::Ready,
            Availability::Drain
        ))));
        for state in [State::Ready, State::Unknown, State::Disconnected] {
            assert!(!is_invalid_node(Some(&node(state, Availability::Active))));
            assert!(!is_invalid_node(Some(&node(state, Availability::Pause))));
        }
    }

    #[test]
    fn restart_policies() {
        let mut task = Task::default();
        assert_eq!(restart_condition(&task), RestartCondition::Any);
        assert_eq!(restart_delay(&task), Duration::from_secs(5));
        let policy = |delay| RestartPolicy {
            delay,
            ..RestartPolicy::default()
        };
        let spec = task.spec.get_or_insert_default();
        spec.restart = Some(policy(Some(prost_types::Duration {
            seconds: -1,
            nanos: 0,
        })));
        assert_eq!(restart_condition(&task), RestartCondition::None);
        assert_eq!(restart_delay(&task), Duration::from_secs(5));
        task.spec.get_or_insert_default().restart = Some(policy(Some(prost_types::Duration {
            seconds: 0,
            nanos: 0,
        })));
        assert_eq!(restart_delay(&task), Duration::ZERO);
    }

    #[test]
    fn ages_prefer_the_manager_and_unknown_comes_first() {
        let aged = |applied: Option<i64>, reported: Option<i64>| {
            let at = |seconds| Timestamp { seconds, nanos: 0 };
            age(&Task {
                status: Some(TaskStatus {
                    applied_at: applied.map(at),
                    timestamp: reported.map(at),
                    ..TaskStatus::default()
                }),
                ..Task::default()
            })
        };
        assert!(aged(None, None) < aged(None, Some(i64::MIN)));
        assert!(aged(Some(5), Some(1)) > aged(None, Some(4)));
    }

    #[tokio::test]
    async fn states_never_go_back() {
        let store = TestStore::new();
        let task = Task {
            id: "task".to_owned(),
            desired_state: SHUTDOWN,
            status: Some(TaskStatus {
                state: RUNNING,
                ..TaskStatus::default()
            }),
            ..Task::default()
        };
        let done: Result<(), StoreError> = store
            .update(|tx: &mut Tx| {
                tx.create(task)?;
                assert!(matches!(raise_desired(tx, "gone", REMOVE)?, Edited::Gone));
                assert!(matches!(
                    raise_desired(tx, "task", RUNNING)?,
                    Edited::Unchanged
                ));
                assert!(matches!(start_now(tx, "task")?, Edited::Unchanged));
                let lower = edit(tx, "task", |task| {
                    task.desired_state = RUNNING;
                    true
                })?;
                assert!(matches!(lower, Edited::Refused));
                let lower = edit(tx, "task", |task| {
                    task.status.get_or_insert_default().state = READY;
                    true
                })?;
                assert!(matches!(lower, Edited::Refused));
                assert!(matches!(
                    raise_desired(tx, "task", REMOVE)?,
                    Edited::Written
                ));
                Ok(())
            })
            .await;
        done.expect("transaction");
        let stored = store
            .view(|view| view.get::<Task>("task"))
            .expect("read")
            .expect("task");
        assert_eq!((stored.desired_state, observed(&stored)), (REMOVE, RUNNING));
    }
}
