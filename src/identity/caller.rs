//! Who is calling: established once per request by the authorization layer, read by every handler.

use crate::api::types::NodeRole;
use std::net::SocketAddr;

/// The authorized identity behind a request, placed into the request's extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Certificate CN; this node's own ID on the control socket; empty for an anonymous caller.
    pub node_id: String,
    /// Certificate O (the cluster ID), empty for an anonymous caller.
    pub organization: String,
    /// Role from the certificate's OU; `None` for an anonymous caller.
    pub role: Option<NodeRole>,
    /// The original caller's address; `None` on the control socket.
    pub remote_addr: Option<SocketAddr>,
    /// Node ID of the manager that forwarded this call, if one did.
    pub forwarded_by: Option<String>,
    /// True on the control socket.
    pub local: bool,
}

impl Caller {
    /// The caller of a request that passed the authorization layer.
    pub fn of<T>(request: &tonic::Request<T>) -> Result<Caller, tonic::Status> {
        request
            .extensions()
            .get::<Caller>()
            .cloned()
            .ok_or_else(|| tonic::Status::internal("the caller of this request was not identified"))
    }
}
