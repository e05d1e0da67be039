//! Which changes an agent is told, for every state of a task and every use of a secret or config.

use super::*;
use crate::api::types::{
    ConfigReference, ContainerSpec, Driver, Meta, ResourceReference, SecretReference, SecretSpec,
    TaskSpec, TaskStatus, Version,
};

/// All states, in order.
const STATES: [TaskState; 14] = [
    TaskState::New,
    TaskState::Pending,
    TaskState::Assigned,
    TaskState::Accepted,
    TaskState::Preparing,
    TaskState::Ready,
    TaskState::Starting,
    TaskState::Running,
    TaskState::Complete,
    TaskState::Shutdown,
    TaskState::Failed,
    TaskState::Rejected,
    TaskState::Remove,
    TaskState::Orphaned,
];

/// Holds every secret and config whose ID does not say that it is missing.
struct Shelf;

impl Payloads for Shelf {
    fn secret(&self, id: &str) -> Result<Option<Arc<Secret>>, StoreError> {
        let driver = id.starts_with("driver").then(Driver::default);
        let spec = SecretSpec {
            data: b"payload".to_vec(),
            driver,
            ..Default::default()
        };
        let secret = Secret {
            id: id.to_owned(),
            spec: Some(spec),
            ..Default::default()
        };
        Ok((!id.starts_with("missing")).then(|| Arc::new(secret)))
    }

    fn config(&self, id: &str) -> Result<Option<Arc<Config>>, StoreError> {
        let config = Config {
            id: id.to_owned(),
            ..Default::default()
        };
        Ok((!id.starts_with("missing")).then(|| Arc::new(config)))
    }
}

/// How a task names its secrets and configs.
#[derive(Clone, Copy)]
enum Naming {
    Container,
    References,
    Both,
}

fn task(id: &str, state: TaskState, naming: Naming, secrets: &[&str], configs: &[&str]) -> Task {
    let mut spec = TaskSpec::default();
    let mut container = ContainerSpec::default();
    if !matches!(naming, Naming::References) {
        container.secrets = secrets
            .iter()
            .map(|id| SecretReference {
                secret_id: (*id).to_owned(),
                ..Default::default()
            })
            .collect();
        container.configs = configs
            .iter()
            .map(|id| ConfigReference {
                config_id: (*id).to_owned(),
                ..Default::default()
            })
            .collect();
    }
    if !matches!(naming, Naming::Container) {
        let reference = |kind: ResourceType, id: &&str| ResourceReference {
            resource_id: (*id).to_owned(),
            resource_type: kind as i32,
        };
        let secrets = secrets.iter().map(|id| reference(ResourceType::Secret, id));
        let configs = configs.iter().map(|id| reference(ResourceType::Config, id));
        spec.resource_references = secrets.chain(configs).collect();
        spec.resource_references
            .push(reference(ResourceType::Volume, &"volume"));
    }
    spec.runtime = Some(Runtime::Container(container));
    Task {
        id: id.to_owned(),
        node_id: "n1".to_owned(),
        spec: Some(spec),
        status: Some(TaskStatus {
            state: state as i32,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn plain(id: &str, state: TaskState) -> Task {
    task(id, state, Naming::Container, &[], &[])
}

/// The same task later: another version and state.
fn later(task: &Task, state: TaskState) -> Task {
    let mut task = task.clone();
    task.meta = Some(Meta {
        version: Some(Version { index: 77 }),
        ..Default::default()
    });
    task.status.get_or_insert_default().state = state as i32;
    task
}

fn feed(set: &mut AssignmentSet, task: &Task) -> bool {
    set.update(&Arc::new(task.clone()), &Shelf).unwrap()
}

/// A message in short: `+secret s1`, `-task t1`. Checks that removals carry only an ID.
fn told(set: &mut AssignmentSet) -> Vec<String> {
    let message = set.take_message();
    message.changes.iter().map(short).collect()
}

fn short(change: &AssignmentChange) -> String {
    let item = change.assignment.as_ref().unwrap().item.as_ref().unwrap();
    let sign = match change.action() {
        AssignmentAction::Update => '+',
        AssignmentAction::Remove => '-',
    };
    let (kind, id, bare) = match item {
        Item::Task(task) => ("task", &task.id, task.spec.is_none()),
        Item::Secret(secret) => ("secret", &secret.id, secret.spec.is_none()),
        Item::Config(config) => ("config", &config.id, config.spec.is_none()),
        Item::Volume(volume) => ("volume", &volume.id, false),
    };
    assert!(
        sign == '+' || bare,
        "a removed {kind} carries more than its ID"
    );
    format!("{sign}{kind} {id}")
}

fn live(state: TaskState) -> bool {
    (TaskState::Assigned..=TaskState::Running).contains(&state)
}

// 08-A15
#[test]
fn messages_are_chained_by_number_and_the_first_is_complete() {
    let mut set = AssignmentSet::default();
    let first = set.take_message();
    assert_eq!(first.r#type(), MessageType::Complete);
    assert_eq!(
        (first.applies_to.as_str(), first.results_in.as_str()),
        ("", "1")
    );
    assert!(first.changes.is_empty());
    for (applies_to, results_in) in [("1", "2"), ("2", "3")] {
        let next = set.take_message();
        assert_eq!(next.r#type(), MessageType::Incremental);
        assert_eq!(
            (next.applies_to.as_str(), next.results_in.as_str()),
            (applies_to, results_in)
        );
    }
}

// 08-A16
#[test]
fn every_state_with_own_and_shared_dependencies() {
    for naming in [Naming::Container, Naming::References, Naming::Both] {
        let mut set = AssignmentSet::default();
        let tasks: Vec<Task> = STATES
            .iter()
            .map(|state| {
                let number = *state as i32;
                let (own_secret, own_config) = (format!("s{number}"), format!("c{number}"));
                let secrets = [own_secret.as_str(), "shared"];
                let configs = [own_config.as_str(), "shared"];
                task(&format!("t{number}"), *state, naming, &secrets, &configs)
            })
            .collect();

        // The first message: every task from ASSIGNED on, dependencies of the live ones only.
        tasks.iter().for_each(|task| {
            feed(&mut set, task);
        });
        let mut expected = Vec::new();
        for state in STATES
            .into_iter()
            .filter(|state| *state >= TaskState::Assigned)
        {
            expected.push(format!("+task t{}", state as i32));
            if live(state) {
                expected.push(format!("+secret s{}", state as i32));
                expected.push(format!("+config c{}", state as i32));
            }
        }
        expected.extend(["+secret shared".to_owned(), "+config shared".to_owned()]);
        expected.sort();
        let mut first = told(&mut set);
        first.sort();
        assert_eq!(first, expected);

        // Nothing but version and status changes: assigned ones are repeated, and what dead ones
        // alone use is taken back although it was never sent.
        for task in &tasks {
            let state = TaskState::try_from(observed(task)).unwrap();
            let relevant = feed(&mut set, &later(task, state));
            assert_eq!(
                relevant,
                state == TaskState::Assigned || state > TaskState::Running
            );
        }
        let mut expected = vec![format!("+task t{}", TaskState::Assigned as i32)];
        for state in STATES
            .into_iter()
            .filter(|state| *state > TaskState::Running)
        {
            expected.push(format!("-secret s{}", state as i32));
            expected.push(format!("-config c{}", state as i32));
        }
        expected.sort();
        let mut second = told(&mut set);
        second.sort();
        assert_eq!(second, expected);

        // All are deleted: everything the agent knows of goes, and what it might know of.
        for task in &tasks {
            let known = observed(task) >= TaskState::Assigned as i32;
            assert_eq!(set.remove(&task.id), known);
        }
        let mut expected = Vec::new();
        for state in STATES
            .into_iter()
            .filter(|state| *state >= TaskState::Assigned)
        {
            for kind in ["task t", "secret s", "config c"] {
                expected.push(format!("-{kind}{}", state as i32));
            }
        }
        expected.extend(["-secret shared".to_owned(), "-config shared".to_owned()]);
        expected.sort();
        let mut third = told(&mut set);
        third.sort();
        assert_eq!(third, expected);
    }
}

#[test]
fn kinds_come_in_the_order_in_which_agents_apply_them() {
    let mut set = AssignmentSet::default();
    feed(
        &mut set,
        &task(
            "b",
            TaskState::Running,
            Naming::Both,
            &["s2", "s1"],
            &["c1"],
        ),
    );
    feed(&mut set, &plain("a", TaskState::Running));
    let expected = [
        "+secret s1",
        "+secret s2",
        "+config c1",
        "+task a",
        "+task b",
    ];
    assert_eq!(told(&mut set), expected);
}

// 08-A17
#[test]
fn a_task_whose_secret_and_config_are_missing_is_sent_without_them() {
    let mut set = AssignmentSet::default();
    let broken = task(
        "t1",
        TaskState::Assigned,
        Naming::Both,
        &["missing-s"],
        &["missing-c"],
    );
    feed(&mut set, &broken);
    assert_eq!(told(&mut set), ["+task t1"]);
    set.remove("t1");
    assert_eq!(
        told(&mut set),
        ["-secret missing-s", "-config missing-c", "-task t1"]
    );
}

#[test]
fn secrets_of_drivers_are_not_sent_but_their_tasks_are() {
    let mut set = AssignmentSet::default();
    feed(
        &mut set,
        &task(
            "t1",
            TaskState::Assigned,
            Naming::Container,
            &["driver-s"],
            &[],
        ),
    );
    assert_eq!(told(&mut set), ["+task t1"]);
}

// 08-A18, the status change
#[test]
fn progress_of_a_known_task_is_no_news() {
    let mut set = AssignmentSet::default();
    let assigned = task("t1", TaskState::Assigned, Naming::Container, &["s1"], &[]);
    feed(&mut set, &assigned);
    told(&mut set);
    for state in STATES.into_iter().filter(|state| live(*state)).skip(1) {
        assert!(!feed(&mut set, &later(&assigned, state)), "{state:?}");
    }
    // The end of a task is no change of the task, but its secret goes.
    assert!(feed(&mut set, &later(&assigned, TaskState::Failed)));
    assert_eq!(told(&mut set), ["-secret s1"]);
}

#[test]
fn a_dead_task_without_dependencies_is_no_news() {
    let mut set = AssignmentSet::default();
    let running = plain("t1", TaskState::Running);
    feed(&mut set, &running);
    told(&mut set);
    assert!(!feed(&mut set, &later(&running, TaskState::Failed)));
}

#[test]
fn a_changed_desired_state_is_sent() {
    let mut set = AssignmentSet::default();
    let running = task("t1", TaskState::Running, Naming::Container, &["s1"], &[]);
    feed(&mut set, &running);
    told(&mut set);
    let mut stopping = later(&running, TaskState::Running);
    stopping.desired_state = TaskState::Shutdown as i32;
    assert!(feed(&mut set, &stopping));
    assert_eq!(told(&mut set), ["+task t1"]);
    // Another change that also ends it takes the secret back in the same message.
    let mut removed = later(&stopping, TaskState::Shutdown);
    removed.desired_state = TaskState::Remove as i32;
    assert!(feed(&mut set, &removed));
    assert_eq!(told(&mut set), ["-secret s1", "+task t1"]);
}

#[test]
fn a_shared_secret_is_sent_once_and_taken_back_with_its_last_user() {
    let mut set = AssignmentSet::default();
    let first = task("t1", TaskState::Assigned, Naming::Container, &["s1"], &[]);
    let second = task("t2", TaskState::Assigned, Naming::References, &["s1"], &[]);
    feed(&mut set, &first);
    assert_eq!(told(&mut set), ["+secret s1", "+task t1"]);
    feed(&mut set, &second);
    assert_eq!(told(&mut set), ["+task t2"]);
    assert!(!feed(&mut set, &later(&first, TaskState::Failed)));
    set.remove("t1");
    assert_eq!(told(&mut set), ["-task t1"]);
    set.remove("t2");
    assert_eq!(told(&mut set), ["-secret s1", "-task t2"]);
}

#[test]
fn a_secret_that_changes_hands_within_one_message_stays() {
    let mut set = AssignmentSet::default();
    feed(
        &mut set,
        &task("t1", TaskState::Running, Naming::Container, &["s1"], &[]),
    );
    told(&mut set);
    set.remove("t1");
    feed(
        &mut set,
        &task("t2", TaskState::Assigned, Naming::Container, &["s1"], &[]),
    );
    assert_eq!(told(&mut set), ["+secret s1", "-task t1", "+task t2"]);
}

// 08-A19, what the message holds
#[test]
fn only_the_last_change_of_an_object_is_told() {
    let mut set = AssignmentSet::default();
    told(&mut set);
    for id in ["t1", "t2"] {
        let assigned = plain(id, TaskState::Assigned);
        assert!(feed(&mut set, &assigned));
        assert!(feed(&mut set, &later(&assigned, TaskState::Assigned)));
        assert!(set.remove(id));
        assert!(!set.remove(id));
    }
    assert_eq!(told(&mut set), ["-task t1", "-task t2"]);
}

#[test]
fn whoever_missed_changes_is_told_the_difference() {
    let mut set = AssignmentSet::default();
    let kept = plain("kept", TaskState::Running);
    let changed = plain("changed", TaskState::Running);
    let gone = task("gone", TaskState::Running, Naming::Both, &["s1"], &[]);
    for task in [&kept, &changed, &gone] {
        feed(&mut set, task);
    }
    told(&mut set);

    let mut stopping = changed.clone();
    stopping.desired_state = TaskState::Shutdown as i32;
    let now: Vec<Arc<Task>> = [
        later(&kept, TaskState::Running),
        stopping,
        plain("new", TaskState::Assigned),
        plain("early", TaskState::Pending),
    ]
    .into_iter()
    .map(Arc::new)
    .collect();
    assert!(set.resynchronise(&now, &Shelf).unwrap());
    let expected = ["-secret s1", "+task changed", "-task gone", "+task new"];
    assert_eq!(told(&mut set), expected);
    let settled: Vec<Arc<Task>> = now.iter().take(2).cloned().collect();
    set.remove("new");
    told(&mut set);
    assert!(!set.resynchronise(&settled, &Shelf).unwrap());
}
