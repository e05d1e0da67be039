//! Nodes and the cluster itself.

use super::calls::{Known, MISSING, Row, row};
use super::specs::*;
use swarm_manager::api::types::*;

pub fn rows() -> Vec<Row> {
    let mut rows = nodes();
    rows.extend(cluster());
    rows
}

fn update_node(name: &'static str, change: fn(&mut NodeSpec)) -> Row {
    row(name, move |known| {
        let mut spec = known.node.spec.clone().unwrap_or_default();
        change(&mut spec);
        UpdateNodeRequest {
            node_id: known.node.id.clone(),
            node_version: known.node.meta.unwrap_or_default().version,
            spec: Some(spec),
        }
    })
    .fresh()
}

fn nodes() -> Vec<Row> {
    let get = |name, id: fn(&Known) -> String| {
        row(name, move |known| GetNodeRequest { node_id: id(known) })
    };
    let list = |name, filters: fn() -> list_nodes_request::Filters| {
        row(name, move |_| ListNodesRequest {
            filters: Some(filters()),
        })
    };
    let remove = |name, id: fn(&Known) -> String, force| {
        row(name, move |known| RemoveNodeRequest {
            node_id: id(known),
            force,
        })
    };
    vec![
        get("get node without ID", |_| String::new()).says("invalid argument"),
        get("get node that is missing", |_| MISSING.to_owned()).says("not found"),
        get("get node", |known| known.node.id.clone()),
        list("list workers", || list_nodes_request::Filters {
            roles: vec![NodeRole::Worker as i32],
            ..Default::default()
        }),
        list("list managers and workers", || {
            list_nodes_request::Filters {
                roles: vec![NodeRole::Manager as i32, NodeRole::Worker as i32],
                memberships: vec![node_spec::Membership::Accepted as i32],
                ..Default::default()
            }
        }),
        list("list nodes by a node label", || {
            list_nodes_request::Filters {
                node_labels: [("zone".to_owned(), String::new())].into(),
                ..Default::default()
            }
        }),
        update_node("label a node", |spec| {
            spec.annotations = labelled("", "zone", "a");
        }),
        list("list nodes by that node label", || {
            list_nodes_request::Filters {
                node_labels: [("zone".to_owned(), String::new())].into(),
                ..Default::default()
            }
        }),
        list("list nodes by an engine label", || {
            list_nodes_request::Filters {
                labels: [("zone".to_owned(), String::new())].into(),
                ..Default::default()
            }
        }),
        update_node("drain the node", |spec| {
            spec.availability = node_spec::Availability::Drain as i32;
        }),
        update_node("activate the node", |spec| {
            spec.availability = node_spec::Availability::Active as i32;
        }),
        update_node("demote the last manager", |spec| {
            spec.desired_role = NodeRole::Worker as i32;
        })
        .says("attempting to demote the last manager of the swarm"),
        row("update node with a stale version", |known| {
            UpdateNodeRequest {
                node_id: known.node.id.clone(),
                node_version: Some(Version { index: 1 }),
                spec: known.node.spec.clone(),
            }
        })
        .says("update out of sequence"),
        row("update node without spec", |known| UpdateNodeRequest {
            node_id: known.node.id.clone(),
            node_version: Some(Version { index: 1 }),
            spec: None,
        })
        .says("invalid argument"),
        row("update node that is missing", |known| UpdateNodeRequest {
            node_id: MISSING.to_owned(),
            node_version: Some(Version { index: 1 }),
            spec: known.node.spec.clone(),
        })
        .says("not found"),
        remove("remove node without ID", |_| String::new(), false).says("invalid argument"),
        remove("remove node that is missing", |_| MISSING.to_owned(), true).says("not found"),
        remove("remove the manager", |known| known.node.id.clone(), false)
            .says("must be demoted to worker before removal"),
        remove("force out the manager", |known| known.node.id.clone(), true)
            .says("must be demoted to worker before removal"),
        update_node("unknown availability", |spec| spec.availability = 99),
        update_node("a known availability again", |spec| {
            spec.availability = node_spec::Availability::Active as i32;
        }),
    ]
}

fn update_cluster(name: &'static str, change: fn(&mut ClusterSpec)) -> Row {
    rotate(name, KeyRotation::default(), change)
}

fn rotate(name: &'static str, rotation: KeyRotation, change: fn(&mut ClusterSpec)) -> Row {
    row(name, move |known| {
        let mut spec = known.cluster.spec.clone().unwrap_or_default();
        change(&mut spec);
        UpdateClusterRequest {
            cluster_id: known.cluster.id.clone(),
            cluster_version: known.cluster.meta.unwrap_or_default().version,
            spec: Some(spec),
            rotation: Some(rotation),
        }
    })
    .fresh()
}

fn cluster() -> Vec<Row> {
    let get = |name, id: fn(&Known) -> String| {
        row(name, move |known| GetClusterRequest {
            cluster_id: id(known),
        })
    };
    vec![
        get("get cluster without ID", |_| String::new()).says("invalid argument"),
        get("get cluster that is missing", |_| MISSING.to_owned()).says("not found"),
        get("get cluster", |known| known.cluster.id.clone()),
        row("list clusters by another name", |_| ListClustersRequest {
            filters: Some(list_clusters_request::Filters {
                names: vec!["other".to_owned()],
                ..Default::default()
            }),
        }),
        row("update cluster without version", |known| {
            UpdateClusterRequest {
                cluster_id: known.cluster.id.clone(),
                spec: known.cluster.spec.clone(),
                ..Default::default()
            }
        })
        .says("invalid argument"),
        row("update cluster without spec", |known| {
            UpdateClusterRequest {
                cluster_id: known.cluster.id.clone(),
                cluster_version: Some(Version { index: 1 }),
                ..Default::default()
            }
        })
        .says("invalid argument"),
        row("update cluster that is missing", |known| {
            UpdateClusterRequest {
                cluster_id: MISSING.to_owned(),
                cluster_version: Some(Version { index: 1 }),
                spec: known.cluster.spec.clone(),
                rotation: None,
            }
        })
        .says("not found"),
        row("update cluster with a stale version", |known| {
            UpdateClusterRequest {
                cluster_id: known.cluster.id.clone(),
                cluster_version: Some(Version { index: 1 }),
                spec: known.cluster.spec.clone(),
                rotation: None,
            }
        })
        .says("update out of sequence"),
        update_cluster("node certificates for 59 minutes", |spec| {
            spec.ca_config.get_or_insert_default().node_cert_expiry = seconds(59 * 60);
        }),
        update_cluster("node certificates for 1 hour", |spec| {
            spec.ca_config.get_or_insert_default().node_cert_expiry = seconds(3600);
        }),
        update_cluster("negative heartbeat period", |spec| {
            spec.dispatcher.get_or_insert_default().heartbeat_period = seconds(-1);
        }),
        update_cluster("malformed heartbeat period", |spec| {
            spec.dispatcher.get_or_insert_default().heartbeat_period = malformed_duration();
        }),
        update_cluster("rename the cluster", |spec| {
            spec.annotations = annotations("other");
        }),
        update_cluster("acceptance policy with md5", acceptance_policy),
        update_cluster("election tick 1, heartbeat tick 10", |spec| {
            let raft = spec.raft.get_or_insert_default();
            (raft.heartbeat_tick, raft.election_tick) = (10, 1);
        }),
        update_cluster("sane ticks again", |spec| {
            let raft = spec.raft.get_or_insert_default();
            (raft.heartbeat_tick, raft.election_tick) = (1, 10);
        }),
        update_cluster("task history of 7", |spec| {
            let orchestration = spec.orchestration.get_or_insert_default();
            orchestration.task_history_retention_limit = 7;
        }),
        rotate(
            "rotate the worker token",
            KeyRotation {
                worker_join_token: true,
                ..Default::default()
            },
            |_| {},
        ),
        rotate(
            "rotate the manager token",
            KeyRotation {
                manager_join_token: true,
                ..Default::default()
            },
            |_| {},
        ),
        rotate(
            "rotate the unlock key while unlocked",
            KeyRotation {
                manager_unlock_key: true,
                ..Default::default()
            },
            |_| {},
        ),
        update_cluster("a signing key without its certificate", |spec| {
            spec.ca_config.get_or_insert_default().signing_ca_key = b"key".to_vec();
        })
        .says("the signing CA cert must also be provided"),
        update_cluster("an invalid signing certificate", |spec| {
            let config = spec.ca_config.get_or_insert_default();
            config.signing_ca_cert = b"certificate".to_vec();
            config.signing_ca_key = b"key".to_vec();
        }),
    ]
}

#[allow(deprecated)] // Old clients may still send it.
fn acceptance_policy(spec: &mut ClusterSpec) {
    use acceptance_policy::{RoleAdmissionPolicy, role_admission_policy::Secret};
    let policy = RoleAdmissionPolicy {
        role: NodeRole::Worker as i32,
        autoaccept: true,
        secret: Some(Secret {
            data: b"data".to_vec(),
            alg: "md5".to_owned(),
        }),
    };
    spec.acceptance_policy = Some(AcceptancePolicy {
        policies: vec![policy],
    });
}
