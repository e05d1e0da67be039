//! The scheduler without a store: what is known goes in, decisions come out.

mod commits;
mod outcomes;
mod placement;
mod recount;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::commit::{Decision, Verdict};
use super::state::State;
use crate::api::types::placement_preference::Preference;
use crate::api::types::{
    Node, Placement, PlacementPreference, ResourceRequirements, Resources, SpreadOver, Task,
    TaskSpec, TaskStatus, Version,
};
use crate::services::orchestrator::task::{PENDING, RUNNING};
use crate::services::testing::objects;

const CPU: i64 = 1_000_000_000;

/// A node that is ready, with processors and labels.
fn node(id: &str, cpus: i64, labels: &[(&str, &str)]) -> Node {
    let mut node = objects::node(id);
    let description = node.description.get_or_insert_default();
    description.resources.get_or_insert_default().nano_cpus = cpus * CPU;
    let annotations = node
        .spec
        .get_or_insert_default()
        .annotations
        .get_or_insert_default();
    for (key, value) in labels {
        annotations
            .labels
            .insert((*key).to_owned(), (*value).to_owned());
    }
    node
}

/// A task that waits, reserving processors.
fn task(id: &str, service_id: &str, cpus: i64, spread: &[&str]) -> Task {
    let preferences = spread.iter().map(|label| PlacementPreference {
        preference: Some(Preference::Spread(SpreadOver {
            spread_descriptor: (*label).to_owned(),
        })),
    });
    Task {
        id: id.to_owned(),
        service_id: service_id.to_owned(),
        spec_version: Some(Version { index: 1 }),
        spec: Some(TaskSpec {
            resources: Some(ResourceRequirements {
                reservations: Some(Resources {
                    nano_cpus: cpus * CPU,
                    ..Resources::default()
                }),
                ..ResourceRequirements::default()
            }),
            placement: Some(Placement {
                preferences: preferences.collect(),
                ..Placement::default()
            }),
            ..TaskSpec::default()
        }),
        status: Some(TaskStatus {
            state: PENDING,
            ..TaskStatus::default()
        }),
        desired_state: RUNNING,
        ..Task::default()
    }
}

/// The same task, running on a node.
fn running(mut task: Task, node_id: &str) -> Task {
    task.node_id = node_id.to_owned();
    task.status.get_or_insert_default().state = RUNNING;
    task
}

/// A state that knows these nodes and tasks.
fn state(nodes: Vec<Node>, tasks: Vec<Task>) -> State {
    let mut state = State::default();
    let now = Instant::now();
    for node in nodes {
        state.observe_node(&Arc::new(node), false);
    }
    for task in tasks {
        state.observe_service(&objects::service(&task.service_id), false);
        state.observe_task(&task, now);
    }
    state
}

/// Task and node of every placement, in order; the reasons of those that wait.
fn told(decisions: &[Decision]) -> (Vec<(String, String)>, BTreeMap<String, String>) {
    let mut placed = Vec::new();
    let mut reasons = BTreeMap::new();
    for decision in decisions {
        let task_id = decision.task_id.to_string();
        match &decision.verdict {
            Verdict::Assign(placement) | Verdict::Confirm(placement) => {
                placed.push((task_id, placement.node_id.to_string()));
            }
            Verdict::Explain { reason, .. } => {
                reasons.insert(task_id, reason.clone());
            }
            Verdict::ShutDown => {}
        }
    }
    (placed, reasons)
}

/// How many of the placements went to each node.
fn per_node(placed: &[(String, String)]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (_, node_id) in placed {
        *counts.entry(node_id.clone()).or_default() += 1;
    }
    counts
}
