//! Whatever happens, and in whatever order it becomes known, the accounts equal a fresh count.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use tokio::time::Instant;

use super::{node, task};
use crate::api::generic;
use crate::api::types::port_config::PublishMode;
use crate::api::types::{Endpoint, Node, PortConfig, Task, node_status};
use crate::services::orchestrator::task::{
    self as tasks, ASSIGNED, COMPLETE, FAILED, PENDING, REMOVE, RUNNING, SHUTDOWN,
};
use crate::services::scheduler::commit::{Decision, Verdict};
use crate::services::scheduler::state::State;
use crate::services::testing::objects;
use crate::storage::{Action, Change, StoreObject};

/// One step of a random history.
#[derive(Debug, Clone)]
enum Step {
    Node {
        number: u8,
        cpus: u8,
        ready: bool,
    },
    RemoveNode(u8),
    Task {
        service: u8,
        cpus: u8,
        port: bool,
        generic: u8,
        on_node: Option<u8>,
    },
    Report {
        task: u8,
        state: i32,
    },
    Want {
        task: u8,
        state: i32,
    },
    ClearNode(u8),
    Delete(u8),
    /// The scheduler hears of the next changes.
    Hear(u8),
    Pass,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let states = prop::sample::select(vec![RUNNING, COMPLETE, FAILED, SHUTDOWN]);
    let wishes = prop::sample::select(vec![SHUTDOWN, REMOVE]);
    let step = prop_oneof![
        2 => (0u8..4, 0u8..8, prop::bool::weighted(0.8))
            .prop_map(|(number, cpus, ready)| Step::Node { number, cpus, ready }),
        1 => (0u8..4).prop_map(Step::RemoveNode),
        6 => (0u8..3, 0u8..3, any::<bool>(), 0u8..2, prop::option::weighted(0.2, 0u8..4)).prop_map(
            |(service, cpus, port, generic, on_node)| Step::Task { service, cpus, port, generic, on_node }
        ),
        4 => (any::<u8>(), states).prop_map(|(task, state)| Step::Report { task, state }),
        2 => (any::<u8>(), wishes).prop_map(|(task, state)| Step::Want { task, state }),
        1 => any::<u8>().prop_map(Step::ClearNode),
        1 => any::<u8>().prop_map(Step::Delete),
        6 => (1u8..6).prop_map(Step::Hear),
        4 => Just(Step::Pass),
    ];
    prop::collection::vec(step, 0..120)
}

/// What the store holds, and what the scheduler has not heard of yet.
#[derive(Default)]
struct World {
    nodes: BTreeMap<String, Arc<Node>>,
    tasks: BTreeMap<String, Arc<Task>>,
    made: usize,
    unheard: VecDeque<Change>,
}

impl World {
    fn note<T: StoreObject>(&mut self, action: Action, object: &Arc<T>) {
        self.unheard.push_back(Change {
            action,
            object: T::into_any(Arc::clone(object)),
            old: None,
        });
    }

    fn put_task(&mut self, task: Task) {
        let task = Arc::new(task);
        self.tasks.insert(task.id.clone(), Arc::clone(&task));
        self.note(Action::Update, &task);
    }

    fn pick(&self, number: u8) -> Option<Task> {
        let count = self.tasks.len().max(1);
        let task = self.tasks.values().nth(usize::from(number) % count);
        task.map(|task| Task::clone(task))
    }

    fn take(&mut self, step: &Step, state: &mut State, now: Instant) {
        match step {
            Step::Node {
                number,
                cpus,
                ready,
            } => {
                let mut node = node(&format!("n{number}"), i64::from(*cpus), &[]);
                let resources = node
                    .description
                    .as_mut()
                    .unwrap()
                    .resources
                    .as_mut()
                    .unwrap();
                resources.generic = vec![generic::discrete("disk", i64::from(*cpus))];
                if !ready {
                    node.status.as_mut().unwrap().state = node_status::State::Down as i32;
                }
                let node = Arc::new(node);
                self.nodes.insert(node.id.clone(), Arc::clone(&node));
                self.note(Action::Update, &node);
            }
            Step::RemoveNode(number) => {
                if let Some(node) = self.nodes.remove(&format!("n{number}")) {
                    self.note(Action::Remove, &node);
                }
            }
            Step::Task {
                service,
                cpus,
                port,
                generic,
                on_node,
            } => {
                self.made += 1;
                let id = format!("t{:04}", self.made);
                let mut task = task(&id, &format!("s{service}"), i64::from(*cpus), &[]);
                let resources = task.spec.as_mut().unwrap().resources.as_mut().unwrap();
                resources.reservations.as_mut().unwrap().generic =
                    vec![generic::discrete("disk", i64::from(*generic))];
                if *port {
                    task.endpoint = Some(host_port());
                }
                if let Some(number) = on_node {
                    task.node_id = format!("n{number}");
                }
                self.put_task(task);
            }
            Step::Report { task, state } => {
                if let Some(mut task) = self.pick(*task)
                    && tasks::observed(&task) >= ASSIGNED
                    && tasks::observed(&task) <= *state
                {
                    task.status.as_mut().unwrap().state = *state;
                    self.put_task(task);
                }
            }
            Step::Want { task, state } => {
                if let Some(mut task) = self.pick(*task)
                    && task.desired_state < *state
                {
                    task.desired_state = *state;
                    self.put_task(task);
                }
            }
            Step::ClearNode(task) => {
                if let Some(mut task) = self.pick(*task)
                    && tasks::observed(&task) == ASSIGNED
                {
                    task.node_id.clear();
                    task.assigned_generic_resources.clear();
                    task.status.as_mut().unwrap().state = PENDING;
                    self.put_task(task);
                }
            }
            Step::Delete(task) => {
                if let Some(task) = self.pick(*task) {
                    let task = self.tasks.remove(&task.id).unwrap();
                    self.note(Action::Remove, &task);
                }
            }
            Step::Hear(count) => self.tell(usize::from(*count), state, now),
            Step::Pass => {
                for decision in state.pass(now).0 {
                    self.commit(&decision, state, now);
                }
            }
        }
    }

    fn tell(&mut self, count: usize, state: &mut State, now: Instant) {
        let count = count.min(self.unheard.len());
        for change in self.unheard.drain(..count) {
            state.observe(&change, now);
        }
    }

    /// Writes a decision, or refuses it for the reasons for which the store's transaction would.
    fn commit(&mut self, decision: &Decision, state: &mut State, now: Instant) {
        let id = decision.task_id.to_string();
        let (placement, from) = match &decision.verdict {
            Verdict::Assign(placement) => (placement, ""),
            Verdict::Confirm(placement) => (placement, &*placement.node_id),
            _ => return,
        };
        let node = self.nodes.get(&*placement.node_id);
        let suits = node.is_some_and(|node| placement.requirements.refused_by_node(node).is_none());
        let stored = self.tasks.get(&id).cloned();
        let waits = stored.as_ref().is_some_and(|task| {
            tasks::observed(task) == PENDING
                && task.node_id == from
                && task.desired_state <= COMPLETE
        });
        if !suits || !waits {
            state.refuse(&id, stored.as_deref(), now);
            return;
        }
        let mut task = Task::clone(&stored.unwrap());
        task.node_id = placement.node_id.to_string();
        task.assigned_generic_resources
            .clone_from(&placement.generic);
        task.status.as_mut().unwrap().state = ASSIGNED;
        self.put_task(task);
    }

    /// A scheduler that has just started.
    fn fresh(&self, now: Instant) -> State {
        let mut state = State::default();
        know_services(&mut state);
        for task in self.tasks.values() {
            state.observe_task(task, now);
        }
        for node in self.nodes.values() {
            state.observe_node(node, false);
        }
        state
    }
}

fn host_port() -> Endpoint {
    Endpoint {
        ports: vec![PortConfig {
            published_port: 80,
            publish_mode: PublishMode::Host as i32,
            ..PortConfig::default()
        }],
        ..Endpoint::default()
    }
}

fn know_services(state: &mut State) {
    for id in ["s0", "s1", "s2"] {
        state.observe_service(&objects::service(id), false);
    }
}

/// No node gives more than it has: neither processors nor ports nor anything else, as long as it did not
/// shrink. Checked by the tasks themselves.
fn over_committed(world: &World) -> Vec<String> {
    let mut ports: BTreeMap<&str, usize> = BTreeMap::new();
    for task in world.tasks.values() {
        let state = tasks::observed(task);
        if (ASSIGNED..=RUNNING).contains(&state) && task.endpoint.is_some() {
            *ports.entry(&task.node_id).or_default() += 1;
        }
    }
    let twice = ports.into_iter().filter(|(_, count)| *count > 1);
    twice
        .map(|(node, count)| format!("port 80 {count} times on {node}"))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn accounts_equal_a_recount(steps in steps()) {
        let now = Instant::now();
        let mut world = World::default();
        let mut state = State::default();
        know_services(&mut state);
        for step in &steps {
            world.take(step, &mut state, now);
            prop_assert_eq!(over_committed(&world), Vec::<String>::new());
        }
        // In the end everything has been heard of and decided.
        for _ in 0..100 {
            world.tell(usize::MAX, &mut state, now);
            let before = world.unheard.len();
            world.take(&Step::Pass, &mut state, now);
            if world.unheard.len() == before {
                break;
            }
        }
        world.tell(usize::MAX, &mut state, now);
        let mut fresh = world.fresh(now);
        prop_assert_eq!(state.nodes.counts(), fresh.nodes.counts());
        prop_assert_eq!(state.queue.is_empty(), fresh.queue.is_empty());
        // And nothing was left that a new scheduler would place.
        let left = fresh.pass(now).0;
        let placed = left.iter().filter(|decision| !matches!(decision.verdict, Verdict::Explain { .. }));
        prop_assert_eq!(placed.count(), 0);
    }
}
