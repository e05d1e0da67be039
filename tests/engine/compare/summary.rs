//! What of an answer must be the same on both sides: everything except IDs, versions, times, addresses
//! and what the side's own services add later.

use super::calls::Known;
use std::collections::BTreeMap;
use swarm_manager::api::types::list_service_statuses_response::ServiceStatus;
use swarm_manager::api::types::*;

fn labels(annotations: &Annotations) -> String {
    let pairs = annotations.labels.iter();
    let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
    format!("{{{}}}", pairs.join(","))
}

fn joined(mut parts: Vec<String>) -> String {
    parts.sort();
    parts.join("; ")
}

fn remember<T: Clone>(map: &mut BTreeMap<String, T>, name: &str, object: &T) {
    map.insert(name.to_owned(), object.clone());
}

fn describe_service(service: &Service) -> String {
    let spec = service.spec.clone().unwrap_or_default();
    let annotations = spec.annotations.clone().unwrap_or_default();
    let mode = match &spec.mode {
        Some(service_spec::Mode::Replicated(mode)) => format!("replicas {}", mode.replicas),
        other => format!("{other:?}"),
    };
    let update = service.update_status.as_ref();
    let job = service.job_status.as_ref();
    let iteration = job.and_then(|job| job.job_iteration);
    format!(
        "{} {} {mode}, previous {}, update {:?}, iteration {:?}",
        annotations.name,
        labels(&annotations),
        service.previous_spec.is_some(),
        update.map(|update| update.message.as_str()),
        iteration.map(|iteration| iteration.index),
    )
}

pub fn service(service: Option<Service>, known: &mut Known) -> String {
    services(service.into_iter().collect(), known)
}

pub fn services(services: Vec<Service>, known: &mut Known) -> String {
    let describe = |service: &Service| {
        let annotations = service.spec.clone().unwrap_or_default().annotations;
        let name = annotations.unwrap_or_default().name;
        remember(&mut known.services, &name, service);
        describe_service(service)
    };
    joined(services.iter().map(describe).collect())
}

pub fn statuses(statuses: &[ServiceStatus]) -> String {
    let describe = |status: &ServiceStatus| {
        format!(
            "desired {} running {} completed {}",
            status.desired_tasks, status.running_tasks, status.completed_tasks
        )
    };
    let parts: Vec<String> = statuses.iter().map(describe).collect();
    parts.join("; ")
}

pub fn tasks(tasks: Vec<Task>, known: &mut Known) -> String {
    let describe = |task: &Task| {
        let service = task.service_annotations.clone().unwrap_or_default();
        let slot = task.slot;
        let state = task.status.clone().unwrap_or_default().state();
        format!(
            "{}.{slot} {state:?} {:?}",
            service.name,
            task.desired_state()
        )
    };
    let summary = joined(tasks.iter().map(describe).collect());
    known.tasks = tasks;
    summary
}

pub fn node(node: Option<Node>, known: &mut Known) -> String {
    nodes(node.into_iter().collect(), known)
}

pub fn nodes(nodes: Vec<Node>, known: &mut Known) -> String {
    let describe = |node: &Node| {
        let spec = node.spec.clone().unwrap_or_default();
        let manager = node.manager_status.clone();
        let manager = manager.map(|status| (status.leader, status.reachability()));
        known.node = node.clone();
        format!(
            "{:?} wanted {:?} {:?} {:?} {} manager {manager:?}",
            node.role(),
            spec.desired_role(),
            spec.membership(),
            spec.availability,
            labels(&spec.annotations.unwrap_or_default()),
        )
    };
    joined(nodes.iter().map(describe).collect())
}

pub fn networks(networks: Vec<Network>, known: &mut Known) -> String {
    let mut describe = |network: &Network| {
        let spec = network.spec.clone().unwrap_or_default();
        let name = spec.annotations.unwrap_or_default().name;
        remember(&mut known.networks, &name, network);
        format!("{name} ingress {}", spec.ingress)
    };
    joined(networks.iter().map(&mut describe).collect())
}

/// A cluster with everything that must not be shown, and whether its tokens are the ones known before.
pub fn clusters(clusters: Vec<Cluster>, known: &mut Known) -> String {
    let describe = |cluster: &Cluster| {
        let tokens = |cluster: &Cluster| {
            let root_ca = cluster.root_ca.clone().unwrap_or_default();
            root_ca.join_tokens.unwrap_or_default()
        };
        let (before, now) = (tokens(&known.cluster), tokens(cluster));
        known.cluster = cluster.clone();
        let spec = cluster.spec.clone().unwrap_or_default();
        let annotations = spec.annotations.unwrap_or_default();
        let ca_config = spec.ca_config.unwrap_or_default();
        let root_ca = cluster.root_ca.clone().unwrap_or_default();
        format!(
            "{} {} history {:?} pool {:?}/{} port {} blacklist {} worker token new {} manager token new {} \
             keys shown {:?}",
            annotations.name,
            labels(&annotations),
            spec.orchestration
                .map(|orchestration| orchestration.task_history_retention_limit),
            cluster.default_address_pool,
            cluster.subnet_size,
            cluster.vxlanudp_port,
            cluster.blacklisted_certificates.len(),
            before.worker != now.worker,
            before.manager != now.manager,
            (
                root_ca.ca_key.len(),
                ca_config.signing_ca_key.len(),
                ca_config.signing_ca_cert.len(),
                cluster.network_bootstrap_keys.len(),
                cluster.unlock_keys.len(),
            ),
        )
    };
    joined(clusters.iter().map(describe).collect())
}

pub fn secrets(secrets: Vec<Secret>, known: &mut Known) -> String {
    let describe = |secret: &Secret| {
        let spec = secret.spec.clone().unwrap_or_default();
        let annotations = spec.annotations.unwrap_or_default();
        remember(&mut known.secrets, &annotations.name, secret);
        format!(
            "{} {} {} bytes",
            annotations.name,
            labels(&annotations),
            spec.data.len()
        )
    };
    joined(secrets.iter().map(describe).collect())
}

pub fn configs(configs: Vec<Config>, known: &mut Known) -> String {
    let describe = |config: &Config| {
        let spec = config.spec.clone().unwrap_or_default();
        let annotations = spec.annotations.unwrap_or_default();
        remember(&mut known.configs, &annotations.name, config);
        format!(
            "{} {} {} bytes",
            annotations.name,
            labels(&annotations),
            spec.data.len()
        )
    };
    joined(configs.iter().map(describe).collect())
}

pub fn extension(extension: Option<Extension>, known: &mut Known) -> String {
    let extension = extension.unwrap_or_default();
    let name = extension.annotations.clone().unwrap_or_default().name;
    remember(&mut known.extensions, &name, &extension);
    name
}
