//! The signing loop: its life, its failures, and how it follows the cluster object.

use super::*;

#[tokio::test]
async fn waits_end_with_the_run_and_with_the_deadline() {
    let mut authority = Authority::stopped().await;
    authority
        .change_cluster(|cluster| root(cluster).ca_key.clear())
        .await;
    authority.start().await;
    let joined = authority
        .issue(stranger(), &request(), WORKER_TOKEN)
        .await
        .unwrap();
    let ask = |timeout: Option<Duration>| {
        let service = authority.service.clone();
        let mut request = Request::new(NodeCertificateStatusRequest {
            node_id: joined.node_id.clone(),
        });
        if let Some(timeout) = timeout {
            request.set_timeout(timeout);
        }
        tokio::spawn(async move { service.node_certificate_status(request).await })
    };
    let refused = ask(Some(Duration::from_millis(300)))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(refused.code(), Code::DeadlineExceeded);

    let waiting = ask(None);
    let removed = ask(None);
    tokio::task::yield_now().await;
    authority.stop().await;
    let refused = waiting.await.unwrap().unwrap_err();
    // Depending on who came first.
    assert!(
        matches!(refused.code(), Code::Cancelled | Code::Aborted),
        "{refused:?}"
    );
    assert!(removed.await.unwrap().is_err());
}

#[tokio::test]
async fn the_life_of_the_signer() {
    let mut authority = Authority::stopped().await;
    let refused = authority
        .issue(stranger(), &request(), WORKER_TOKEN)
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::Aborted, "CA signer is stopped")
    );
    assert_eq!(
        authority.status("any").await.unwrap_err().code(),
        Code::Aborted
    );
    // 02-A7: the root is given out whether or not this manager signs.
    let root = authority
        .service
        .get_root_ca_certificate(Request::new(Default::default()))
        .await
        .unwrap();
    assert_eq!(
        root.into_inner().certificate,
        authority.cluster.root.roots_pem()
    );

    for _ in 0..2 {
        authority.start().await;
        let twice = Run::start(authority.service.shared.clone()).err().unwrap();
        assert_eq!(twice.to_string(), "CA signer is already running");
        authority.join(WORKER_TOKEN).await;
        authority.stop().await;
    }
}

#[tokio::test]
async fn the_state_of_requests_is_in_the_store() {
    let mut authority = Authority::running().await;
    let csr = request();
    authority
        .change_cluster(|cluster| root(cluster).ca_key.clear())
        .await;
    let joined = authority
        .issue(stranger(), &csr, WORKER_TOKEN)
        .await
        .unwrap();
    authority.stop().await;
    assert_eq!(
        authority
            .node(&joined.node_id)
            .certificate
            .as_ref()
            .unwrap()
            .status,
        state(State::Pending)
    );
    // The next leader, who finds the key again, signs at once.
    let key = authority.cluster.root.signing_pem().unwrap().1.to_vec();
    authority
        .change_cluster(|cluster| root(cluster).ca_key = key)
        .await;
    authority.start().await;
    authority.issued(&joined.node_id, &csr).await;
}

#[tokio::test]
async fn a_key_that_turns_up_later() {
    let mut authority = Authority::stopped().await;
    authority
        .change_cluster(|cluster| root(cluster).ca_key.clear())
        .await;
    authority.start().await;
    let csr = request();
    let joined = authority
        .issue(stranger(), &csr, WORKER_TOKEN)
        .await
        .unwrap();
    let key = authority.cluster.root.signing_pem().unwrap().1.to_vec();
    authority
        .change_cluster(|cluster| root(cluster).ca_key = key)
        .await;
    authority.issued(&joined.node_id, &csr).await;
}

#[tokio::test]
async fn a_root_that_cannot_be_used() {
    let mut authority = Authority::stopped().await;
    authority
        .change_cluster(|cluster| root(cluster).ca_key = b"garbage".to_vec())
        .await;
    authority.start().await;
    let refused = authority
        .issue(stranger(), &request(), WORKER_TOKEN)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(
        refused.message().contains("malformed private key"),
        "{refused:?}"
    );
    let key = authority.cluster.root.signing_pem().unwrap().1.to_vec();
    authority
        .change_cluster(|cluster| root(cluster).ca_key = key)
        .await;
    let mut taken = authority.issue(stranger(), &request(), WORKER_TOKEN).await;
    while taken.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        taken = authority.issue(stranger(), &request(), WORKER_TOKEN).await;
    }
    // Broken again: what was loaded stays.
    authority
        .change_cluster(|cluster| root(cluster).ca_key = b"garbage".to_vec())
        .await;
    authority.join(WORKER_TOKEN).await;
}

#[tokio::test]
async fn the_life_of_certificates_follows_the_cluster_at_once() {
    let authority = Authority::running().await;
    let hours = |certificate: Parsed| {
        // The hour by which certificates are back-dated is part of the span.
        (certificate.not_after - certificate.not_before) / 3600 - 1
    };
    assert_eq!(hours(authority.join(WORKER_TOKEN).await.1), 2160);
    for (seconds, expected) in [(7200, 2), (60, 2160)] {
        let change = move |cluster: &mut Cluster| {
            let spec = cluster.spec.get_or_insert_default();
            spec.ca_config = Some(CaConfig {
                node_cert_expiry: Some(prost_types::Duration { seconds, nanos: 0 }),
                ..Default::default()
            });
        };
        authority.change_cluster(change).await;
        // The signer hears of it a moment after the store has it.
        let follows = async {
            while hours(authority.join(WORKER_TOKEN).await.1) != expected {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(SOON, follows).await.unwrap();
    }
}

#[tokio::test]
async fn many_nodes_at_once() {
    let mut authority = Authority::stopped().await;
    let csr = request();
    let count = 150;
    for number in 0..count {
        let id = format!("node{number}");
        let node = Node {
            certificate: Some(crate::api::types::Certificate {
                csr: csr.clone(),
                cn: id.clone(),
                status: state(if number % 2 == 0 {
                    State::Renew
                } else {
                    State::Pending
                }),
                ..Default::default()
            }),
            spec: Some(NodeSpec {
                membership: Membership::Accepted as i32,
                ..Default::default()
            }),
            id,
            ..Default::default()
        };
        authority.store.update(|tx| tx.create(node)).await.unwrap();
    }
    authority.start().await;
    for number in 0..count {
        authority.issued(&format!("node{number}"), &csr).await;
    }
}
