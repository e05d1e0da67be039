//! The remote port of a running manager against callers who are not who they should be: each is refused
//! with the specified error, the manager goes on serving, and nothing is written.
//!
//! The manager belongs to a CA whose key the test holds, so that it can show certificates that a cluster
//! would never issue.

use crate::harness::authority::{Authority, Identity, Tls, handshake};
use crate::harness::swarmd::Swarmd;
use crate::harness::wait_for;
use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, SupportedProtocolVersion};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime};
use swarm_manager::api::admin::StatusRequest;
use swarm_manager::api::roles::{self, Role};
use swarm_manager::api::types::ca_client::CaClient;
use swarm_manager::api::types::control_client::ControlClient;
use swarm_manager::api::types::dispatcher_client::DispatcherClient;
use swarm_manager::api::types::node_ca_client::NodeCaClient;
use swarm_manager::api::types::*;
use swarm_manager::identity::issue::signing_request;
use swarm_manager::identity::private_key::PrivateKey;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Life of the certificates of the test's CA is 90 days; this is longer ago.
const LONG_AGO: Duration = Duration::from_secs(100 * 86_400);
/// Clients that connect and say nothing, and what they may cost another client (01-A26).
const SILENT_CLIENTS: usize = 100;
const SILENCE_COST_MAX: Duration = Duration::from_millis(100);
/// How long a silent client may stay: the deadline of a handshake, and some time to be scheduled.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Wrong tokens from one address before it is not listened to for a minute (settled I6).
const WRONG_TOKENS_MAX: usize = 10;

/// Each version that is spoken, alone.
static TLS_VERSIONS: [&[&SupportedProtocolVersion]; 2] = [&[&TLS12], &[&TLS13]];

/// A manager of the test's CA.
struct Manager {
    node: Swarmd,
    authority: Authority,
    /// Where the object store was before anybody strange called.
    applied: u64,
}

impl Manager {
    async fn start() -> Manager {
        let authority = Authority::new();
        let mut node = Swarmd::prepare(&["--executor", "none"]);
        authority.install(&node.state_dir());
        node.spawn();
        node.wait_ready();
        wait_for(
            "the own node is ready",
            crate::harness::SOON,
            || match &node.ctl_json(&["node", "ls"])[0] {
                node if node["status"] == "READY" && node["engine"] != "" => Ok(()),
                node => Err(node.to_string()),
            },
        );
        let mut manager = Manager {
            node,
            authority,
            applied: 0,
        };
        manager.applied = manager.applied().await;
        manager
    }

    async fn applied(&self) -> u64 {
        let status = self.node.admin().await.status(StatusRequest {}).await;
        status.expect("a status").into_inner().applied_index
    }

    async fn dial(&self, identity: Option<&Identity>) -> Channel {
        self.authority.dial(&self.node.remote(), identity).await
    }

    async fn handshake(&self, identity: &Identity, how: &Tls) -> Result<(), AlertDescription> {
        let config = self.authority.client(Some(identity), how);
        handshake(&self.node.remote(), config).await
    }

    /// Nothing was written, and those who belong here are served.
    async fn assert_undisturbed(&self) {
        assert_eq!(self.applied().await, self.applied, "something was written");
        let manager = self.authority.issue(Role::Manager);
        let nodes = ControlClient::new(self.dial(Some(&manager)).await)
            .list_nodes(ListNodesRequest::default())
            .await
            .expect("a manager is served");
        assert_eq!(nodes.into_inner().nodes.len(), 1);
    }
}

/// Calls any method with an empty message; its refusal does not depend on what it is asked.
async fn call(channel: &Channel, path: &'static str) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.expect("a connection");
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let path = http::uri::PathAndQuery::from_static(path);
    client
        .unary(Request::new(()), path, codec)
        .await
        .map(|_| ())
}

fn assert_denied(result: Result<(), Status>, text: &str, what: &str) {
    let status = result.expect_err(what);
    let seen = (status.code(), status.message());
    assert_eq!(seen, (Code::PermissionDenied, text), "{what}");
}

/// The text for a direct caller (spec 02 section 10.1).
fn unauthorized(reason: &str) -> String {
    let nested = format!("rpc error: code = PermissionDenied desc = {reason}");
    format!("Permission denied: unauthorized peer role: {nested}")
}

const NO_CERTIFICATE: &str = "no client certificates in request";
const NOT_A_MANAGER: &str =
    "Permission denied: remote certificate not part of OUs: [swarm-manager]";

#[tokio::test]
async fn every_method_is_closed_to_those_who_may_not_call_it() {
    // 01-A23, 02-A8, 02-A9, 05-A1
    let manager = Manager::start().await;
    let anonymous = manager.dial(None).await;
    let worker = manager.authority.issue(Role::Worker);
    let worker = manager.dial(Some(&worker)).await;
    let closed: Vec<_> = roles::all()
        .iter()
        .filter(|method| !method.insecure)
        .collect();
    for method in &closed {
        let text = unauthorized(NO_CERTIFICATE);
        assert_denied(call(&anonymous, method.path).await, &text, method.path);
        if !method.allows(Some(Role::Worker)) {
            let text = unauthorized(NOT_A_MANAGER);
            assert_denied(call(&worker, method.path).await, &text, method.path);
        }
    }
    assert!(closed.len() > 50, "only {} methods", closed.len());

    let now = SystemTime::now();
    let elsewhere = manager
        .authority
        .issue_for(Role::Worker, "node", "elsewhere", now);
    let refused = DispatcherClient::new(manager.dial(Some(&elsewhere)).await)
        .heartbeat(HeartbeatRequest::default())
        .await;
    let cluster_id = &manager.authority.cluster_id;
    let reason =
        format!("Permission denied: remote certificate not part of organization: {cluster_id}");
    assert_denied(
        refused.map(|_| ()),
        &unauthorized(&reason),
        "another cluster",
    );

    // What is open to everyone stays open.
    let root = CaClient::new(anonymous)
        .get_root_ca_certificate(GetRootCaCertificateRequest {})
        .await
        .expect("the root certificate");
    assert!(root.into_inner().certificate.starts_with(b"-----BEGIN"));
    manager.assert_undisturbed().await;
}

#[tokio::test]
async fn nobody_but_a_manager_passes_on_calls_of_others() {
    // 02-A15, the part of a leader
    let manager = Manager::start().await;
    let worker = manager.authority.issue(Role::Worker);
    let forged = || {
        let mut request = Request::new(ListNodesRequest::default());
        let metadata = request.metadata_mut();
        for (key, value) in [
            ("forwarded_cert", "true"),
            ("forwarded_cert_cn", "somebody"),
            ("forwarded_cert_org", manager.authority.cluster_id.as_str()),
            ("forwarded_cert_ou", "swarm-manager"),
            ("remote_addr", "192.0.2.1:2377"),
        ] {
            metadata.insert(key, value.parse().expect("plain text"));
        }
        request
    };
    for (identity, reason) in [(Some(&worker), NOT_A_MANAGER), (None, NO_CERTIFICATE)] {
        let mut control = ControlClient::new(manager.dial(identity).await);
        let result = control.list_nodes(forged()).await.map(|_| ());
        let text = unauthorized(reason).replace("peer", "forwarder");
        assert_denied(result, &text, "a forged forward");
    }
    manager.assert_undisturbed().await;
}

#[tokio::test]
async fn bad_certificates_end_the_handshake() {
    // 01-A24, 02-A8
    let manager = Manager::start().await;
    let now = SystemTime::now();
    let own = &manager.authority;
    let good = own.issue(Role::Worker);
    let foreign = Authority::new().issue_for(Role::Manager, "node", &own.cluster_id, now);
    let expired = own.issue_for(Role::Manager, "node", &own.cluster_id, now - LONG_AGO);
    let early = own.issue_for(Role::Manager, "node", &own.cluster_id, now + LONG_AGO);
    // A foreign root has the same name as ours, so it is its signature that does not fit.
    for versions in TLS_VERSIONS {
        let how = Tls {
            versions,
            protocol: "h2",
        };
        let version = versions[0].version;
        assert_eq!(manager.handshake(&good, &how).await, Ok(()), "{version:?}");
        for (identity, alert) in [
            (&foreign, AlertDescription::DecryptError),
            (&expired, AlertDescription::CertificateExpired),
            (&early, AlertDescription::CertificateExpired),
        ] {
            let refused = manager.handshake(identity, &how).await;
            assert_eq!(refused, Err(alert), "{version:?}");
        }
        let http1 = Tls {
            versions,
            protocol: "http/1.1",
        };
        let refused = manager.handshake(&good, &http1).await;
        assert_eq!(refused, Err(AlertDescription::NoApplicationProtocol));
    }
    // The same offer as TLS 1.2 gets an answer, as TLS 1.1 a refusal.
    let remote = manager.node.remote();
    assert_eq!(offer(&remote, [3, 3]).first(), Some(&HANDSHAKE));
    let refusal = offer(&remote, [3, 2]);
    assert_eq!(refusal.first(), Some(&ALERT));
    let description = refusal.last().copied().map(AlertDescription::from);
    assert_eq!(description, Some(AlertDescription::ProtocolVersion));
    manager.assert_undisturbed().await;
}

/// Types of TLS records.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// Offers a connection in one version of TLS, 1.2 at most, and returns the first record of the answer.
fn offer(remote: &str, version: [u8; 2]) -> Vec<u8> {
    const CLIENT_HELLO: u8 = 1;
    let extensions: [&[u8]; 4] = [
        &[0, 10, 0, 4, 0, 2, 0, 23],         // groups: P-256
        &[0, 11, 0, 2, 1, 0],                // point formats: uncompressed
        &[0, 13, 0, 4, 0, 2, 4, 3],          // signatures: ECDSA with SHA-256
        &[0, 16, 0, 5, 0, 3, 2, b'h', b'2'], // protocols: HTTP/2
    ];
    let extensions = extensions.concat();
    let mut hello = version.to_vec();
    hello.extend([7; 32]); // random
    hello.push(0); // no session
    hello.extend([0, 2, 0xc0, 0x2b]); // ECDHE, ECDSA, AES-128-GCM
    hello.extend([1, 0]); // no compression
    hello.extend([0, extensions.len() as u8]);
    hello.extend(extensions);
    let mut message = vec![CLIENT_HELLO, 0, 0, hello.len() as u8];
    message.extend(hello);
    let mut record = vec![HANDSHAKE, 3, 1, 0, message.len() as u8];
    record.extend(message);

    let mut stream = TcpStream::connect(remote).expect("a connection");
    let limit = Some(SILENCE_MAX);
    stream.set_read_timeout(limit).expect("a limit");
    stream.write_all(&record).expect("a write");
    let mut answer = vec![0; 5];
    stream.read_exact(&mut answer).expect("a record");
    let length = usize::from(answer[3]) << 8 | usize::from(answer[4]);
    answer.resize(5 + length, 0);
    stream.read_exact(&mut answer[5..]).expect("a record");
    answer
}

#[tokio::test]
async fn a_removed_node_is_shut_out() {
    // 02-A16, the part of a leader; 05-A1
    let mut manager = Manager::start().await;
    let (node_id, _) = join(&manager, &manager.node.token("worker"))
        .await
        .expect("a node");
    let now = SystemTime::now();
    let own = &manager.authority;
    let identities = [Role::Worker, Role::Manager]
        .map(|role| own.issue_for(role, &node_id, &own.cluster_id, now));
    let heartbeat = |channel| async move {
        let mut dispatcher = DispatcherClient::new(channel);
        let answer = dispatcher.heartbeat(HeartbeatRequest::default()).await;
        answer.map(|_| ()).expect_err("no session").code()
    };
    let channels = [
        manager.dial(Some(&identities[0])).await,
        manager.dial(Some(&identities[1])).await,
    ];
    for channel in channels.clone() {
        assert_ne!(heartbeat(channel).await, Code::PermissionDenied);
    }
    manager.node.ctl(&["node", "rm", "--force", &node_id]);
    manager.applied = manager.applied().await;
    let reason = format!("Permission denied: node {node_id} was removed from swarm");
    let text = unauthorized(&reason);
    for channel in channels {
        // The connection that was open is of no use any more, nor is a new one.
        let path = "/docker.swarmkit.v1.Dispatcher/Heartbeat";
        assert_denied(call(&channel, path).await, &text, "an open connection");
    }
    for method in roles::all().iter().filter(|method| !method.insecure) {
        let channel = manager.dial(Some(&identities[1])).await;
        assert_denied(call(&channel, method.path).await, &text, method.path);
    }
    manager.assert_undisturbed().await;
}

/// Asks for a certificate with a token, as a new node does; returns the node's ID.
async fn join(manager: &Manager, token: &str) -> Result<(String, Vec<u8>), Status> {
    let key = PrivateKey::generate().expect("a key");
    let csr = signing_request(&key).expect("a request");
    let request = IssueNodeCertificateRequest {
        csr: csr.clone(),
        token: token.to_owned(),
        ..Default::default()
    };
    let answer = NodeCaClient::new(manager.dial(None).await)
        .issue_node_certificate(request)
        .await?;
    Ok((answer.into_inner().node_id, csr))
}

#[tokio::test]
async fn a_wrong_token_makes_no_node_and_cannot_be_guessed() {
    // 02-A10, the refusals
    let manager = Manager::start().await;
    let right = manager.node.token("manager");
    let mut wrong = right.clone();
    let last = wrong.pop().expect("a token");
    wrong.push(if last == '0' { '1' } else { '0' });
    for token in [wrong.as_str(), "", "SWMTKN-1-x-y"]
        .iter()
        .cycle()
        .take(WRONG_TOKENS_MAX)
    {
        let status = join(&manager, token).await.expect_err("a wrong token");
        let seen = (status.code(), status.message());
        let text = "A valid join token is necessary to join this cluster";
        assert_eq!(seen, (Code::InvalidArgument, text), "{token:?}");
    }
    let status = join(&manager, &right).await.expect_err("a guesser");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    manager.assert_undisturbed().await;
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused() {
    let manager = Manager::start().await;
    let identity = manager.authority.issue(Role::Manager);
    let request = || CreateConfigRequest {
        spec: Some(ConfigSpec {
            annotations: Some(Annotations {
                name: "big".to_owned(),
                ..Default::default()
            }),
            data: vec![7; 5 << 20],
            ..Default::default()
        }),
    };
    let mut control = ControlClient::new(manager.dial(Some(&identity)).await);
    let status = control.create_config(request()).await.expect_err("5 MiB");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(
        status
            .message()
            .starts_with("grpc: received message larger than max ("),
        "{status:?}"
    );

    // Whoever may not call at all is told that, whatever the size.
    let worker = manager.authority.issue(Role::Worker);
    let mut control = ControlClient::new(manager.dial(Some(&worker)).await);
    let result = control.create_config(request()).await.map(|_| ());
    assert_denied(result, &unauthorized(NOT_A_MANAGER), "a worker");
    manager.assert_undisturbed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_clients_delay_nobody_and_are_dropped() {
    // 01-A26
    let manager = Manager::start().await;
    let worker = manager.authority.issue(Role::Worker);
    let alone = quickest_handshake(&manager, &worker).await;
    let begin = Instant::now();
    let silent: Vec<TcpStream> = (0..SILENT_CLIENTS)
        .map(|number| {
            let mut stream = TcpStream::connect(manager.node.remote()).expect("a connection");
            if number % 2 == 0 {
                // Half of them begin a handshake and then say no more.
                stream.write_all(&[22, 3, 1, 1, 0, 1]).expect("a write");
            }
            stream
        })
        .collect();
    let among = quickest_handshake(&manager, &worker).await;
    assert!(
        among < alone + SILENCE_COST_MAX,
        "a handshake takes {among:?} instead of {alone:?}"
    );
    for mut stream in silent {
        let left = SILENCE_MAX.saturating_sub(begin.elapsed());
        stream
            .set_read_timeout(Some(left.max(Duration::from_millis(1))))
            .expect("a limit");
        let mut answer = Vec::new();
        let end = stream.read_to_end(&mut answer);
        let is_closed = match &end {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        assert!(is_closed, "still open after {:?}: {end:?}", begin.elapsed());
    }
    manager.assert_undisturbed().await;
}

/// The quickest of some handshakes: what they need at least, without the machine's other work.
async fn quickest_handshake(manager: &Manager, identity: &Identity) -> Duration {
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let begin = Instant::now();
        let served = manager.handshake(identity, &Tls::default()).await;
        quickest = quickest.min(begin.elapsed());
        assert_eq!(served, Ok(()));
    }
    quickest
}
