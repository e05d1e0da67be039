//! The authorization layer: decides on every request who is asking and whether they may.
//!
//! The rules come from the generated table [`crate::api::roles`]; texts and order of checks are those
//! of spec 02 section 10.1, because clients and tests match them. A request that passes carries a
//! [`Caller`]. Requests on the control socket are this node's own and always pass. A method that is
//! not in the table does not reach any handler from the network.
//!
//! A manager may pass on a request of somebody else; it says so in metadata. Only a manager's word is
//! taken, and the removed nodes are refused whether they call directly or through another manager.

use super::caller::Caller;
use super::connection::Connection;
use super::forwarded::{self, Forwarded};
use super::security::SecurityConfig;
use crate::api::roles::{self, MethodAuth, Role};
use crate::api::types::NodeRole;
use http::{HeaderMap, Request, Response};
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};

/// Tells whether a node has been removed from the cluster. Reads the cluster object's list; with no
/// cluster object nobody is removed.
pub type RemovedNodes = dyn Fn(&str) -> bool + Send + Sync;

/// Decides who may do what.
pub struct Authorizer {
    security: Arc<SecurityConfig>,
    removed: Box<RemovedNodes>,
}

impl Authorizer {
    /// Rules for the node with these credentials.
    pub fn new(
        security: Arc<SecurityConfig>,
        removed: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Authorizer {
        Authorizer {
            security,
            removed: Box::new(removed),
        }
    }

    /// Judges one request: its path, its connection and its metadata.
    pub fn authorize(
        &self,
        path: &str,
        connection: &Connection,
        headers: &HeaderMap,
    ) -> Result<Caller, Status> {
        if connection.local {
            return Ok(self.this_node());
        }
        let method = roles::lookup(path).ok_or_else(|| Status::unimplemented(""))?;
        let caller = self.identify(method, connection, headers);
        if method.insecure {
            // Whoever is not recognised is a stranger, and welcome as such.
            return Ok(caller.unwrap_or_else(|_| self.stranger(connection, headers)));
        }
        caller
    }

    /// The caller of a method with the roles it asks for; open methods ask for any role.
    fn identify(
        &self,
        method: &MethodAuth,
        connection: &Connection,
        headers: &HeaderMap,
    ) -> Result<Caller, Status> {
        const ANY: &[Role] = &[Role::Worker, Role::Manager];
        let roles = if method.insecure { ANY } else { method.roles };
        match forwarded::read(headers) {
            Some(origin) => self.check_forwarded(origin, roles, connection),
            None => self
                .check_direct(roles, connection)
                .map_err(|inner| denied(format!("unauthorized peer role: {}", wrapped(&inner)))),
        }
    }

    fn check_forwarded(
        &self,
        origin: Forwarded,
        roles: &[Role],
        connection: &Connection,
    ) -> Result<Caller, Status> {
        let forwarder = self
            .check_direct(&[Role::Manager], connection)
            .map_err(|inner| denied(format!("unauthorized forwarder role: {}", wrapped(&inner))))?;
        if origin.node_id.is_empty() || origin.organization.is_empty() || origin.units.is_empty() {
            return Err(denied("missing information in forwarded request"));
        }
        let Some(role) = role_among(&origin.units, roles) else {
            return Err(denied(format!(
                "unauthorized forwarded role, expecting: {}",
                role_list(roles)
            )));
        };
        let cluster_id = self.security.current().cluster_id().to_owned();
        if origin.organization != cluster_id {
            return Err(denied(format!(
                "organization mismatch, expecting: {cluster_id}"
            )));
        }
        if (self.removed)(&origin.node_id) {
            return Err(removed(&origin.node_id));
        }
        Ok(Caller {
            node_id: origin.node_id,
            organization: origin.organization,
            role: Some(role),
            remote_addr: origin.remote_addr,
            forwarded_by: Some(forwarder.node_id),
            local: false,
        })
    }

    fn check_direct(&self, roles: &[Role], connection: &Connection) -> Result<Caller, Status> {
        if !connection.has_certificate() {
            return Err(Status::permission_denied(
                "no client certificates in request",
            ));
        }
        let Some(subject) = &connection.subject else {
            return Err(Status::permission_denied(
                "no verified chains for remote certificate",
            ));
        };
        let Some(role) = role_among(&subject.units, roles) else {
            return Err(denied(format!(
                "remote certificate not part of OUs: {}",
                role_list(roles)
            )));
        };
        if (self.removed)(&subject.node_id) {
            return Err(removed(&subject.node_id));
        }
        let cluster_id = self.security.current().cluster_id().to_owned();
        if subject.organization != cluster_id {
            return Err(denied(format!(
                "remote certificate not part of organization: {cluster_id}"
            )));
        }
        Ok(Caller {
            node_id: subject.node_id.clone(),
            organization: cluster_id,
            role: Some(role),
            remote_addr: connection.remote_addr,
            forwarded_by: None,
            local: false,
        })
    }

    /// A caller of an open method who is nobody we know. The address that a request names is believed
    /// only from a manager; it serves to limit guessing, not to grant anything.
    fn stranger(&self, connection: &Connection, headers: &HeaderMap) -> Caller {
        let forwarder = self.check_direct(&[Role::Manager], connection).ok();
        let origin = forwarded::read(headers).filter(|_| forwarder.is_some());
        Caller {
            node_id: String::new(),
            organization: String::new(),
            role: None,
            remote_addr: match &origin {
                Some(origin) => origin.remote_addr,
                None => connection.remote_addr,
            },
            forwarded_by: origin.and(forwarder).map(|manager| manager.node_id),
            local: false,
        }
    }

    /// The caller behind the control socket.
    fn this_node(&self) -> Caller {
        let credentials = self.security.current();
        Caller {
            node_id: credentials.node_id().to_owned(),
            organization: credentials.cluster_id().to_owned(),
            role: Some(credentials.node_role()),
            remote_addr: None,
            forwarded_by: None,
            local: true,
        }
    }
}

/// The strongest accepted role among some organizational units.
fn role_among(units: &[String], accepted: &[Role]) -> Option<NodeRole> {
    let has = |role: Role| accepted.contains(&role) && units.iter().any(|unit| unit == role.unit());
    if has(Role::Manager) {
        Some(NodeRole::Manager)
    } else if has(Role::Worker) {
        Some(NodeRole::Worker)
    } else {
        None
    }
}

fn denied(text: impl AsRef<str>) -> Status {
    Status::permission_denied(format!("Permission denied: {}", text.as_ref()))
}

fn removed(node_id: &str) -> Status {
    denied(format!("node {node_id} was removed from swarm"))
}

/// A status inside the text of another, as Go clients know it.
fn wrapped(inner: &Status) -> String {
    let code = match inner.code() {
        Code::PermissionDenied => "PermissionDenied",
        _ => "Unknown",
    };
    format!("rpc error: code = {code} desc = {}", inner.message())
}

/// Roles as a list in brackets, separated by blanks.
fn role_list(roles: &[Role]) -> String {
    let units: Vec<&str> = roles.iter().map(|role| role.unit()).collect();
    format!("[{}]", units.join(" "))
}

/// Puts an [`Authorizer`] in front of all services of a server.
#[derive(Clone)]
pub struct AuthorizeLayer(Arc<Authorizer>);

impl AuthorizeLayer {
    pub fn new(authorizer: Arc<Authorizer>) -> AuthorizeLayer {
        AuthorizeLayer(authorizer)
    }
}

impl<S> Layer<S> for AuthorizeLayer {
    type Service = Authorized<S>;

    fn layer(&self, inner: S) -> Authorized<S> {
        Authorized {
            authorizer: self.0.clone(),
            inner,
        }
    }
}

/// See [`AuthorizeLayer`].
#[derive(Clone)]
pub struct Authorized<S> {
    authorizer: Arc<Authorizer>,
    inner: S,
}

impl<S, B> Service<Request<B>> for Authorized<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = futures::future::Either<S::Future, Ready<Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let path = request.uri().path();
        let verdict = match request.extensions().get::<Connection>() {
            Some(connection) => self
                .authorizer
                .authorize(path, connection, request.headers()),
            None => Err(Status::permission_denied("request is not using TLS")),
        };
        match verdict {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                futures::future::Either::Left(self.inner.call(request))
            }
            Err(status) => {
                tracing::debug!(path, code = ?status.code(), "{}", status.message());
                futures::future::Either::Right(ready(Ok(status.into_http())))
            }
        }
    }
}

#[cfg(test)]
mod tests;
