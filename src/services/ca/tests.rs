//! The CA over a real store: requests, signatures, waits and refusals.

mod joining;
mod signer;

use super::*;
use crate::api::roles::Role;
use crate::api::types::node_spec::{Availability, Membership};
use crate::api::types::{
    CaConfig, ClusterSpec, EncryptionConfig, EncryptionKey, IssuanceStatus, JoinTokens, NodeRole,
    NodeSpec, RootCa as StoredRoot,
};
use crate::identity::PrivateKey;
use crate::identity::cert::Certificate as Parsed;
use crate::identity::issue::signing_request;
use crate::identity::testing::{TestCluster, TestNode};
use crate::storage::testing::TestStore;
use std::net::SocketAddr;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Code;

const WORKER_TOKEN: &str = "SWMTKN-1-worker";
const MANAGER_TOKEN: &str = "SWMTKN-1-manager";
/// Nothing in these tests takes longer than moments.
const SOON: Duration = Duration::from_secs(10);

struct Authority {
    service: CaService,
    cluster: TestCluster,
    store: TestStore,
    _node: TestNode,
    run: Option<SigningRun>,
}

struct SigningRun {
    cancel: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Authority {
    /// A cluster whose object is stored, and a manager that does not sign yet.
    async fn stopped() -> Authority {
        let cluster = TestCluster::new();
        let node = cluster.node("manager", Role::Manager);
        let store = TestStore::new();
        let service = CaService::new(store.store(), node.security.clone());
        let authority = Authority {
            service,
            store,
            _node: node,
            run: None,
            cluster,
        };
        let object = authority.cluster_object();
        authority
            .store
            .update(|tx| tx.create(object))
            .await
            .unwrap();
        authority
    }

    async fn running() -> Authority {
        let mut authority = Authority::stopped().await;
        authority.start().await;
        authority
    }

    async fn start(&mut self) {
        let cancel = CancellationToken::new();
        let (loaded, ready) = oneshot::channel();
        let term = Term {
            raft_term: 1,
            store: self.store.store(),
            cluster_id: self.cluster.id.clone(),
            node_id: "manager".into(),
            cancel: cancel.clone(),
        };
        let task = tokio::spawn(self.service.run(term, Ready(loaded)));
        ready.await.unwrap();
        self.run = Some(SigningRun { cancel, task });
    }

    async fn stop(&mut self) {
        let run = self.run.take().unwrap();
        run.cancel.cancel();
        run.task.await.unwrap().unwrap();
    }

    fn cluster_object(&self) -> Cluster {
        let (certificate, key) = self.cluster.root.signing_pem().unwrap();
        Cluster {
            id: self.cluster.id.clone(),
            spec: Some(ClusterSpec {
                annotations: Some(crate::api::types::Annotations {
                    name: "default".into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            root_ca: Some(StoredRoot {
                ca_cert: certificate.to_vec(),
                ca_key: key.to_vec(),
                ca_cert_hash: self.cluster.root.digest_text(),
                join_tokens: Some(JoinTokens {
                    worker: WORKER_TOKEN.into(),
                    manager: MANAGER_TOKEN.into(),
                }),
                ..Default::default()
            }),
            vxlanudp_port: 4789,
            ..Default::default()
        }
    }

    async fn change_cluster(&self, change: impl FnOnce(&mut Cluster) + Send) {
        let id = self.cluster.id.clone();
        let changed = self.store.update(move |tx| {
            let mut cluster = Cluster::clone(&*tx.get::<Cluster>(&id)?.unwrap());
            change(&mut cluster);
            tx.update(cluster).map(drop)
        });
        changed.await.unwrap();
    }

    async fn change_node(&self, node_id: &str, change: impl FnOnce(&mut Node) + Send) {
        let id = node_id.to_owned();
        let changed = self.store.update(move |tx| {
            let mut node = Node::clone(&*tx.get::<Node>(&id)?.unwrap());
            change(&mut node);
            tx.update(node).map(drop)
        });
        changed.await.unwrap();
    }

    async fn issue(
        &self,
        caller: Caller,
        csr: &[u8],
        token: &str,
    ) -> Result<IssueNodeCertificateResponse, Status> {
        let mut request = Request::new(IssueNodeCertificateRequest {
            // Ignored, whatever it says.
            role: NodeRole::Manager as i32,
            csr: csr.to_vec(),
            token: token.to_owned(),
            availability: Availability::Drain as i32,
        });
        request.extensions_mut().insert(caller);
        let answer = self.service.issue_node_certificate(request).await?;
        Ok(answer.into_inner())
    }

    async fn status(&self, node_id: &str) -> Result<NodeCertificateStatusResponse, Status> {
        let request = Request::new(NodeCertificateStatusRequest {
            node_id: node_id.to_owned(),
        });
        let answer = self.service.node_certificate_status(request);
        let answer = tokio::time::timeout(SOON, answer).await.expect("an answer");
        Ok(answer?.into_inner())
    }

    /// Joins a node and returns its ID and certificate.
    async fn join(&self, token: &str) -> (String, Parsed) {
        let csr = request();
        let node_id = self.issue(stranger(), &csr, token).await.unwrap().node_id;
        (node_id.clone(), self.issued(&node_id, &csr).await)
    }

    async fn issued(&self, node_id: &str, csr: &[u8]) -> Parsed {
        let answer = self.status(node_id).await.unwrap();
        assert_eq!(answer.status.unwrap().state(), State::Issued);
        let record = answer.certificate.unwrap();
        assert_eq!(record.csr, csr);
        let now = Clock::system().now();
        let verified = self
            .cluster
            .root
            .verify(&record.certificate, now, false)
            .unwrap();
        verified.leaf().unwrap().clone()
    }

    fn node(&self, node_id: &str) -> Arc<Node> {
        self.store
            .view(|view| view.get::<Node>(node_id))
            .unwrap()
            .unwrap()
    }
}

fn request() -> Vec<u8> {
    signing_request(&PrivateKey::generate().unwrap()).unwrap()
}

fn stranger() -> Caller {
    stranger_at("192.0.2.1:5000")
}

fn stranger_at(address: &str) -> Caller {
    Caller {
        node_id: String::new(),
        organization: String::new(),
        role: None,
        remote_addr: Some(address.parse::<SocketAddr>().unwrap()),
        forwarded_by: None,
        local: false,
    }
}

fn member(node_id: &str, role: NodeRole) -> Caller {
    Caller {
        node_id: node_id.into(),
        role: Some(role),
        ..stranger()
    }
}

fn state(state: State) -> Option<IssuanceStatus> {
    Some(IssuanceStatus {
        state: state as i32,
        err: String::new(),
    })
}

// 02-A10
#[tokio::test]
async fn tokens_decide_the_role() {
    let authority = Authority::running().await;
    for (token, role, unit) in [
        (WORKER_TOKEN, NodeRole::Worker, "swarm-worker"),
        (MANAGER_TOKEN, NodeRole::Manager, "swarm-manager"),
    ] {
        let (node_id, certificate) = authority.join(token).await;
        assert_eq!(certificate.common_name, node_id);
        assert_eq!(certificate.units, [unit]);
        assert_eq!(certificate.organizations.join(","), authority.cluster.id);
        let node = authority.node(&node_id);
        assert_eq!(node.role(), role);
        assert_eq!(node.vxlanudp_port, 4789);
        let spec = node.spec.as_ref().unwrap();
        assert_eq!(spec.desired_role(), role);
        assert_eq!(spec.membership(), Membership::Accepted);
        assert_eq!(spec.availability(), Availability::Drain);
        assert_eq!(node.certificate.as_ref().unwrap().cn, node_id);
    }
}

// 02-A10
#[tokio::test]
async fn requests_that_are_refused() {
    let authority = Authority::running().await;
    let before = authority.store.len(Table::Node);
    for (csr, token, text) in [
        (Vec::new(), WORKER_TOKEN, "request is missing"),
        (vec![b'x'; CSR_BYTES_MAX + 1], WORKER_TOKEN, "at most 16384"),
        (
            request(),
            "",
            "A valid join token is necessary to join this cluster",
        ),
        (
            request(),
            "SWMTKN-1-other",
            "A valid join token is necessary to join this cluster",
        ),
    ] {
        let refused = authority.issue(stranger(), &csr, token).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(text), "{refused:?}");
    }
    assert_eq!(authority.store.len(Table::Node), before);
}

// 02-A12
#[tokio::test]
async fn renewals_follow_the_record() {
    let authority = Authority::running().await;
    let (node_id, _) = authority.join(WORKER_TOKEN).await;
    let csr = request();
    let caller = member(&node_id, NodeRole::Worker);
    let answer = authority.issue(caller.clone(), &csr, "").await.unwrap();
    assert_eq!(answer.node_id, node_id);
    assert_eq!(answer.node_membership, Membership::Accepted as i32);
    assert_eq!(
        authority.issued(&node_id, &csr).await.units,
        ["swarm-worker"]
    );

    // The role on record counts, not the wanted one and not the old certificate.
    let desired = |node: &mut Node| {
        node.spec.get_or_insert_default().desired_role = NodeRole::Manager as i32;
    };
    authority.change_node(&node_id, desired).await;
    authority
        .issue(caller.clone(), &csr, MANAGER_TOKEN)
        .await
        .unwrap();
    assert_eq!(
        authority.issued(&node_id, &csr).await.units,
        ["swarm-worker"]
    );
    let promoted = |node: &mut Node| node.role = NodeRole::Manager as i32;
    authority.change_node(&node_id, promoted).await;
    authority.issue(caller.clone(), &csr, "").await.unwrap();
    assert_eq!(
        authority.issued(&node_id, &csr).await.units,
        ["swarm-manager"]
    );

    let id = node_id.clone();
    authority
        .store
        .update(move |tx| tx.delete::<Node>(&id))
        .await
        .unwrap();
    let refused = authority.issue(caller, &csr, "").await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    let text = format!("node {node_id} not found when attempting to renew certificate");
    assert_eq!(refused.message(), text);
}

// 02-A13
#[tokio::test]
async fn garbage_is_taken_and_then_fails() {
    let authority = Authority::running().await;
    let taken = authority
        .issue(stranger(), b"random garbage", WORKER_TOKEN)
        .await
        .unwrap();
    let answer = authority.status(&taken.node_id).await.unwrap();
    let status = answer.status.unwrap();
    assert_eq!(status.state(), State::Failed);
    assert!(status.err.contains("CSR Decode failed"), "{}", status.err);
    assert!(answer.certificate.unwrap().certificate.is_empty());
    // A node that failed may ask again.
    let csr = request();
    let caller = member(&taken.node_id, NodeRole::Worker);
    authority.issue(caller, &csr, "").await.unwrap();
    authority.issued(&taken.node_id, &csr).await;
}

fn root(cluster: &mut Cluster) -> &mut StoredRoot {
    cluster.root_ca.get_or_insert_default()
}

// 02-A14
#[tokio::test]
async fn waiting_for_a_certificate() {
    let authority = Authority::running().await;
    let refused = authority.status("").await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let refused = authority.status("nobody").await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);

    // Pending and not accepted: nobody signs, the call waits.
    let node = Node {
        id: "waiting".into(),
        certificate: Some(crate::api::types::Certificate {
            csr: request(),
            cn: "waiting".into(),
            status: state(State::Pending),
            ..Default::default()
        }),
        spec: Some(NodeSpec::default()),
        ..Default::default()
    };
    authority.store.update(|tx| tx.create(node)).await.unwrap();
    let service = authority.service.clone();
    let waiting = tokio::spawn(async move {
        let request = NodeCertificateStatusRequest {
            node_id: "waiting".into(),
        };
        let answer = service.node_certificate_status(Request::new(request)).await;
        answer.map(|answer| (answer.into_inner(), std::time::Instant::now()))
    });
    // A change that settles nothing does not end it.
    let label = |node: &mut Node| node.vxlanudp_port = 1;
    authority.change_node("waiting", label).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    let accept = |node: &mut Node| {
        node.spec.get_or_insert_default().membership = Membership::Accepted as i32;
    };
    let changed = std::time::Instant::now();
    authority.change_node("waiting", accept).await;
    let answer = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    let (answer, answered) = answer.unwrap();
    assert_eq!(answer.status.unwrap().state(), State::Issued);
    // The bound is 100 ms; the machine that runs this has other things to do.
    assert!(answered - changed < Duration::from_secs(1));

    // ROTATE is an order to the node, not a state of the request.
    let before = answer.certificate.unwrap().certificate;
    let rotate = |node: &mut Node| {
        node.certificate.get_or_insert_default().status = state(State::Rotate);
    };
    authority.change_node("waiting", rotate).await;
    let answer = authority.status("waiting").await.unwrap();
    assert_eq!(answer.status.unwrap().state(), State::Rotate);
    assert_eq!(answer.certificate.unwrap().certificate, before);
}

// 02 section 9.2
// 02-A11
#[tokio::test]
async fn a_replaced_token_stops_at_once() {
    let authority = Authority::running().await;
    let replace = |cluster: &mut Cluster| {
        root(cluster).join_tokens.get_or_insert_default().worker = "SWMTKN-1-new".into();
    };
    authority.change_cluster(replace).await;
    let refused = authority
        .issue(stranger(), &request(), WORKER_TOKEN)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    authority.join("SWMTKN-1-new").await;
    authority.join(MANAGER_TOKEN).await;
}

// Settled I6
#[tokio::test]
async fn guessing_is_slowed_down() {
    let authority = Authority::running().await;
    let csr = request();
    for _ in 0..attempts::FAILURES_MAX {
        let refused = authority
            .issue(stranger(), &csr, "guess")
            .await
            .unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
    for token in ["guess", WORKER_TOKEN] {
        let refused = authority.issue(stranger(), &csr, token).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }
    let elsewhere = stranger_at("192.0.2.2:5000");
    authority
        .issue(elsewhere, &csr, WORKER_TOKEN)
        .await
        .unwrap();
}

// 02-A22
#[tokio::test]
async fn the_unlock_key() {
    let authority = Authority::running().await;
    let ask = || async {
        let answer = authority
            .service
            .get_unlock_key(Request::new(Default::default()))
            .await;
        let answer = answer.unwrap().into_inner();
        (answer.unlock_key, answer.version.unwrap().index)
    };
    let stamp = || {
        let id = authority.cluster.id.clone();
        authority
            .store
            .view(|view| view.get::<Cluster>(&id))
            .unwrap()
            .unwrap()
            .version()
    };
    assert_eq!(ask().await, (Vec::new(), stamp()));
    let key = |subsystem: &str, key: u8| EncryptionKey {
        subsystem: subsystem.into(),
        key: vec![key; 32],
        ..Default::default()
    };
    let keys = vec![key("other", 1), key(MANAGER_SUBSYSTEM, 2)];
    authority
        .change_cluster(|cluster| cluster.unlock_keys = keys)
        .await;
    assert_eq!(ask().await, (Vec::new(), stamp()));
    let lock = |cluster: &mut Cluster| {
        let spec = cluster.spec.get_or_insert_default();
        spec.encryption_config = Some(EncryptionConfig {
            auto_lock_managers: true,
        });
    };
    authority.change_cluster(lock).await;
    assert_eq!(ask().await, (vec![2; 32], stamp()));
}

#[test]
fn deadlines_in_headers() {
    for (text, expected) in [
        ("5S", Some(Duration::from_secs(5))),
        ("4999713u", Some(Duration::from_micros(4_999_713))),
        ("250m", Some(Duration::from_millis(250))),
        ("1H", Some(Duration::from_secs(3600))),
        ("2M", Some(Duration::from_secs(120))),
        ("99999999n", Some(Duration::from_nanos(99_999_999))),
        ("", None),
        ("S", None),
        ("-1S", None),
        ("123456789S", None),
        ("1x", None),
        ("1µ", None),
    ] {
        assert_eq!(parse_timeout(text), expected, "{text}");
    }
}
