//! A call that both sides get, what came of it, and what later calls need to know of it.

use super::summary;
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use swarm_manager::api::types::control_client::ControlClient;
use swarm_manager::api::types::health_client::HealthClient;
use swarm_manager::api::types::*;
use tonic::Status;
use tonic::transport::Channel;

/// Longest single call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for an answer that depends on the side's own services.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);
const SETTLE_PAUSE: Duration = Duration::from_millis(50);
/// Attempts at an update whose object is also changed by the side's own services.
const UPDATES_MAX: usize = 100;

/// End of the text of a version conflict.
const CONFLICT: &str = "update out of sequence";

/// An ID of the right form that no object has.
pub const MISSING: &str = "0000000000000000000000000";

/// Objects as one side last showed them, by name.
#[derive(Default)]
pub struct Known {
    pub services: BTreeMap<String, Service>,
    pub secrets: BTreeMap<String, Secret>,
    pub configs: BTreeMap<String, Config>,
    pub networks: BTreeMap<String, Network>,
    pub extensions: BTreeMap<String, Extension>,
    pub tasks: Vec<Task>,
    pub cluster: Cluster,
    pub node: Node,
}

impl Known {
    /// A service by name; one that was never created has an ID that no object has.
    pub fn service(&self, name: &str) -> Service {
        self.services.get(name).cloned().unwrap_or_else(|| Service {
            id: MISSING.into(),
            ..Default::default()
        })
    }

    pub fn secret(&self, name: &str) -> Secret {
        self.secrets.get(name).cloned().unwrap_or_else(|| Secret {
            id: MISSING.into(),
            ..Default::default()
        })
    }

    pub fn config(&self, name: &str) -> Config {
        self.configs.get(name).cloned().unwrap_or_else(|| Config {
            id: MISSING.into(),
            ..Default::default()
        })
    }

    pub fn network(&self, name: &str) -> Network {
        self.networks.get(name).cloned().unwrap_or_else(|| Network {
            id: MISSING.into(),
            ..Default::default()
        })
    }
}

/// One of the two managers.
#[derive(Clone)]
pub struct Side {
    channel: Channel,
    known: Arc<Mutex<Known>>,
}

impl Side {
    pub fn new(channel: Channel) -> Side {
        Side {
            channel,
            known: Arc::default(),
        }
    }

    fn known<R>(&self, f: impl FnOnce(&mut Known) -> R) -> R {
        f(&mut self.known.lock().expect("not poisoned"))
    }

    async fn ask<Q: Request>(&self, request: Q) -> Result<String, Status> {
        let answer = tokio::time::timeout(CALL_TIMEOUT, request.send(self.channel.clone()))
            .await
            .expect("an answer in time")?;
        Ok(self.known(|known| Q::note(answer, known)))
    }

    /// Learns the present versions of all objects that may be updated.
    pub async fn refresh(&self) -> Result<(), Status> {
        self.ask(ListServicesRequest::default()).await?;
        self.ask(ListSecretsRequest::default()).await?;
        self.ask(ListConfigsRequest::default()).await?;
        self.ask(ListNetworksRequest::default()).await?;
        self.ask(ListClustersRequest::default()).await?;
        self.ask(ListNodesRequest::default()).await?;
        Ok(())
    }
}

/// A request message, and how it is sent and understood.
pub trait Request: Sized + Send + 'static {
    type Answer: Send;

    fn send(self, channel: Channel) -> BoxFuture<'static, Result<Self::Answer, Status>>;

    /// Remembers the answer and says what of it must be the same on both sides.
    fn note(answer: Self::Answer, known: &mut Known) -> String;
}

macro_rules! requests {
    ($($client:ident $method:ident: $request:ty => $answer:ty, $note:expr;)+) => {$(
        impl Request for $request {
            type Answer = $answer;

            fn send(self, channel: Channel) -> BoxFuture<'static, Result<$answer, Status>> {
                let mut client = $client::new(channel).max_decoding_message_size(usize::MAX);
                Box::pin(async move { Ok(client.$method(self).await?.into_inner()) })
            }

            fn note(answer: $answer, known: &mut Known) -> String {
                let note: fn($answer, &mut Known) -> String = $note;
                note(answer, known)
            }
        }
    )+};
}

fn nothing<T>(_answer: T, _known: &mut Known) -> String {
    String::new()
}

requests! {
    ControlClient get_node: GetNodeRequest => GetNodeResponse,
        |answer, known| summary::node(answer.node, known);
    ControlClient list_nodes: ListNodesRequest => ListNodesResponse,
        |answer, known| summary::nodes(answer.nodes, known);
    ControlClient update_node: UpdateNodeRequest => UpdateNodeResponse,
        |answer, known| summary::node(answer.node, known);
    ControlClient remove_node: RemoveNodeRequest => RemoveNodeResponse, nothing;
    ControlClient get_task: GetTaskRequest => GetTaskResponse,
        |answer, known| summary::tasks(answer.task.into_iter().collect(), known);
    ControlClient list_tasks: ListTasksRequest => ListTasksResponse,
        |answer, known| summary::tasks(answer.tasks, known);
    ControlClient remove_task: RemoveTaskRequest => RemoveTaskResponse, nothing;
    ControlClient get_service: GetServiceRequest => GetServiceResponse,
        |answer, known| summary::service(answer.service, known);
    ControlClient list_services: ListServicesRequest => ListServicesResponse,
        |answer, known| summary::services(answer.services, known);
    ControlClient create_service: CreateServiceRequest => CreateServiceResponse,
        |answer, known| summary::service(answer.service, known);
    ControlClient update_service: UpdateServiceRequest => UpdateServiceResponse,
        |answer, known| summary::service(answer.service, known);
    ControlClient remove_service: RemoveServiceRequest => RemoveServiceResponse, nothing;
    ControlClient list_service_statuses: ListServiceStatusesRequest => ListServiceStatusesResponse,
        |answer, _| summary::statuses(&answer.statuses);
    ControlClient get_network: GetNetworkRequest => GetNetworkResponse,
        |answer, known| summary::networks(answer.network.into_iter().collect(), known);
    ControlClient list_networks: ListNetworksRequest => ListNetworksResponse,
        |answer, known| summary::networks(answer.networks, known);
    ControlClient create_network: CreateNetworkRequest => CreateNetworkResponse,
        |answer, known| summary::networks(answer.network.into_iter().collect(), known);
    ControlClient remove_network: RemoveNetworkRequest => RemoveNetworkResponse, nothing;
    ControlClient get_cluster: GetClusterRequest => GetClusterResponse,
        |answer, known| summary::clusters(answer.cluster.into_iter().collect(), known);
    ControlClient list_clusters: ListClustersRequest => ListClustersResponse,
        |answer, known| summary::clusters(answer.clusters, known);
    ControlClient update_cluster: UpdateClusterRequest => UpdateClusterResponse,
        |answer, known| summary::clusters(answer.cluster.into_iter().collect(), known);
    ControlClient get_secret: GetSecretRequest => GetSecretResponse,
        |answer, known| summary::secrets(answer.secret.into_iter().collect(), known);
    ControlClient list_secrets: ListSecretsRequest => ListSecretsResponse,
        |answer, known| summary::secrets(answer.secrets, known);
    ControlClient create_secret: CreateSecretRequest => CreateSecretResponse,
        |answer, known| summary::secrets(answer.secret.into_iter().collect(), known);
    ControlClient update_secret: UpdateSecretRequest => UpdateSecretResponse,
        |answer, known| summary::secrets(answer.secret.into_iter().collect(), known);
    ControlClient remove_secret: RemoveSecretRequest => RemoveSecretResponse, nothing;
    ControlClient get_config: GetConfigRequest => GetConfigResponse,
        |answer, known| summary::configs(answer.config.into_iter().collect(), known);
    ControlClient list_configs: ListConfigsRequest => ListConfigsResponse,
        |answer, known| summary::configs(answer.configs, known);
    ControlClient create_config: CreateConfigRequest => CreateConfigResponse,
        |answer, known| summary::configs(answer.config.into_iter().collect(), known);
    ControlClient update_config: UpdateConfigRequest => UpdateConfigResponse,
        |answer, known| summary::configs(answer.config.into_iter().collect(), known);
    ControlClient remove_config: RemoveConfigRequest => RemoveConfigResponse, nothing;
    ControlClient get_extension: GetExtensionRequest => GetExtensionResponse, nothing;
    ControlClient create_extension: CreateExtensionRequest => CreateExtensionResponse,
        |answer, known| summary::extension(answer.extension, known);
    ControlClient remove_extension: RemoveExtensionRequest => RemoveExtensionResponse, nothing;
    ControlClient get_resource: GetResourceRequest => GetResourceResponse, nothing;
    ControlClient create_resource: CreateResourceRequest => CreateResourceResponse, nothing;
    ControlClient list_resources: ListResourcesRequest => ListResourcesResponse,
        |answer, _| answer.resources.len().to_string();
    ControlClient create_volume: CreateVolumeRequest => CreateVolumeResponse, nothing;
    ControlClient list_volumes: ListVolumesRequest => ListVolumesResponse, nothing;
    HealthClient check: HealthCheckRequest => HealthCheckResponse,
        |answer, _| format!("{:?}", answer.status());
}

type Run = dyn Fn(Side) -> BoxFuture<'static, Result<String, Status>>;

/// One line of the comparison.
pub struct Row {
    pub name: &'static str,
    run: Box<Run>,
    /// What the text of an error must contain, on both sides.
    pub text: Option<&'static str>,
    /// Whether a version conflict only means that one of the side's own services was faster.
    is_fresh: bool,
    /// The summary to wait for, when services of the side lead to it.
    settled: Option<&'static str>,
}

/// A call that is made from what is known of the side.
pub fn row<Q: Request>(name: &'static str, make: impl Fn(&Known) -> Q + 'static) -> Row {
    let run = move |side: Side| -> BoxFuture<'static, Result<String, Status>> {
        let request = side.known(|known| make(known));
        Box::pin(async move { side.ask(request).await })
    };
    Row {
        name,
        run: Box::new(run),
        text: None,
        is_fresh: false,
        settled: None,
    }
}

impl Row {
    pub fn says(mut self, text: &'static str) -> Row {
        self.text = Some(text);
        self
    }

    pub fn fresh(mut self) -> Row {
        self.is_fresh = true;
        self
    }

    pub fn until(mut self, summary: &'static str) -> Row {
        self.settled = Some(summary);
        self
    }

    /// Makes the call.
    pub async fn run(&self, side: &Side) -> Result<String, Status> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        let mut updates = 0;
        loop {
            let result = (self.run)(side.clone()).await;
            match (&result, self.settled) {
                (Ok(summary), Some(wanted)) if summary != wanted && Instant::now() < deadline => {
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
                (Err(status), _)
                    if self.is_fresh
                        && status.message().ends_with(CONFLICT)
                        && updates < UPDATES_MAX =>
                {
                    updates += 1;
                    side.refresh().await?;
                }
                _ => return result,
            }
        }
    }
}
