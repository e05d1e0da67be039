//! Hostile or mistaken callers of the remote port get the specified error, and the manager goes on.

use crate::harness::swarmd::Swarmd;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use swarm_manager::api::types::*;

#[test]
fn garbage_on_the_port_disturbs_nobody() {
    let node = Swarmd::start(&["--executor", "none"]);
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0u8; 4096][..],
        &b"\x16\x03\x01\xff\xff"[..],
    ] {
        let mut stream = TcpStream::connect(node.remote()).expect("a connection");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a limit");
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "garbage was served");
    }
    assert_eq!(node.ctl_json(&["node", "ls"])[0]["status"], "READY");
}

#[tokio::test]
async fn an_oversized_message_is_refused_and_nothing_is_written() {
    let node = Swarmd::start(&["--executor", "none"]);
    let mut control = node.control().await;
    let request = CreateSecretRequest {
        spec: Some(SecretSpec {
            annotations: Some(Annotations {
                name: "big".to_string(),
                ..Default::default()
            }),
            data: vec![7; 5 << 20],
            ..Default::default()
        }),
    };
    let status = control
        .create_secret(request)
        .await
        .expect_err("it is too large");
    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status:?}");
    let secrets = control
        .list_secrets(ListSecretsRequest::default())
        .await
        .expect("a list")
        .into_inner();
    assert!(secrets.secrets.is_empty());
}

#[test]
fn a_worker_with_a_wrong_token_is_refused_and_leaves_no_node() {
    let manager = Swarmd::start(&["--executor", "none"]);
    let right = manager.token("worker");
    let (stem, secret) = right.rsplit_once('-').expect("a token");
    let wrong = format!("{stem}-{}", secret.chars().rev().collect::<String>());
    let mut worker = Swarmd::prepare(&["--join-addr", &manager.remote(), "--join-token", &wrong]);
    worker.spawn();
    worker.wait_line("A valid join token is necessary to join this cluster");
    assert_eq!(
        manager.ctl_json(&["node", "ls"]).as_array().map(Vec::len),
        Some(1)
    );
}

#[test]
fn a_worker_joins_runs_tasks_and_is_seen() {
    let manager = Swarmd::start(&["--executor", "none"]);
    let mut worker = Swarmd::prepare(&[
        "--join-addr",
        &manager.remote(),
        "--join-token",
        &manager.token("worker"),
    ]);
    worker.spawn();
    worker.wait_ready();
    manager.ctl(&[
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
    let nodes = manager.ctl_json(&["node", "ls"]);
    assert_eq!(nodes.as_array().map(Vec::len), Some(2));
    // A killed worker comes back with its tasks still running and known.
    let before = manager.ctl(&["service", "ps", "web", "--quiet"]);
    worker.kill();
    worker.restart();
    assert_eq!(manager.ctl(&["service", "ps", "web", "--quiet"]), before);
}
