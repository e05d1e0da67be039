//! Passes calls on to the leader, and their answers back.
//!
//! Agents and people may talk to any manager; the services of the leader answer on the leader only (spec
//! 03 section 12). [`ProxyLayer`] stands before the authorizer of both listeners. For the methods that the
//! table [`crate::api::roles`] marks, and while another member leads, it sends the call on as it came:
//! bytes of messages are never decoded, so every method and every kind of stream goes the same way. Calls
//! of the network carry the identity of their caller in metadata, which the leader judges; calls of the
//! control socket are this manager's own.
//!
//! Guarantees: a call is passed on at most once; one that another manager has already passed on is refused
//! when the leader is elsewhere, so calls never circle. A call is repeated only if the leader never got it,
//! or if doing it twice is the same as doing it once; otherwise the caller is told that its outcome is not
//! known. A stream ends with an error as soon as another leader is known. Waits for a leader are bounded,
//! and a lost quorum is told at once, with what is missing. Bounded are also the calls under way and the
//! bytes kept for repeating them.
//!
//! Never does: authorize (the leader does, from the metadata), or answer from its own copy of the state.

mod body;
mod link;
mod lookup;

use self::body::Relayed;
use self::link::{LeaderLink, Sent};
use crate::api::roles::{self, MethodAuth};
use crate::identity::connection::Connection;
use crate::identity::{SecurityConfig, forwarded};
use crate::services::control::error::METADATA_NOT_DONE;
use crate::services::control::{METADATA_READ, ReadFrom};
use bytes::Bytes;
use futures::future::{BoxFuture, Either};
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};

pub use lookup::{Group, LeaderLookup, Route, quorum_loss};

/// Longest time one call may spend looking for a leader, over all its attempts. A lost quorum is told
/// long before; this bounds a leader that takes long to take over.
const LEADER_WAIT_MAX: Duration = Duration::from_secs(30);
/// Pause before a call is tried again, unless leadership changes before.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Calls passed on at a time: what one connection to the leader carries.
const FORWARDS_MAX: usize = 65_536;
/// Of these, calls of strangers, who need a few seconds for joining.
const STRANGERS_MAX: usize = 1024;

/// The value of [`METADATA_READ`] in a request on the control socket that asks for an answer from this
/// manager's own copy, leader or not (settled R7).
pub const READ_LOCAL: &str = ReadFrom::Local.as_str();

/// Finds the leader and passes calls on to it. See the module's comment.
pub struct Proxy {
    leader: LeaderLookup,
    link: LeaderLink,
    /// KiB of requests that are kept for repeating.
    kept: Arc<Semaphore>,
    forwards: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
}

impl Proxy {
    /// A proxy that dials the leader with these credentials.
    pub fn new(leader: LeaderLookup, security: Arc<SecurityConfig>) -> Arc<Proxy> {
        Arc::new(Proxy {
            link: LeaderLink::new(security, leader.clone()),
            leader,
            kept: Arc::new(Semaphore::new(body::KEPT_KIB_MAX)),
            forwards: Arc::new(Semaphore::new(FORWARDS_MAX)),
            strangers: Arc::new(Semaphore::new(STRANGERS_MAX)),
        })
    }

    /// A place among the calls under way.
    fn place(&self, connection: &Connection) -> Result<Places, Status> {
        let full = |_| {
            Status::resource_exhausted(
                "too many calls are being passed on to the leader; try again",
            )
        };
        let known = connection.local || connection.has_certificate();
        let stranger = match known {
            true => None,
            false => Some(self.strangers.clone().try_acquire_owned().map_err(full)?),
        };
        let any = self.forwards.clone().try_acquire_owned().map_err(full)?;
        Ok(Places {
            _any: any,
            _stranger: stranger,
        })
    }
}

/// Held while a call is under way.
struct Places {
    _any: OwnedSemaphorePermit,
    _stranger: Option<OwnedSemaphorePermit>,
}

/// Whether a call belongs to the leader; the method if it does.
fn for_the_leader<B>(request: &Request<B>) -> Option<&'static MethodAuth> {
    let connection = request.extensions().get::<Connection>()?;
    let method = roles::lookup(request.uri().path())?;
    if !connection.local {
        return method.leader_remote.then_some(method);
    }
    let wants_local = request
        .headers()
        .get(METADATA_READ)
        .is_some_and(|value| value == READ_LOCAL);
    let stays = wants_local && is_read(method.path);
    (method.leader_local && !stays).then_some(method)
}

fn rpc_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether a method only reads.
fn is_read(path: &str) -> bool {
    let name = rpc_name(path);
    name.starts_with("Get") || name.starts_with("List")
}

/// Whether doing a call twice is the same as doing it once.
fn may_repeat(path: &str) -> bool {
    const REPEATABLE: [&str; 7] = [
        "NodeCertificateStatus",
        "Heartbeat",
        // States of a task only go forward.
        "UpdateTaskStatus",
        // A node that is already a member gets the same answer again.
        "Join",
        "ListenSubscriptions",
        "Session",
        "Assignments",
    ];
    is_read(path) || REPEATABLE.contains(&rpc_name(path))
}

/// The call as it came, for handling it here, and as it goes out.
struct Call {
    method: &'static MethodAuth,
    parts: Parts,
    outgoing: HeaderMap,
}

impl Call {
    fn new(
        method: &'static MethodAuth,
        parts: Parts,
        connection: &Connection,
    ) -> Result<Call, Status> {
        let mut outgoing = parts.headers.clone();
        if connection.local {
            forwarded::strip(&mut outgoing);
            outgoing.remove(METADATA_READ);
        } else {
            forwarded::prepare(&mut outgoing, connection)?;
        }
        Ok(Call {
            method,
            parts,
            outgoing,
        })
    }

    /// The request for the leader.
    fn outgoing(&self, body: Body) -> Request<Body> {
        let mut request = Request::new(body);
        *request.method_mut() = self.parts.method.clone();
        *request.uri_mut() = self.parts.uri.clone();
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = self.outgoing.clone();
        request
    }
}

/// What became of a call: the answer, or the request itself if it is to be handled here.
enum Outcome {
    Answered(Response<Body>),
    Here(Request<Body>),
}

impl Proxy {
    /// Passes a call on, or says that it is to be handled here.
    async fn pass_on(
        &self,
        method: &'static MethodAuth,
        request: Request<Body>,
    ) -> Result<Outcome, Status> {
        let deadline = Instant::now() + LEADER_WAIT_MAX;
        let route = self.leader.route(method.path, deadline).await?;
        if let Route::Here = route {
            return Ok(Outcome::Here(request));
        }
        let connection = request.extensions().get::<Connection>().cloned();
        let connection =
            connection.ok_or_else(|| Status::internal("a call without its connection"))?;
        let places = self.place(&connection)?;
        let (parts, incoming) = request.into_parts();
        let call = Call::new(method, parts, &connection)?;
        if method.client_stream {
            return self.stream(call, incoming, route, places).await;
        }
        let (message, kept) = body::keep(incoming, &self.kept).await?;
        let result = self.repeat(call, message, route, deadline, places).await;
        drop(kept);
        result
    }

    /// A call whose messages are still coming: it cannot be repeated.
    async fn stream(
        &self,
        call: Call,
        incoming: Body,
        route: Route,
        places: Places,
    ) -> Result<Outcome, Status> {
        let Route::Leader(peer) = route else {
            return Err(Status::internal("a stream has no leader to go to"));
        };
        match self.link.send(&peer, call.outgoing(incoming)).await {
            Sent::Answered(response, cut) => Ok(Outcome::Answered(relay(response, cut, places))),
            Sent::NotDelivered(reason) | Sent::Unknown(reason) => Err(Status::unavailable(reason)),
        }
    }

    /// A call with one message: tried until it is answered, or may not be tried again.
    async fn repeat(
        &self,
        call: Call,
        message: Bytes,
        mut route: Route,
        deadline: Instant,
        places: Places,
    ) -> Result<Outcome, Status> {
        let path = call.method.path;
        loop {
            let peer = match route {
                Route::Here => {
                    let body = body::whole(message);
                    return Ok(Outcome::Here(Request::from_parts(call.parts, body)));
                }
                Route::Leader(peer) => peer,
            };
            let request = call.outgoing(body::whole(message.clone()));
            let mut changes = self.leader.changes();
            let reason = match self.link.send(&peer, request).await {
                Sent::Answered(response, cut) if !is_not_the_leader(&response) => {
                    return Ok(Outcome::Answered(relay(response, cut, places)));
                }
                Sent::Answered(..) => format!("manager {} does not lead any more", peer.addr),
                Sent::NotDelivered(reason) => reason,
                Sent::Unknown(reason) if may_repeat(path) => reason,
                Sent::Unknown(reason) => {
                    return Err(Status::unavailable(format!(
                        "{reason}; whether the leader has done {} is not known: look before you \
                         repeat it",
                        rpc_name(path)
                    )));
                }
            };
            if Instant::now() + RETRY_PAUSE >= deadline {
                return Err(Status::unavailable(reason));
            }
            tracing::debug!(path, reason, "passing a call on once more");
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep(RETRY_PAUSE) => {}
            }
            route = self.leader.route(path, deadline).await?;
        }
    }
}

/// Whether the answer says that the manager does not lead and has done nothing: it would have to pass the
/// call on a second time, or could not begin a write.
fn is_not_the_leader(response: &Response<Body>) -> bool {
    if response.headers().contains_key(METADATA_NOT_DONE) {
        return true;
    }
    Status::from_header_map(response.headers()).is_some_and(|status| {
        status.code() == Code::ResourceExhausted
            && status.message().starts_with(forwarded::REDIRECT_REFUSAL)
    })
}

fn relay(
    response: Response<Body>,
    cut: tokio_util::sync::CancellationToken,
    places: Places,
) -> Response<Body> {
    response.map(|body| Body::new(Relayed::new(body, cut, places)))
}

/// Puts a [`Proxy`] in front of all services of a server. Without one every call is handled here.
#[derive(Clone)]
pub struct ProxyLayer(Option<Arc<Proxy>>);

impl ProxyLayer {
    pub fn new(proxy: Option<Arc<Proxy>>) -> ProxyLayer {
        ProxyLayer(proxy)
    }
}

impl<S> Layer<S> for ProxyLayer {
    type Service = Proxied<S>;

    fn layer(&self, inner: S) -> Proxied<S> {
        Proxied {
            proxy: self.0.clone(),
            inner,
        }
    }
}

/// See [`ProxyLayer`].
#[derive(Clone)]
pub struct Proxied<S> {
    proxy: Option<Arc<Proxy>>,
    inner: S,
}

impl<S> Service<Request<Body>> for Proxied<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (Some(proxy), Some(method)) = (&self.proxy, for_the_leader(&request)) else {
            return Either::Left(self.inner.call(request));
        };
        if proxy.leader.leads() {
            return Either::Left(self.inner.call(request));
        }
        let proxy = proxy.clone();
        // The one that was polled ready is used; a fresh one takes its place.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        Either::Right(Box::pin(async move {
            match proxy.pass_on(method, request).await {
                Ok(Outcome::Answered(response)) => Ok(response),
                Ok(Outcome::Here(request)) => inner.call(request).await,
                Err(status) => {
                    tracing::debug!(path = method.path, code = ?status.code(), "{}", status.message());
                    Ok(status.into_http())
                }
            }
        }))
    }
}

#[cfg(test)]
mod tests;
