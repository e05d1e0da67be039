//! From what a person typed, a name or an ID, to the one object that is meant.

use crate::Context;
use anyhow::bail;
use std::collections::HashMap;
use swarm_manager::api::types::{self, *};

/// Why a look-up did not end in one object.
fn none(kind: &str, wanted: &str) -> anyhow::Error {
    anyhow::anyhow!("{kind} {wanted} not found")
}

fn one<T>(kind: &str, wanted: &str, mut found: Vec<T>) -> anyhow::Result<T> {
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(none(kind, wanted)),
        n => bail!("{kind} {wanted} is ambiguous ({n} matches found)"),
    }
}

/// Turns "no such ID" into `None` and passes every other failure on.
fn absent<T>(answer: Result<tonic::Response<T>, tonic::Status>) -> anyhow::Result<Option<T>> {
    match answer {
        Ok(response) => Ok(Some(response.into_inner())),
        Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
        Err(status) => Err(status.into()),
    }
}

pub async fn service(context: &mut Context, wanted: &str) -> anyhow::Result<Service> {
    let request = GetServiceRequest {
        service_id: wanted.to_string(),
        ..Default::default()
    };
    if let Some(found) = absent(context.control.get_service(request).await)? {
        return found.service.ok_or_else(|| none("service", wanted));
    }
    let request = ListServicesRequest {
        filters: Some(list_services_request::Filters {
            names: vec![wanted.to_string()],
            ..Default::default()
        }),
    };
    let found = context
        .control
        .list_services(request)
        .await?
        .into_inner()
        .services;
    one("service", wanted, found)
}

pub async fn node(context: &mut Context, wanted: &str) -> anyhow::Result<Node> {
    if wanted == "self" {
        let status = context
            .admin
            .status(swarm_manager::api::admin::StatusRequest::default())
            .await?
            .into_inner();
        return Box::pin(node(context, &status.node_id)).await;
    }
    let request = GetNodeRequest {
        node_id: wanted.to_string(),
    };
    if let Some(found) = absent(context.control.get_node(request).await)? {
        return found.node.ok_or_else(|| none("node", wanted));
    }
    let request = ListNodesRequest {
        filters: Some(list_nodes_request::Filters {
            names: vec![wanted.to_string()],
            ..Default::default()
        }),
    };
    let found = context
        .control
        .list_nodes(request)
        .await?
        .into_inner()
        .nodes;
    one("node", wanted, found)
}

pub async fn cluster(context: &mut Context, wanted: &str) -> anyhow::Result<Cluster> {
    let request = ListClustersRequest::default();
    let found = context
        .control
        .list_clusters(request)
        .await?
        .into_inner()
        .clusters;
    let matching = found
        .into_iter()
        .filter(|cluster| cluster.id == wanted || cluster_name(cluster) == wanted)
        .collect();
    one("cluster", wanted, matching)
}

pub async fn task(context: &mut Context, wanted: &str) -> anyhow::Result<Task> {
    let request = GetTaskRequest {
        task_id: wanted.to_string(),
    };
    match absent(context.control.get_task(request).await)? {
        Some(found) => found.task.ok_or_else(|| none("task", wanted)),
        None => Err(none("task", wanted)),
    }
}

/// By name or ID prefix; an exact ID wins over an exact name, that over a prefix.
pub async fn secret(context: &mut Context, wanted: &str) -> anyhow::Result<Secret> {
    let filters = |names: Vec<String>, id_prefixes: Vec<String>| ListSecretsRequest {
        filters: Some(list_secrets_request::Filters {
            names,
            id_prefixes,
            ..Default::default()
        }),
    };
    let mut found = context
        .control
        .list_secrets(filters(vec![], vec![wanted.to_string()]))
        .await?
        .into_inner()
        .secrets;
    if let Some(at) = found.iter().position(|secret| secret.id == wanted) {
        return Ok(found.remove(at));
    }
    let named = context
        .control
        .list_secrets(filters(vec![wanted.to_string()], vec![]))
        .await?
        .into_inner()
        .secrets;
    one(
        "secret",
        wanted,
        if named.is_empty() { found } else { named },
    )
}

/// As [`secret`].
pub async fn config(context: &mut Context, wanted: &str) -> anyhow::Result<Config> {
    let filters = |names: Vec<String>, id_prefixes: Vec<String>| ListConfigsRequest {
        filters: Some(list_configs_request::Filters {
            names,
            id_prefixes,
            ..Default::default()
        }),
    };
    let mut found = context
        .control
        .list_configs(filters(vec![], vec![wanted.to_string()]))
        .await?
        .into_inner()
        .configs;
    if let Some(at) = found.iter().position(|config| config.id == wanted) {
        return Ok(found.remove(at));
    }
    let named = context
        .control
        .list_configs(filters(vec![wanted.to_string()], vec![]))
        .await?
        .into_inner()
        .configs;
    one(
        "config",
        wanted,
        if named.is_empty() { found } else { named },
    )
}

/// Names of nodes and services by ID, for readable lists.
#[derive(Default)]
pub struct Names {
    nodes: HashMap<String, String>,
    services: HashMap<String, String>,
}

impl Names {
    /// Loads the names, or nothing when the user asked for IDs.
    pub async fn load(context: &mut Context) -> anyhow::Result<Names> {
        if context.no_resolve {
            return Ok(Names::default());
        }
        let nodes = context
            .control
            .list_nodes(ListNodesRequest::default())
            .await?
            .into_inner()
            .nodes;
        let services = context
            .control
            .list_services(ListServicesRequest::default())
            .await?
            .into_inner()
            .services;
        Ok(Names {
            nodes: nodes
                .iter()
                .map(|node| (node.id.clone(), node_name(node)))
                .collect(),
            services: services
                .iter()
                .map(|service| (service.id.clone(), service_name(service).to_string()))
                .collect(),
        })
    }

    pub fn node(&self, id: &str) -> String {
        self.nodes
            .get(id)
            .cloned()
            .unwrap_or_else(|| id.to_string())
    }

    pub fn service(&self, id: &str) -> String {
        self.services
            .get(id)
            .cloned()
            .unwrap_or_else(|| id.to_string())
    }
}

/// The name a person gave the node, else its host name.
pub fn node_name(node: &Node) -> String {
    let given = node
        .spec
        .as_ref()
        .and_then(|spec| spec.annotations.as_ref())
        .map_or("", |annotations| &annotations.name);
    if given.is_empty() {
        node.description
            .as_ref()
            .map(|description| description.hostname.clone())
            .unwrap_or_default()
    } else {
        given.to_string()
    }
}

pub fn service_name(service: &Service) -> &str {
    service
        .spec
        .as_ref()
        .and_then(|spec| spec.annotations.as_ref())
        .map_or("", |annotations| &annotations.name)
}

pub fn cluster_name(cluster: &Cluster) -> &str {
    cluster
        .spec
        .as_ref()
        .and_then(|spec| spec.annotations.as_ref())
        .map_or("", |annotations| &annotations.name)
}

/// The stamp to send along with an update of an object that was just read.
pub fn version(meta: &Option<types::Meta>) -> Option<Version> {
    meta.as_ref().and_then(|meta| meta.version)
}
