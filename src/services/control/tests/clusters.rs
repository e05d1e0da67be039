//! The cluster object.

use super::*;
use crate::identity::root_ca::RootCa as GeneratedRootCa;
use crate::identity::token::JoinToken;
use prost_types::Duration;
use std::time::SystemTime;

/// A cluster with everything in it that must not be given out.
fn cluster() -> Cluster {
    let root = GeneratedRootCa::generate(SystemTime::now()).unwrap();
    let key = EncryptionKey {
        subsystem: "swarm-manager".into(),
        key: vec![1],
        ..Default::default()
    };
    Cluster {
        id: "c1".into(),
        spec: Some(ClusterSpec {
            annotations: labelled("default", &[("k", "v")]),
            ca_config: Some(CaConfig {
                signing_ca_cert: b"signing cert".to_vec(),
                signing_ca_key: b"signing key".to_vec(),
                ..Default::default()
            }),
            orchestration: Some(OrchestrationConfig {
                task_history_retention_limit: 5,
            }),
            ..Default::default()
        }),
        root_ca: Some(RootCa {
            ca_key: b"key".to_vec(),
            ca_cert: root.roots_pem().to_vec(),
            join_tokens: Some(JoinTokens {
                worker: "worker".into(),
                manager: "manager".into(),
            }),
            root_rotation: Some(RootRotation {
                ca_cert: b"next".to_vec(),
                ca_key: b"next key".to_vec(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        network_bootstrap_keys: vec![key.clone()],
        encryption_key_lamport_clock: 3,
        unlock_keys: vec![key],
        fips: false,
        ..Default::default()
    }
}

async fn get(bed: &Bed) -> Cluster {
    let request = Request::new(GetClusterRequest {
        cluster_id: "c1".into(),
    });
    ok(Control::get_cluster(&bed.control, request).await)
        .cluster
        .unwrap()
}

/// Reads, changes and writes the spec, as a client would.
async fn update(
    bed: &Bed,
    rotation: KeyRotation,
    change: impl FnOnce(&mut ClusterSpec),
) -> Result<Cluster, String> {
    let cluster = get(bed).await;
    let mut spec = cluster.spec.unwrap();
    change(&mut spec);
    let request = UpdateClusterRequest {
        cluster_id: "c1".into(),
        cluster_version: version_of(&cluster.meta),
        spec: Some(spec),
        rotation: Some(rotation),
    };
    let result = Control::update_cluster(&bed.control, Request::new(request)).await;
    let seen = seen(&result);
    result
        .map(|response| response.into_inner().cluster.unwrap())
        .map_err(|_| seen)
}

fn assert_redacted(cluster: &Cluster) {
    let ca_config = cluster
        .spec
        .as_ref()
        .unwrap()
        .ca_config
        .clone()
        .unwrap_or_default();
    assert_eq!(
        (
            ca_config.signing_ca_cert.len(),
            ca_config.signing_ca_key.len()
        ),
        (0, 0)
    );
    let root_ca = cluster.root_ca.as_ref().unwrap();
    assert!(root_ca.ca_key.is_empty() && !root_ca.ca_cert.is_empty());
    let rotation = root_ca.root_rotation.as_ref().unwrap();
    assert!(rotation.ca_key.is_empty() && !rotation.ca_cert.is_empty());
    assert!(root_ca.join_tokens.is_some(), "tokens are shown");
    assert!(cluster.unlock_keys.is_empty() && cluster.network_bootstrap_keys.is_empty());
    assert_eq!(cluster.encryption_key_lamport_clock, 0);
}

// 05-A24
#[tokio::test]
async fn nothing_secret_is_given_out() {
    let bed = Bed::new();
    bed.put([cluster()]).await;
    assert_redacted(&get(&bed).await);
    let list = Request::new(ListClustersRequest::default());
    let clusters = ok(Control::list_clusters(&bed.control, list).await).clusters;
    assert_eq!(clusters.len(), 1);
    assert_redacted(&clusters[0]);
    assert_redacted(&update(&bed, KeyRotation::default(), |_| {}).await.unwrap());
}

// 05-A24
#[tokio::test]
async fn network_defaults_are_shown_and_not_stored() {
    let bed = Bed::new();
    bed.put([cluster()]).await;
    for _ in 0..2 {
        let shown = get(&bed).await;
        assert_eq!(shown.default_address_pool, ["10.0.0.0/8"]);
        assert_eq!((shown.subnet_size, shown.vxlanudp_port), (24, 4789));
        let stored = bed.get::<Cluster>("c1").unwrap();
        assert!(stored.default_address_pool.is_empty());
        assert_eq!((stored.subnet_size, stored.vxlanudp_port), (0, 0));
        update(&bed, KeyRotation::default(), |_| {}).await.unwrap();
    }
    let own = Cluster {
        id: "c1".into(),
        default_address_pool: strings(&["192.168.0.0/16"]),
        subnet_size: 28,
        vxlanudp_port: 5000,
        ..cluster()
    };
    let bed = Bed::new();
    bed.put([own]).await;
    let shown = get(&bed).await;
    assert_eq!(shown.default_address_pool, ["192.168.0.0/16"]);
    assert_eq!((shown.subnet_size, shown.vxlanudp_port), (28, 5000));
}

#[tokio::test]
async fn list_filters() {
    let bed = Bed::new();
    bed.put([cluster()]).await;
    let list = async |f: fn(&mut list_clusters_request::Filters)| {
        let mut filters = list_clusters_request::Filters::default();
        f(&mut filters);
        let request = Request::new(ListClustersRequest {
            filters: Some(filters),
        });
        ok(Control::list_clusters(&bed.control, request).await)
            .clusters
            .len()
    };
    assert_eq!(list(|_| {}).await, 1);
    assert_eq!(list(|f| f.names = strings(&["default"])).await, 1);
    assert_eq!(list(|f| f.names = strings(&["other"])).await, 0);
    assert_eq!(list(|f| f.name_prefixes = strings(&["def"])).await, 1);
    assert_eq!(list(|f| f.id_prefixes = strings(&["c"])).await, 1);
    assert_eq!(list(|f| f.labels = map(&[("k", "v")])).await, 1);
    assert_eq!(list(|f| f.labels = map(&[("k", "w")])).await, 0);
}

// 05-A25
#[tokio::test]
async fn bad_updates() {
    let bed = Bed::new();
    bed.put([cluster()]).await;
    let stored = bed.get::<Cluster>("c1").unwrap();
    let seconds = |seconds| Some(Duration { seconds, nanos: 0 });
    let expiry = |seconds_: i64| {
        move |spec: &mut ClusterSpec| {
            spec.ca_config.get_or_insert_default().node_cert_expiry = seconds(seconds_);
        }
    };
    let none = KeyRotation::default();
    let refused = |text: &str| Err(text.to_owned());
    assert_eq!(
        update(&bed, none, expiry(59 * 60)).await,
        refused("InvalidArgument: minimum certificate expiry time is: 1h0m0s")
    );
    let heartbeat = |spec: &mut ClusterSpec| {
        spec.dispatcher = Some(DispatcherConfig {
            heartbeat_period: seconds(-1),
        });
    };
    assert_eq!(
        update(&bed, none, heartbeat).await,
        refused("InvalidArgument: heartbeat time period cannot be negative")
    );
    let rename = |spec: &mut ClusterSpec| spec.annotations = named("other");
    assert!(
        update(&bed, none, rename)
            .await
            .unwrap_err()
            .starts_with("InvalidArgument: ")
    );
    assert_eq!(
        *bed.get::<Cluster>("c1").unwrap(),
        *stored,
        "nothing has changed"
    );
    assert!(update(&bed, none, expiry(3_600)).await.is_ok());
}

// 05-A25
#[tokio::test]
async fn incomplete_and_stale_updates() {
    let bed = Bed::new();
    bed.put([cluster()]).await;
    let current = version_of(&bed.get::<Cluster>("c1").unwrap().meta);
    let spec = || {
        let annotations = named("default");
        Some(ClusterSpec {
            annotations,
            ..Default::default()
        })
    };
    let stale = Some(Version { index: 98_765 });
    for (cluster_id, cluster_version, spec, expected) in [
        ("", current, spec(), "InvalidArgument: invalid argument"),
        ("c1", None, spec(), "InvalidArgument: invalid argument"),
        ("c1", current, None, "InvalidArgument: invalid argument"),
        ("c9", current, spec(), "NotFound: cluster c9 not found"),
        ("c1", stale, spec(), "Unknown: update out of sequence"),
        ("c1", current, spec(), "OK"),
    ] {
        let request = UpdateClusterRequest {
            cluster_id: cluster_id.into(),
            cluster_version,
            spec,
            rotation: None,
        };
        let result = Control::update_cluster(&bed.control, Request::new(request)).await;
        assert_eq!(seen(&result), expected);
    }
    let stored = bed.get::<Cluster>("c1").unwrap();
    assert_eq!(stored.spec, spec(), "the whole spec is replaced");
}

#[tokio::test]
async fn a_cluster_whose_root_cannot_be_loaded() {
    let bed = Bed::new();
    bed.put([Cluster {
        root_ca: None,
        ..cluster()
    }])
    .await;
    let seen = update(&bed, KeyRotation::default(), |_| {})
        .await
        .unwrap_err();
    assert!(
        seen.starts_with("Internal: the cluster's root certificate cannot be loaded"),
        "{seen}"
    );
}

#[tokio::test]
async fn join_tokens_are_rotated_one_by_one() {
    let bed = Bed::new();
    bed.put([cluster()]).await;
    let tokens = |cluster: Cluster| cluster.root_ca.unwrap().join_tokens.unwrap();
    let rotate = async |worker_join_token, manager_join_token| {
        // The flag for the unlock key means nothing while managers are not locked.
        let rotation = KeyRotation {
            worker_join_token,
            manager_join_token,
            manager_unlock_key: true,
        };
        tokens(update(&bed, rotation, |_| {}).await.unwrap())
    };
    let before = rotate(false, false).await;
    assert_eq!(
        (before.worker.as_str(), before.manager.as_str()),
        ("worker", "manager")
    );
    let first = rotate(true, false).await;
    assert_ne!(first.worker, "worker");
    assert_eq!(first.manager, "manager");
    let second = rotate(false, true).await;
    assert_eq!(second.worker, first.worker);
    assert_ne!(second.manager, "manager");
    let third = rotate(true, true).await;
    assert_ne!(third.worker, second.worker);
    assert_ne!(third.manager, second.manager);
    let digest = crate::identity::token::sha256(&get(&bed).await.root_ca.unwrap().ca_cert);
    for token in [third.worker, third.manager] {
        let token = JoinToken::parse(&token).unwrap();
        assert_eq!((token.digest, token.fips), (digest, false));
    }
    assert_eq!(
        bed.get::<Cluster>("c1").unwrap().unlock_keys,
        cluster().unlock_keys
    );
}

#[tokio::test]
async fn what_is_not_built_is_refused_by_name() {
    let bed = Bed::new();
    bed.put([cluster()]).await;
    let none = KeyRotation::default();
    type Case = (fn(&mut ClusterSpec), &'static str);
    let changes: [Case; 5] = [
        (
            |spec| spec.ca_config.get_or_insert_default().force_rotate = 1,
            "Unimplemented: changing the root certificate of the cluster: not available yet",
        ),
        (
            |spec| spec.ca_config.get_or_insert_default().signing_ca_cert = b"cert".to_vec(),
            "Unimplemented: changing the root certificate of the cluster: not available yet",
        ),
        (
            |spec| spec.ca_config.get_or_insert_default().signing_ca_key = b"key".to_vec(),
            "InvalidArgument: if a signing CA key is provided, the signing CA cert must also be provided",
        ),
        (
            |spec| {
                spec.ca_config
                    .get_or_insert_default()
                    .external_cas
                    .push(ExternalCa::default())
            },
            "Unimplemented: external certificate authorities: not available yet",
        ),
        (
            |spec| {
                spec.encryption_config = Some(EncryptionConfig {
                    auto_lock_managers: true,
                })
            },
            "Unimplemented: locking managers (autolock): not available yet",
        ),
    ];
    for (change, expected) in changes {
        assert_eq!(update(&bed, none, change).await, Err(expected.to_owned()));
    }
}

#[tokio::test]
async fn updates_forget_long_expired_certificates() {
    let bed = Bed::new();
    let revoked = |days: i64| {
        let seconds = crate::api::time::now().seconds + days * 86_400;
        BlacklistedCertificate {
            expiry: Some(prost_types::Timestamp { seconds, nanos: 0 }),
        }
    };
    let list = [("old", -8), ("recent", -6), ("valid", 6)];
    let blacklisted = list.map(|(id, days)| (id.to_owned(), revoked(days)));
    bed.put([Cluster {
        blacklisted_certificates: blacklisted.into(),
        ..cluster()
    }])
    .await;
    let shown = update(&bed, KeyRotation::default(), |_| {}).await.unwrap();
    let left: Vec<&str> = shown
        .blacklisted_certificates
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(left, ["recent", "valid"]);
}
