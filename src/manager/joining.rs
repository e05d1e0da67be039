//! Getting into a raft group that exists: the first steps of a manager that has no raft data.
//!
//! The leader checks that a newcomer can be reached before it admits it (spec 03 section 8.3), so the
//! remote port must already answer. Until the raft ID is known there is no member to answer with; a small
//! server stands in on the same port, says that the node is there, and drops raft messages, as a node does
//! that is not a member. When the leader has answered it makes room for the real one. Raft repairs what
//! was dropped.
//!
//! Nothing is written here: whoever is killed before the answer was stored asks again at the next start,
//! and is recognised by its node ID.

use crate::api::types::raft_membership_client::RaftMembershipClient;
use crate::api::types::raft_server::{Raft, RaftServer};
use crate::api::types::{
    JoinRequest, JoinResponse, ProcessRaftMessageRequest, ProcessRaftMessageResponse, RaftMember,
    ResolveAddressRequest, ResolveAddressResponse, StreamRaftMessageRequest,
    StreamRaftMessageResponse,
};
use crate::identity::SecurityConfig;
use crate::identity::authorize::Authorizer;
use crate::identity::connect::{ConnectError, connect_manager};
use crate::raft::rpc::METADATA_RAFT_ID;
use crate::raft::{Handle, RaftError};
use crate::services::health::{HealthService, RAFT};
use crate::services::server::{self, Listener, MESSAGE_BYTES_MAX, ServeError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataValue;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

/// Rounds over all known managers before joining is given up.
const ROUNDS_MAX: usize = 5;
/// Pause between two rounds.
const ROUND_PAUSE: Duration = Duration::from_secs(2);
/// Longest wait for the leader's answer: it commits a change of the group (spec 03 section 1).
const JOIN_TIMEOUT: Duration = Duration::from_secs(25);
/// Longest wait for the stand-in to let go of its connections.
const STAND_IN_END_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a manager did not get into the group.
#[derive(Debug, thiserror::Error)]
pub enum JoinGroupError {
    #[error(
        "this node has a manager's certificate but no raft data, and knows no manager to join \
         through: start it with --join-addr and the address of a manager of its cluster"
    )]
    NoManager,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("manager {address} did not let this node into the raft group: {status}", status = .status.message())]
    Refused {
        address: String,
        status: Box<Status>,
    },
    #[error("the manager {0} answered without a raft ID")]
    NoRaftId(String),
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// Asks the managers, one after the other, to let this node into the group; any of them passes the
/// request on to the leader. `stored` is the raft ID that this node has, 0 without raft data.
pub async fn join(
    security: &Arc<SecurityConfig>,
    remote: &Listener,
    advertise: SocketAddr,
    managers: &[String],
    stored: u64,
) -> Result<JoinResponse, JoinGroupError> {
    if managers.is_empty() {
        return Err(JoinGroupError::NoManager);
    }
    let stop = CancellationToken::new();
    let stand_in = tokio::spawn(server::serve(
        remote.duplicate()?,
        security.clone(),
        Arc::new(Authorizer::new(security.clone(), |_| false)),
        None,
        stand_in_routes(),
        stop.clone(),
    ));
    let result = ask_all(security, advertise, managers, stored).await;
    server::end(stand_in, &stop, STAND_IN_END_TIMEOUT).await;
    result
}

/// Tells the group when this member is reached at another address than the group knows, for instance after a
/// start on a machine that was renumbered. Ends when they agree, or with `stop`.
pub async fn keep_address(
    member: Handle,
    security: Arc<SecurityConfig>,
    advertise: SocketAddr,
    stop: CancellationToken,
) {
    let addr = advertise.to_string();
    loop {
        let book = member.book();
        let own = book.member(member.raft_id()).cloned();
        match own {
            Some(own) if own.addr == addr => return,
            // It has not read of its own admission yet.
            None => {}
            Some(own) => {
                let others: Vec<String> = book
                    .members()
                    .filter(|other| other.raft_id != own.raft_id)
                    .map(|other| other.addr.clone())
                    .collect();
                tracing::info!(
                    from = own.addr,
                    to = addr,
                    "this manager has another address"
                );
                let leads = member.leadership().borrow().term().is_some();
                let told = async {
                    match leads {
                        true => {
                            let moved = RaftMember {
                                addr: addr.clone(),
                                ..own
                            };
                            member.update_member(moved).await.map_err(|e| e.to_string())
                        }
                        false => ask_all(&security, advertise, &others, own.raft_id)
                            .await
                            .map(drop)
                            .map_err(|error| error.to_string()),
                    }
                };
                if let Some(Err(error)) = stop.run_until_cancelled(told).await {
                    tracing::warn!(error, "the group does not know the new address yet");
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(ROUND_PAUSE) => {}
        }
    }
}

async fn ask_all(
    security: &SecurityConfig,
    advertise: SocketAddr,
    managers: &[String],
    stored: u64,
) -> Result<JoinResponse, JoinGroupError> {
    let mut last = JoinGroupError::NoManager;
    for round in 0..ROUNDS_MAX {
        if round > 0 {
            tokio::time::sleep(ROUND_PAUSE).await;
        }
        for address in managers {
            match ask(security, advertise, address, stored).await {
                Ok(response) => return Ok(response),
                Err(error) => {
                    tracing::warn!(%error, round, "not in the raft group yet");
                    last = error;
                }
            }
        }
    }
    Err(last)
}

async fn ask(
    security: &SecurityConfig,
    advertise: SocketAddr,
    address: &str,
    stored: u64,
) -> Result<JoinResponse, JoinGroupError> {
    let channel = connect_manager(security, address).await?;
    let mut request = Request::new(JoinRequest {
        addr: advertise.to_string(),
    });
    request.set_timeout(JOIN_TIMEOUT);
    request
        .metadata_mut()
        .insert(METADATA_RAFT_ID, MetadataValue::from(stored));
    let answer = RaftMembershipClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .join(request)
        .await
        .map_err(|status| JoinGroupError::Refused {
            address: address.to_owned(),
            status: Box::new(status),
        })?
        .into_inner();
    match answer.raft_id {
        0 => Err(JoinGroupError::NoRaftId(address.to_owned())),
        _ => Ok(answer),
    }
}

fn stand_in_routes() -> Routes {
    let health = HealthService::default();
    health.set_serving(RAFT, true);
    Routes::new(health.server())
        .add_service(RaftServer::new(StandIn).max_decoding_message_size(MESSAGE_BYTES_MAX))
}

/// `Raft` of a node that is not a member yet.
struct StandIn;

#[tonic::async_trait]
impl Raft for StandIn {
    async fn process_raft_message(
        &self,
        _request: Request<ProcessRaftMessageRequest>,
    ) -> Result<Response<ProcessRaftMessageResponse>, Status> {
        Ok(Response::new(ProcessRaftMessageResponse {}))
    }

    async fn stream_raft_message(
        &self,
        request: Request<Streaming<StreamRaftMessageRequest>>,
    ) -> Result<Response<StreamRaftMessageResponse>, Status> {
        let mut chunks = request.into_inner();
        while chunks.message().await?.is_some() {}
        Ok(Response::new(StreamRaftMessageResponse {}))
    }

    async fn resolve_address(
        &self,
        _request: Request<ResolveAddressRequest>,
    ) -> Result<Response<ResolveAddressResponse>, Status> {
        Err(Status::unknown(RaftError::NoRaftMember.to_string()))
    }
}
