//! Taking a request for a certificate: renewals, and new nodes by token.

use super::{Shared, store_status};
use crate::api::ids::new_id;
use crate::api::types::issuance_status::State;
use crate::api::types::node_spec::Membership;
use crate::api::types::{
    Certificate, Cluster, IssuanceStatus, IssueNodeCertificateRequest,
    IssueNodeCertificateResponse, Node, NodeRole, NodeSpec,
};
use crate::identity::Caller;
use crate::identity::token::same_token;
use crate::storage::{StoreError, Tx};
use tokio::time::Instant;
use tonic::Status;

/// IDs that are tried for a new node before the store's error is returned.
const ID_ATTEMPTS: usize = 4;

/// Why a request was not taken.
enum Refusal {
    Store(StoreError),
    UnknownNode,
    WrongToken,
    NoCluster,
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Refusal {
        Refusal::Store(error)
    }
}

impl Shared {
    /// A member's request for a new certificate. Its role is the one the cluster has on record, whatever
    /// the request says.
    pub(super) async fn renew(
        &self,
        node_id: String,
        csr: Vec<u8>,
    ) -> Result<IssueNodeCertificateResponse, Status> {
        let id = node_id.clone();
        let renewal = self.store.update(move |tx| renew(tx, &id, csr)).await;
        match renewal {
            Ok(node_membership) => Ok(IssueNodeCertificateResponse {
                node_id,
                node_membership,
            }),
            Err(refusal) => Err(refusal_status(refusal, &node_id)),
        }
    }

    /// A stranger's request: creates a node if the token is right.
    pub(super) async fn admit(
        &self,
        caller: &Caller,
        request: IssueNodeCertificateRequest,
    ) -> Result<IssueNodeCertificateResponse, Status> {
        let address = caller.remote_addr.map(|address| address.ip());
        if !self.attempts.lock().allowed(address, Instant::now()) {
            return Err(Status::resource_exhausted(
                "too many wrong join tokens from this address; wait a minute",
            ));
        }
        let cluster_id = self.cluster_id();
        let admission = self
            .store
            .update(move |tx| admit(tx, &cluster_id, request))
            .await;
        match admission {
            Ok(node_id) => Ok(IssueNodeCertificateResponse {
                node_id,
                node_membership: Membership::Accepted as i32,
            }),
            Err(refusal) => {
                if let Refusal::WrongToken = refusal {
                    self.attempts.lock().failed(address, Instant::now());
                    tracing::warn!(from = ?caller.remote_addr, "a wrong join token was refused");
                }
                Err(refusal_status(refusal, ""))
            }
        }
    }
}

fn refusal_status(refusal: Refusal, node_id: &str) -> Status {
    match refusal {
        Refusal::Store(error) => store_status(error),
        Refusal::UnknownNode => Status::not_found(format!(
            "node {node_id} not found when attempting to renew certificate"
        )),
        Refusal::WrongToken => {
            Status::invalid_argument("A valid join token is necessary to join this cluster")
        }
        Refusal::NoCluster => Status::unavailable("the cluster is not known yet"),
    }
}

fn renew(tx: &mut Tx, node_id: &str, csr: Vec<u8>) -> Result<i32, Refusal> {
    let stored = tx.get::<Node>(node_id)?.ok_or(Refusal::UnknownNode)?;
    let mut node = Node::clone(&stored);
    node.certificate = Some(Certificate {
        csr,
        cn: node.id.clone(),
        role: node.role,
        status: status(State::Renew),
        certificate: Vec::new(),
    });
    let membership = node.spec.as_ref().map_or(0, |spec| spec.membership);
    tx.update(node)?;
    Ok(membership)
}

fn admit(
    tx: &mut Tx,
    cluster_id: &str,
    request: IssueNodeCertificateRequest,
) -> Result<String, Refusal> {
    let cluster = tx.get::<Cluster>(cluster_id)?.ok_or(Refusal::NoCluster)?;
    let role = role_of_token(&cluster, &request.token).ok_or(Refusal::WrongToken)?;
    let spec = NodeSpec {
        desired_role: role as i32,
        membership: Membership::Accepted as i32,
        availability: request.availability,
        ..Default::default()
    };
    let mut node = Node {
        spec: Some(spec),
        role: role as i32,
        vxlanudp_port: cluster.vxlanudp_port,
        ..Default::default()
    };
    for attempt in 1.. {
        node.id = new_id();
        node.certificate = Some(Certificate {
            csr: request.csr.clone(),
            cn: node.id.clone(),
            role: role as i32,
            status: status(State::Pending),
            certificate: Vec::new(),
        });
        match tx.create(node.clone()) {
            Ok(_) => break,
            Err(StoreError::Exist) if attempt < ID_ATTEMPTS => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(node.id)
}

/// The role that a token admits to. Both tokens are always compared, so that the time taken tells
/// nothing.
fn role_of_token(cluster: &Cluster, token: &str) -> Option<NodeRole> {
    let tokens = cluster.root_ca.as_ref()?.join_tokens.as_ref()?;
    let manager = same_token(token, &tokens.manager);
    let worker = same_token(token, &tokens.worker);
    if manager {
        Some(NodeRole::Manager)
    } else if worker {
        Some(NodeRole::Worker)
    } else {
        None
    }
}

fn status(state: State) -> Option<IssuanceStatus> {
    Some(IssuanceStatus {
        state: state as i32,
        err: String::new(),
    })
}
