//! `swarmctl` says one clear line and fails when something is wrong.

use crate::harness::swarmd::{Swarmd, swarmctl};
use std::path::Path;
use std::process::Output;

fn assert_one_line(output: &Output, wanted: &str) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "it should fail: {text}");
    assert_eq!(text.trim_end().lines().count(), 1, "one line, not: {text}");
    assert!(text.contains(wanted), "{wanted:?} is not in {text:?}");
}

#[test]
fn an_unreachable_socket_is_one_clear_line() {
    let output = swarmctl(Path::new("/nonexistent/control.sock"), &["service", "ls"]);
    assert_one_line(
        &output,
        "cannot reach the manager at /nonexistent/control.sock",
    );
}

#[test]
fn a_bad_flag_names_itself() {
    let output = swarmctl(Path::new("/nonexistent"), &["service", "ls", "--colour"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--colour"));
}

#[test]
fn unknown_objects_and_refused_specs() {
    let node = Swarmd::start(&["--executor", "none"]);
    for (args, wanted) in [
        (
            vec!["service", "inspect", "ghost"],
            "service ghost not found",
        ),
        (vec!["node", "drain", "ghost"], "node ghost not found"),
        (vec!["task", "inspect", "ghost"], "task ghost not found"),
        (vec!["secret", "rm", "ghost"], "secret ghost not found"),
        (vec!["config", "inspect", "ghost"], "config ghost not found"),
        (vec!["service", "scale", "web"], "is not SERVICE=REPLICAS"),
        (
            vec!["service", "create", "--name", "web"],
            "--name and --image are needed",
        ),
        (
            vec!["service", "create", "--name=-bad-", "--image", "host"],
            "name",
        ),
    ] {
        assert_one_line(&node.ctl_output(&args), wanted);
    }
    assert_eq!(node.ctl(&["service", "ls", "--quiet"]), "");

    node.ctl(&[
        "service",
        "create",
        "--name",
        "web",
        "--image",
        "host",
        "--replicas",
        "0",
        "--command",
        "true",
    ]);
    let again = node.ctl_output(&[
        "service",
        "create",
        "--name",
        "web",
        "--image",
        "host",
        "--command",
        "true",
    ]);
    assert_one_line(&again, "name conflicts");
    assert_one_line(
        &node.ctl_output(&["service", "update", "web"]),
        "no changes detected",
    );
}

#[test]
fn lists_are_tables_for_people_and_json_for_programs() {
    let node = Swarmd::start(&["--executor", "none"]);
    let table = node.ctl(&["node", "ls"]);
    assert!(table.starts_with("ID"), "{table}");
    let json = node.ctl_json(&["node", "ls"]);
    assert_eq!(json[0]["leader"], true);
    assert_eq!(json[0]["status"], "READY");
    for list in ["cluster", "service", "task", "secret", "config"] {
        assert!(node.ctl_json(&[list, "ls"]).is_array(), "{list}");
    }
}
