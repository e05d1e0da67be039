//! An unmodified Docker Engine joins our manager, runs containers for it, survives the manager's death,
//! and leaves.

use crate::harness::engine::{Engine, IMAGE};
use crate::harness::swarmd::Swarmd;
use crate::harness::{engine_available, wait_for};
use std::time::{Duration, Instant};

/// A joined worker has three times its heartbeat period plus the spread to be called down: 16.5 s.
const DOWN_WITHIN: Duration = Duration::from_secs(17);

fn join(manager: &Swarmd, engine: &Engine) -> Duration {
    let token = manager.token("worker");
    let begin = Instant::now();
    engine.docker(&["swarm", "join", "--token", &token, &manager.remote()]);
    begin.elapsed()
}

/// The Engine's node as our manager lists it.
fn engine_node(manager: &Swarmd) -> Option<serde_json::Value> {
    let nodes = manager.ctl_json(&["node", "ls"]);
    nodes
        .as_array()?
        .iter()
        .find(|node| node["manager_status"] == "" && node["engine"] != "")
        .cloned()
}

fn wait_status(manager: &Swarmd, wanted: &str, limit: Duration) {
    wait_for(&format!("the Engine's node is {wanted}"), limit, || {
        let node = engine_node(manager).ok_or("no such node")?;
        if node["status"] == wanted {
            Ok(())
        } else {
            Err(node.to_string())
        }
    });
}

#[test]
fn a_docker_engine_joins_runs_and_leaves() {
    if !engine_available("a_docker_engine_joins_runs_and_leaves") {
        return;
    }
    let manager = Swarmd::start(&["--executor", "none"]);
    let engine = Engine::start();
    let took = join(&manager, &engine);
    assert!(took < Duration::from_secs(10), "the join took {took:?}");
    wait_status(&manager, "READY", Duration::from_secs(10));
    let node = engine_node(&manager).expect("the Engine's node");
    assert!(
        node["engine"]
            .as_str()
            .is_some_and(|version| version.starts_with("20."))
    );

    manager.ctl(&[
        "service",
        "create",
        "--name",
        "web",
        "--image",
        IMAGE,
        "--replicas",
        "3",
        "--command",
        "sleep",
        "--args",
        "100000",
        "--wait",
    ]);
    engine.wait_running(3, Duration::from_secs(30));
    manager.ctl(&["service", "scale", "web=5", "--wait"]);
    engine.wait_running(5, Duration::from_secs(30));
    manager.ctl(&["service", "scale", "web=1"]);
    engine.wait_running(1, Duration::from_secs(60));
    manager.ctl(&["service", "rm", "web"]);
    engine.wait_running(0, Duration::from_secs(60));

    engine.docker(&["swarm", "leave"]);
    wait_status(&manager, "DOWN", DOWN_WITHIN);
}

#[test]
fn containers_survive_the_death_of_the_manager() {
    if !engine_available("containers_survive_the_death_of_the_manager") {
        return;
    }
    let mut manager = Swarmd::start(&["--executor", "none"]);
    let engine = Engine::start();
    join(&manager, &engine);
    manager.ctl(&[
        "service",
        "create",
        "--name",
        "web",
        "--image",
        IMAGE,
        "--replicas",
        "3",
        "--restart-delay",
        "1s",
        "--command",
        "sleep",
        "--args",
        "100000",
        "--wait",
    ]);
    let before = engine.wait_running(3, Duration::from_secs(30));
    let cluster = manager.ctl_json(&["cluster", "ls"]);
    let tokens = manager.ctl_json(&["cluster", "tokens"]);
    let node = engine_node(&manager).expect("the Engine's node");
    let services = manager.ctl(&["service", "ls", "--quiet"]);

    manager.kill();
    manager.restart();
    assert_eq!(manager.ctl_json(&["cluster", "ls"]), cluster);
    assert_eq!(manager.ctl_json(&["cluster", "tokens"]), tokens);
    assert_eq!(manager.ctl(&["service", "ls", "--quiet"]), services);
    wait_status(&manager, "READY", Duration::from_secs(30));
    assert_eq!(
        engine_node(&manager).expect("the Engine's node")["id"],
        node["id"]
    );
    assert_eq!(engine.running(), before, "a container was restarted");

    engine.docker(&["kill", &before[0]]);
    wait_for(
        "the killed container is replaced",
        Duration::from_secs(6),
        || {
            let now = engine.running();
            let kept = before[1..].iter().all(|id| now.contains(id));
            if now.len() == 3 && !now.contains(&before[0]) && kept {
                Ok(())
            } else {
                Err(format!("{now:?}"))
            }
        },
    );
}
