//! Registrations, the messages of a session, and how sessions end.

use super::*;

const READY: &[(&str, NodeState)] = &[("n1", NodeState::Unknown)];

#[tokio::test(start_paused = true)]
async fn a_manager_that_does_not_lead_refuses_every_call() {
    let mut world = World::leading(Settings::default(), READY).await;
    let (session_id, _feed) = world.register("n1").await;
    world.step_down().await;
    let stopped = "dispatcher is stopped";
    refused(world.session("n1", "", None).await, Code::Aborted, stopped);
    refused(world.beat("n1", &session_id).await, Code::Aborted, stopped);
    refused(
        world.assignments("n1", &session_id).await,
        Code::Aborted,
        stopped,
    );
    refused(
        world.report("n1", &session_id, vec![]).await,
        Code::Aborted,
        stopped,
    );
    assert_eq!(world.dispatcher.registered_count(), None);
}

// 08-A3, the dispatcher's own line of defence
#[tokio::test(start_paused = true)]
async fn a_caller_without_certificate_is_refused() {
    let world = World::leading(Settings::default(), READY).await;
    refused(
        world.session("", "", None).await,
        Code::PermissionDenied,
        "Permission denied: unauthorized peer role: rpc error: code = PermissionDenied desc = \
         no client certificates in request",
    );
    let unidentified = Request::new(HeartbeatRequest::default());
    let status = world.dispatcher.heartbeat(unidentified).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
}

// 08-A1
#[tokio::test(start_paused = true)]
async fn each_registration_gets_a_session_of_its_own() {
    let world = World::leading(unlimited(), READY).await;
    let (first, _feed) = world.register("n1").await;
    let (second, _feed) = world.register("n1").await;
    assert!(crate::api::ids::is_valid_id(&first) && first != second);
}

// 08-A2
#[tokio::test(start_paused = true)]
async fn a_node_may_register_three_times_in_eight_seconds() {
    let world = World::leading(Settings::default(), READY).await;
    for _ in 0..3 {
        world.register("n1").await;
    }
    let text = "node n1 exceeded rate limit count of registrations";
    refused(world.session("n1", "", None).await, Code::Unavailable, text);
    tokio::time::sleep(millis(8100)).await;
    world.register("n1").await;
    let totals = world.dispatcher.totals();
    assert_eq!((totals.registrations, totals.registrations_refused), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn a_node_the_store_does_not_know_is_refused() {
    let world = World::leading(Settings::default(), READY).await;
    let session = world.session("stranger", "", None).await;
    refused(session, Code::NotFound, "node not found");
    assert_eq!(world.dispatcher.node_report("stranger"), None);
}

// 08-A10
#[tokio::test(start_paused = true)]
async fn a_lone_registration_never_waits_for_somebody_else_s_write() {
    let world = World::leading(unlimited(), READY).await;
    for _ in 0..scaled(1000) {
        let start = Instant::now();
        world.register("n1").await;
        assert!(start.elapsed() <= millis(200), "{:?}", start.elapsed());
        tokio::time::sleep(seconds(1)).await;
    }
}

// 08-A10
#[tokio::test(start_paused = true)]
async fn two_hundred_nodes_register_together() {
    let ids: Vec<String> = (0..200).map(|number| format!("n{number}")).collect();
    let nodes: Vec<(&str, NodeState)> = ids
        .iter()
        .map(|id| (id.as_str(), NodeState::Unknown))
        .collect();
    let world = World::leading(Settings::default(), &nodes).await;
    let before = world.writes();
    let start = Instant::now();
    let registrations = ids.iter().map(|id| world.register(id));
    let sessions = futures::future::join_all(registrations).await;
    assert!(start.elapsed() <= seconds(5));
    assert_eq!(sessions.len(), 200);
    assert_eq!(world.dispatcher.registered_count(), Some(200));
    assert!(
        world.writes() - before <= 4,
        "registrations share their writes"
    );
}

#[tokio::test]
async fn a_whole_cluster_comes_back_after_a_change_of_leader() {
    let count = scaled(10_000);
    let ids: Vec<String> = (0..count).map(|number| format!("n{number}")).collect();
    let nodes: Vec<(&str, NodeState)> = ids
        .iter()
        .map(|id| (id.as_str(), NodeState::Ready))
        .collect();
    let mut world = World::new(Settings::default(), &nodes).await;
    let start = Instant::now();
    world.lead().await;
    let sessions = futures::future::join_all(ids.iter().map(|id| world.register(id))).await;
    let beats = sessions
        .iter()
        .zip(&ids)
        .map(async |((session_id, _), id)| {
            world.beat(id, session_id).await.unwrap();
            let mut assignments = world.assignments(id, session_id).await.unwrap();
            next(&mut assignments).await;
            assignments
        });
    let assignments = futures::future::join_all(beats).await;
    assert!(start.elapsed() <= seconds(15), "{:?}", start.elapsed());
    assert_eq!(assignments.len(), count);
    assert_eq!(world.dispatcher.registered_count(), Some(count));
}

#[tokio::test(start_paused = true)]
async fn the_first_message_is_complete() {
    let world = World::leading(Settings::default(), READY).await;
    let mut feed = world.session("n1", "", described("host")).await.unwrap();
    let message = next(&mut feed).await;
    let node = message.node.unwrap();
    assert_eq!(node, *world.get::<Node>("n1"));
    assert_eq!(node.status.unwrap().addr, "10.0.0.7");
    assert_eq!(message.managers, [manager(LEADER, "10.0.0.1:2377")]);
    assert_eq!(message.root_ca, b"the root");
    let cluster = world.get::<Cluster>(CLUSTER);
    assert_eq!(
        message.network_bootstrap_keys,
        cluster.network_bootstrap_keys
    );
    assert_eq!(message.network_bootstrap_keys.len(), 6);
}

// 08-A12, 08-A11
#[tokio::test(start_paused = true)]
async fn each_change_brings_one_complete_message() {
    let world = World::leading(Settings::default(), READY).await;
    let mut feed = world.session("n1", "", None).await.unwrap();
    let mut expected = next(&mut feed).await;

    world
        .change::<Node>("n1", |node| node.vxlanudp_port = 4789)
        .await;
    expected.node = Some(Node::clone(&world.get("n1")));
    assert_eq!(next(&mut feed).await, expected);

    world
        .managers
        .send_modify(|managers| managers.push(manager("m2", "10.0.0.2:2377")));
    expected.managers.push(manager("m2", "10.0.0.2:2377"));
    assert_eq!(next(&mut feed).await, expected);

    world
        .change::<Cluster>(CLUSTER, |cluster| {
            cluster.root_ca.get_or_insert_default().ca_cert = b"another root".to_vec();
        })
        .await;
    expected.root_ca = b"another root".to_vec();
    assert_eq!(next(&mut feed).await, expected);

    world
        .change::<Cluster>(CLUSTER, |cluster| {
            cluster.network_bootstrap_keys.rotate_left(1);
        })
        .await;
    expected.network_bootstrap_keys.rotate_left(1);
    assert_eq!(next(&mut feed).await, expected);

    // Nothing that a session carries: no message.
    world
        .change::<Cluster>(CLUSTER, |cluster| cluster.subnet_size = 24)
        .await;
    assert!(silent(&mut feed, seconds(2)).await);
}

// 08-A12
#[tokio::test(start_paused = true)]
async fn the_list_of_managers_is_never_empty() {
    let world = World::new(Settings::default(), READY).await;
    world.managers.send_replace(Vec::new());
    let mut world = world;
    world.lead().await;
    let known_later = async {
        tokio::time::sleep(seconds(1)).await;
        world
            .managers
            .send_replace(vec![manager(LEADER, "10.0.0.1:2377")]);
    };
    let (mut feed, ()) = tokio::join!(
        async { world.session("n1", "", None).await.unwrap() },
        known_later
    );
    assert_eq!(next(&mut feed).await.managers.len(), 1);
    world.managers.send_replace(Vec::new());
    world
        .managers
        .send_replace(vec![manager("m2", "0.0.0.0:2377")]);
    assert!(silent(&mut feed, seconds(2)).await);
    world
        .change::<Node>("n1", |node| node.vxlanudp_port = 4789)
        .await;
    assert_eq!(
        next(&mut feed).await.managers,
        [manager(LEADER, "10.0.0.1:2377")]
    );
    world.managers.send_replace(Vec::new());
    let refused_at = Instant::now();
    let session = world.session("n1", "", None).await;
    assert_eq!(session.err().unwrap().code(), Code::Unavailable);
    assert!(refused_at.elapsed() < seconds(10));
}

// 08-A13
#[tokio::test(start_paused = true)]
async fn stopping_sends_a_last_message_and_ends_everything() {
    let mut world = World::leading(
        Settings::default(),
        &[("n1", NodeState::Unknown), ("n2", NodeState::Unknown)],
    )
    .await;
    let (session_id, mut feed) = world.register("n1").await;
    let mut assignments = world.assignments("n1", &session_id).await.unwrap();
    next(&mut assignments).await;

    world.store.hold();
    let dispatcher = world.dispatcher.clone();
    let waiting = tokio::spawn(async move {
        dispatcher
            .session(from("n2", SessionRequest::default()))
            .await
            .map(drop)
    });
    tokio::time::sleep(seconds(1)).await;
    assert!(!waiting.is_finished());

    let start = Instant::now();
    world.step_down().await;
    let waited = tokio::time::timeout(seconds(1), waiting)
        .await
        .unwrap()
        .unwrap();
    refused(waited, Code::Aborted, "dispatcher is stopped");
    let (last, status) = ending(&mut feed).await;
    assert_eq!(
        (status.code(), status.message()),
        (Code::Aborted, "node must disconnect")
    );
    assert_eq!(last.len(), 1);
    assert_eq!(last[0].session_id, session_id);
    assert!(last[0].node.is_some() && !last[0].managers.is_empty());
    let (_, status) = ending(&mut assignments).await;
    assert_eq!(status.code(), Code::Aborted);
    assert!(start.elapsed() <= seconds(1));
}

// 08-A14
#[tokio::test(start_paused = true)]
async fn the_streams_of_a_replaced_session_end_at_once() {
    let world = World::leading(Settings::default(), READY).await;
    let (old, mut session) = world.register("n1").await;
    let mut assignments = world.assignments("n1", &old).await.unwrap();
    next(&mut assignments).await;
    let (new, _feed) = world.register("n1").await;
    for status in [
        ending(&mut session).await.1,
        ending(&mut assignments).await.1,
    ] {
        let invalid = (Code::InvalidArgument, "session invalid");
        assert_eq!((status.code(), status.message()), invalid);
    }
    refused(
        world.beat("n1", &old).await,
        Code::InvalidArgument,
        "session invalid",
    );
    refused(
        world.assignments("n1", &old).await,
        Code::InvalidArgument,
        "session invalid",
    );
    world.beat("n1", &new).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_session_of_one_term_means_nothing_in_the_next() {
    let mut world = World::leading(Settings::default(), READY).await;
    let (session_id, _feed) = world.register("n1").await;
    world.step_down().await;
    world.lead().await;
    refused(
        world.beat("n1", &session_id).await,
        Code::InvalidArgument,
        "session invalid",
    );
    let mut feed = world.session("n1", &session_id, None).await.unwrap();
    assert_ne!(next(&mut feed).await.session_id, session_id);
}

#[tokio::test(start_paused = true)]
async fn two_terms_cannot_run_at_once() {
    let world = World::leading(Settings::default(), READY).await;
    let (second, loaded) = world.start_term();
    let error = second.task.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "dispatcher is already running");
    assert!(loaded.await.is_err());
    world.register("n1").await;
}

#[tokio::test(start_paused = true)]
async fn a_term_without_its_cluster_fails() {
    let world = World::new(Settings::default(), READY).await;
    world.delete::<Cluster>(CLUSTER).await;
    let (leadership, loaded) = world.start_term();
    let error = leadership.task.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the cluster object c1 is missing");
    assert!(loaded.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_term_that_is_torn_down_leaves_nothing_behind() {
    let world = World::leading(Settings::default(), READY).await;
    let (session_id, mut feed) = world.register("n1").await;
    world.leadership.as_ref().unwrap().task.abort();
    let (_, status) = ending(&mut feed).await;
    assert_eq!(status.message(), "node must disconnect");
    refused(
        world.beat("n1", &session_id).await,
        Code::Aborted,
        "dispatcher is stopped",
    );
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_during_its_registration_still_expires() {
    let world = World::leading(Settings::default(), READY).await;
    world.store.hold();
    let session = world.session("n1", "", None);
    assert!(tokio::time::timeout(seconds(1), session).await.is_err());
    world.store.release();
    tokio::time::sleep(seconds(1)).await;
    assert_eq!(world.node_status("n1").0, NodeState::Ready);
    tokio::time::sleep(seconds(17)).await;
    assert_eq!(world.node_status("n1").0, NodeState::Down);
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_cannot_be_written_is_put_off_in_time() {
    let world = World::leading(Settings::default(), READY).await;
    world.store.hold();
    let start = Instant::now();
    let status = world.session("n1", "", None).await.err().unwrap();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(start.elapsed() <= seconds(5), "agents wait no longer");
    world.store.release();
}

#[tokio::test(start_paused = true)]
async fn one_session_may_not_open_streams_without_end() {
    let world = World::leading(Settings::default(), READY).await;
    let (session_id, session) = world.register("n1").await;
    let mut open = Vec::new();
    for _ in 1..Settings::default().session_streams_max {
        open.push(world.assignments("n1", &session_id).await.unwrap());
    }
    let one_more = world.assignments("n1", &session_id).await;
    assert_eq!(one_more.err().unwrap().code(), Code::ResourceExhausted);
    drop(session);
    tokio::time::sleep(millis(1)).await;
    world.assignments("n1", &session_id).await.unwrap();
}
