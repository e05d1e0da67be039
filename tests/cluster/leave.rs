//! Nodes that leave for good.

use crate::harness::swarmd::Swarmd;
use crate::harness::{SOON, wait_for};
use std::path::Path;
use std::process::{Command, Output};

pub fn leave(node: &Swarmd, extra: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_swarmd"))
        .arg("leave")
        .arg("--state-dir")
        .arg(node.state_dir())
        .args(extra)
        .output()
        .expect("swarmd runs")
}

fn error_of(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What is left in a state directory, the lock file aside.
fn left_in(node: &Swarmd) -> Vec<String> {
    let entries = std::fs::read_dir(node.state_dir()).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| name != "LOCK")
        .collect()
}

#[test]
fn a_worker_leaves_with_its_tasks() {
    let manager = Swarmd::start(&["--executor", "none"]);
    let (address, token) = (manager.remote(), manager.token("worker"));
    let flags = ["--join-addr", &address, "--join-token", &token];
    let mut worker = Swarmd::start(&flags);
    let pid_file = worker.dir.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 100000", pid_file.display());
    let create = ["service", "create", "--name", "task", "--image", "host"];
    let command = ["--command", "sh", "--args=-c", "--args", &script, "--wait"];
    manager.ctl(&[&create[..], &["--replicas", "1"], &command].concat());
    let pid = std::fs::read_to_string(&pid_file).expect("a pid");

    let output = leave(&worker, &[]);
    assert!(output.status.success(), "{}", error_of(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("swarmctl node rm"));
    wait_for("the node has ended", SOON, || match worker.is_running() {
        true => Err("still running".into()),
        false => Ok(()),
    });
    assert!(
        !Path::new("/proc").join(pid.trim()).exists(),
        "its task is gone"
    );
    assert!(left_in(&worker).is_empty(), "{:?}", left_in(&worker));
    // Nobody is there who could leave.
    let text = error_of(&leave(&worker, &[]));
    assert!(text.contains("start it first"), "{text}");
    // The directory can be used anew.
    worker.restart();
}

#[test]
fn the_last_manager_leaves_only_by_force() {
    let mut manager = Swarmd::start(&["--executor", "none"]);
    let text = error_of(&leave(&manager, &[]));
    assert!(text.contains("last manager"), "{text}");
    assert!(text.contains("--force"), "{text}");
    assert_eq!(manager.ctl_json(&["node", "ls"])[0]["status"], "READY");
    let output = leave(&manager, &["--force"]);
    assert!(output.status.success(), "{}", error_of(&output));
    wait_for("the node has ended", SOON, || match manager.is_running() {
        true => Err("still running".into()),
        false => Ok(()),
    });
    assert!(left_in(&manager).is_empty(), "{:?}", left_in(&manager));
}
