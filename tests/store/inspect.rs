//! `swarm-db inspect` tells what a stopped directory holds, and changes nothing in it.

use crate::member::{Member, files_below, files_with, node_key, service, service_name};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use swarm_manager::storage::state_dir::StateDir;

fn swarm_db(arguments: &[&str], dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_swarm-db"))
        .arg("inspect")
        .arg(dir)
        .args(arguments)
        .env_remove("SWARM_UNLOCK_KEY")
        .output()
        .expect("swarm-db runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(dir: &Path, arguments: &[&str]) -> Value {
    let arguments = [&["--format", "json"], arguments].concat();
    let output = swarm_db(&arguments, dir);
    serde_json::from_str(&stdout(&output)).unwrap_or_else(|error| {
        panic!("{error}: {}{}", stdout(&output), stderr(&output));
    })
}

/// A stopped manager with services 2 to `last`, and one entry that is not applied.
fn stopped(dir: &Path, last: u64, kek: Option<&[u8]>) {
    let dir = StateDir::open(dir).expect("a directory");
    let ring = node_key(&dir, kek);
    let mut member = Member::open(dir, &ring);
    for _ in 0..last {
        member.create();
    }
    member.append();
    member.engines.log.mark().expect("a mark");
}

#[test]
fn it_lists_everything_and_changes_nothing() {
    let temp = tempfile::tempdir().expect("a directory");
    stopped(temp.path(), 6, None);
    let before = files_below(temp.path());

    let output = swarm_db(&[], temp.path());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let flat: Vec<String> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for wanted in [
        "Verdict whole: a start goes on behind entry 6; 1 more in the log, all readable",
        "Raft member abc of node node1, 127.0.0.1:2377, since 2023-11-14T22:13:20Z",
        "Cluster cluster1",
        "Term 1, vote for abc",
        "Applied 6 (term 1)",
        "Removed members dead",
        "abc node1 127.0.0.1:2377 voter",
        "service 5",
        "task 0",
    ] {
        assert!(
            flat.iter().any(|line| line == wanted),
            "{wanted} in\n{text}"
        );
    }
    assert!(
        flat.iter()
            .any(|line| line.starts_with("Log entries 1 to 7, 2 files")),
        "{text}"
    );
    for index in 2..=6 {
        assert!(text.contains(&service(index).id) && text.contains(&service_name(index)));
    }

    let found = json(temp.path(), &["--limit", "2"]);
    assert_eq!(found["summary"]["verdict"]["usable"], true);
    assert_eq!(found["summary"]["log"]["read"]["last"], 7);
    assert_eq!(found["summary"]["database"]["read"]["applied"], 6);
    assert_eq!(found["tables"]["service"]["count"], 5);
    let objects = found["tables"]["service"]["objects"]
        .as_array()
        .expect("a list");
    assert_eq!(objects.len(), 2);
    assert_eq!(objects[0]["name"], service_name(2));
    assert_eq!(objects[0]["version"], 1);
    assert!(files_below(temp.path()) == before, "a byte has changed");
    assert_eq!(
        files_with(temp.path(), b"needle-service"),
        Vec::<std::path::PathBuf>::new()
    );
}

/// Needs the right to mount; without it there is nothing to see.
#[test]
fn it_works_on_a_read_only_mount() {
    let temp = tempfile::tempdir().expect("a directory");
    stopped(temp.path(), 3, None);
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,ro,bind \"$1\" || exit 99
        touch \"$1/x\" 2>/dev/null && exit 98
        exec \"$0\" inspect \"$1\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(env!("CARGO_BIN_EXE_swarm-db"))
        .arg(temp.path())
        .output();
    let Ok(output) = output else { return };
    if output.status.code() == Some(99) || stderr(&output).contains("unshare") {
        return;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains(&service_name(3)));
}

#[test]
fn a_damaged_directory_is_shown_with_its_damage() {
    let temp = tempfile::tempdir().expect("a directory");
    stopped(temp.path(), 6, None);
    let log = temp.path().join("raft/log/0000000000000001.raftlog");
    let mut content = std::fs::read(&log).expect("a log");
    content[100] ^= 1;
    std::fs::write(&log, content).expect("a write");
    let before = files_below(temp.path());
    let output = swarm_db(&[], temp.path());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("0000000000000001.raftlog"), "{text}");
    assert!(text.contains("--accept-log-loss"), "{text}");
    assert!(text.contains(&service_name(6)), "{text}");
    assert!(files_below(temp.path()) == before, "a byte has changed");
}

#[test]
fn a_locked_node_needs_its_unlock_key() {
    let temp = tempfile::tempdir().expect("a directory");
    let kek: Vec<u8> = (0..32).collect();
    stopped(temp.path(), 3, Some(&kek));
    let output = swarm_db(&[], temp.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("--unlock-key"),
        "{}",
        stderr(&output)
    );
    let key = "SWMKEY-1-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
    let found = json(temp.path(), &["--unlock-key", key]);
    assert_eq!(found["tables"]["service"]["count"], 2);
    let output = swarm_db(&["--unlock-key", "SWMKEY-1-AAAA"], temp.path());
    assert!(stderr(&output).contains("is wrong"), "{}", stderr(&output));
}

#[test]
fn what_is_no_manager_is_said_in_one_line() {
    let temp = tempfile::tempdir().expect("a directory");
    let missing = temp.path().join("missing");
    let worker = temp.path().join("worker");
    drop(StateDir::open(&worker).expect("a directory"));
    for (dir, wanted) in [
        (&missing, "there is no state directory"),
        (&worker, "node key"),
    ] {
        let output = swarm_db(&[], dir);
        assert_eq!(output.status.code(), Some(1));
        let text = stderr(&output);
        assert!(text.contains(wanted) && text.lines().count() == 1, "{text}");
    }
    assert!(!missing.exists());
}

fn objects(verb: &str, dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_swarm-db"))
        .arg(verb)
        .arg(dir)
        .args(arguments)
        .env_remove("SWARM_UNLOCK_KEY")
        .output()
        .expect("swarm-db runs")
}

#[test]
fn objects_are_listed_by_name_and_printed_in_full() {
    let temp = tempfile::tempdir().expect("a directory");
    stopped(temp.path(), 6, None);
    let before = files_below(temp.path());
    let wanted = service_name(3);

    let listed = |arguments: &[&str]| -> Vec<Value> {
        let arguments = [&["service", "--format", "json"], arguments].concat();
        let output = objects("ls", temp.path(), &arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    assert_eq!(listed(&[]).len(), 5);
    let named = listed(&["--name", &wanted]);
    assert_eq!(named.len(), 1);
    let id = named[0]["id"].as_str().expect("an ID").to_owned();
    assert_eq!(listed(&["--id", &id]), named);
    assert!(listed(&["--prefix", &wanted]).contains(&named[0]));
    assert!(listed(&["--name", "nobody"]).is_empty());

    for object in [&id, &wanted] {
        let output = objects("get", temp.path(), &["service", object]);
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(found["id"], id.as_str());
        assert_eq!(found["spec"]["annotations"]["name"], wanted.as_str());
    }
    let output = objects("get", temp.path(), &["service", "nobody"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("table service holds no nobody"),
        "{}",
        stderr(&output)
    );
    let output = objects("ls", temp.path(), &["things"]);
    assert!(
        stderr(&output).contains("the tables are"),
        "{}",
        stderr(&output)
    );
    assert_eq!(files_below(temp.path()), before);
}
