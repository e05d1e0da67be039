//! Managers that are killed, frozen and stopped while writes go on: what was acknowledged stays, and service
//! comes back.

use crate::harness::swarmd::Swarmd;
use crate::harness::{SOON, scaled, wait_for};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use swarm_manager::api::types::control_client::ControlClient;
use swarm_manager::api::types::{Annotations, ConfigSpec, CreateConfigRequest, ListConfigsRequest};
use tonic::transport::Channel;

const IDLE: &[&str] = &["--executor", "none"];

fn three_managers() -> Vec<Swarmd> {
    let first = Swarmd::start(IDLE);
    let token = first.token("manager");
    let address = first.remote();
    let mut nodes = vec![first];
    for _ in 0..2 {
        let mut flags = vec!["--join-addr", &address, "--join-token", &token];
        flags.extend_from_slice(IDLE);
        nodes.push(Swarmd::start(&flags));
    }
    wait_for("all are members", SOON, || match leader_of(&nodes) {
        Some(_) if nodes.iter().all(|node| reachable(node) == 3) => Ok(()),
        leader => Err(format!("leader {leader:?}")),
    });
    nodes
}

fn reachable(node: &Swarmd) -> usize {
    let output = node.ctl_output(&["--format", "json", "cluster", "status"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let members = status["members"].as_array().cloned().unwrap_or_default();
    let up = members.iter().filter(|member| member["reachable"] == true);
    up.count()
}

/// The position of the node that leads and says so.
fn leader_of(nodes: &[Swarmd]) -> Option<usize> {
    nodes.iter().position(|node| {
        let output = node.ctl_output(&["--format", "json", "cluster", "status"]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        status["isLeader"] == true
    })
}

fn wait_leader(nodes: &[Swarmd]) -> usize {
    wait_for("somebody leads", SOON, || {
        leader_of(nodes).ok_or_else(|| "nobody".to_string())
    })
}

async fn create(control: &mut ControlClient<Channel>, name: &str) -> Result<(), tonic::Status> {
    let spec = ConfigSpec {
        annotations: Some(Annotations {
            name: name.to_owned(),
            ..Default::default()
        }),
        data: vec![1; 64],
        ..Default::default()
    };
    let mut request = tonic::Request::new(CreateConfigRequest { spec: Some(spec) });
    request.set_timeout(Duration::from_secs(10));
    control.create_config(request).await.map(drop)
}

async fn names(node: &Swarmd) -> Result<BTreeSet<String>, tonic::Status> {
    let mut control = node.control().await;
    let answer = control.list_configs(ListConfigsRequest::default());
    let configs = answer.await?.into_inner().configs;
    let name = |spec: ConfigSpec| spec.annotations.unwrap_or_default().name;
    Ok(configs
        .into_iter()
        .map(|config| name(config.spec.unwrap_or_default()))
        .collect())
}

/// A writer at one control socket, which connects anew whenever that goes away.
struct Writer {
    stop: Arc<AtomicBool>,
    acknowledged: tokio::task::JoinHandle<(Vec<String>, Vec<String>)>,
    /// Milliseconds since the beginning at the last acknowledgement.
    last_ms: Arc<AtomicU64>,
}

impl Writer {
    fn start(node: &Swarmd, label: &str, begin: Instant) -> Writer {
        let stop = Arc::new(AtomicBool::new(false));
        let last_ms = Arc::new(AtomicU64::new(0));
        let (socket, label) = (node.socket(), label.to_owned());
        let (ending, last) = (stop.clone(), last_ms.clone());
        let acknowledged = tokio::spawn(async move {
            let mut done = Vec::new();
            let (mut number, mut failures) = (0, Vec::new());
            while !ending.load(Ordering::Relaxed) {
                let Ok(channel) = swarm_manager::cli::connect::control_socket(&socket).await else {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                };
                let mut control = ControlClient::new(channel);
                while !ending.load(Ordering::Relaxed) {
                    number += 1;
                    let name = format!("{label}-{number}");
                    match create(&mut control, &name).await {
                        Ok(()) => {
                            done.push(name);
                            let now = begin.elapsed().as_millis() as u64;
                            last.store(now, Ordering::Relaxed);
                        }
                        Err(status) => {
                            failures.push(status.to_string());
                            break;
                        }
                    }
                }
            }
            (done, failures)
        });
        Writer {
            stop,
            acknowledged,
            last_ms,
        }
    }

    async fn end(self) -> (Vec<String>, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        self.acknowledged.await.expect("a writer")
    }
}

/// Waits until this writer was acknowledged something after `since`; how long that took.
async fn next_write(writer: &Writer, begin: Instant, since: Instant) -> Duration {
    let since_ms = since.duration_since(begin).as_millis() as u64;
    loop {
        let last = writer.last_ms.load(Ordering::Relaxed);
        if last > since_ms {
            return Duration::from_millis(last - since_ms);
        }
        assert!(
            since.elapsed() < SOON,
            "no write after {:?}",
            since.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// 03-A4, 04-A32: members are killed under load; nothing that was acknowledged is lost.
#[tokio::test(flavor = "multi_thread")]
async fn killed_members_lose_nothing() {
    let mut nodes = three_managers();
    let begin = Instant::now();
    let mut writers = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        writers.push(Writer::start(node, &format!("w{at}"), begin));
    }
    let mut waits = Vec::new();
    for round in 0..scaled(40) {
        let leader = wait_leader(&nodes);
        // Two rounds of three hit the leader.
        let victim = match round % 3 {
            2 => (leader + 1) % 3,
            _ => leader,
        };
        let witness = (victim + 1) % 3;
        let killed = Instant::now();
        nodes[victim].kill();
        waits.push(next_write(&writers[witness], begin, killed).await);
        nodes[victim].restart();
        wait_for("it is a member again", SOON, || {
            match nodes.iter().map(reachable).collect::<Vec<_>>() {
                up if up == [3, 3, 3] => Ok(()),
                up => Err(format!("{up:?}")),
            }
        });
    }
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.end().await.0);
    }
    println!(
        "{} writes; next write after each kill: {waits:?}",
        acknowledged.len()
    );
    for node in &nodes {
        let found = names(node).await.expect("a list");
        let lost: Vec<&String> = acknowledged
            .iter()
            .filter(|name| !found.contains(*name))
            .collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
    }
    let slowest = waits.iter().max().expect("a round");
    assert!(*slowest < Duration::from_secs(6), "{waits:?}");
}

// An orderly stop of the leader: the others do not notice.
#[tokio::test(flavor = "multi_thread")]
async fn an_orderly_stop_of_the_leader_fails_no_write() {
    let mut nodes = three_managers();
    let leader = wait_leader(&nodes);
    let begin = Instant::now();
    let others: Vec<Writer> = (0..3)
        .filter(|at| *at != leader)
        .map(|at| Writer::start(&nodes[at], &format!("w{at}"), begin))
        .collect();
    next_write(&others[0], begin, begin).await;
    let (status, took) = nodes[leader].stop();
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    let stopped = Instant::now();
    for writer in &others {
        next_write(writer, begin, stopped).await;
    }
    for writer in others {
        let (done, failures) = writer.end().await;
        assert!(!done.is_empty());
        assert!(failures.is_empty(), "{failures:?}");
    }
}

// 03-A23: without a quorum callers are told at once, and what is missing.
#[test]
fn a_lost_quorum_is_told_with_names_and_numbers() {
    let mut nodes = three_managers();
    let survivor = nodes.remove(0);
    let gone: Vec<String> = nodes.iter().map(Swarmd::remote).collect();
    for node in &mut nodes {
        node.kill();
    }
    let mut text = String::new();
    wait_for("the loss is noticed", SOON, || {
        let begin = Instant::now();
        let output = survivor.ctl_output(&["node", "ls"]);
        assert!(
            begin.elapsed() < Duration::from_secs(8),
            "{:?}",
            begin.elapsed()
        );
        text = String::from_utf8_lossy(&output.stderr).into_owned();
        match text.contains("does not have a leader") {
            true => Ok(()),
            false => Err(text.clone()),
        }
    });
    assert!(
        text.contains("1 of 3 managers reachable, 2 needed"),
        "{text}"
    );
    for address in gone {
        assert!(text.contains(&address), "{text}");
    }
    assert!(text.contains("--force-new-cluster"), "{text}");
    // Old knowledge can still be read.
    assert!(survivor.ctl(&["node", "ls", "--stale"]).contains("READY"));
    assert!(
        survivor
            .ctl(&["cluster", "status"])
            .contains("must come back")
    );
    for node in &mut nodes {
        node.restart();
    }
    wait_for("the group is whole again", SOON, || {
        match reachable(&survivor) {
            3 => Ok(()),
            up => Err(up.to_string()),
        }
    });
}

// 03-A18, P001: the last survivor goes on alone with everything it knew, and the flag acts once.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_survivor_makes_a_new_cluster() {
    let mut nodes = three_managers();
    let leader = wait_leader(&nodes);
    let mut control = nodes[leader].control().await;
    for at in 0..20 {
        create(&mut control, &format!("kept-{at}"))
            .await
            .expect("a write");
    }
    let mut survivor = nodes.remove((leader + 1) % 3);
    for node in &mut nodes {
        node.kill();
    }
    survivor.kill();
    survivor.extra.push("--force-new-cluster".to_string());
    let begin = Instant::now();
    survivor.restart();
    let mut control = survivor.control().await;
    create(&mut control, "after").await.expect("a write");
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
    let found = names(&survivor).await.expect("a list");
    assert_eq!(found.len(), 21, "{found:?}");
    let status = survivor.ctl_json(&["cluster", "status"]);
    assert_eq!(
        status["members"].as_array().map(Vec::len),
        Some(1),
        "{status}"
    );

    // A manager that joins now stays, although the flag is still there.
    let (address, token) = (survivor.remote(), survivor.token("manager"));
    let mut flags = vec!["--join-addr", &address, "--join-token", &token];
    flags.extend_from_slice(IDLE);
    let fresh = Swarmd::start(&flags);
    wait_for("two managers", SOON, || match reachable(&fresh) {
        2 => Ok(()),
        up => Err(up.to_string()),
    });
    survivor.kill();
    survivor.restart();
    wait_for("still two managers", SOON, || match reachable(&survivor) {
        2 => Ok(()),
        up => Err(up.to_string()),
    });
    // One of the lost ones comes back: it was struck off, and joins anew with an empty disk's rights.
    nodes[0].restart();
    wait_for("three managers", SOON, || match reachable(&survivor) {
        3 => Ok(()),
        up => Err(up.to_string()),
    });
    assert_eq!(names(&nodes[0]).await.expect("a list").len(), 21);
}
