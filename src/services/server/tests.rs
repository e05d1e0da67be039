//! Real connections: TLS versions, ALPN, silent clients, the control socket, and who gets through.

use super::control_socket::{ControlSocket, ControlSocketError};
use super::*;
use crate::api::roles::Role;
use crate::api::types::ca_client::CaClient;
use crate::api::types::ca_server::{Ca, CaServer};
use crate::api::types::control_client::ControlClient;
use crate::api::types::dispatcher_client::DispatcherClient;
use crate::api::types::health_check_response::ServingStatus;
use crate::api::types::health_client::HealthClient;
use crate::api::types::health_server::{Health, HealthServer};
use crate::api::types::raft_membership_client::RaftMembershipClient;
use crate::api::types::{
    GetRootCaCertificateRequest, GetRootCaCertificateResponse, GetUnlockKeyRequest,
    GetUnlockKeyResponse, HealthCheckRequest, HealthCheckResponse, HeartbeatRequest, JoinRequest,
    ListNodesRequest,
};
use crate::identity::connect::{self, Address, PeerName, Protection};
use crate::identity::connection::Connection;
use crate::identity::testing::{TestCluster, TestNode, openssl};
use crate::identity::{Caller, Clock, NodePair, tls};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

/// Answers to nothing but tells the test who was asking.
#[derive(Clone)]
struct Witness {
    seen: mpsc::UnboundedSender<(Caller, Connection)>,
}

#[tonic::async_trait]
impl Health for Witness {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let connection = request.extensions().get::<Connection>().cloned();
        let seen = (Caller::of(&request)?, connection.unwrap());
        self.seen.send(seen).unwrap();
        if request.get_ref().service == "hang" {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(HealthCheckResponse {
            status: ServingStatus::Serving as i32,
        }))
    }
}

#[tonic::async_trait]
impl Ca for Witness {
    async fn get_root_ca_certificate(
        &self,
        request: Request<GetRootCaCertificateRequest>,
    ) -> Result<Response<GetRootCaCertificateResponse>, Status> {
        let connection = request.extensions().get::<Connection>().cloned();
        let seen = (Caller::of(&request)?, connection.unwrap());
        self.seen.send(seen).unwrap();
        Ok(Response::new(Default::default()))
    }

    async fn get_unlock_key(
        &self,
        _request: Request<GetUnlockKeyRequest>,
    ) -> Result<Response<GetUnlockKeyResponse>, Status> {
        Ok(Response::new(Default::default()))
    }
}

struct Served {
    cluster: TestCluster,
    manager: TestNode,
    address: String,
    seen: mpsc::UnboundedReceiver<(Caller, Connection)>,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), ServeError>>,
}

async fn served() -> Served {
    let listener = bind_remote("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    serve_on(listener, address)
}

fn serve_on(listener: Listener, address: String) -> Served {
    let cluster = TestCluster::new();
    let manager = cluster.node("manager", Role::Manager);
    let (sender, seen) = mpsc::unbounded_channel();
    let witness = Witness { seen: sender };
    let routes =
        Routes::new(HealthServer::new(witness.clone())).add_service(CaServer::new(witness));
    let stop = CancellationToken::new();
    let removed = |node_id: &str| node_id == "removed";
    let authorizer = Arc::new(Authorizer::new(manager.security.clone(), removed));
    let security = manager.security.clone();
    let serving = tokio::spawn(serve(
        listener,
        security,
        authorizer,
        None,
        routes,
        stop.clone(),
    ));
    Served {
        cluster,
        manager,
        address,
        seen,
        stop,
        serving,
    }
}

impl Served {
    /// A connection with a node's certificate.
    async fn dial(&self, node: &TestNode) -> Channel {
        connect::connect_manager(&node.security, &self.address)
            .await
            .unwrap()
    }

    async fn dial_as(&self, node_id: &str, role: Role) -> Channel {
        self.dial(&self.cluster.node(node_id, role)).await
    }

    /// A connection that trusts the root but shows no certificate.
    async fn dial_anonymously(&self) -> Channel {
        let config = tls::anonymous_client_config(&self.cluster.root, &Clock::system()).unwrap();
        let protection = Protection::Tls(Arc::new(config), PeerName::Ca);
        connect::connect(&Address::tcp(&self.address), protection)
            .await
            .unwrap()
    }

    fn openssl(&self, arguments: &[&str]) -> (String, bool) {
        let mut all = vec!["s_client", "-connect", &self.address];
        all.extend_from_slice(arguments);
        openssl(self.manager.dir.path(), &all)
    }
}

async fn check(channel: Channel) -> Result<ServingStatus, Status> {
    let request = HealthCheckRequest::default();
    let answer = HealthClient::new(channel).check(request).await?;
    Ok(answer.into_inner().status())
}

fn denied(status: Status) -> String {
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    status.message().to_owned()
}

const NO_CERTIFICATE: &str = "Permission denied: unauthorized peer role: rpc error: code = \
                              PermissionDenied desc = no client certificates in request";

// 02-A9, 02-A7 and 01-A23 (the transport's part)
#[tokio::test]
async fn strangers_reach_open_methods_only() {
    let mut served = served().await;
    let unverified = Protection::unverified(&Clock::system()).unwrap();
    let address = Address::tcp(&served.address);
    let unverified = connect::connect(&address, unverified).await.unwrap();
    for channel in [served.dial_anonymously().await, unverified] {
        let request = GetRootCaCertificateRequest {};
        CaClient::new(channel.clone())
            .get_root_ca_certificate(request)
            .await
            .unwrap();
        let (caller, connection) = served.seen.recv().await.unwrap();
        assert_eq!((caller.role, caller.local), (None, false));
        assert!(caller.remote_addr.is_some() && !connection.has_certificate());

        let heartbeat = HeartbeatRequest::default();
        let refused = DispatcherClient::new(channel.clone())
            .heartbeat(heartbeat)
            .await;
        assert_eq!(denied(refused.unwrap_err()), NO_CERTIFICATE);
        let list = ListNodesRequest::default();
        let refused = ControlClient::new(channel.clone()).list_nodes(list).await;
        assert_eq!(denied(refused.unwrap_err()), NO_CERTIFICATE);
        let join = JoinRequest::default();
        let refused = RaftMembershipClient::new(channel.clone()).join(join).await;
        assert_eq!(denied(refused.unwrap_err()), NO_CERTIFICATE);
        assert_eq!(denied(check(channel).await.unwrap_err()), NO_CERTIFICATE);
    }
}

// 01-A27
#[tokio::test]
async fn handlers_see_the_certificate_chain() {
    let mut served = served().await;
    let peer = served.cluster.node("peer", Role::Manager);
    assert_eq!(
        check(served.dial(&peer).await).await.unwrap(),
        ServingStatus::Serving
    );
    let (caller, connection) = served.seen.recv().await.unwrap();
    assert_eq!(caller.node_id, "peer");
    assert_eq!(caller.organization, served.cluster.id);
    assert!(!caller.local && caller.remote_addr.is_some());
    let pem = std::fs::read(peer.security.key_file().certificate_path()).unwrap();
    let leaf = crate::identity::pem::first(&pem).unwrap();
    assert_eq!(connection.chain.len(), 1);
    assert_eq!(connection.chain[0].as_ref(), leaf.der.as_slice());
}

// 02-A8
#[tokio::test]
async fn foreign_certificates() {
    let mut served = served().await;
    let other = TestCluster::new();
    let foreign = other.pair("peer", Role::Manager);
    let trusting = served.cluster.root.without_signer();
    let chain = foreign_chain(&foreign);
    let config = tls::client_config_with(&trusting, chain.0, chain.1, &Clock::system()).unwrap();
    let protection = Protection::Tls(Arc::new(config), PeerName::Manager);
    let address = Address::tcp(&served.address);
    // Under TLS 1.3 the server's refusal arrives after the client has finished its part.
    if let Ok(channel) = connect::connect(&address, protection).await {
        check(channel).await.unwrap_err();
    }
    assert!(served.seen.try_recv().is_err(), "no request was served");

    let pair = served.cluster.pair_of("peer", Role::Worker, "another");
    let node = served.cluster.node_with(&pair, Clock::system());
    let heartbeat = HeartbeatRequest::default();
    let channel = served.dial(&node).await;
    let refused = DispatcherClient::new(channel).heartbeat(heartbeat).await;
    let text = denied(refused.unwrap_err());
    let inner = format!(
        "Permission denied: remote certificate not part of organization: {}",
        served.cluster.id
    );
    assert!(text.ends_with(&inner), "{text}");
}

type Chain = (
    Vec<rustls_pki_types::CertificateDer<'static>>,
    rustls_pki_types::PrivateKeyDer<'static>,
);

fn foreign_chain(pair: &NodePair) -> Chain {
    let chain = crate::identity::pem::blocks(&pair.certificate_pem)
        .map(|block| block.der.to_vec().into())
        .collect();
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(pair.key.der().to_vec());
    (chain, key.into())
}

#[tokio::test]
async fn a_foreign_manager_is_not_trusted() {
    let served = served().await;
    let stranger = TestCluster::new().node("peer", Role::Worker);
    let error = connect::connect_manager(&stranger.security, &served.address).await;
    let error = error.unwrap_err();
    assert!(error.is_untrusted(), "{error}");
    let nobody = connect::connect_manager(&stranger.security, "127.0.0.1:1").await;
    assert!(!nobody.unwrap_err().is_untrusted());
}

#[tokio::test]
async fn roles_and_removed_nodes() {
    let served = served().await;
    let worker = served.dial_as("worker", Role::Worker).await;
    assert_eq!(
        denied(check(worker.clone()).await.unwrap_err()),
        "Permission denied: unauthorized peer role: rpc error: code = PermissionDenied desc = \
         Permission denied: remote certificate not part of OUs: [swarm-manager]"
    );
    // Allowed, but not served here.
    let heartbeat = HeartbeatRequest::default();
    let passed = DispatcherClient::new(worker)
        .heartbeat(heartbeat.clone())
        .await;
    assert_eq!(passed.unwrap_err().code(), Code::Unimplemented);

    let removed = served.dial_as("removed", Role::Worker).await;
    let refused = DispatcherClient::new(removed).heartbeat(heartbeat).await;
    let text = denied(refused.unwrap_err());
    assert!(
        text.ends_with("Permission denied: node removed was removed from swarm"),
        "{text}"
    );
}

#[tokio::test]
async fn unknown_methods_are_unimplemented() {
    let served = served().await;
    for channel in [
        served.dial_anonymously().await,
        served.dial_as("peer", Role::Manager).await,
    ] {
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.unwrap();
        let path = http::uri::PathAndQuery::from_static("/docker.swarmkit.v1.Control/NoSuch");
        let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        let request = Request::new(HealthCheckRequest::default());
        let refused = client.unary(request, path, codec).await.unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::Unimplemented, "")
        );
    }
}

// 01-A24
#[tokio::test(flavor = "multi_thread")]
async fn tls_versions() {
    let mut served = served().await;
    let peer = served.cluster.pair("peer", Role::Manager);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let (chain, key) = foreign_chain(&peer);
        let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(served.cluster.root.roots().to_store())
        .with_client_auth_cert(chain, key)
        .unwrap();
        config.alpn_protocols = vec![tls::ALPN.to_vec()];
        let protection = Protection::Tls(Arc::new(config), PeerName::Manager);
        let address = Address::tcp(&served.address);
        let channel = connect::connect(&address, protection).await.unwrap();
        check(channel).await.unwrap();
        assert_eq!(served.seen.recv().await.unwrap().0.node_id, "peer");
    }

    let modern = |output: &(String, bool)| output.0.contains("ALPN protocol: h2");
    assert!(modern(&served.openssl(&["-alpn", "h2", "-tls1_2"])));
    assert!(modern(&served.openssl(&[
        "-alpn",
        "h2,http/1.1",
        "-tls1_3"
    ])));
    let ticket = served.openssl(&["-alpn", "h2", "-tls1_2"]).0;
    assert!(!ticket.contains("session ticket:"), "{ticket}");
    let (old, success) = served.openssl(&["-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"]);
    assert!(!success && old.contains("SSL alert number"), "{old}");
    let (http, success) = served.openssl(&["-alpn", "http/1.1"]);
    assert!(
        !success && http.contains("no application protocol"),
        "{http}"
    );
    let (none, _) = served.openssl(&[]);
    assert!(none.contains("No ALPN negotiated"), "{none}");
    // The list of acceptable CA names is empty.
    assert!(
        none.contains("No client certificate CA names sent"),
        "{none}"
    );
}

// 01-A26
#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_delay_nobody() {
    let served = served().await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(&served.address).await.unwrap());
    }
    let node = served.cluster.node("peer", Role::Manager);
    let alone = Instant::now();
    check(served.dial(&node).await).await.unwrap();
    let taken = alone.elapsed();
    // The bound is 100 ms; the machine that runs this has other things to do.
    assert!(taken < Duration::from_secs(1), "{taken:?}");
    let started = Instant::now();
    for stream in &mut silent {
        let limit = accept::HANDSHAKE_TIMEOUT + Duration::from_secs(5);
        let end = tokio::time::timeout(limit, stream.read_u8()).await;
        assert!(end.expect("dropped in time").is_err());
    }
    assert!(started.elapsed() < accept::HANDSHAKE_TIMEOUT + Duration::from_secs(5));
}

#[tokio::test]
async fn garbage_on_the_port_is_dropped() {
    let served = served().await;
    let mut stream = TcpStream::connect(&served.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.len() < 16, "at most a TLS alert: {answer:?}");
    check(served.dial_as("peer", Role::Manager).await)
        .await
        .unwrap();
}

#[tokio::test]
async fn an_orderly_stop_ends_idle_connections() {
    let served = served().await;
    let channel = served.dial_as("peer", Role::Manager).await;
    check(channel.clone()).await.unwrap();
    served.stop.cancel();
    served.serving.await.unwrap().unwrap();
    assert_eq!(check(channel).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_stop_cuts_calls_that_do_not_end() {
    let mut served = served().await;
    let channel = served.dial_as("peer", Role::Manager).await;
    let hanging = tokio::spawn(async move {
        let request = HealthCheckRequest {
            service: "hang".into(),
        };
        HealthClient::new(channel).check(request).await
    });
    served.seen.recv().await.unwrap();
    served.stop.cancel();
    let started = Instant::now();
    served.serving.await.unwrap().unwrap();
    let taken = started.elapsed();
    assert!(taken >= DRAIN_TIMEOUT, "{taken:?}");
    assert!(taken < DRAIN_TIMEOUT + CUT_TIMEOUT, "{taken:?}");
    assert!(hanging.await.unwrap().is_err());
}

#[tokio::test]
async fn cutting_one_connection_leaves_others() {
    let mut served = served().await;
    let one = served.dial_as("one", Role::Manager).await;
    let two = served.dial_as("two", Role::Manager).await;
    check(one.clone()).await.unwrap();
    let (_, connection) = served.seen.recv().await.unwrap();
    let hanging = tokio::spawn(async move {
        let request = HealthCheckRequest {
            service: "hang".into(),
        };
        HealthClient::new(one).check(request).await
    });
    served.seen.recv().await.unwrap();
    connection.close.cancel();
    assert!(hanging.await.unwrap().is_err());
    check(two).await.unwrap();
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn served_locally(path: &Path) -> Served {
    let socket = ControlSocket::bind(path, None).unwrap();
    serve_on(Listener::Control(socket), String::new())
}

// 01-A21 (the socket), 01-A27
#[tokio::test]
async fn the_control_socket_takes_plain_and_tls() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/swarm/control.sock");
    let mut served = served_locally(&path);
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    let unverified = Protection::unverified(&Clock::system()).unwrap();
    for protection in [Protection::Plain, unverified] {
        let address = Address::Unix(path.clone());
        let channel = connect::connect(&address, protection).await.unwrap();
        check(channel).await.unwrap();
        let (caller, connection) = served.seen.recv().await.unwrap();
        assert!(caller.local && connection.local && !connection.has_certificate());
        assert_eq!(caller.node_id, "manager");
        assert_eq!(caller.organization, served.cluster.id);
        assert_eq!(caller.remote_addr, None);
    }
    served.stop.cancel();
    served.serving.await.unwrap().unwrap();
    assert!(!path.exists(), "the file goes with the socket");
}

#[tokio::test]
async fn a_living_control_socket_is_not_stolen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let served = served_locally(&path);
    let error = ControlSocket::bind(&path, None).unwrap_err();
    assert!(matches!(error, ControlSocketError::InUse(_)), "{error}");
    check(connect::connect_control(&path).await.unwrap())
        .await
        .unwrap();
    drop(served);
}

#[tokio::test]
async fn a_dead_control_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let _served = served_locally(&path);
    check(connect::connect_control(&path).await.unwrap())
        .await
        .unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn bad_places_for_a_control_socket() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = ControlSocket::bind(&file, None).unwrap_err();
    assert!(
        matches!(error, ControlSocketError::NotASocket(_)),
        "{error}"
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    let long = dir.path().join("x".repeat(120));
    let error = ControlSocket::bind(&long, None).unwrap_err();
    assert!(
        matches!(error, ControlSocketError::TooLong { .. }),
        "{error}"
    );
    assert_eq!(
        mode(dir.path()),
        0o755,
        "an existing directory stays as it is"
    );
    let group = ControlSocket::bind(
        &dir.path().join("s"),
        Some(rustix::process::getegid().as_raw()),
    );
    assert_eq!(mode(group.unwrap().path()), 0o660);
}

#[tokio::test]
async fn silence_on_the_control_socket_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let _served = served_locally(&path);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let limit = accept::HANDSHAKE_TIMEOUT + Duration::from_secs(5);
    let end = tokio::time::timeout(limit, stream.read_u8()).await;
    assert!(end.expect("dropped in time").is_err());
}
