//! Whether a task still is what its service asks for.
//!
//! Used to list tasks that are up to date, and to decide which tasks an update has to replace
//! (spec 06 section 1.6). Pure.

use std::borrow::Cow;

use crate::api::constraint;
use crate::api::types::{Node, Placement, Service, Task, TaskSpec, TaskState, task_spec};

/// Whether an update of the service has to replace the task. `node` is the one the task is assigned to,
/// if it is known.
pub fn is_dirty(service: &Service, task: &Task, node: Option<&Node>) -> bool {
    // An equal version proves an equal spec; two objects without a version prove nothing.
    if task.spec_version.is_some() && task.spec_version == service.spec_version {
        return false;
    }
    let service_spec = service.spec.as_ref();
    let empty = TaskSpec::default();
    let wanted = service_spec
        .and_then(|spec| spec.task.as_ref())
        .unwrap_or(&empty);
    let actual = task.spec.as_ref().unwrap_or(&empty);
    if node.is_some_and(|node| only_placement_differs(wanted, actual) && admits(wanted, node)) {
        return false;
    }
    let (wanted, actual) = if keeps_its_image(task) {
        (without_pull_options(wanted), without_pull_options(actual))
    } else {
        (Cow::Borrowed(wanted), Cow::Borrowed(actual))
    };
    let wanted_endpoint = service_spec.and_then(|spec| spec.endpoint.as_ref());
    let endpoint_differs = task
        .endpoint
        .as_ref()
        .is_some_and(|endpoint| endpoint.spec.as_ref() != wanted_endpoint);
    wanted != actual || endpoint_differs
}

fn only_placement_differs(wanted: &TaskSpec, actual: &TaskSpec) -> bool {
    let without_placement = |spec: &TaskSpec| TaskSpec {
        placement: None,
        ..spec.clone()
    };
    wanted.placement != actual.placement && without_placement(wanted) == without_placement(actual)
}

/// Whether a node satisfies the constraints. A list that does not parse constrains nothing.
fn admits(spec: &TaskSpec, node: &Node) -> bool {
    let none = Placement::default();
    let constraints = &spec.placement.as_ref().unwrap_or(&none).constraints;
    constraint::parse_all(constraints).map_or(true, |constraints| {
        constraint::matches_all(&constraints, node)
    })
}

/// Whether the task has pulled its image already: other credentials make no difference to it then.
fn keeps_its_image(task: &Task) -> bool {
    let state = task.status.as_ref().map_or(0, |status| status.state);
    task.desired_state <= TaskState::Running as i32
        && (TaskState::Ready as i32..=TaskState::Running as i32).contains(&state)
}

fn without_pull_options(spec: &TaskSpec) -> Cow<'_, TaskSpec> {
    let mut spec = Cow::Borrowed(spec);
    if let Some(task_spec::Runtime::Container(container)) = &spec.runtime
        && container.pull_options.is_some()
        && let Some(task_spec::Runtime::Container(container)) = &mut spec.to_mut().runtime
    {
        container.pull_options = None;
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::container_spec::PullOptions;
    use crate::api::types::{
        ContainerSpec, Endpoint, EndpointSpec, ServiceSpec, TaskStatus, Version,
    };

    fn container(image: &str, auth: Option<&str>) -> TaskSpec {
        TaskSpec {
            runtime: Some(task_spec::Runtime::Container(ContainerSpec {
                image: image.into(),
                pull_options: auth.map(|auth| PullOptions {
                    registry_auth: auth.into(),
                }),
                ..Default::default()
            })),
            ..Default::default()
        }
    }

    fn constrained(constraint: &str) -> TaskSpec {
        TaskSpec {
            placement: Some(Placement {
                constraints: vec![constraint.into()],
                ..Default::default()
            }),
            ..container("v1", None)
        }
    }

    fn service(task: TaskSpec) -> Service {
        Service {
            spec: Some(ServiceSpec {
                task: Some(task),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn task(spec: TaskSpec, desired: TaskState, state: TaskState) -> Task {
        Task {
            spec: Some(spec),
            desired_state: desired as i32,
            status: Some(TaskStatus {
                state: state as i32,
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn running(spec: TaskSpec) -> Task {
        task(spec, TaskState::Running, TaskState::Running)
    }

    #[test]
    fn specs() {
        let service = service(container("v1", None));
        assert!(!is_dirty(&service, &running(container("v1", None)), None));
        assert!(is_dirty(&service, &running(container("v2", None)), None));
    }

    #[test]
    fn equal_versions_are_not_looked_behind() {
        let (mut service, mut task) = (
            service(container("v1", None)),
            running(container("v2", None)),
        );
        assert!(is_dirty(&service, &task, None));
        service.spec_version = Some(Version { index: 7 });
        assert!(is_dirty(&service, &task, None));
        task.spec_version = Some(Version { index: 7 });
        assert!(!is_dirty(&service, &task, None));
    }

    #[test]
    fn placement() {
        let node = Node {
            id: "node1".into(),
            ..Default::default()
        };
        let task = running(container("v1", None));
        for (constraint, dirty) in [
            ("node=node1", false),
            ("node!=node1", true),
            ("node.id==node1", false),
            ("node.id!=node1", true),
        ] {
            let service = service(constrained(constraint));
            assert_eq!(
                is_dirty(&service, &task, Some(&node)),
                dirty,
                "{constraint}"
            );
            assert!(
                is_dirty(&service, &task, None),
                "{constraint} without a node"
            );
        }
        let moved = running(container("v0", None));
        let service = service(constrained("node.id==node1"));
        assert!(
            is_dirty(&service, &moved, Some(&node)),
            "not only the placement differs"
        );
    }

    #[test]
    fn new_credentials_do_not_replace_what_has_its_image() {
        let service = service(container("v1", Some("new")));
        for (desired, state, dirty) in [
            (TaskState::Running, TaskState::Running, false),
            (TaskState::Ready, TaskState::Ready, false),
            (TaskState::Running, TaskState::Preparing, true),
            (TaskState::Running, TaskState::Failed, true),
            (TaskState::Shutdown, TaskState::Running, true),
        ] {
            let task = task(container("v1", Some("old")), desired, state);
            assert_eq!(
                is_dirty(&service, &task, None),
                dirty,
                "{desired:?} {state:?}"
            );
        }
    }

    #[test]
    fn endpoints() {
        let endpoint = |mode| EndpointSpec {
            mode,
            ..Default::default()
        };
        let mut service = service(container("v1", None));
        service.spec.as_mut().unwrap().endpoint = Some(endpoint(1));
        let mut task = running(container("v1", None));
        assert!(!is_dirty(&service, &task, None), "no endpoint allocated");
        task.endpoint = Some(Endpoint {
            spec: Some(endpoint(1)),
            ..Default::default()
        });
        assert!(!is_dirty(&service, &task, None));
        task.endpoint = Some(Endpoint {
            spec: Some(endpoint(0)),
            ..Default::default()
        });
        assert!(is_dirty(&service, &task, None));
    }
}
