use super::*;
use crate::api::types::{Node, NodeStatus, Secret, SecretSpec, Task, TaskStatus};

fn any<T: crate::storage::StoreObject>(object: T) -> AnyObject {
    T::into_any(Arc::new(object))
}

#[test]
fn details_are_states_and_never_content() {
    let task = Task {
        id: "t1".into(),
        node_id: "n1".into(),
        desired_state: TaskState::Running as i32,
        status: Some(TaskStatus {
            state: TaskState::Failed as i32,
            err: "needle".into(),
            ..TaskStatus::default()
        }),
        ..Task::default()
    };
    assert_eq!(line(&any(task)).detail, "FAILED, wanted RUNNING on n1");
    let secret = Secret {
        spec: Some(SecretSpec {
            data: b"needle".to_vec(),
            ..SecretSpec::default()
        }),
        ..Secret::default()
    };
    assert_eq!(line(&any(secret)).detail, "6 bytes");
    let node = Node {
        role: NodeRole::Manager as i32,
        status: Some(NodeStatus {
            addr: "10.0.0.1".into(),
            ..NodeStatus::default()
        }),
        ..Node::default()
    };
    assert_eq!(line(&any(node)).detail, "MANAGER UNKNOWN 10.0.0.1");
    // A number that this release does not know.
    let node = Node {
        role: 77,
        ..Node::default()
    };
    assert_eq!(line(&any(node)).detail, "unknown unknown");
}
