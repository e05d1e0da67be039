//! Tasks of a node whose `swarmd` is killed: they go on, and what became of them is not lost.

use crate::harness::swarmd::Swarmd;
use crate::harness::{SOON, wait_for};
use std::path::Path;

/// Creates a service of one task that runs a shell script and is never replaced.
fn create(node: &Swarmd, name: &str, script: &str) {
    node.ctl(&[
        "service",
        "create",
        "--name",
        name,
        "--image",
        "host",
        "--replicas",
        "1",
        "--restart-condition",
        "none",
        "--command",
        "sh",
        "--args=-c",
        "--args",
        script,
    ]);
}

/// Waits until the one task of a service is in a state; returns the task.
fn wait_state(node: &Swarmd, name: &str, state: &str) -> serde_json::Value {
    wait_for(&format!("{name} is {state}"), SOON, || {
        let tasks = node.ctl_json(&["service", "ps", "--all", name]);
        if tasks[0]["state"] == state {
            Ok(tasks[0].clone())
        } else {
            Err(tasks.to_string())
        }
    })
}

/// Each start of the script adds a line.
fn starts(marks: &Path) -> usize {
    std::fs::read_to_string(marks).map_or(0, |text| text.lines().count())
}

// 08-A33
#[test]
fn a_killed_agent_finds_its_tasks_again() {
    let mut node = Swarmd::start(&[]);
    let path = |name: &str| node.dir.path().join(name);
    let (stays, ends) = (path("stays"), path("ends"));
    let (gate, ended) = (path("gate"), path("ended"));
    create(
        &node,
        "stays",
        &format!("echo $$ >> {}; exec sleep 100000", stays.display()),
    );
    create(
        &node,
        "ends",
        &format!(
            "echo $$ >> {}; while ! [ -e {} ]; do sleep 0.02; done; touch {}; exit 7",
            ends.display(),
            gate.display(),
            ended.display()
        ),
    );
    let before = wait_state(&node, "stays", "RUNNING");
    wait_state(&node, "ends", "RUNNING");
    wait_for("both scripts have begun", SOON, || {
        if starts(&stays) == 1 && starts(&ends) == 1 {
            Ok(())
        } else {
            Err("not yet".to_string())
        }
    });

    node.kill();
    let pid = std::fs::read_to_string(&stays).expect("a process ID");
    assert!(Path::new("/proc").join(pid.trim()).exists(), "it goes on");
    std::fs::write(&gate, "").expect("a file");
    wait_for("one task ends while nobody is there", SOON, || {
        if ended.exists() {
            Ok(())
        } else {
            Err("not yet".to_string())
        }
    });

    node.restart();
    let failed = wait_state(&node, "ends", "FAILED");
    assert!(failed.to_string().contains("non-zero exit (7)"), "{failed}");
    let after = wait_state(&node, "stays", "RUNNING");
    assert_eq!(after["id"], before["id"]);
    assert_eq!((starts(&stays), starts(&ends)), (1, 1), "started once");
    assert!(Path::new("/proc").join(pid.trim()).exists(), "untouched");

    // What is removed ends.
    node.ctl(&["service", "rm", "stays"]);
    wait_for("the program is gone", SOON, || {
        if Path::new("/proc").join(pid.trim()).exists() {
            Err("still there".to_string())
        } else {
            Ok(())
        }
    });
}
