use super::*;
use TaskState::*;

fn status(state: TaskState, message: &str) -> TaskStatus {
    TaskStatus {
        state: state as i32,
        message: message.to_owned(),
        ..Default::default()
    }
}

/// The table of spec 08 section 15.6 in full: rows are states, columns desired states.
// 08-A34
#[test]
fn step_table() {
    const DESIRED: [TaskState; 5] = [Ready, Running, Complete, Shutdown, Remove];
    let accept = Step::Advance(Accepted, "accepted");
    let preparing = Step::Advance(Preparing, "preparing");
    let starting = Step::Advance(Starting, "starting");
    let (pause, stop) = (Step::Pause, Step::Shutdown);
    let table = [
        (New, [accept, accept, accept, stop, stop]),
        (Pending, [accept, accept, accept, stop, stop]),
        (Assigned, [accept, accept, accept, stop, stop]),
        (Accepted, [preparing, preparing, preparing, stop, stop]),
        (
            Preparing,
            [Step::Prepare, Step::Prepare, Step::Prepare, stop, stop],
        ),
        (Ready, [pause, starting, starting, stop, stop]),
        (Starting, [pause, Step::Start, Step::Start, stop, stop]),
        (Running, [pause, Step::Wait, Step::Wait, stop, stop]),
        (Complete, [pause; 5]),
        (Shutdown, [pause; 5]),
        (Failed, [pause; 5]),
        (Rejected, [pause; 5]),
        (Orphaned, [pause; 5]),
    ];
    for (state, steps) in table {
        for (desired, step) in DESIRED.into_iter().zip(steps) {
            assert_eq!(
                next(desired as i32, state as i32),
                step,
                "{state:?}, wanted {desired:?}"
            );
        }
    }
    // Equal to the state: only the three working states go on.
    assert_eq!(next(Accepted as i32, Accepted as i32), pause);
    assert_eq!(next(Assigned as i32, Assigned as i32), pause);
    assert_eq!(next(Preparing as i32, Preparing as i32), Step::Prepare);
    // A state of a future release.
    assert_eq!(next(Running as i32, 300), pause);
}

// 08-A34
#[test]
fn success_moves_on_and_clears_the_error() {
    let mut before = status(Preparing, "preparing (attempt 3)");
    before.err = "registry is away".to_owned();
    for result in [Ok(()), Err(TaskError::AlreadyPrepared)] {
        let outcome = after(Step::Prepare, &before, result, 3);
        assert_eq!(outcome.status, status(Ready, "prepared"));
        assert_eq!(outcome.retry, None);
    }
    let outcome = after(
        Step::Start,
        &status(Starting, "starting"),
        Err(TaskError::AlreadyStarted),
        0,
    );
    assert_eq!(outcome.status, status(Running, "started"));
    let outcome = after(Step::Wait, &status(Running, "started"), Ok(()), 0);
    assert_eq!(outcome.status, status(Complete, "finished"));
    let outcome = after(Step::Shutdown, &status(Running, "started"), Ok(()), 0);
    assert_eq!(outcome.status, status(Shutdown, "shutdown"));
}

// 08-A34
#[test]
fn failures_reject_before_the_start_and_fail_after_it() {
    let fatal = || Err(TaskError::fatal("no such thing"));
    let outcome = after(Step::Prepare, &status(Preparing, "preparing"), fatal(), 0);
    assert_eq!(
        (outcome.status.state, outcome.status.message.as_str()),
        (Rejected as i32, "preparing")
    );
    assert_eq!(outcome.status.err, "no such thing");

    let outcome = after(Step::Start, &status(Starting, "starting"), fatal(), 0);
    assert_eq!(outcome.status.state, Failed as i32);
    assert_eq!(outcome.status.message, "starting");

    let exit = TaskError::Exit {
        code: 1,
        cause: None,
    };
    let outcome = after(Step::Wait, &status(Running, "started"), Err(exit), 0);
    assert_eq!(outcome.status.state, Failed as i32);
    assert_eq!(outcome.status.message, "started");
    assert_eq!(outcome.status.err, "task: non-zero exit (1)");

    // "Already" is only a success where it answers the step.
    let outcome = after(
        Step::Wait,
        &status(Running, "started"),
        Err(TaskError::AlreadyStarted),
        0,
    );
    assert_eq!(outcome.status.state, Failed as i32);
}

#[test]
fn temporary_errors_count_their_attempts() {
    let before = status(Preparing, "preparing");
    let away = || Err(TaskError::temporary("away"));
    let first = after(Step::Prepare, &before, away(), 0);
    assert_eq!(first.retry, Some(Retry::Temporary));
    assert_eq!(first.status.message, "preparing (attempt 1)");
    assert_eq!(first.status.err, "away");
    let second = after(Step::Prepare, &first.status, away(), 1);
    assert_eq!(second.status.message, "preparing (attempt 2)");
    let end = after(
        Step::Prepare,
        &second.status,
        Err(TaskError::fatal("gone")),
        2,
    );
    assert_eq!(end.status.state, Rejected as i32);
    assert_eq!(end.status.message, "preparing");

    let cancelled = after(Step::Prepare, &before, Err(TaskError::Cancelled), 0);
    assert_eq!(cancelled.retry, Some(Retry::Cancelled));
    assert_eq!(cancelled.status, before);
}

#[test]
fn unresolvable_tasks() {
    for (state, expected) in [
        (Assigned, Some(Rejected)),
        (Ready, Some(Rejected)),
        (Starting, Some(Failed)),
        (Running, Some(Failed)),
        (Complete, None),
        (Failed, None),
    ] {
        let after = unresolvable(&status(state, "x"), "no driver");
        assert_eq!(
            after.as_ref().map(|after| after.state),
            expected.map(|state| state as i32),
            "{state:?}"
        );
        if let Some(after) = after {
            assert_eq!(after.message, "resolving controller failed");
            assert_eq!(after.err, "no driver");
        }
    }
    assert!(accepted(&status(Accepted, "accepted")).is_none());
    assert_eq!(
        accepted(&status(Assigned, "scheduler assigned task to node")),
        Some(status(Accepted, "accepted"))
    );
}

#[test]
fn the_timestamp_changes_exactly_with_the_rest() {
    let now = |seconds| Timestamp { seconds, nanos: 0 };
    let mut before = status(Running, "started");
    before.timestamp = Some(now(1));
    assert_eq!(stamp(&before, before.clone(), now(2)), None);
    let mut changed = before.clone();
    changed.err = "x".to_owned();
    let stamped = stamp(&before, changed, now(2)).unwrap();
    assert_eq!(stamped.timestamp, Some(now(2)));
    assert_eq!(
        stamp(&before, status(Starting, "starting"), now(2)),
        None,
        "never back"
    );
}

#[test]
fn updates_that_count() {
    let task = |desired: TaskState, slot| Task {
        id: "t".to_owned(),
        desired_state: desired as i32,
        slot,
        ..Default::default()
    };
    let current = task(Running, 1);
    let mut same_but_status = current.clone();
    same_but_status.status = Some(status(Running, "started"));
    same_but_status.meta = Some(Default::default());
    assert!(!is_update(&current, &same_but_status));
    assert!(is_update(&current, &task(Shutdown, 1)));
    assert!(is_update(&current, &task(Running, 2)));
    assert!(!is_update(&task(Shutdown, 1), &task(Running, 1)), "lower");
    let other = Task {
        id: "u".to_owned(),
        ..task(Shutdown, 1)
    };
    assert!(!is_update(&current, &other));
}
