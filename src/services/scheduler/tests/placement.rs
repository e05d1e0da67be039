//! Placement against the rule itself, applied by looking at everything every time.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{CPU, node, per_node, running, state, task, told};
use crate::api::types::Node;

/// A node of a random cluster.
#[derive(Debug, Clone)]
struct Case {
    zone: u8,
    rack: u8,
    cpus: u8,
    /// Tasks that run there already: of the service to be placed, and of another.
    own: u8,
    others: u8,
}

fn cases() -> impl Strategy<Value = Vec<Case>> {
    let case =
        (0u8..3, 0u8..3, 0u8..12, 0u8..5, 0u8..5).prop_map(|(zone, rack, cpus, own, others)| {
            Case {
                zone,
                rack,
                cpus,
                own,
                others,
            }
        });
    prop::collection::vec(case, 0..9)
}

const LEVELS: [&str; 2] = ["node.labels.zone", "node.labels.rack"];

/// The rule, one task at a time.
struct Model {
    nodes: Vec<(Case, String)>,
}

impl Model {
    fn free(&self, index: usize) -> bool {
        let case = &self.nodes[index].0;
        case.own + case.others < case.cpus
    }

    fn best(&self, among: &[usize], levels: usize, depth: usize) -> Option<usize> {
        if depth == levels {
            let free = among.iter().copied().filter(|index| self.free(*index));
            return free.min_by_key(|index| {
                let (case, id) = &self.nodes[*index];
                (case.own, case.own + case.others, id.clone())
            });
        }
        let mut branches: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
        for index in among {
            let case = &self.nodes[*index].0;
            let label = if depth == 0 { case.zone } else { case.rack };
            branches.entry(label).or_default().push(*index);
        }
        let usable = branches.into_iter().filter_map(|(label, nodes)| {
            let best = self.best(&nodes, levels, depth + 1)?;
            let own: u32 = nodes
                .iter()
                .map(|index| u32::from(self.nodes[*index].0.own))
                .sum();
            Some(((own, label), best))
        });
        usable.min_by_key(|(key, _)| *key).map(|(_, best)| best)
    }

    fn place(&mut self, tasks: usize, levels: usize) -> Vec<String> {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        let mut placed = Vec::new();
        while placed.len() < tasks
            && let Some(index) = self.best(&all, levels, 0)
        {
            self.nodes[index].0.own += 1;
            placed.push(self.nodes[index].1.clone());
        }
        placed
    }
}

fn described(case: &Case, id: &str) -> Node {
    let (zone, rack) = (case.zone.to_string(), case.rack.to_string());
    node(
        id,
        i64::from(case.cpus),
        &[("zone", &zone), ("rack", &rack)],
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Every task goes exactly where the rule says, whatever the preferences.
    #[test]
    fn follows_the_rule(cases in cases(), tasks in 0usize..25, levels in 0usize..=2) {
        let named: Vec<(Case, String)> =
            cases.into_iter().enumerate().map(|(number, case)| (case, format!("n{number}"))).collect();
        let mut known = Vec::new();
        for (case, id) in &named {
            for number in 0..case.own {
                known.push(running(task(&format!("own-{id}-{number}"), "web", 1, &[]), id));
            }
            for number in 0..case.others {
                known.push(running(task(&format!("other-{id}-{number}"), "db", 1, &[]), id));
            }
        }
        for number in 0..tasks {
            known.push(task(&format!("new-{number:02}"), "web", 1, &LEVELS[..levels]));
        }
        let nodes = named.iter().map(|(case, id)| described(case, id)).collect();
        let (decisions, _) = state(nodes, known).pass(tokio::time::Instant::now());
        let (placed, reasons) = told(&decisions);
        let expected = Model { nodes: named }.place(tasks, levels);
        let placed: Vec<String> = placed.into_iter().map(|(_, node_id)| node_id).collect();
        prop_assert_eq!(reasons.len(), tasks - expected.len());
        prop_assert_eq!(placed, expected);
    }
}

fn counts(nodes: Vec<Node>, tasks: Vec<crate::api::types::Task>) -> BTreeMap<String, usize> {
    let (decisions, _) = state(nodes, tasks).pass(tokio::time::Instant::now());
    per_node(&told(&decisions).0)
}

fn expected<const N: usize>(counts: [(&str, usize); N]) -> BTreeMap<String, usize> {
    counts
        .into_iter()
        .map(|(id, count)| (id.to_owned(), count))
        .collect()
}

fn waiting(count: usize, spread: &[&str]) -> Vec<crate::api::types::Task> {
    (0..count)
        .map(|number| task(&format!("new{number:03}"), "web", 0, spread))
        .collect()
}

// 07-A4
#[test]
fn uneven_starts_are_evened_out() {
    let mut tasks = waiting(6, &[]);
    tasks.extend((0..5).map(|number| running(task(&format!("old{number}"), "web", 0, &[]), "n3")));
    let nodes = ["n1", "n2", "n3"].map(|id| node(id, 1, &[])).to_vec();
    assert_eq!(counts(nodes, tasks), expected([("n1", 3), ("n2", 3)]));

    let mut tasks = waiting(8, &["node.labels.zone"]);
    tasks.extend((0..10).map(|number| running(task(&format!("old{number}"), "web", 0, &[]), "n1")));
    let nodes = ["n1", "n2", "n3"]
        .map(|id| node(id, 1, &[("zone", id)]))
        .to_vec();
    assert_eq!(counts(nodes, tasks), expected([("n2", 4), ("n3", 4)]));
}

#[test]
fn one_zone_with_one_node_and_one_with_four() {
    let zone = |id: &str| if id == "n1" { "az1" } else { "az2" };
    let nodes = ["n1", "n2", "n3", "n4", "n5"]
        .map(|id| node(id, 1, &[("az", zone(id))]))
        .to_vec();
    let tasks = waiting(8, &["node.labels.az"]);
    let even = expected([("n1", 4), ("n2", 1), ("n3", 1), ("n4", 1), ("n5", 1)]);
    assert_eq!(counts(nodes, tasks), even);
}

#[test]
fn two_levels_with_a_node_that_is_too_small() {
    let spread = ["node.labels.az", "node.labels.rack"];
    let place = |id, cpus, az, rack| node(id, cpus, &[("az", az), ("rack", rack)]);
    let nodes = vec![
        place("n1", 0, "az1", "r1"),
        place("n2", 5, "az1", "r2"),
        place("n3", 90, "az2", "r1"),
        place("n4", 90, "az2", "r1"),
        place("n5", 90, "az2", "r2"),
        place("n6", 90, "az2", "r2"),
    ];
    let tasks = (0..12)
        .map(|number| task(&format!("new{number:02}"), "web", 1, &spread))
        .collect();
    let found = counts(nodes, tasks);
    assert_eq!(found.get("n1"), None);
    assert_eq!(found.get("n2"), Some(&5));
    let racks = (found["n3"] + found["n4"], found["n5"] + found["n6"]);
    assert_eq!(racks.0.max(racks.1), 4);
    assert_eq!(racks.0.min(racks.1), 3);
    assert!(found["n3"].abs_diff(found["n4"]) <= 1 && found["n5"].abs_diff(found["n6"]) <= 1);
}

#[test]
fn resources_beat_spreading() {
    let mut tasks = vec![running(task("a", "web", 1, &[]), "n1")];
    tasks.extend(["b", "c", "d"].map(|id| running(task(id, "web", 1, &[]), "n2")));
    tasks.extend(["e", "f"].map(|id| task(id, "web", 1, &[])));
    let nodes = vec![node("n1", 2, &[]), node("n2", 10, &[])];
    assert_eq!(counts(nodes, tasks), expected([("n1", 1), ("n2", 1)]));
}

/// A thousand nodes and ten thousand tasks of twenty services per tenth of the full scale.
#[test]
fn large_clusters_are_filled_evenly() {
    let scale = std::env::var("SWARM_TEST_SCALE")
        .ok()
        .and_then(|scale| scale.parse().ok());
    let nodes = (10_000.0 * scale.unwrap_or(0.1f64)) as usize;
    let tasks = nodes * 10;
    let known = (0..tasks).map(|number| {
        task(
            &format!("t{number:07}"),
            &format!("service{}", number % 20),
            1,
            &[],
        )
    });
    let nodes_known = (0..nodes)
        .map(|number| node(&format!("n{number:05}"), 1_000, &[]))
        .collect();
    let mut state = state(nodes_known, known.collect());
    let mut placed = Vec::new();
    loop {
        let (decisions, more_at) = state.pass(tokio::time::Instant::now());
        placed.extend(told(&decisions).0);
        if more_at.is_none() {
            break;
        }
    }
    assert_eq!(placed.len(), tasks);
    let counts = per_node(&placed);
    assert_eq!(counts.len(), nodes);
    assert!(counts.values().all(|count| *count == 10));
    let index = state.nodes.find("n00000").expect("a node");
    let account = state.nodes.account(index).expect("its account");
    assert_eq!(account.nano_cpus_left(), i128::from(990 * CPU));
}
