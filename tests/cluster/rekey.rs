//! The data key of a running manager is exchanged on request, through kills, and nothing is lost.

use crate::harness::swarmd::Swarmd;
use std::path::PathBuf;
use swarm_manager::api::admin::{DataKeyRotation, RotateDataKeyRequest, StatusRequest};
use swarm_manager::api::types::*;

const CONFIGS: usize = 200;

fn key_headers(node: &Swarmd) -> Vec<String> {
    let path: PathBuf = node.state_dir().join("certificates/swarm-node.key");
    let text = std::fs::read_to_string(path).expect("the node key");
    let lines = text.lines().filter(|line| line.starts_with("raft-dek"));
    lines.map(str::to_owned).collect()
}

async fn rotation(node: &Swarmd) -> DataKeyRotation {
    let status = node.admin().await.status(StatusRequest {}).await;
    let status = status.expect("a status").into_inner();
    status.data_key_rotation.expect("always told")
}

/// Waits until the key file names one key, another than in `before`.
async fn exchanged(node: &Swarmd, before: &[String]) {
    let deadline = std::time::Instant::now() + crate::harness::SOON;
    loop {
        let headers = key_headers(node);
        if headers.len() == 1 && headers != before {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{headers:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

async fn check(node: &Swarmd) {
    let configs = node
        .control()
        .await
        .list_configs(ListConfigsRequest::default())
        .await
        .expect("a list")
        .into_inner()
        .configs;
    assert!(configs.len() >= CONFIGS);
    assert!(configs.iter().all(|config| {
        let spec = config.spec.as_ref();
        spec.is_some_and(|spec| spec.data == b"data")
    }));
}

// 04-A36 02-A26
#[tokio::test]
async fn the_data_key_is_exchanged_on_request() {
    let mut node = Swarmd::start(&["--executor", "none"]);
    let mut client = node.control().await;
    for number in 0..CONFIGS {
        let spec = ConfigSpec {
            annotations: Some(Annotations {
                name: format!("config{number}"),
                ..Default::default()
            }),
            data: b"data".to_vec(),
            ..Default::default()
        };
        let request = CreateConfigRequest { spec: Some(spec) };
        client.create_config(request).await.expect("a write");
    }
    let first = key_headers(&node);
    assert_eq!(first.len(), 1);
    assert_eq!(rotation(&node).await.phase, "idle");
    let request = || RotateDataKeyRequest {};
    let mut admin = node.admin().await;
    node.ctl(&["cluster", "rotate-data-key"]);
    exchanged(&node, &first).await;
    check(&node).await;
    let shown = node.ctl(&["cluster", "status"]);
    assert!(shown.contains("Data key:"), "{shown}");
    let done = rotation(&node).await;
    assert!(done.rows_resealed >= CONFIGS as u64, "{done:?}");
    assert_eq!(done.damaged, 0);

    // Killed as soon as the request is durable: the next start does it.
    let second = key_headers(&node);
    admin.rotate_data_key(request()).await.expect("noted");
    node.kill();
    node.restart();
    exchanged(&node, &second).await;
    check(&node).await;
    let (status, _) = node.stop();
    assert!(status.success());
    // And the new key alone opens everything.
    let verdict = std::process::Command::new(env!("CARGO_BIN_EXE_swarm-db"))
        .arg("check")
        .arg(node.state_dir())
        .output()
        .expect("swarm-db runs");
    assert!(
        verdict.status.success(),
        "{}{}",
        String::from_utf8_lossy(&verdict.stdout),
        String::from_utf8_lossy(&verdict.stderr)
    );
}
