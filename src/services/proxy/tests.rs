//! Two managers with real connections between them: what is passed on, as whom, and what happens when the
//! leader goes away; and the look-up alone, in virtual time.

use super::*;
use crate::api::roles::Role;
use crate::api::types::control_client::ControlClient;
use crate::api::types::dispatcher_client::DispatcherClient;
use crate::api::types::log_broker_client::LogBrokerClient;
use crate::api::types::node_ca_client::NodeCaClient;
use crate::api::types::raft_membership_client::RaftMembershipClient;
use crate::api::types::{
    HeartbeatRequest, IssueNodeCertificateRequest, JoinRequest, ListNodesRequest,
    PublishLogsMessage, SessionRequest, UpdateNodeRequest,
};
use crate::identity::Caller;
use crate::identity::authorize::Authorizer;
use crate::identity::connect;
use crate::identity::testing::{TestCluster, TestNode};
use crate::raft::Leadership;
use crate::services::control::Member;
use crate::services::server::control_socket::ControlSocket;
use crate::services::server::{Listener, bind_remote, serve};
use http_body::{Body as HttpBody, Frame};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::pin::Pin;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::server::NamedService;
use tonic::service::Routes;

/// A group that is what the test says.
struct FakeGroup {
    raft_id: u64,
    leadership: watch::Sender<Leadership>,
    members: Mutex<Option<Vec<Member>>>,
}

impl FakeGroup {
    fn new(raft_id: u64) -> Arc<FakeGroup> {
        Arc::new(FakeGroup {
            raft_id,
            leadership: watch::Sender::new(Leadership::Follower { leader: None }),
            members: Mutex::new(Some(Vec::new())),
        })
    }

    fn leader_is(&self, leader: Option<u64>) {
        self.leadership
            .send_replace(Leadership::Follower { leader });
    }

    fn leads(&self) {
        self.leadership.send_replace(Leadership::Leader { term: 3 });
    }

    fn knows(&self, raft_id: u64, addr: &str, reachable: bool) {
        let member = Member {
            raft_id,
            node_id: format!("node{raft_id}"),
            addr: addr.to_owned(),
            leader: false,
            reachable,
        };
        let mut members = self.members.lock();
        let members = members.get_or_insert_default();
        members.retain(|known| known.raft_id != raft_id);
        members.push(member);
    }
}

impl Group for FakeGroup {
    fn raft_id(&self) -> u64 {
        self.raft_id
    }

    fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    fn members(&self) -> Option<Vec<Member>> {
        self.members.lock().clone()
    }
}

/// One request as a service saw it.
struct Seen {
    path: String,
    caller: Caller,
    headers: HeaderMap,
    bytes: usize,
}

/// How the services of a manager answer.
#[derive(Clone, Default)]
struct Behaviour {
    /// No answer at all.
    hang: bool,
    /// Answers with one message and keeps the stream open.
    open: bool,
}

/// Every service of a manager: notes who asks, and answers with an empty message.
#[derive(Clone)]
struct Witness {
    seen: mpsc::UnboundedSender<Seen>,
    behaviour: Arc<Mutex<Behaviour>>,
}

/// An answer of one empty message.
struct Answer {
    frames: Vec<Frame<Bytes>>,
    open: bool,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.frames.pop() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None if self.open => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

impl Witness {
    async fn answer(self, request: Request<Body>) -> Response<Body> {
        let (parts, mut body) = request.into_parts();
        let mut bytes = 0;
        while let Some(Ok(frame)) =
            std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await
        {
            bytes += frame.data_ref().map_or(0, Bytes::len);
        }
        let _ = self.seen.send(Seen {
            path: parts.uri.path().to_owned(),
            caller: parts.extensions.get::<Caller>().unwrap().clone(),
            headers: parts.headers,
            bytes,
        });
        let behaviour = self.behaviour.lock().clone();
        if behaviour.hang {
            std::future::pending::<()>().await;
        }
        let mut trailers = HeaderMap::new();
        Status::ok("").add_header(&mut trailers).unwrap();
        let mut frames = vec![Frame::data(Bytes::from_static(&[0; 5]))];
        if !behaviour.open {
            frames.insert(0, Frame::trailers(trailers));
        }
        let body = Answer {
            frames,
            open: behaviour.open,
        };
        let response = Response::builder().header("content-type", "application/grpc");
        response.body(Body::new(body)).unwrap()
    }
}

macro_rules! named_witness {
    ($($name:ident = $service:literal;)+) => {
        $(#[derive(Clone)]
        struct $name(Witness);

        impl NamedService for $name {
            const NAME: &'static str = $service;
        }

        impl Service<Request<Body>> for $name {
            type Response = Response<Body>;
            type Error = Infallible;
            type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

            fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: Request<Body>) -> Self::Future {
                let witness = self.0.clone();
                Box::pin(async move { Ok(witness.answer(request).await) })
            }
        })+
    };
}

named_witness! {
    DispatcherWitness = "docker.swarmkit.v1.Dispatcher";
    NodeCaWitness = "docker.swarmkit.v1.NodeCA";
    LogBrokerWitness = "docker.swarmkit.v1.LogBroker";
    MembershipWitness = "docker.swarmkit.v1.RaftMembership";
    ControlWitness = "docker.swarmkit.v1.Control";
}

/// A manager that serves, with its proxy.
struct Manager {
    group: Arc<FakeGroup>,
    node: TestNode,
    address: String,
    socket: std::path::PathBuf,
    seen: mpsc::UnboundedReceiver<Seen>,
    behaviour: Arc<Mutex<Behaviour>>,
    stop: CancellationToken,
}

impl Manager {
    async fn start(cluster: &TestCluster, raft_id: u64) -> Manager {
        let node = cluster.node(&format!("node{raft_id}"), Role::Manager);
        let group = FakeGroup::new(raft_id);
        let (sender, seen) = mpsc::unbounded_channel();
        let behaviour = Arc::<Mutex<Behaviour>>::default();
        let witness = Witness {
            seen: sender,
            behaviour: behaviour.clone(),
        };
        let routes = Routes::new(DispatcherWitness(witness.clone()))
            .add_service(NodeCaWitness(witness.clone()))
            .add_service(LogBrokerWitness(witness.clone()))
            .add_service(MembershipWitness(witness.clone()))
            .add_service(ControlWitness(witness));
        let stop = CancellationToken::new();
        let removed = |node_id: &str| node_id == "removed";
        let authorizer = Arc::new(Authorizer::new(node.security.clone(), removed));
        let tick = Duration::from_millis(100);
        let lookup = LeaderLookup::new(group.clone(), tick, str::to_owned);
        let proxy = Proxy::new(lookup, node.security.clone());
        let remote = bind_remote("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = remote.local_addr().unwrap().to_string();
        let socket = node.dir.path().join("control.sock");
        let control = Listener::Control(ControlSocket::bind(&socket, None).unwrap());
        for listener in [remote, control] {
            tokio::spawn(serve(
                listener,
                node.security.clone(),
                authorizer.clone(),
                Some(proxy.clone()),
                routes.clone(),
                stop.clone(),
            ));
        }
        Manager {
            group,
            node,
            address,
            socket,
            seen,
            behaviour,
            stop,
        }
    }

    async fn dial(&self, node: &TestNode) -> tonic::transport::Channel {
        let dialled = connect::connect_manager(&node.security, &self.address).await;
        dialled.unwrap()
    }

    async fn saw(&mut self) -> Seen {
        self.seen.recv().await.unwrap()
    }
}

/// A leader, 1, and a follower, 2, which knows it.
async fn pair() -> (TestCluster, Manager, Manager) {
    let cluster = TestCluster::new();
    let leader = Manager::start(&cluster, 1).await;
    let follower = Manager::start(&cluster, 2).await;
    leader.group.leads();
    follower.group.knows(1, &leader.address, true);
    follower.group.leader_is(Some(1));
    (cluster, leader, follower)
}

fn heartbeat() -> HeartbeatRequest {
    HeartbeatRequest {
        session_id: "s".into(),
    }
}

// 03-A23: a unary call, a server stream and a client stream; the worker stays that worker.
#[tokio::test]
async fn every_kind_of_call_is_passed_on_as_its_caller() {
    let (cluster, mut leader, follower) = pair().await;
    let worker = cluster.node("worker", Role::Worker);
    let channel = follower.dial(&worker).await;

    let mut dispatcher = DispatcherClient::new(channel.clone());
    dispatcher.heartbeat(heartbeat()).await.unwrap();
    let seen = leader.saw().await;
    assert_eq!(seen.path, "/docker.swarmkit.v1.Dispatcher/Heartbeat");
    assert_eq!(seen.caller.node_id, "worker");
    assert_eq!(seen.caller.forwarded_by.as_deref(), Some("node2"));
    assert_eq!(
        seen.caller.remote_addr.unwrap().ip().to_string(),
        "127.0.0.1"
    );
    assert_eq!(seen.bytes, 5 + 3, "one message");

    let session = dispatcher.session(SessionRequest::default()).await.unwrap();
    let mut messages = session.into_inner();
    assert!(messages.message().await.unwrap().is_some());
    assert!(messages.message().await.unwrap().is_none());
    assert_eq!(leader.saw().await.caller.node_id, "worker");

    let logs = (0..3).map(|_| PublishLogsMessage::default());
    LogBrokerClient::new(channel)
        .publish_logs(futures::stream::iter(logs))
        .await
        .unwrap();
    let seen = leader.saw().await;
    assert_eq!((seen.caller.node_id.as_str(), seen.bytes), ("worker", 15));
}

// 02-A15: an anonymous joiner is not taken for the follower that passes its call on.
#[tokio::test]
async fn a_stranger_stays_a_stranger() {
    let (_cluster, mut leader, follower) = pair().await;
    let clock = follower.node.security.clock().clone();
    let anonymous = connect::Protection::unverified(&clock).unwrap();
    let address = connect::Address::tcp(&follower.address);
    let channel = connect::connect(&address, anonymous).await.unwrap();
    let request = IssueNodeCertificateRequest {
        token: "token".into(),
        ..Default::default()
    };
    let mut client = NodeCaClient::new(channel);
    client.issue_node_certificate(request).await.unwrap();
    let seen = leader.saw().await;
    assert_eq!((seen.caller.role, seen.caller.node_id.as_str()), (None, ""));
    assert_eq!(seen.caller.forwarded_by.as_deref(), Some("node2"));
}

// 03-A24, 02-A15: the leader judges, also what a worker claims to be.
#[tokio::test]
async fn a_worker_gains_nothing_through_a_follower() {
    let (cluster, mut leader, follower) = pair().await;
    let worker = cluster.node("worker", Role::Worker);
    let join = || {
        let mut request = tonic::Request::new(JoinRequest::default());
        for (key, value) in [
            ("forwarded_cert", "true"),
            ("forwarded_cert_cn", "node1"),
            ("forwarded_cert_org", cluster.id.as_str()),
            ("forwarded_cert_ou", "swarm-manager"),
            ("redirect", "192.0.2.1:1"),
        ] {
            request.metadata_mut().insert(key, value.parse().unwrap());
        }
        request
    };
    let mut through = RaftMembershipClient::new(follower.dial(&worker).await);
    let refused = through.join(join()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("unauthorized forwarded role"));

    let mut direct = RaftMembershipClient::new(leader.dial(&worker).await);
    let refused = direct.join(join()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("unauthorized forwarder role"));

    // What it may call it calls as itself.
    let mut heartbeat = tonic::Request::new(heartbeat());
    *heartbeat.metadata_mut() = join().metadata().clone();
    let mut dispatcher = DispatcherClient::new(follower.dial(&worker).await);
    dispatcher.heartbeat(heartbeat).await.unwrap();
    assert_eq!(leader.saw().await.caller.node_id, "worker");
}

// 02-A16: a removed node is refused on the leader and through a follower.
#[tokio::test]
async fn a_removed_node_is_refused_through_a_follower() {
    let (cluster, leader, follower) = pair().await;
    let removed = cluster.node("removed", Role::Worker);
    for manager in [&leader, &follower] {
        let mut dispatcher = DispatcherClient::new(manager.dial(&removed).await);
        let refused = dispatcher.heartbeat(heartbeat()).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(
            refused.message().contains("removed from swarm"),
            "{refused}"
        );
    }
}

// 02-A15, 03-A23, 03-A24: a call is passed on once.
#[tokio::test]
async fn a_call_is_not_passed_on_twice() {
    let (cluster, mut leader, follower) = pair().await;
    let manager = cluster.node("node3", Role::Manager);
    let mut request = tonic::Request::new(JoinRequest::default());
    let redirect = "192.0.2.1:1".parse().unwrap();
    request.metadata_mut().insert("redirect", redirect);
    let mut client = RaftMembershipClient::new(follower.dial(&manager).await);
    let refused = client.join(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(
        refused.message(),
        "more than one redirect to leader from: 192.0.2.1:1"
    );
    // A follower whose leader turns out to be none looks again, until it is told who is.
    let third = Manager::start(&cluster, 3).await;
    third.group.knows(1, &leader.address, true);
    third.group.leader_is(Some(1));
    follower.group.knows(3, &third.address, true);
    follower.group.leader_is(Some(3));
    let call = tokio::spawn(async move { client.join(JoinRequest::default()).await });
    let changes = follower.group.clone();
    tokio::time::sleep(Duration::from_millis(20)).await;
    changes.leader_is(Some(1));
    call.await.unwrap().unwrap();
    let seen = leader.saw().await;
    assert_eq!(seen.caller.node_id, "node3");
}

// 05-A39: Control calls are local on the remote port and go to the leader from the control socket.
#[tokio::test]
async fn the_control_socket_speaks_as_its_manager() {
    let (cluster, mut leader, mut follower) = pair().await;
    let channel = connect::connect_control(&follower.socket).await.unwrap();
    let mut control = ControlClient::new(channel);
    let mut request = tonic::Request::new(UpdateNodeRequest::default());
    let lie = "true".parse().unwrap();
    request.metadata_mut().insert("forwarded_cert", lie);
    control.update_node(request).await.unwrap();
    let seen = leader.saw().await;
    assert_eq!(seen.caller.node_id, "node2");
    assert_eq!(seen.caller.forwarded_by, None);
    assert!(!seen.headers.contains_key("redirect"));

    let manager = cluster.node("node3", Role::Manager);
    let mut remote = ControlClient::new(follower.dial(&manager).await);
    remote
        .list_nodes(ListNodesRequest::default())
        .await
        .unwrap();
    assert_eq!(follower.saw().await.caller.node_id, "node3");

    // A reader that takes old answers gets them here; a writer does not get around the leader.
    let stale = |path: &str| {
        let mut request = Request::builder().uri(path).body(()).unwrap();
        request
            .headers_mut()
            .insert(METADATA_READ, READ_LOCAL.parse().unwrap());
        let local = Connection::local(CancellationToken::new());
        request.extensions_mut().insert(local);
        for_the_leader(&request).is_none()
    };
    assert!(stale("/docker.swarmkit.v1.Control/ListNodes"));
    assert!(!stale("/docker.swarmkit.v1.Control/UpdateNode"));
}

// 03-A23: the leader is lost while it works on a call.
#[tokio::test]
async fn a_call_whose_leader_dies_is_finished_by_the_next() {
    let (cluster, mut leader, mut follower) = pair().await;
    let worker = cluster.node("worker", Role::Worker);
    leader.behaviour.lock().hang = true;
    let mut dispatcher = DispatcherClient::new(follower.dial(&worker).await);
    let call = tokio::spawn(async move { dispatcher.heartbeat(heartbeat()).await });
    leader.saw().await;
    // It is here that leadership goes to: the call is answered by the local services.
    follower.group.leads();
    call.await.unwrap().unwrap();
    let seen = follower.saw().await;
    assert_eq!(seen.caller.node_id, "worker");
    assert_eq!(seen.caller.forwarded_by, None);
}

#[tokio::test]
async fn a_write_whose_outcome_is_unknown_is_not_repeated() {
    let (_cluster, mut leader, mut follower) = pair().await;
    leader.behaviour.lock().hang = true;
    let channel = connect::connect_control(&follower.socket).await.unwrap();
    let mut control = ControlClient::new(channel);
    let call = tokio::spawn(async move { control.update_node(UpdateNodeRequest::default()).await });
    leader.saw().await;
    follower.group.leads();
    let failed = call.await.unwrap().unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(
        failed.message().contains("UpdateNode is not known"),
        "{failed}"
    );
    assert!(follower.seen.try_recv().is_err(), "it was done once");
}

#[tokio::test]
async fn a_call_waits_for_a_leader_that_cannot_be_reached() {
    let (cluster, mut leader, follower) = pair().await;
    let worker = cluster.node("worker", Role::Worker);
    // Nobody listens there.
    follower.group.knows(4, "127.0.0.1:1", true);
    follower.group.leader_is(Some(4));
    let mut dispatcher = DispatcherClient::new(follower.dial(&worker).await);
    let call = tokio::spawn(async move { dispatcher.heartbeat(heartbeat()).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    follower.group.leader_is(Some(1));
    call.await.unwrap().unwrap();
    assert_eq!(leader.saw().await.caller.node_id, "worker");
}

#[tokio::test]
async fn a_stream_ends_when_another_member_leads() {
    let (cluster, leader, follower) = pair().await;
    leader.behaviour.lock().open = true;
    let worker = cluster.node("worker", Role::Worker);
    let mut dispatcher = DispatcherClient::new(follower.dial(&worker).await);
    let session = dispatcher.session(SessionRequest::default()).await.unwrap();
    let mut messages = session.into_inner();
    assert!(messages.message().await.unwrap().is_some());
    // Between two leaders nothing happens to it.
    follower.group.leader_is(None);
    follower.group.leader_is(Some(1));
    let next = messages.message();
    tokio::pin!(next);
    assert!(futures::poll!(&mut next).is_pending());
    follower.group.knows(3, "127.0.0.1:1", true);
    follower.group.leader_is(Some(3));
    let ended = next.await.unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable);
    leader.stop.cancel();
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_before_all_of_it_came() {
    let (_cluster, leader, follower) = pair().await;
    let channel = connect::connect_control(&follower.socket).await.unwrap();
    let request = UpdateNodeRequest {
        node_id: "x".repeat(5 * 1024 * 1024),
        ..Default::default()
    };
    let mut control = ControlClient::new(channel);
    let refused = control.update_node(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("larger than max"), "{refused}");
    drop(leader);
}

fn lookup(group: &Arc<FakeGroup>) -> LeaderLookup {
    let names = |id: &str| format!("host of {id}");
    LeaderLookup::new(group.clone(), Duration::from_millis(100), names)
}

const HEARTBEAT: &str = "/docker.swarmkit.v1.Dispatcher/Heartbeat";

async fn route_within(lookup: &LeaderLookup, limit: Duration) -> Result<Route, Status> {
    lookup.route(HEARTBEAT, Instant::now() + limit).await
}

// 03-A23: no leader for long: told at once, with what is missing.
#[tokio::test(start_paused = true)]
async fn a_lost_quorum_is_told_at_once() {
    let group = FakeGroup::new(2);
    for (id, reachable) in [(1, false), (2, true), (3, false)] {
        group.knows(id, &format!("10.0.0.{id}:2377"), reachable);
    }
    let lookup = lookup(&group);
    tokio::task::yield_now().await;
    let begin = Instant::now();
    let lost = route_within(&lookup, Duration::from_secs(30)).await;
    let waited = begin.elapsed();
    assert!(
        waited >= LOST && waited < LOST + Duration::from_millis(300),
        "{waited:?}"
    );
    let lost = lost.unwrap_err();
    assert_eq!(lost.code(), Code::Unknown);
    for part in [
        "The swarm does not have a leader.",
        "1 of 3 managers reachable, 2 needed",
        "missing: host of node1 at 10.0.0.1:2377, host of node3 at 10.0.0.3:2377",
        "--force-new-cluster",
    ] {
        assert!(lost.message().contains(part), "{part}: {}", lost.message());
    }
    // Whoever comes later does not wait.
    let begin = Instant::now();
    route_within(&lookup, Duration::from_secs(30))
        .await
        .unwrap_err();
    assert!(begin.elapsed().is_zero());
    // A leader ends it, and the next loss counts from its own beginning.
    group.leader_is(Some(1));
    let leader = Route::Leader(lookup::Peer {
        raft_id: 1,
        addr: "10.0.0.1:2377".into(),
    });
    assert_eq!(route_within(&lookup, LOST).await.unwrap(), leader);
    tokio::task::yield_now().await;
    group.leader_is(None);
    tokio::task::yield_now().await;
    let begin = Instant::now();
    route_within(&lookup, Duration::from_secs(30))
        .await
        .unwrap_err();
    assert!(begin.elapsed() >= LOST);
}

const LOST: Duration = Duration::from_secs(3);

#[tokio::test(start_paused = true)]
async fn the_lookup_waits_for_what_it_needs() {
    let group = FakeGroup::new(2);
    let lookup = lookup(&group);
    // Elected, but not ready.
    group.leader_is(Some(2));
    let waiting = tokio::spawn({
        let lookup = lookup.clone();
        async move { route_within(&lookup, Duration::from_secs(30)).await }
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!waiting.is_finished());
    group.leads();
    assert_eq!(waiting.await.unwrap().unwrap(), Route::Here);
    // A leader whose address is still on its way.
    group.leader_is(Some(7));
    let late = route_within(&lookup, Duration::from_secs(1)).await;
    assert_eq!(late.unwrap_err().code(), Code::Unavailable);
    group.knows(7, "10.0.0.7:1", true);
    assert!(matches!(
        route_within(&lookup, LOST).await.unwrap(),
        Route::Leader(peer) if peer.addr == "10.0.0.7:1"
    ));
    // Not one of the group.
    *group.members.lock() = None;
    let outside = route_within(&lookup, LOST).await.unwrap_err();
    assert_eq!(outside.code(), Code::Unavailable);
    let join = "/docker.swarmkit.v1.RaftMembership/Join";
    let outside = lookup.route(join, Instant::now() + LOST).await.unwrap_err();
    assert_eq!(outside.code(), Code::FailedPrecondition);
    assert_eq!(
        outside.message(),
        "raft: node is not yet part of a raft cluster"
    );
}
