//! No acknowledged write is lost when the manager is killed at a random moment of a load of creates.

use crate::harness::scaled;
use crate::harness::swarmd::Swarmd;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use swarm_manager::api::types::control_client::ControlClient;
use swarm_manager::api::types::service_spec::Mode;
use swarm_manager::api::types::task_spec::Runtime;
use swarm_manager::api::types::*;
use tonic::transport::Channel;

/// Creates in one round, and callers that share them.
const CREATES: usize = 5_000;
const CALLERS: usize = 64;

fn spec(name: &str) -> ServiceSpec {
    ServiceSpec {
        annotations: Some(Annotations {
            name: name.to_string(),
            ..Default::default()
        }),
        task: Some(TaskSpec {
            runtime: Some(Runtime::Container(ContainerSpec {
                image: "host".to_string(),
                command: vec!["true".to_string()],
                ..Default::default()
            })),
            ..Default::default()
        }),
        mode: Some(Mode::Replicated(ReplicatedService { replicas: 0 })),
        ..Default::default()
    }
}

/// Creates services until told to stop by an error; notes each acknowledged one.
async fn create_until_cut_off(
    mut client: ControlClient<Channel>,
    round: usize,
    caller: usize,
    acknowledged: Arc<Mutex<BTreeSet<String>>>,
) {
    for number in 0..CREATES / CALLERS {
        let name = format!("s-{round}-{caller}-{number}");
        let request = CreateServiceRequest {
            spec: Some(spec(&name)),
        };
        match client.create_service(request).await {
            Ok(_) => {
                acknowledged.lock().unwrap().insert(name);
            }
            Err(_) => return,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_create_is_there_after_a_kill() {
    let acknowledged: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let mut node = Swarmd::start(&["--executor", "none"]);
    for round in 0..scaled(20) {
        let before = acknowledged.lock().unwrap().len();
        let client = node.control().await;
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                tokio::spawn(create_until_cut_off(
                    client.clone(),
                    round,
                    caller,
                    acknowledged.clone(),
                ))
            })
            .collect();
        // A different moment in each round: after a number of acknowledged creates, not after a time.
        let moment = before + 1 + (round * 997) % (CREATES * 3 / 4);
        while acknowledged.lock().unwrap().len() < moment
            && callers.iter().any(|caller| !caller.is_finished())
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        node.kill();
        for caller in callers {
            caller.await.unwrap();
        }
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_swarm-db"))
            .args(["check"])
            .arg(node.state_dir())
            .output()
            .expect("swarm-db runs");
        assert!(
            output.status.success(),
            "the indexes differ from the rows: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        node.restart();
        let listed = node
            .control()
            .await
            .list_services(ListServicesRequest::default())
            .await
            .unwrap()
            .into_inner();
        let names: BTreeSet<String> = listed
            .services
            .into_iter()
            .map(|service| service.spec.unwrap().annotations.unwrap().name)
            .collect();
        let acknowledged = acknowledged.lock().unwrap();
        let lost: Vec<&String> = acknowledged.difference(&names).collect();
        assert!(
            lost.is_empty(),
            "round {round}: {} lost, such as {:?}",
            lost.len(),
            lost.first()
        );
    }
}
