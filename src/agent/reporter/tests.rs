use super::*;
use crate::agent::testing::{Asked, FakeManager, Mood};
use crate::api::types::TaskState;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::mpsc;

fn status(state: TaskState) -> TaskStatus {
    TaskStatus {
        state: state as i32,
        ..Default::default()
    }
}

fn states(call: &[(String, TaskStatus)]) -> Vec<(&str, i32)> {
    call.iter()
        .map(|(id, status)| (id.as_str(), status.state))
        .collect()
}

#[test]
fn only_the_newest_status_counts() {
    let mut pending = Pending::default();
    pending.put("a", status(TaskState::Running));
    pending.put("a", status(TaskState::Starting));
    assert_eq!(states(&pending.next_call()), [("a", 512)]);
    pending.put("a", status(TaskState::Failed));
    let call = pending.next_call();
    assert_eq!(states(&call), [("a", 704)]);
    pending.taken(call);
    assert!(pending.is_empty());
    pending.put("a", status(TaskState::Failed));
    assert!(pending.is_empty(), "it was taken already");
    pending.start_over([("a".to_owned(), status(TaskState::Failed))]);
    assert_eq!(states(&pending.next_call()), [("a", 704)]);
    pending.forget("a");
    assert!(pending.is_empty());
}

#[test]
fn a_status_that_came_during_a_call_is_sent_too() {
    let mut pending = Pending::default();
    pending.put("a", status(TaskState::Running));
    let call = pending.next_call();
    pending.put("a", status(TaskState::Failed));
    pending.taken(call);
    assert_eq!(states(&pending.next_call()), [("a", 704)]);
    pending.unwanted(&[("a".to_owned(), status(TaskState::Running))]);
    assert!(!pending.is_empty(), "another one is unwanted");
}

#[test]
fn few_go_one_by_one_in_turn_and_many_together() {
    let mut pending = Pending::default();
    for id in ["a", "b", "c"] {
        pending.put(id, status(TaskState::Running));
    }
    let turns: Vec<String> = (0..4).map(|_| pending.next_call()[0].0.clone()).collect();
    assert_eq!(turns, ["a", "b", "c", "a"]);
    for n in 0..2000 {
        pending.put(&format!("t{n:04}"), status(TaskState::Running));
    }
    let call = pending.next_call();
    assert_eq!(call.len(), BATCH_MAX);
    let distinct: std::collections::BTreeSet<&str> =
        call.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(distinct.len(), BATCH_MAX);
}

// 08-A35
#[test]
fn every_final_status_is_taken_once_however_often_calls_fail() {
    let mut random = StdRng::seed_from_u64(5);
    let mut pending = Pending::default();
    let steps = [
        TaskState::Preparing,
        TaskState::Starting,
        TaskState::Running,
        TaskState::Complete,
    ];
    let mut taken: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    let mut moves: Vec<(usize, usize)> =
        (0..100).flat_map(|n| (0..4).map(move |s| (s, n))).collect();
    moves.sort_by_key(|(step, _)| *step);
    let mut queue = moves.into_iter();
    loop {
        for (step, n) in queue.by_ref().take(7) {
            pending.put(&format!("task-{n}"), status(steps[step]));
        }
        let call = pending.next_call();
        if call.is_empty() {
            break;
        }
        if random.random_bool(0.1) {
            continue;
        }
        for (id, status) in &call {
            taken.entry(id.clone()).or_default().push(status.state);
        }
        pending.taken(call);
    }
    assert_eq!(taken.len(), 100);
    for (id, states) in taken {
        assert_eq!(states.last(), Some(&(TaskState::Complete as i32)), "{id}");
        assert!(states.is_sorted_by(|a, b| a < b), "{id}: {states:?}");
    }
}

async fn connected() -> (
    Arc<Reporter>,
    FakeManager,
    mpsc::UnboundedReceiver<Asked>,
    ReportChannel,
    mpsc::Receiver<Status>,
) {
    let (manager, asked) = FakeManager::start();
    let (failed, failures) = mpsc::channel(1);
    let channel = ReportChannel {
        client: DispatcherClient::new(manager.channel().await),
        session_id: "s".to_owned(),
        failed,
    };
    let reporter = Reporter::new();
    let running = reporter.clone();
    tokio::spawn(async move { running.run().await });
    (reporter, manager, asked, channel, failures)
}

async fn next_report(asked: &mut mpsc::UnboundedReceiver<Asked>) -> Vec<(String, i32)> {
    match asked.recv().await {
        Some(Asked::Statuses(call)) => call
            .into_iter()
            .map(|(id, status)| (id, status.state))
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn reports_wait_for_a_session_and_carry_nothing_of_the_managers() {
    let (reporter, _manager, mut asked, channel, _failures) = connected().await;
    let mut stored = status(TaskState::Running);
    stored.applied_by = "manager".to_owned();
    stored.applied_at = Some(Default::default());
    reporter.put("a", &stored);
    tokio::task::yield_now().await;
    assert!(asked.try_recv().is_err());
    reporter.session_started(channel, vec![("b".to_owned(), status(TaskState::Failed))]);
    assert_eq!(next_report(&mut asked).await, [("a".to_owned(), 512)]);
    assert_eq!(next_report(&mut asked).await, [("b".to_owned(), 704)]);
}

#[tokio::test(start_paused = true)]
async fn unknown_tasks_are_forgotten_and_other_errors_end_the_session() {
    let (reporter, manager, mut asked, channel, mut failures) = connected().await;
    manager.set_statuses(Mood::Bad(Status::not_found("node not registered")));
    reporter.session_started(channel.clone(), Vec::new());
    reporter.put("a", &status(TaskState::Running));
    assert_eq!(next_report(&mut asked).await, [("a".to_owned(), 512)]);

    manager.set_statuses(Mood::Bad(Status::aborted("dispatcher is stopped")));
    reporter.put("b", &status(TaskState::Running));
    assert_eq!(next_report(&mut asked).await, [("b".to_owned(), 512)]);
    assert_eq!(failures.recv().await.unwrap().code(), Code::Aborted);
    reporter.session_ended();

    manager.set_statuses(Mood::Well);
    reporter.session_started(channel, Vec::new());
    assert_eq!(next_report(&mut asked).await, [("b".to_owned(), 512)]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(asked.try_recv().is_err(), "everything is taken");
}

#[tokio::test(start_paused = true)]
async fn a_task_of_another_node_does_not_hold_up_the_others() {
    let (reporter, manager, mut asked, channel, mut failures) = connected().await;
    manager.set_statuses(Mood::Bad(Status::permission_denied(
        "cannot update a task not assigned this node",
    )));
    let all = (0..20).map(|n| (format!("t{n:02}"), status(TaskState::Running)));
    reporter.session_started(channel, all.collect());
    assert_eq!(next_report(&mut asked).await.len(), 20);
    assert_eq!(next_report(&mut asked).await, [("t00".to_owned(), 512)]);
    assert_eq!(
        failures.recv().await.unwrap().code(),
        Code::PermissionDenied
    );
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_does_not_answer_ends_the_session() {
    let (reporter, manager, mut asked, channel, mut failures) = connected().await;
    manager.set_statuses(Mood::Silent);
    reporter.session_started(channel, Vec::new());
    reporter.put("a", &status(TaskState::Running));
    next_report(&mut asked).await;
    assert_eq!(
        failures.recv().await.unwrap().code(),
        Code::DeadlineExceeded
    );
}
