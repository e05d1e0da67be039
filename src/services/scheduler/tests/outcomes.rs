//! What a pass decides in particular situations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{node, per_node, running, state, task, told};
use crate::api::types::node_spec::Availability;
use crate::api::types::{Platform, Service, Task, Version, node_status};
use crate::services::orchestrator::task::{FAILED, SHUTDOWN};
use crate::services::scheduler::commit::Verdict;
use crate::services::scheduler::state::State;
use crate::services::testing::objects;

fn reasons(state: &mut State, now: Instant) -> BTreeMap<String, String> {
    told(&state.pass(now).0).1
}

// The outcomes pinned in spec 07 section 9.4. 07-A1
#[test]
fn two_services_share_five_nodes() {
    let now = Instant::now();
    let ids = ["n1", "n2", "n3", "n4", "n5"];
    let mut state = state(ids.map(|id| node(id, 100, &[])).to_vec(), Vec::new());
    let mut place = |service: &str, count: usize, batch: &str| {
        for number in 0..count {
            let task = task(&format!("{service}-{batch}-{number:02}"), service, 1, &[]);
            state.observe_task(&task, now);
        }
        per_node(&told(&state.pass(now).0).0)
    };
    let first = place("one", 18, "a");
    assert_eq!(first.values().copied().collect::<Vec<_>>(), [4, 4, 4, 3, 3]);
    let second = place("two", 2, "a");
    assert_eq!(second.keys().collect::<Vec<_>>(), ["n4", "n5"]);
    let third = place("one", 3, "b");
    assert_eq!(third.keys().collect::<Vec<_>>(), ["n1", "n4", "n5"]);
    let fourth = place("two", 1, "b");
    assert_eq!(fourth.keys().collect::<Vec<_>>(), ["n2"]);
}

#[test]
fn reasons_are_counted_and_ordered() {
    let now = Instant::now();
    let mut down = node("n1", 8, &[]);
    down.status.get_or_insert_default().state = node_status::State::Down as i32;
    let mut paused = node("n2", 8, &[]);
    paused.spec.get_or_insert_default().availability = Availability::Pause as i32;
    let small = node("n3", 1, &[]);
    let mut state = state(
        vec![down, paused, small.clone()],
        vec![task("t", "web", 2, &[])],
    );
    let text =
        "no suitable node (2 nodes not available for new tasks; insufficient resources on 1 node)";
    assert_eq!(reasons(&mut state, now)["t"], text);

    // A change of one node changes its reason alone; newcomers are told at once, the others later.
    let mut drained = small;
    drained.spec.get_or_insert_default().availability = Availability::Drain as i32;
    state.observe_node(&Arc::new(drained), false);
    state.observe_task(&task("u", "web", 2, &[]), now);
    let all = "no suitable node (3 nodes not available for new tasks)";
    let (decisions, more_at) = state.pass(now);
    let told_now = told(&decisions).1;
    assert_eq!(told_now.keys().collect::<Vec<_>>(), ["u"]);
    assert_eq!(told_now["u"], all);
    let later = more_at.expect("the others are told later");
    assert!(later > now && later < now + Duration::from_secs(2));
    let told_later = reasons(&mut state, later);
    assert_eq!(told_later["t"], all);
    assert!(reasons(&mut state, later + Duration::from_secs(9)).is_empty());
}

#[test]
fn every_filter_has_its_text() {
    let reason = |change: &dyn Fn(&mut Task)| {
        let mut task = task("t", "web", 1, &[]);
        change(&mut task);
        let nodes = vec![node("n1", 1, &[]), node("n2", 1, &[]), node("n3", 1, &[])];
        reasons(&mut state(nodes, vec![task]), Instant::now())["t"].clone()
    };
    let placement = |task: &mut Task| {
        task.spec
            .as_mut()
            .unwrap()
            .placement
            .as_mut()
            .unwrap()
            .clone()
    };
    let constrained = reason(&|task| {
        let mut placement = placement(task);
        placement.constraints = vec!["node.labels.x == y".to_owned()];
        task.spec.as_mut().unwrap().placement = Some(placement);
    });
    assert_eq!(
        constrained,
        "no suitable node (scheduling constraints not satisfied on 3 nodes)"
    );
    let platform = reason(&|task| {
        let mut placement = placement(task);
        placement.platforms = vec![Platform {
            architecture: "amd64".to_owned(),
            os: "linux".to_owned(),
        }];
        task.spec.as_mut().unwrap().placement = Some(placement);
    });
    assert_eq!(
        platform,
        "no suitable node (unsupported platform on 3 nodes)"
    );
    let nowhere = reasons(
        &mut state(Vec::new(), vec![task("t", "web", 1, &[])]),
        Instant::now(),
    );
    assert_eq!(nowhere["t"], "no suitable node");
}

// 07-A15
#[test]
fn tasks_of_removed_services_leave_the_queue() {
    let now = Instant::now();
    let mut state = state(Vec::new(), vec![task("t", "web", 1, &[])]);
    assert_eq!(reasons(&mut state, now)["t"], "no suitable node");
    assert!(!state.queue.is_empty());
    state.observe_service(&objects::service("web"), true);
    assert!(state.pass(now).0.is_empty());
    assert!(state.queue.is_empty());
    // A task that never had a service waits for as long as it exists.
    let mut alone = task("alone", "", 1, &[]);
    alone.spec_version = None;
    state.observe_task(&alone, now);
    state.pass(now);
    assert!(!state.queue.is_empty());
}

#[test]
fn a_withdrawn_task_of_an_old_revision_is_shut_down() {
    let now = Instant::now();
    let mut withdrawn = task("t", "web", 1, &[]);
    withdrawn.desired_state = SHUTDOWN;
    let mut state = state(vec![node("n1", 8, &[])], vec![withdrawn]);
    assert!(state.pass(now).0.is_empty());
    let newer = Service {
        spec_version: Some(Version { index: 2 }),
        ..objects::service("web")
    };
    assert!(state.observe_service(&newer, false));
    let (decisions, _) = state.pass(now);
    assert!(matches!(decisions[0].verdict, Verdict::ShutDown));
}

#[test]
fn a_node_where_tasks_keep_failing_comes_last() {
    let now = Instant::now();
    let nodes = vec![node("n1", 100, &[]), node("n2", 100, &[])];
    let mut state = state(nodes, vec![running(task("first", "web", 1, &[]), "n1")]);
    let mut went = Vec::new();
    for number in 0..8 {
        let id = format!("t{number}");
        state.observe_task(&task(&id, "web", 1, &[]), now);
        let placed = told(&state.pass(now).0).0;
        let node_id = placed[0].1.clone();
        let mut failed = running(task(&id, "web", 1, &[]), &node_id);
        state.observe_task(&failed, now);
        failed.status.get_or_insert_default().state = FAILED;
        state.observe_task(&failed, now);
        went.push(node_id);
    }
    assert_eq!(went, ["n2", "n2", "n2", "n2", "n2", "n1", "n1", "n1"]);
}

#[test]
fn named_resources_are_not_dealt_twice() {
    use crate::api::generic;
    let now = Instant::now();
    let mut gpus = node("n1", 8, &[]);
    gpus.description
        .as_mut()
        .unwrap()
        .resources
        .as_mut()
        .unwrap()
        .generic = generic::parse("gpu=a,gpu=b").unwrap();
    let wanting = |id: &str, amount| {
        let mut task = task(id, "web", 1, &[]);
        let resources = task.spec.as_mut().unwrap().resources.as_mut().unwrap();
        resources.reservations.as_mut().unwrap().generic = vec![generic::discrete("gpu", amount)];
        task
    };
    let mut holder = running(wanting("holder", 1), "n1");
    holder.assigned_generic_resources = vec![generic::named("gpu", "b")];
    let mut state = state(vec![gpus], vec![holder, wanting("t", 1), wanting("u", 1)]);
    let (decisions, _) = state.pass(now);
    let Verdict::Assign(placement) = &decisions[0].verdict else {
        panic!("{decisions:?}");
    };
    assert_eq!(placement.generic, [generic::named("gpu", "a")]);
    let text = "no suitable node (insufficient resources on 1 node)";
    assert_eq!(told(&decisions).1["u"], text);
    state.forget("holder");
    let (decisions, _) = state.pass(now);
    let Verdict::Assign(placement) = &decisions[0].verdict else {
        panic!("{decisions:?}");
    };
    assert_eq!(placement.generic, [generic::named("gpu", "b")]);
}
