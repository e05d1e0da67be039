//! Reports of task statuses: what is accepted, what is written, and what happens when it is too much.

use super::*;
use crate::api::types::UpdateVolumeStatusRequest;
use crate::storage::ProposeError;

const NODES: &[(&str, NodeState)] = &[("n1", NodeState::Unknown), ("n2", NodeState::Unknown)];

/// Longer than a report waits for its write.
async fn written() {
    tokio::time::sleep(millis(250)).await;
}

// 08-A24
#[tokio::test(start_paused = true)]
async fn what_is_known_is_written_and_the_rest_passed_over() {
    let world = World::leading(Settings::default(), NODES).await;
    for id in ["t1", "t2"] {
        world.create(task(id, "n1", TaskState::Assigned)).await;
    }
    world
        .create(task("foreign", "n2", TaskState::Assigned))
        .await;
    let (session_id, _feed) = world.register("n1").await;
    let nothing = TaskStatusUpdate {
        task_id: "t1".to_owned(),
        status: None,
    };
    let updates = vec![
        update("t1", TaskState::Running),
        update("t2", TaskState::Starting),
        update("no such task", TaskState::Running),
        nothing,
    ];
    world.report("n1", &session_id, updates).await.unwrap();
    written().await;
    for (id, state) in [("t1", TaskState::Running), ("t2", TaskState::Starting)] {
        let status = world.get::<Task>(id).status.clone().unwrap();
        assert_eq!(status.state(), state);
        assert_eq!(
            (status.message.as_str(), status.applied_by.as_str()),
            ("reported", LEADER)
        );
        assert!(status.applied_at.is_some());
    }

    // One task of another node spoils the whole request.
    let updates = vec![
        update("t1", TaskState::Failed),
        update("foreign", TaskState::Running),
    ];
    refused(
        world.report("n1", &session_id, updates).await,
        Code::PermissionDenied,
        "cannot update a task not assigned this node",
    );
    written().await;
    assert_eq!(world.task_state("t1"), TaskState::Running);
    assert_eq!(world.task_state("foreign"), TaskState::Assigned);

    // States never go back.
    world
        .report("n1", &session_id, vec![update("t1", TaskState::Shutdown)])
        .await
        .unwrap();
    written().await;
    world
        .report("n1", &session_id, vec![update("t1", TaskState::Running)])
        .await
        .unwrap();
    written().await;
    assert_eq!(world.task_state("t1"), TaskState::Shutdown);
}

// 08-A25
#[tokio::test(start_paused = true)]
async fn repeated_reports_cost_no_write() {
    let world = World::leading(Settings::default(), NODES).await;
    let ids: Vec<String> = (0..1000).map(|number| format!("t{number}")).collect();
    let created = world.store.update(|tx| {
        ids.iter()
            .try_for_each(|id| tx.create(task(id, "n1", TaskState::Assigned)).map(drop))
    });
    created
        .await
        .unwrap_or_else(|error: StoreError| panic!("{error}"));
    let (session_id, _feed) = world.register("n1").await;
    let updates: Vec<_> = ids
        .iter()
        .map(|id| update(id, TaskState::Running))
        .collect();
    let before = world.writes();
    world
        .report("n1", &session_id, updates.clone())
        .await
        .unwrap();
    written().await;
    let first = world.writes() - before;
    assert!(
        (5..=6).contains(&first),
        "1000 changes in entries of 200: {first}"
    );
    world.report("n1", &session_id, updates).await.unwrap();
    written().await;
    assert_eq!(world.writes() - before, first);
    assert_eq!(world.dispatcher.totals().task_reports, 2000);
}

#[tokio::test(start_paused = true)]
async fn reports_need_the_current_session() {
    let world = World::leading(Settings::default(), NODES).await;
    world.register("n1").await;
    let report = world.report("n1", "x", vec![]).await;
    refused(report, Code::InvalidArgument, "session invalid");
    let request = UpdateVolumeStatusRequest::default();
    let report = world
        .dispatcher
        .update_volume_status(from("n1", request))
        .await;
    refused(report, Code::InvalidArgument, "session invalid");
}

#[tokio::test(start_paused = true)]
async fn malformed_reports_are_refused_and_change_nothing() {
    let world = World::leading(Settings::default(), NODES).await;
    world.create(task("t1", "n1", TaskState::Assigned)).await;
    let (session_id, _feed) = world.register("n1").await;
    let mut strange = update("t1", TaskState::Running);
    strange.status.as_mut().unwrap().state = 513;
    let mut huge = update("t1", TaskState::Running);
    huge.status.as_mut().unwrap().err = "x".repeat(settings::STATUS_BYTES_MAX);
    for bad in [strange, huge] {
        let updates = vec![update("t1", TaskState::Running), bad];
        let status = world.report("n1", &session_id, updates).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("t1"), "{}", status.message());
    }
    written().await;
    assert_eq!(world.task_state("t1"), TaskState::Assigned);
}

#[tokio::test(start_paused = true)]
async fn reporters_wait_while_too_much_is_queued() {
    let settings = Settings {
        queued_reports_max: 2,
        ..Default::default()
    };
    let world = World::leading(settings, NODES).await;
    for id in ["t1", "t2", "t3", "t4", "t5"] {
        world.create(task(id, "n1", TaskState::Assigned)).await;
    }
    let (session_id, _feed) = world.register("n1").await;
    let report = |ids: &[&str]| {
        let updates = ids
            .iter()
            .map(|id| update(id, TaskState::Running))
            .collect();
        world.report("n1", &session_id, updates)
    };
    world.store.hold();
    report(&["t1"]).await.unwrap();
    // The first is being written; these two fill the queue.
    tokio::time::sleep(millis(150)).await;
    report(&["t2", "t3"]).await.unwrap();
    let start = Instant::now();
    let status = report(&["t4"]).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(start.elapsed(), seconds(5));

    let (late, ()) = tokio::join!(report(&["t5"]), async {
        tokio::time::sleep(seconds(1)).await;
        world.store.release();
    });
    late.unwrap();
    written().await;
    for (id, state) in [
        ("t1", TaskState::Running),
        ("t2", TaskState::Running),
        ("t3", TaskState::Running),
        ("t4", TaskState::Assigned),
        ("t5", TaskState::Running),
    ] {
        assert_eq!(world.task_state(id), state, "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn reports_survive_a_write_that_was_refused() {
    let world = World::leading(Settings::default(), NODES).await;
    world.create(task("t1", "n1", TaskState::Assigned)).await;
    let (session_id, _feed) = world.register("n1").await;
    for error in [
        ProposeError::Dropped,
        ProposeError::DiskFull("no space".to_owned()),
    ] {
        world.store.proposer().refuse(Some(error));
        world
            .report("n1", &session_id, vec![update("t1", TaskState::Running)])
            .await
            .unwrap();
        written().await;
        world
            .report("n1", &session_id, vec![update("t1", TaskState::Starting)])
            .await
            .unwrap();
        tokio::time::sleep(seconds(3)).await;
        world.store.proposer().refuse(None);
        tokio::time::sleep(seconds(1)).await;
        assert_eq!(world.task_state("t1"), TaskState::Running);
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_has_no_room_for_its_status_harms_no_other() {
    let world = World::leading(Settings::default(), NODES).await;
    let mut large = task("large", "n1", TaskState::Assigned);
    large.annotations.get_or_insert_default().name = "x".repeat(1_400_000);
    world.create(large).await;
    for id in ["t1", "t2"] {
        world.create(task(id, "n1", TaskState::Assigned)).await;
    }
    let (session_id, _feed) = world.register("n1").await;
    let mut too_much = update("large", TaskState::Running);
    too_much.status.as_mut().unwrap().err = "x".repeat(200_000);
    let updates = vec![
        update("t1", TaskState::Running),
        too_much,
        update("t2", TaskState::Running),
    ];
    world.report("n1", &session_id, updates).await.unwrap();
    written().await;
    assert_eq!(world.task_state("t1"), TaskState::Running);
    assert_eq!(world.task_state("t2"), TaskState::Running);
    assert_eq!(world.task_state("large"), TaskState::Assigned);
}
