//! Several managers as whole processes: joining, promotion and demotion while tasks run, calls through a
//! follower, workers that lose their manager.

use crate::harness::authority::Authority;
use crate::harness::swarmd::Swarmd;
use crate::harness::{SOON, wait_for};
use serde_json::Value;
use std::path::Path;
use swarm_manager::api::roles::Role;
use swarm_manager::api::types::control_client::ControlClient;
use swarm_manager::api::types::{
    Annotations, ConfigSpec, CreateConfigRequest, ListClustersRequest, UpdateClusterRequest,
};

/// A node that joins the cluster of `manager`.
fn join(manager: &Swarmd, role: &str, extra: &[&str]) -> Swarmd {
    let (address, token) = (manager.remote(), manager.token(role));
    let mut flags = vec!["--join-addr", &address, "--join-token", &token];
    flags.extend_from_slice(extra);
    Swarmd::start(&flags)
}

const IDLE: &[&str] = &["--executor", "none"];

/// The first manager of a cluster and two more.
fn three_managers() -> [Swarmd; 3] {
    let first = Swarmd::start(IDLE);
    let second = join(&first, "manager", IDLE);
    let third = join(&first, "manager", IDLE);
    for node in [&first, &second, &third] {
        wait_managers(node, 3);
    }
    [first, second, third]
}

fn nodes(node: &Swarmd) -> Result<Vec<Value>, String> {
    let output = node.ctl_output(&["--format", "json", "node", "ls"]);
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

/// Waits until a manager sees this many reachable managers, one of which leads.
fn wait_managers(node: &Swarmd, count: usize) {
    wait_for("managers are reachable", SOON, || {
        let nodes = nodes(node)?;
        let up = nodes
            .iter()
            .filter(|node| node["manager_status"] == "REACHABLE")
            .count();
        let leaders = nodes.iter().filter(|node| node["leader"] == true).count();
        match up == count && leaders == 1 {
            true => Ok(()),
            false => Err(format!("{nodes:?}")),
        }
    });
}

fn wait_manager_status(from: &Swarmd, id: &str, status: &str) {
    wait_for(&format!("{id} is {status:?}"), SOON, || {
        let nodes = nodes(from)?;
        match nodes.iter().find(|node| node["id"] == id) {
            Some(node) if node["manager_status"] == status => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

fn id_of(node: &Swarmd) -> String {
    let certificate = std::fs::read(node.state_dir().join("certificates/swarm-node.crt"));
    let block = swarm_manager::identity::pem::first(&certificate.expect("a certificate"));
    let certificate =
        swarm_manager::identity::cert::Certificate::from_der(&block.expect("PEM").der);
    let subject = certificate.expect("DER").node_subject().expect("a subject");
    subject.node_id
}

fn status(node: &Swarmd) -> Value {
    node.ctl_json(&["cluster", "status"])
}

fn wait_ready(from: &Swarmd, id: &str) {
    wait_for(&format!("{id} is ready"), SOON, || {
        let nodes = nodes(from)?;
        match nodes.iter().find(|node| node["id"] == id) {
            Some(node) if node["status"] == "READY" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

fn key_file(node: &Swarmd) -> String {
    let path = node.state_dir().join("certificates/swarm-node.key");
    std::fs::read_to_string(path).expect("a key file")
}

fn is_alive(pid_file: &Path) -> bool {
    let pid = std::fs::read_to_string(pid_file).unwrap_or_default();
    !pid.trim().is_empty() && Path::new("/proc").join(pid.trim()).exists()
}

// 03-A2, 05-A5, 05-A39 over processes.
#[tokio::test(flavor = "multi_thread")]
async fn managers_join_and_pass_calls_on() {
    let authority = Authority::new();
    let mut first = Swarmd::prepare(IDLE);
    authority.install(&first.state_dir());
    first.spawn();
    first.wait_ready();
    let mut second = join(&first, "manager", IDLE);
    let third = join(&second, "manager", IDLE);
    for node in [&first, &second, &third] {
        wait_managers(node, 3);
    }
    // Tokens and writes through a follower's control socket.
    assert_eq!(third.token("worker"), first.token("worker"));
    let create = ["service", "create", "--name", "web", "--image", "host"];
    second.ctl(&[&create[..], &["--replicas", "0", "--command", "true"]].concat());
    assert!(third.ctl(&["service", "ls"]).contains("web"));
    let stale = second.ctl_output(&["node", "ls", "--stale"]);
    assert!(stale.status.success());
    assert!(String::from_utf8_lossy(&stale.stderr).contains("may be old"));

    // The same write over the network is not passed on.
    let manager = authority.issue(Role::Manager);
    let mut remote = ControlClient::new(authority.dial(&third.remote(), Some(&manager)).await);
    let spec = ConfigSpec {
        annotations: Some(Annotations {
            name: "remote".into(),
            ..Default::default()
        }),
        data: b"x".to_vec(),
        ..Default::default()
    };
    let request = CreateConfigRequest { spec: Some(spec) };
    let refused = remote.create_config(request).await.unwrap_err();
    assert!(
        refused.message().contains("node lost leader status"),
        "{refused}"
    );

    // Every node remembers all managers.
    let known = std::fs::read_to_string(third.state_dir().join("state.json")).expect("state.json");
    for node in [&first, &second, &third] {
        assert!(known.contains(&node.remote()), "{known}");
    }

    // A manager that stops turns unreachable, and back.
    let id = id_of(&second);
    second.kill();
    wait_manager_status(&first, &id, "UNREACHABLE");
    wait_manager_status(&third, &id, "UNREACHABLE");
    second.restart();
    wait_manager_status(&first, &id, "REACHABLE");
    assert_eq!(id_of(&second), id);
}

// 03-A29: a worker with a running task becomes a manager and a worker again, twice; its task stays.
#[test]
fn promotion_and_demotion_leave_tasks_alone() {
    let first = Swarmd::start(IDLE);
    let second = join(&first, "manager", IDLE);
    let worker = join(&first, "worker", &[]);
    let id = id_of(&worker);
    let pid_file = worker.dir.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 100000", pid_file.display());
    let create = ["service", "create", "--name", "task", "--image", "host"];
    let command = ["--command", "sh", "--args=-c", "--args", &script, "--wait"];
    first.ctl(&[&create[..], &["--replicas", "1"], &command].concat());
    let task = first.ctl(&["service", "ps", "task", "--quiet"]);
    assert!(is_alive(&pid_file));
    let pid = std::fs::read_to_string(&pid_file).expect("a pid");
    for _ in 0..2 {
        second.ctl(&["node", "promote", "--wait", &id]);
        wait_managers(&worker, 3);
        assert!(worker.state_dir().join("raft").exists());
        // It takes part: a write through it.
        worker.ctl(&["node", "update", &id, "--label", "a=1"]);
        worker.ctl(&["node", "update", &id, "--label", "a=2"]);

        first.ctl(&["node", "demote", "--wait", &id]);
        wait_for("the manager is gone", SOON, || {
            match worker.state_dir().join("raft").exists() || worker.socket().exists() {
                true => Err("still there".into()),
                false => Ok(()),
            }
        });
        wait_for("the data key is gone", SOON, || {
            match key_file(&worker).contains("raft-dek") {
                true => Err(key_file(&worker)),
                false => Ok(()),
            }
        });
        wait_managers(&first, 2);
        wait_ready(&first, &id);
    }
    assert_eq!(first.ctl(&["service", "ps", "task", "--quiet"]), task);
    assert_eq!(std::fs::read_to_string(&pid_file).expect("a pid"), pid);
    assert!(is_alive(&pid_file));
}

// 03-A29: the leader, and a manager that is down.
#[test]
fn the_leader_and_a_stopped_manager_are_demoted() {
    let [first, second, mut third] = three_managers();
    let [first_id, third_id] = [&first, &third].map(id_of);
    assert_eq!(status(&first)["isLeader"], true);
    second.ctl(&["node", "demote", "--wait", &first_id]);
    wait_managers(&second, 2);
    wait_for("the old leader's raft data is gone", SOON, || {
        match first.state_dir().join("raft").exists() {
            true => Err("still there".into()),
            false => Ok(()),
        }
    });
    wait_ready(&second, &first_id);

    // Two of two are up: one may go, even when it is down it cannot.
    first_promoted(&second, &first, &first_id);
    third.kill();
    wait_manager_status(&second, &third_id, "UNREACHABLE");
    // 05-A6: the other living one must stay, and the refusal says why.
    let refused = second.ctl_output(&["node", "demote", &first_id]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(text.contains("loss of quorum"), "{text}");
    assert!(
        text.contains("1 managers are reachable, 2 are needed"),
        "{text}"
    );
    second.ctl(&["node", "demote", "--wait", &third_id]);
    third.restart();
    wait_ready(&second, &third_id);
    wait_for("it is a worker without raft data", SOON, || {
        match third.state_dir().join("raft").exists() {
            true => Err("still there".into()),
            false => Ok(()),
        }
    });
    wait_managers(&second, 2);
}

fn first_promoted(by: &Swarmd, node: &Swarmd, id: &str) {
    by.ctl(&["node", "promote", "--wait", id]);
    wait_managers(node, 3);
}

// 03-A7 after a restart: a manager that comes back at another address is found there.
#[test]
fn a_manager_that_moves_is_found_again() {
    let [first, mut second, third] = three_managers();
    second.kill();
    second.port = crate::harness::free_port();
    second.restart();
    for node in [&first, &third, &second] {
        wait_managers(node, 3);
        wait_for(
            "the address is known",
            SOON,
            || match status(node)["members"]
                .to_string()
                .contains(&second.remote())
            {
                true => Ok(()),
                false => Err(status(node)["members"].to_string()),
            },
        );
    }
    // Alone it tells itself.
    let mut alone = Swarmd::start(IDLE);
    alone.kill();
    alone.port = crate::harness::free_port();
    alone.restart();
    wait_for(
        "the address is known",
        SOON,
        || match status(&alone)["members"]
            .to_string()
            .contains(&alone.remote())
        {
            true => Ok(()),
            false => Err(status(&alone)["members"].to_string()),
        },
    );
}

// 08 section 15.1: a worker whose manager dies finds another, which then leads.
#[test]
fn a_worker_survives_its_managers() {
    let [mut first, second, third] = three_managers();
    let worker = join(&first, "worker", IDLE);
    let id = id_of(&worker);
    wait_ready(&third, &id);
    first.kill();
    wait_managers(&second, 2);
    wait_ready(&second, &id);
    // A joiner with a token of any manager, at any manager.
    let late = join(&third, "worker", IDLE);
    wait_ready(&second, &id_of(&late));
    first.restart();
    wait_managers(&third, 3);
}

/// Waits for configs in a manager's own copy. It may be starting anew meanwhile.
fn wait_configs(node: &Swarmd, count: u64) {
    wait_for("the configs have arrived", SOON, || {
        let output = node.ctl_output(&["--format", "json", "cluster", "status"]);
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let status: Value =
            serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
        match status["objectCounts"]["config"].as_u64() {
            Some(found) if found == count => Ok(()),
            found => Err(format!("{found:?} of {count}")),
        }
    });
}

async fn create_configs(node: &Swarmd, from: u64, to: u64) {
    let mut control = node.control().await;
    for at in from..to {
        let spec = ConfigSpec {
            annotations: Some(Annotations {
                name: format!("config-{at}"),
                ..Default::default()
            }),
            data: vec![1; 20_000],
            ..Default::default()
        };
        let request = CreateConfigRequest { spec: Some(spec) };
        control.create_config(request).await.expect("a config");
    }
}

// 03-A17: the log no longer reaches back to where a member stands.
#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_far_behind_get_the_whole_state() {
    let first = Swarmd::start(IDLE);
    let mut control = first.control().await;
    let clusters = control
        .list_clusters(ListClustersRequest::default())
        .await
        .unwrap();
    let cluster = clusters.into_inner().clusters.remove(0);
    let mut spec = cluster.spec.clone().unwrap();
    let raft = spec.raft.get_or_insert_default();
    (raft.snapshot_interval, raft.log_entries_for_slow_followers) = (20, 5);
    let request = UpdateClusterRequest {
        cluster_id: cluster.id.clone(),
        cluster_version: cluster.meta.and_then(|meta| meta.version),
        spec: Some(spec),
        ..Default::default()
    };
    control.update_cluster(request).await.unwrap();
    create_configs(&first, 0, 60).await;
    wait_for(
        "the log is compacted",
        SOON,
        || match status(&first)["firstIndex"].as_u64() {
            Some(first) if first > 1 => Ok(()),
            first => Err(format!("{first:?}")),
        },
    );
    let mut second = join(&first, "manager", IDLE);
    let third = join(&first, "manager", IDLE);
    for node in [&second, &third] {
        wait_managers(node, 3);
        wait_configs(node, 60);
    }
    // One that was away while the log went on.
    second.kill();
    create_configs(&third, 60, 140).await;
    second.restart();
    wait_configs(&second, 140);
    wait_managers(&second, 3);
    // It is a full member: with it the others can lose one.
    drop(first);
    wait_managers(&second, 2);
    create_configs(&second, 140, 150).await;
    wait_configs(&third, 150);
}
