//! The streams of assignments and of tasks over a store that changes.

use super::*;
use crate::api::types::assignment::Item;
use crate::api::types::assignment_change::AssignmentAction;
use crate::api::types::assignments_message::Type;
use crate::api::types::task_spec::Runtime;
use crate::api::types::{
    Annotations, Config, ConfigReference, ContainerSpec, Secret, SecretReference, TaskSpec,
    TasksMessage, TasksRequest,
};

const READY: &[(&str, NodeState)] = &[("n1", NodeState::Unknown)];

/// `+id` for each update and `-id` for each removal, whatever the kind.
fn changes(message: &AssignmentsMessage) -> Vec<String> {
    let short = |change: &crate::api::types::AssignmentChange| {
        let sign = match change.action() {
            AssignmentAction::Update => '+',
            AssignmentAction::Remove => '-',
        };
        let id = match change.assignment.as_ref().unwrap().item.as_ref().unwrap() {
            Item::Task(task) => &task.id,
            Item::Secret(secret) => &secret.id,
            Item::Config(config) => &config.id,
            Item::Volume(volume) => &volume.id,
        };
        format!("{sign}{id}")
    };
    message.changes.iter().map(short).collect()
}

fn named(name: &str) -> Option<Annotations> {
    Some(Annotations {
        name: name.to_owned(),
        ..Default::default()
    })
}

fn secret(id: &str) -> Secret {
    Secret {
        id: id.to_owned(),
        spec: Some(crate::api::types::SecretSpec {
            annotations: named(id),
            data: vec![7; 100],
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn config(id: &str) -> Config {
    Config {
        id: id.to_owned(),
        spec: Some(crate::api::types::ConfigSpec {
            annotations: named(id),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn with_payloads(mut task: Task) -> Task {
    let container = ContainerSpec {
        secrets: vec![SecretReference {
            secret_id: "secret".to_owned(),
            ..Default::default()
        }],
        configs: vec![ConfigReference {
            config_id: "config".to_owned(),
            ..Default::default()
        }],
        ..Default::default()
    };
    task.spec = Some(TaskSpec {
        runtime: Some(Runtime::Container(container)),
        ..Default::default()
    });
    task
}

impl World {
    /// Opens the assignments of a freshly registered `n1` and reads the complete set.
    async fn assigned(&self) -> (AssignmentsMessage, Feed<AssignmentsMessage>, String) {
        let (session_id, _) = self.register("n1").await;
        let mut feed = self.assignments("n1", &session_id).await.unwrap();
        let first = next(&mut feed).await;
        assert_eq!(first.r#type(), Type::Complete);
        (first, feed, session_id)
    }

    /// Makes a task of `n1` known to it, or touches one that is.
    async fn assign(&self, id: &str) {
        self.change::<Task>(id, |task| {
            task.status.get_or_insert_default().state = TaskState::Assigned as i32;
        })
        .await;
    }
}

// 08-A15
#[tokio::test(start_paused = true)]
async fn a_node_without_tasks_gets_an_empty_set_and_then_changes() {
    let world = World::leading(Settings::default(), READY).await;
    world.create(task("t1", "n1", TaskState::Pending)).await;
    world.create(task("t2", "n2", TaskState::Running)).await;
    let (first, mut feed, _) = world.assigned().await;
    assert_eq!(changes(&first), Vec::<String>::new());
    assert_eq!(
        (first.applies_to.as_str(), first.results_in.as_str()),
        ("", "1")
    );
    world.assign("t1").await;
    let second = next(&mut feed).await;
    assert_eq!(second.r#type(), Type::Incremental);
    assert_eq!(
        (second.applies_to.as_str(), second.results_in.as_str()),
        ("1", "2")
    );
    assert_eq!(changes(&second), ["+t1"]);
}

#[tokio::test(start_paused = true)]
async fn secrets_and_configs_travel_with_their_tasks() {
    let world = World::leading(Settings::default(), READY).await;
    world.create(secret("secret")).await;
    world.create(config("config")).await;
    world
        .create(with_payloads(task("t1", "n1", TaskState::Running)))
        .await;
    world
        .create(with_payloads(task("t2", "n1", TaskState::Pending)))
        .await;
    let (first, mut feed, _) = world.assigned().await;
    assert_eq!(changes(&first), ["+secret", "+config", "+t1"]);
    let Some(Item::Secret(sent)) = first.changes[0].assignment.clone().unwrap().item else {
        panic!("a secret comes first");
    };
    assert_eq!(sent, *world.get::<Secret>("secret"));

    world.assign("t2").await;
    assert_eq!(changes(&next(&mut feed).await), ["+t2"]);
    for id in ["t1", "t2"] {
        world.delete::<Task>(id).await;
    }
    assert_eq!(
        changes(&next(&mut feed).await),
        ["-secret", "-config", "-t1", "-t2"]
    );
}

// 08-A18
#[tokio::test(start_paused = true)]
async fn changes_that_do_not_concern_the_agent_are_not_told() {
    let world = World::leading(Settings::default(), READY).await;
    world.create(secret("secret")).await;
    world.create(config("config")).await;
    world
        .create(with_payloads(task("t1", "n1", TaskState::Running)))
        .await;
    world.create(task("t2", "n1", TaskState::Running)).await;
    let (_, mut feed, _) = world.assigned().await;
    world
        .change::<Secret>("secret", |secret| {
            secret.spec.get_or_insert_default().data = b"new".to_vec();
        })
        .await;
    world.delete::<Config>("config").await;
    world
        .change::<Task>("t2", |task| {
            task.status.get_or_insert_default().state = TaskState::Failed as i32;
        })
        .await;
    // Created as assigned, which no task is; and one that is on no node.
    world.create(task("t3", "n1", TaskState::Assigned)).await;
    world.create(task("t4", "", TaskState::Pending)).await;
    assert!(silent(&mut feed, millis(250)).await);
}

// 08-A19
#[tokio::test(start_paused = true)]
async fn tasks_that_come_and_go_within_a_batch_are_removed() {
    let world = World::leading(Settings::default(), READY).await;
    let (_, mut feed, _) = world.assigned().await;
    for id in ["t1", "t2"] {
        world.create(task(id, "n1", TaskState::Assigned)).await;
        world.assign(id).await;
        world.delete::<Task>(id).await;
    }
    assert_eq!(changes(&next(&mut feed).await), ["-t1", "-t2"]);
    assert!(silent(&mut feed, seconds(1)).await);
}

// 08-A20
#[tokio::test(start_paused = true)]
async fn a_burst_is_cut_into_chained_messages() {
    let world = World::leading(Settings::default(), READY).await;
    let ids: Vec<String> = (0..1000).map(|number| format!("t{number:04}")).collect();
    let created = world.store.update(|tx| {
        ids.iter()
            .try_for_each(|id| tx.create(task(id, "n1", TaskState::Pending)).map(drop))
    });
    created
        .await
        .unwrap_or_else(|error: StoreError| panic!("{error}"));
    let (first, mut feed, _) = world.assigned().await;
    let assigned = world.store.update(|tx| {
        ids.iter().try_for_each(|id| {
            let mut task = Task::clone(&*tx.get::<Task>(id)?.unwrap());
            task.status.get_or_insert_default().state = TaskState::Assigned as i32;
            tx.update(task).map(drop)
        })
    });
    assigned
        .await
        .unwrap_or_else(|error: StoreError| panic!("{error}"));

    let mut at = first.results_in;
    let mut told = Vec::new();
    let mut messages = 0;
    while told.len() < ids.len() {
        let message = next(&mut feed).await;
        assert!(message.changes.len() <= 100);
        assert_eq!(message.applies_to, at);
        at = message.results_in.clone();
        told.extend(changes(&message));
        messages += 1;
    }
    assert!(messages >= 10);
    let expected: Vec<String> = ids.iter().map(|id| format!("+{id}")).collect();
    assert_eq!(told, expected);

    let start = Instant::now();
    world.assign("t0500").await;
    assert_eq!(changes(&next(&mut feed).await), ["+t0500"]);
    assert!(start.elapsed() <= millis(200));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_reads_too_slowly_is_brought_up_to_date_without_a_gap() {
    let world = World::leading(Settings::default(), READY).await;
    let created = world.store.update(|tx| {
        for id in ["gone", "kept", "last"] {
            tx.create(task(id, "n1", TaskState::Running))?;
        }
        Ok(())
    });
    created
        .await
        .unwrap_or_else(|error: StoreError| panic!("{error}"));
    let (first, mut feed, _) = world.assigned().await;

    // The agent reads nothing while the queues fill up: every round is a message of its own.
    for round in 0..5 {
        world
            .change::<Task>("kept", |task| task.slot = 10 + round)
            .await;
        tokio::time::sleep(millis(200)).await;
    }
    // More changes in one go than a subscription holds.
    for round in 0..11 {
        let flood = world.store.update(|tx| {
            for step in 0..1000 {
                let mut task = Task::clone(&*tx.get::<Task>("kept")?.unwrap());
                task.slot = 1000 * (round + 1) + step;
                tx.update(task)?;
            }
            Ok(())
        });
        flood
            .await
            .unwrap_or_else(|error: StoreError| panic!("{error}"));
    }
    world.delete::<Task>("gone").await;
    world.change::<Task>("last", |task| task.slot = 99).await;

    let mut at = first.results_in;
    let mut told = Vec::new();
    while !told.contains(&"+last".to_owned()) {
        let message = next(&mut feed).await;
        assert_eq!(
            (message.r#type(), &message.applies_to),
            (Type::Incremental, &at)
        );
        at = message.results_in.clone();
        told.extend(changes(&message));
    }
    assert!(told.contains(&"-gone".to_owned()));
    assert!(silent(&mut feed, seconds(1)).await);
}

// 08-A23
#[tokio::test(start_paused = true)]
async fn the_older_stream_repeats_the_whole_list() {
    let world = World::leading(Settings::default(), READY).await;
    world.create(task("t1", "n1", TaskState::Running)).await;
    world.create(task("t2", "n1", TaskState::Pending)).await;
    let (session_id, _session) = world.register("n1").await;
    let request = TasksRequest { session_id };
    let response = world.dispatcher.tasks(from("n1", request)).await.unwrap();
    let mut feed = response.into_inner();
    let ids = |message: TasksMessage| -> Vec<String> {
        message.tasks.into_iter().map(|task| task.id).collect()
    };
    assert_eq!(ids(next(&mut feed).await), ["t1"]);
    world.assign("t2").await;
    world.create(task("t3", "n1", TaskState::Assigned)).await;
    assert_eq!(ids(next(&mut feed).await), ["t1", "t2", "t3"]);
    for state in [TaskState::Accepted, TaskState::Running, TaskState::Failed] {
        world
            .change::<Task>("t2", |task| {
                task.status.get_or_insert_default().state = state as i32;
            })
            .await;
    }
    assert!(silent(&mut feed, seconds(1)).await);
    world.delete::<Task>("t1").await;
    assert_eq!(ids(next(&mut feed).await), ["t2", "t3"]);
}
