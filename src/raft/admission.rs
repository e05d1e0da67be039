//! `RaftMembership`: who comes into the group and who goes, on its leader (spec 03 section 8.3, 8.4).
//!
//! A newcomer is dialled before it is admitted, because a member that nobody can reach only weakens the group.
//! Who is asking comes from the certificate, never from the request. A manager that has lost its raft data
//! says so, and gets another raft ID: its old one, with an empty log, could break promises that its votes were
//! part of (settled R6).
//!
//! A Docker Engine cannot be told apart by its certificate, but it does not send [`METADATA_RAFT_ID`]. It is
//! refused: its clock runs ten times slower than ours, so it would see its leader deposed again and again
//! (settled R2).

use super::bootstrap::new_raft_id;
use super::error::RaftError;
use super::health;
use super::rpc::{RaftRpc, plain};
use crate::api::types::raft_membership_server::RaftMembership;
use crate::api::types::{JoinRequest, JoinResponse, LeaveRequest, LeaveResponse, RaftMember};
use crate::identity::connect::connect_manager;
use crate::identity::{Caller, SecurityConfig};
use futures::future::BoxFuture;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status};

/// Request metadata of `Join`: the raft ID that the caller has on its disk, in decimal; 0 without raft data.
pub const METADATA_RAFT_ID: &str = "swarm-raft-id";
/// Longest wait for a newcomer to answer (spec 03 section 1).
const DIAL_BACK_TIMEOUT: Duration = Duration::from_secs(5);
/// How the refusal of a newcomer begins that cannot be reached; Docker's users know it.
const UNREACHABLE: &str =
    "could not connect to prospective new cluster member using its advertised address";

/// Finds out whether a manager can be reached at an address.
pub trait DialBack: Send + Sync + 'static {
    fn check(&self, addr: String) -> BoxFuture<'_, Result<(), Status>>;
}

/// With this manager's certificate.
pub struct SecureDialBack(pub Arc<SecurityConfig>);

impl DialBack for SecureDialBack {
    fn check(&self, addr: String) -> BoxFuture<'_, Result<(), Status>> {
        Box::pin(async move {
            let asking = async {
                let channel = connect_manager(&self.0, &addr).await;
                let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
                match health::serves(channel).await? {
                    true => Ok(()),
                    false => Err(Status::unknown(health::NOT_SERVING)),
                }
            };
            tokio::time::timeout(DIAL_BACK_TIMEOUT, asking)
                .await
                .unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in 5 s")))
        })
    }
}

fn refusal(error: RaftError) -> Status {
    Status::failed_precondition(error.to_string())
}

/// The address that a newcomer is reached at: what it asks for, with its own IP in place of an unspecified
/// one.
fn joiner_address(wanted: &str, caller: Option<SocketAddr>) -> Result<String, Status> {
    let invalid =
        || Status::invalid_argument(format!("invalid address {wanted} in raft join request"));
    let (host, port) = wanted.rsplit_once(':').ok_or_else(invalid)?;
    let port: u16 = port.parse().map_err(|_| invalid())?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() || port == 0 {
        return Err(invalid());
    }
    match (host.parse::<IpAddr>(), caller) {
        (Ok(ip), Some(caller)) if ip.is_unspecified() => {
            Ok(SocketAddr::new(caller.ip(), port).to_string())
        }
        (Ok(ip), None) if ip.is_unspecified() => Err(invalid()),
        _ => Ok(wanted.to_owned()),
    }
}

impl RaftRpc {
    /// Fails unless this member leads.
    fn check_leads(&self) -> Result<(), RaftError> {
        if !self.member.is_member() {
            return Err(RaftError::NoRaftMember);
        }
        match self.member.leadership().borrow().term() {
            Some(_) => Ok(()),
            None => Err(RaftError::LostLeadership),
        }
    }

    /// Lets a node in, or brings what the group knows of it up to date; returns its raft ID.
    async fn admit(&self, node_id: &str, addr: &str, stored: u64) -> Result<u64, RaftError> {
        let known: Vec<RaftMember> = self
            .member
            .book()
            .members()
            .filter(|member| member.node_id == node_id)
            .cloned()
            .collect();
        if let Some(member) = known.iter().find(|member| member.raft_id == stored) {
            if member.addr != addr {
                let moved = RaftMember {
                    addr: addr.to_owned(),
                    ..member.clone()
                };
                self.member.update_member(moved).await?;
            }
            return Ok(stored);
        }
        for old in known {
            tracing::info!(
                node_id,
                raft_id = format!("{:x}", old.raft_id),
                "the node comes back without its raft data; its old raft ID is struck off"
            );
            match self.member.remove_member(old.raft_id).await {
                Ok(()) | Err(RaftError::IdRemoved | RaftError::IdNotFound) => {}
                Err(error) => return Err(error),
            }
        }
        let book = self.member.book();
        let raft_id = loop {
            let id = new_raft_id();
            if book.member(id).is_none() && !book.is_removed(id) {
                break id;
            }
        };
        self.member
            .add_member(RaftMember {
                raft_id,
                node_id: node_id.to_owned(),
                addr: addr.to_owned(),
                status: None,
            })
            .await?;
        Ok(raft_id)
    }
}

#[tonic::async_trait]
impl RaftMembership for RaftRpc {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        self.check_leads().map_err(refusal)?;
        let caller = Caller::of(&request)?;
        let stored = request.metadata().get(METADATA_RAFT_ID);
        let stored = stored.and_then(|id| id.to_str().ok()?.parse::<u64>().ok());
        let addr = joiner_address(&request.get_ref().addr, caller.remote_addr)?;
        let Some(stored) = stored else {
            return Err(Status::failed_precondition(
                "a Docker Engine cannot be a manager beside this product's managers: let it join as a \
                 worker, with a worker token",
            ));
        };
        let _alone = self.membership.lock().await;
        self.check_leads().map_err(refusal)?;
        self.dial_back.check(addr.clone()).await.map_err(|status| {
            let text = format!("{UNREACHABLE}: {}", status.message());
            Status::new(status.code(), text)
        })?;
        let raft_id = self
            .admit(&caller.node_id, &addr, stored)
            .await
            .map_err(refusal)?;
        tracing::info!(
            node_id = caller.node_id,
            addr,
            raft_id = format!("{raft_id:x}"),
            "a manager is in the raft group"
        );
        Ok(Response::new(JoinResponse {
            raft_id,
            members: self.member.book().members().cloned().collect(),
            ..Default::default()
        }))
    }

    async fn leave(
        &self,
        request: Request<LeaveRequest>,
    ) -> Result<Response<LeaveResponse>, Status> {
        let by = Caller::of(&request).map(|caller| caller.node_id);
        let Some(node) = request.into_inner().node else {
            return Err(Status::invalid_argument("no node information provided"));
        };
        self.check_leads().map_err(plain)?;
        let _alone = self.membership.lock().await;
        tracing::info!(
            by = by.unwrap_or_default(),
            raft_id = format!("{:x}", node.raft_id),
            "a manager is to leave the raft group"
        );
        self.member
            .remove_member(node.raft_id)
            .await
            .map_err(plain)?;
        Ok(Response::new(LeaveResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // 03-A5, 03-A6 (the address)
    #[test]
    fn addresses_of_newcomers() {
        let caller: Option<SocketAddr> = Some("192.0.2.7:4000".parse().unwrap());
        let ok = |wanted: &str| joiner_address(wanted, caller).unwrap();
        assert_eq!(ok("0.0.0.0:4242"), "192.0.2.7:4242");
        assert_eq!(ok("[::]:4242"), "192.0.2.7:4242");
        assert_eq!(ok("10.0.0.1:2377"), "10.0.0.1:2377");
        assert_eq!(ok("[fd00::1]:2377"), "[fd00::1]:2377");
        assert_eq!(ok("manager.example:1"), "manager.example:1");
        for bad in ["bad", "", ":2377", "host:", "host:0", "host:99999"] {
            let refused = joiner_address(bad, caller).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{bad}");
        }
        assert!(joiner_address("0.0.0.0:1", None).is_err());
    }
}
