//! Nothing a person wrote, and no key, is readable in the state directory.

use crate::harness::swarmd::Swarmd;
use std::path::Path;
use swarm_manager::api::types::*;

/// Files under `dir` that contain one of `needles`.
fn search(dir: &Path, needles: &[(&str, Vec<u8>)], found: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            search(&path, needles, found);
            continue;
        }
        let bytes = std::fs::read(&path).unwrap_or_default();
        for (name, needle) in needles {
            if bytes
                .windows(needle.len())
                .any(|window| window == needle.as_slice())
            {
                found.push(format!("{name} in {}", path.display()));
            }
        }
    }
}

#[tokio::test]
async fn a_byte_search_of_the_state_directory_finds_nothing() {
    // 01-A30, 04-A35
    let mut node = Swarmd::start(&[]);
    let mut secret = std::process::Command::new(env!("CARGO_BIN_EXE_swarmctl"))
        .arg("--socket")
        .arg(node.socket())
        .args(["secret", "create", "needle-secret-name"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("swarmctl runs");
    std::io::Write::write_all(
        &mut secret.stdin.take().expect("a pipe"),
        b"needle-secret-data",
    )
    .expect("a write");
    assert!(secret.wait().expect("an end").success());
    node.ctl(&[
        "service",
        "create",
        "--name",
        "needle-service",
        "--image",
        "host",
        "--label",
        "needle-key=needle-value",
        "--env",
        "NEEDLE=needle-env",
        "--secret",
        "needle-secret-name",
        "--command",
        "sleep",
        "--args",
        "100000",
        "--wait",
    ]);
    let clusters = node
        .control()
        .await
        .list_clusters(ListClustersRequest::default())
        .await
        .expect("a list");
    let token = node.token("worker");
    let (_, token_secret) = token.rsplit_once('-').expect("a token");
    let needles: Vec<(&str, Vec<u8>)> = [
        ("service name", "needle-service"),
        ("label key", "needle-key"),
        ("label value", "needle-value"),
        ("environment value", "needle-env"),
        ("secret name", "needle-secret-name"),
        ("secret data", "needle-secret-data"),
        ("join token", token_secret),
    ]
    .into_iter()
    .map(|(name, text)| (name, text.as_bytes().to_vec()))
    .collect();
    drop(clusters);
    let (status, _) = node.stop();
    assert!(status.success());
    let mut found = Vec::new();
    search(&node.state_dir(), &needles, &mut found);
    assert!(found.is_empty(), "{found:?}");

    // The CA key must not be there in any of its usual encodings.
    let mut keys = Vec::new();
    search(
        &node.state_dir().join("raft"),
        &[("a private key", b"PRIVATE KEY".to_vec())],
        &mut keys,
    );
    assert!(keys.is_empty(), "{keys:?}");
    assert!(
        !node
            .state_dir()
            .join("certificates/swarm-root-ca.key")
            .exists()
    );
}
