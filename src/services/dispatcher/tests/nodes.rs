//! Nodes as the store shows them: ready, unknown, down, and the tasks of those that stay down.

use super::*;
use crate::storage::ProposeError;

const UNKNOWN_MESSAGE: &str =
    r#"Node moved to "unknown" state due to leadership change in cluster"#;
const SILENT_UNKNOWN: &str = r#"heartbeat failure for node in "unknown" state"#;

fn short_period() -> Option<DispatcherConfig> {
    Some(DispatcherConfig {
        heartbeat_period: Some(prost_types::Duration {
            seconds: 0,
            nanos: 100_000_000,
        }),
    })
}

// 08-A6
#[tokio::test(start_paused = true)]
async fn a_node_that_falls_silent_is_down_within_three_periods() {
    let mut world = World::new(Settings::default(), &[("n1", NodeState::Unknown)]).await;
    world
        .change::<Cluster>(CLUSTER, |cluster| {
            cluster.spec.get_or_insert_default().dispatcher = short_period();
        })
        .await;
    world.lead().await;
    let (session_id, mut feed) = world.register("n1").await;
    assert_eq!(world.node_status("n1"), (NodeState::Ready, String::new()));
    tokio::time::sleep(millis(250)).await;
    assert_eq!(world.node_status("n1").0, NodeState::Ready);
    tokio::time::sleep(millis(250)).await;
    let down = (NodeState::Down, "heartbeat failure".to_owned());
    assert_eq!(world.node_status("n1"), down);

    // 08-A4, after expiry
    let beat = world.beat("n1", &session_id).await;
    refused(beat, Code::NotFound, "node not registered");
    let (_, status) = ending(&mut feed).await;
    assert_eq!(status.message(), "node not registered");
    assert_eq!(world.dispatcher.totals().expiries, 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_beats_stays_ready() {
    let world = World::leading(Settings::default(), &[("n1", NodeState::Unknown)]).await;
    let (session_id, _feed) = world.register("n1").await;
    for _ in 0..100 {
        let period = world.beat("n1", &session_id).await.unwrap();
        assert!(period >= millis(4500) && period < millis(5500), "08-A5");
        tokio::time::sleep(period * 2).await;
    }
    assert_eq!(world.node_status("n1").0, NodeState::Ready);
}

#[tokio::test(start_paused = true)]
async fn a_changed_period_counts_from_the_next_beat() {
    let world = World::leading(Settings::default(), &[("n1", NodeState::Unknown)]).await;
    let (session_id, _feed) = world.register("n1").await;
    world
        .change::<Cluster>(CLUSTER, |cluster| {
            cluster.spec.get_or_insert_default().dispatcher = short_period();
        })
        .await;
    tokio::time::sleep(millis(1)).await;
    let period = world.beat("n1", &session_id).await.unwrap();
    assert!(period < millis(110), "{period:?}");
}

// 08-A7
#[tokio::test(start_paused = true)]
async fn a_new_leader_knows_nothing_of_nodes_that_are_not_down() {
    let nodes = [
        ("down", NodeState::Down),
        ("ready", NodeState::Ready),
        ("silent", NodeState::Disconnected),
        ("unknown", NodeState::Unknown),
    ];
    let world = World::leading(Settings::default(), &nodes).await;
    let unknown = (NodeState::Unknown, UNKNOWN_MESSAGE.to_owned());
    for id in ["ready", "silent", "unknown"] {
        assert_eq!(world.node_status(id), unknown);
    }
    assert_eq!(world.node_status("down"), (NodeState::Down, String::new()));

    // 08-A4: known, but without a session
    let beat = world.beat("ready", "").await;
    refused(beat, Code::InvalidArgument, "session invalid");
    let beat = world.beat("down", "").await;
    refused(beat, Code::NotFound, "node not registered");

    let (session_id, _feed) = world.register("ready").await;
    let (_, _feed) = world.register("unknown").await;
    for id in ["ready", "unknown"] {
        assert_eq!(world.node_status(id), (NodeState::Ready, String::new()));
    }
    tokio::time::sleep(seconds(13)).await;
    world.beat("ready", &session_id).await.unwrap();
    tokio::time::sleep(seconds(13)).await;
    world.beat("ready", &session_id).await.unwrap();
    assert_eq!(world.node_status("silent"), unknown);
    tokio::time::sleep(seconds(8)).await;
    let down = (NodeState::Down, SILENT_UNKNOWN.to_owned());
    assert_eq!(world.node_status("silent"), down);
    assert_eq!(world.node_status("ready").0, NodeState::Ready);
    let down = (NodeState::Down, "heartbeat failure".to_owned());
    assert_eq!(world.node_status("unknown"), down);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_answered_before_the_nodes_are_written_as_unknown() {
    let mut world = World::new(Settings::default(), &[("n1", NodeState::Ready)]).await;
    world.store.hold();
    let (leadership, mut loaded) = world.start_term();
    tokio::time::sleep(seconds(10)).await;
    assert!(loaded.try_recv().is_err());
    let session = world.session("n1", "", None).await;
    refused(session, Code::Aborted, "dispatcher is stopped");
    world.store.release();
    loaded.await.unwrap();
    world.leadership = Some(leadership);
    world.register("n1").await;
    assert_eq!(world.node_status("n1").0, NodeState::Ready);
}

#[tokio::test(start_paused = true)]
async fn nodes_are_not_blamed_for_a_pause_of_the_manager() {
    let world = World::leading(Settings::default(), &[("n1", NodeState::Unknown)]).await;
    let (session_id, _feed) = world.register("n1").await;
    // Everything stands still, and goes on a minute later.
    tokio::time::advance(seconds(60)).await;
    tokio::time::sleep(seconds(10)).await;
    world.beat("n1", &session_id).await.unwrap();
    assert_eq!(world.node_status("n1").0, NodeState::Ready);
    tokio::time::sleep(seconds(17)).await;
    assert_eq!(world.node_status("n1").0, NodeState::Down);
}

// 08-A8
#[tokio::test(start_paused = true)]
async fn a_session_that_is_taken_up_again_keeps_its_id_and_is_not_counted() {
    let world = World::leading(Settings::default(), &[("n1", NodeState::Unknown)]).await;
    let first = world.session("n1", "", described("old")).await;
    let session_id = next(&mut first.unwrap()).await.session_id;
    for number in 0..20 {
        let hostname = format!("host-{number}");
        let mut feed = world
            .session("n1", &session_id, described(&hostname))
            .await
            .unwrap();
        let message = next(&mut feed).await;
        assert_eq!(message.session_id, session_id);
        let description = message.node.unwrap().description.unwrap();
        assert_eq!(description.hostname, hostname);
    }
    let description = world.get::<Node>("n1").description.clone();
    assert_eq!(description, described("host-19"));
    let report = world.dispatcher.node_report("n1").unwrap();
    assert!(report.registered);
    assert_eq!(report.sessions.len(), 1);
    assert_eq!(report.sessions[0].peer.as_deref(), Some("10.0.0.7:40000"));
}

// 08-A9
#[tokio::test(start_paused = true)]
async fn tasks_of_a_node_that_stays_down_are_orphaned() {
    let settings = Settings {
        node_down_period: seconds(1),
        ..Default::default()
    };
    let world = World::leading(settings, &[("n1", NodeState::Unknown)]).await;
    let states = [
        ("pending", TaskState::Pending),
        ("assigned", TaskState::Assigned),
        ("running", TaskState::Running),
        ("complete", TaskState::Complete),
        ("rejected", TaskState::Rejected),
    ];
    for (id, state) in states {
        world.create(task(id, "n1", state)).await;
    }
    world
        .create(task("elsewhere", "n2", TaskState::Running))
        .await;
    let (_, _feed) = world.register("n1").await;
    tokio::time::sleep(seconds(17)).await;
    assert_eq!(world.node_status("n1").0, NodeState::Down);
    tokio::time::sleep(seconds(2)).await;
    for (id, state) in states {
        let orphaned = ["assigned", "running"].contains(&id);
        let expected = if orphaned { TaskState::Orphaned } else { state };
        assert_eq!(world.task_state(id), expected, "{id}");
    }
    assert_eq!(world.task_state("elsewhere"), TaskState::Running);
    assert_eq!(world.node_status("n1").0, NodeState::Down);
    assert_eq!(
        world.dispatcher.node_report("n1").unwrap().deadline_in,
        None
    );
    world.register("n1").await;
    assert_eq!(world.node_status("n1").0, NodeState::Ready);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_in_time_keeps_its_tasks() {
    let settings = Settings {
        node_down_period: seconds(30),
        ..Default::default()
    };
    let world = World::leading(settings, &[("n1", NodeState::Unknown)]).await;
    world.create(task("t1", "n1", TaskState::Running)).await;
    let (_, feed) = world.register("n1").await;
    drop(feed);
    tokio::time::sleep(seconds(40)).await;
    assert_eq!(world.node_status("n1").0, NodeState::Down);
    let (session_id, _feed) = world.register("n1").await;
    for _ in 0..10 {
        tokio::time::sleep(seconds(10)).await;
        world.beat("n1", &session_id).await.unwrap();
    }
    assert_eq!(world.task_state("t1"), TaskState::Running);
}

#[tokio::test(start_paused = true)]
async fn the_time_a_node_is_down_goes_on_over_changes_of_leader() {
    // Without a group to replicate to, the store keeps the times it is given.
    let mut world = World::over(TestStore::without_proposer(), Settings::default(), &[]).await;
    let mut down = node("n1", NodeState::Down);
    let almost_a_day_ago = std::time::SystemTime::now() - (seconds(86_400) - seconds(60));
    down.meta.get_or_insert_default().updated_at =
        Some(crate::api::time::from_system(almost_a_day_ago));
    world.create(down).await;
    world.create(task("t1", "n1", TaskState::Running)).await;
    world.lead().await;
    let left = world
        .dispatcher
        .node_report("n1")
        .unwrap()
        .deadline_in
        .unwrap();
    assert!(left <= seconds(60) && left > seconds(30), "{left:?}");
    tokio::time::sleep(seconds(62)).await;
    assert_eq!(world.task_state("t1"), TaskState::Orphaned);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_removed_loses_its_session_at_once() {
    let world = World::leading(Settings::default(), &[("n1", NodeState::Unknown)]).await;
    let (session_id, mut feed) = world.register("n1").await;
    world.delete::<Node>("n1").await;
    let (_, status) = ending(&mut feed).await;
    assert_eq!(
        (status.code(), status.message()),
        (Code::NotFound, "node not registered")
    );
    refused(
        world.beat("n1", &session_id).await,
        Code::NotFound,
        "node not registered",
    );
    refused(
        world.session("n1", "", None).await,
        Code::NotFound,
        "node not found",
    );
    assert_eq!(world.dispatcher.node_report("n1"), None);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_of_the_group_delays_writes_and_loses_none() {
    let world = World::leading(Settings::default(), &[("n1", NodeState::Unknown)]).await;
    world.create(task("t1", "n1", TaskState::Running)).await;
    let (session_id, _feed) = world.register("n1").await;
    world.store.proposer().refuse(Some(ProposeError::Busy));
    world
        .report("n1", &session_id, vec![update("t1", TaskState::Failed)])
        .await
        .unwrap();
    tokio::time::sleep(seconds(2)).await;
    assert_eq!(world.task_state("t1"), TaskState::Running);
    world.store.proposer().refuse(None);
    tokio::time::sleep(seconds(1)).await;
    assert_eq!(world.task_state("t1"), TaskState::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_manager_s_own_node_is_known_by_the_address_of_the_manager() {
    let world = World::leading(Settings::default(), &[(LEADER, NodeState::Unknown)]).await;
    let mut request = from(LEADER, SessionRequest::default());
    let caller = request.extensions_mut().get_mut::<Caller>().unwrap();
    caller.remote_addr = None;
    caller.local = true;
    world.dispatcher.session(request).await.unwrap();
    let status = world.get::<Node>(LEADER).status.clone().unwrap();
    assert_eq!(status.addr, "10.0.0.1");
}
