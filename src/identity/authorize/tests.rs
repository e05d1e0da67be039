//! The rules for direct and forwarded requests, with their exact texts.

use super::*;
use crate::identity::cert::Subject;
use crate::identity::testing::{TestCluster, TestNode};
use http::HeaderValue;
use tokio_util::sync::CancellationToken;

const SESSION: &str = "/docker.swarmkit.v1.Dispatcher/Session";
const LIST_NODES: &str = "/docker.swarmkit.v1.Control/ListNodes";
const ISSUE: &str = "/docker.swarmkit.v1.NodeCA/IssueNodeCertificate";
const ADDRESS: &str = "192.0.2.9:4000";

struct Gate {
    cluster: TestCluster,
    _node: TestNode,
    authorizer: Authorizer,
}

impl Gate {
    fn new() -> Gate {
        let cluster = TestCluster::new();
        let node = cluster.node("this", Role::Manager);
        let removed = |node_id: &str| node_id == "removed";
        let authorizer = Authorizer::new(node.security.clone(), removed);
        Gate {
            cluster,
            _node: node,
            authorizer,
        }
    }

    fn connection(&self, node_id: &str, unit: &str, organization: &str) -> Connection {
        let subject = Subject {
            node_id: node_id.into(),
            organization: organization.into(),
            role: Role::from_unit(unit),
            units: vec![unit.into()],
        };
        Connection {
            remote_addr: Some(ADDRESS.parse().unwrap()),
            local: false,
            chain: Arc::from([vec![0u8].into()]),
            subject: Some(Arc::new(subject)),
            close: CancellationToken::new(),
        }
    }

    fn worker(&self) -> Connection {
        self.connection("worker", "swarm-worker", &self.cluster.id)
    }

    fn manager(&self) -> Connection {
        self.connection("manager", "swarm-manager", &self.cluster.id)
    }

    fn nobody(&self) -> Connection {
        Connection {
            local: false,
            remote_addr: Some(ADDRESS.parse().unwrap()),
            ..Connection::local(CancellationToken::new())
        }
    }

    fn forwarded(&self, node_id: &str, unit: &str) -> HeaderMap {
        forwarded(node_id, &self.cluster.id, unit)
    }

    fn text(&self, path: &str, connection: &Connection, headers: &HeaderMap) -> String {
        let status = self.authorizer.authorize(path, connection, headers);
        let status = status.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        status.message().to_owned()
    }
}

fn forwarded(node_id: &str, organization: &str, unit: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let value = |text: &str| HeaderValue::from_str(text).unwrap();
    headers.insert("forwarded_cert", value("true"));
    headers.insert("forwarded_cert_cn", value(node_id));
    headers.insert("forwarded_cert_org", value(organization));
    if !unit.is_empty() {
        headers.insert("forwarded_cert_ou", value(unit));
    }
    headers.insert("remote_addr", value("198.51.100.1:7"));
    headers
}

#[test]
fn direct_callers() {
    let gate = Gate::new();
    let none = HeaderMap::new();
    let caller = gate
        .authorizer
        .authorize(SESSION, &gate.worker(), &none)
        .unwrap();
    assert_eq!(caller.node_id, "worker");
    assert_eq!(caller.role, Some(NodeRole::Worker));
    assert_eq!(caller.organization, gate.cluster.id);
    assert_eq!(caller.remote_addr, ADDRESS.parse().ok());
    assert_eq!((caller.forwarded_by, caller.local), (None, false));
    assert!(
        gate.authorizer
            .authorize(LIST_NODES, &gate.manager(), &none)
            .is_ok()
    );

    let prefix =
        "Permission denied: unauthorized peer role: rpc error: code = PermissionDenied desc = ";
    for (connection, inner) in [
        (
            gate.nobody(),
            "no client certificates in request".to_owned(),
        ),
        (
            Connection {
                subject: None,
                ..gate.worker()
            },
            "no verified chains for remote certificate".to_owned(),
        ),
        (
            gate.connection("other", "swarm-ca", &gate.cluster.id),
            "Permission denied: remote certificate not part of OUs: [swarm-worker swarm-manager]"
                .to_owned(),
        ),
        (
            gate.connection("removed", "swarm-worker", &gate.cluster.id),
            "Permission denied: node removed was removed from swarm".to_owned(),
        ),
        (
            gate.connection("worker", "swarm-worker", "another"),
            format!(
                "Permission denied: remote certificate not part of organization: {}",
                gate.cluster.id
            ),
        ),
    ] {
        assert_eq!(
            gate.text(SESSION, &connection, &none),
            format!("{prefix}{inner}")
        );
    }
}

#[test]
fn forwarded_callers() {
    let gate = Gate::new();
    let headers = gate.forwarded("worker", "swarm-worker");
    let caller = gate
        .authorizer
        .authorize(SESSION, &gate.manager(), &headers)
        .unwrap();
    assert_eq!(caller.node_id, "worker");
    assert_eq!(caller.role, Some(NodeRole::Worker));
    assert_eq!(caller.remote_addr, "198.51.100.1:7".parse().ok());
    assert_eq!(caller.forwarded_by.as_deref(), Some("manager"));

    let manager = gate.manager();
    assert_eq!(
        gate.text(SESSION, &gate.worker(), &headers),
        "Permission denied: unauthorized forwarder role: rpc error: code = PermissionDenied desc = \
         Permission denied: remote certificate not part of OUs: [swarm-manager]"
    );
    assert_eq!(
        gate.text(LIST_NODES, &manager, &headers),
        "Permission denied: unauthorized forwarded role, expecting: [swarm-manager]"
    );
    for blank in [
        gate.forwarded("", "swarm-worker"),
        gate.forwarded("worker", ""),
        forwarded("worker", "", "swarm-worker"),
    ] {
        assert_eq!(
            gate.text(SESSION, &manager, &blank),
            "Permission denied: missing information in forwarded request"
        );
    }
    assert_eq!(
        gate.text(
            SESSION,
            &manager,
            &forwarded("worker", "another", "swarm-worker")
        ),
        format!(
            "Permission denied: organization mismatch, expecting: {}",
            gate.cluster.id
        )
    );
    assert_eq!(
        gate.text(
            SESSION,
            &manager,
            &gate.forwarded("removed", "swarm-worker")
        ),
        "Permission denied: node removed was removed from swarm"
    );
}

#[test]
fn open_methods_know_members_and_take_strangers() {
    let gate = Gate::new();
    let none = HeaderMap::new();
    let call = |connection: &Connection, headers: &HeaderMap| {
        gate.authorizer
            .authorize(ISSUE, connection, headers)
            .unwrap()
    };
    assert_eq!(call(&gate.worker(), &none).node_id, "worker");
    let headers = gate.forwarded("worker", "swarm-worker");
    assert_eq!(call(&gate.manager(), &headers).node_id, "worker");

    let stranger = |caller: Caller| caller.role.is_none() && caller.node_id.is_empty();
    // An anonymous call that a manager passes on is not the manager's own.
    let blank = forwarded("", "", "");
    let caller = call(&gate.manager(), &blank);
    assert_eq!(caller.remote_addr, "198.51.100.1:7".parse().ok());
    assert_eq!(caller.forwarded_by.as_deref(), Some("manager"));
    assert!(stranger(caller));
    for (connection, headers) in [
        (gate.nobody(), &none),
        (
            gate.connection("removed", "swarm-worker", &gate.cluster.id),
            &none,
        ),
        (gate.connection("worker", "swarm-worker", "another"), &none),
        // Only a manager's word is taken, about names as about addresses.
        (gate.worker(), &headers),
        (gate.nobody(), &headers),
    ] {
        let caller = call(&connection, headers);
        assert_eq!(caller.remote_addr, ADDRESS.parse().ok());
        assert_eq!(caller.forwarded_by, None);
        assert!(stranger(caller));
    }
}

#[test]
fn the_control_socket_is_this_node() {
    let gate = Gate::new();
    let local = Connection::local(CancellationToken::new());
    for path in [SESSION, LIST_NODES, ISSUE, "/anything"] {
        let headers = gate.forwarded("worker", "swarm-worker");
        let caller = gate.authorizer.authorize(path, &local, &headers).unwrap();
        assert_eq!(caller.node_id, "this");
        assert_eq!(caller.role, Some(NodeRole::Manager));
        assert!(caller.local);
    }
    let unknown = gate
        .authorizer
        .authorize("/anything", &gate.manager(), &HeaderMap::new());
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
}
