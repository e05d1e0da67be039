//! The process itself: orderly stop, a second process on the same directory, idle size, restart.

use crate::harness::swarmd::Swarmd;
use crate::harness::wait_for;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn an_orderly_stop_takes_less_than_ten_seconds_and_leaves_tasks_running() {
    let mut node = Swarmd::start(&[]);
    node.ctl(&[
        "service",
        "create",
        "--name",
        "web",
        "--image",
        "host",
        "--replicas",
        "2",
        "--command",
        "sleep",
        "--args",
        "100000",
        "--wait",
    ]);
    let before = node.ctl(&["service", "ps", "web", "--quiet"]);
    let (status, took) = node.stop();
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(!node.socket().exists(), "the socket is left behind");
    node.restart();
    wait_for(
        "the tasks are running again",
        Duration::from_secs(20),
        || {
            let service = node.ctl_json(&["service", "ls"]);
            if service[0]["running"] == 2 {
                Ok(())
            } else {
                Err(service.to_string())
            }
        },
    );
    assert_eq!(node.ctl(&["service", "ps", "web", "--quiet"]), before);
}

#[test]
fn a_second_process_on_the_same_directory_is_refused() {
    // 01-A22
    let node = Swarmd::start(&["--executor", "none"]);
    let begin = Instant::now();
    let output = node
        .command()
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        begin.elapsed() < Duration::from_secs(2),
        "{:?}",
        begin.elapsed()
    );
    assert!(text.contains("in use"), "{text}");
    assert_eq!(node.ctl_json(&["node", "ls"])[0]["status"], "READY");
}

#[test]
fn nobody_else_may_read_the_state() {
    // 01-A21
    let node = Swarmd::start(&["--executor", "none"]);
    let mode = |path: &std::path::Path| {
        std::fs::metadata(path)
            .expect("metadata")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode(&node.state_dir()), 0o700);
    assert_eq!(mode(&node.socket()), 0o600);
    assert_eq!(
        mode(&node.state_dir().join("certificates/swarm-node.key")),
        0o600
    );
    assert_eq!(mode(&node.state_dir().join("raft")), 0o700);
}

#[test]
fn a_task_that_ends_is_replaced_after_its_delay() {
    let node = Swarmd::start(&[]);
    node.ctl(&[
        "service",
        "create",
        "--name",
        "brief",
        "--image",
        "host",
        "--replicas",
        "1",
        "--restart-delay",
        "100ms",
        "--command",
        "sh",
        "--args=-c",
        "--args",
        "exit 3",
    ]);
    wait_for(
        "failed tasks of one slot are replaced",
        Duration::from_secs(30),
        || {
            let tasks = node.ctl_json(&["service", "ps", "--all", "brief"]);
            let failed = tasks.as_array().map_or(0, |tasks| {
                tasks
                    .iter()
                    .filter(|task| task["state"] == "FAILED")
                    .count()
            });
            if failed >= 2 {
                Ok(())
            } else {
                Err(tasks.to_string())
            }
        },
    );
    let tasks = node.ctl_json(&["service", "ps", "--all", "brief"]);
    assert!(tasks.to_string().contains("non-zero exit (3)"), "{tasks}");
}

#[test]
fn a_container_image_is_not_run_by_the_process_executor() {
    let node = Swarmd::start(&[]);
    node.ctl(&[
        "service",
        "create",
        "--name",
        "web",
        "--image",
        "nginx:1",
        "--replicas",
        "1",
    ]);
    wait_for(
        "the task says what it needs",
        Duration::from_secs(20),
        || {
            let tasks = node.ctl_json(&["service", "ps", "web"]);
            if tasks[0]["error"]
                .as_str()
                .is_some_and(|error| error.contains("needs another executor on 1 node"))
            {
                Ok(())
            } else {
                Err(tasks.to_string())
            }
        },
    );
}

#[test]
fn flags_of_missing_parts_are_refused_by_name() {
    let node = Swarmd::prepare(&[]);
    for flag in ["--autolock", "--rejoin"] {
        let output = node.command().arg(flag).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(
            text.contains(flag) && text.contains("not available yet"),
            "{text}"
        );
    }
    assert!(
        !node.state_dir().exists(),
        "a refused start wrote something"
    );
}
