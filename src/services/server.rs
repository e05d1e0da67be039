//! Listening for requests: the remote port and the control socket, and how both are served.
//!
//! Each accepted connection is prepared in a task of its own with a deadline, so that a client which
//! connects and says nothing delays nobody (spec 01 section 6). What is ready goes to tonic as one
//! stream. Bounded are: preparations at a time, in all and per address; open connections, with and
//! without a certificate apart, so that strangers cannot shut members out; calls per connection; and
//! the time a stop may take, after which connections are cut.
//!
//! - [`accept`]: the loops and the limits
//! - [`control_socket`]: the socket file, its mode, and who may replace it
//! - `oversized`: what a message that is too large is answered
//! - [`stream`]: one connection, TLS or not

pub mod accept;
pub mod control_socket;
mod oversized;
pub mod stream;

use crate::identity::SecurityConfig;
use crate::identity::authorize::{AuthorizeLayer, Authorizer};
use crate::services::proxy::{Proxy, ProxyLayer};
use control_socket::ControlSocket;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tower::util::MapResponseLayer;

/// Largest message a service decodes; services are built with this limit (spec 03 section 14.1).
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long a stop waits for running calls before it cuts connections (spec 03 section 14.3).
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(8);
/// How long cut connections may take to notice.
const CUT_TIMEOUT: Duration = Duration::from_secs(1);

/// An idle connection is probed this often, and given up when the probe is not answered in time.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Calls at a time on one connection. A manager passes on the calls of thousands of agents over one.
const STREAMS_MAX: u32 = 65_536;
/// Unread bytes per call and per connection that a client may have on the way.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Metadata of one request; names and addresses of a forwarded caller are far below.
const HEADER_BYTES_MAX: u32 = 64 * 1024;

/// Why serving ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("missing or invalid listen address {address}: {source}")]
    Bind {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("only the remote port can be listened on twice")]
    NotRemote,
    #[error("serving {name} failed: {source}")]
    Serve {
        name: String,
        source: tonic::transport::Error,
    },
}

/// Binds the remote port. Port 0 chooses a free one, see [`Listener::local_addr`].
pub async fn bind_remote(address: SocketAddr) -> Result<Listener, ServeError> {
    TcpListener::bind(address)
        .await
        .map(Listener::Remote)
        .map_err(|source| ServeError::Bind { address, source })
}

/// Something that is listened on.
pub enum Listener {
    Remote(TcpListener),
    Control(ControlSocket),
}

impl Listener {
    /// The bound address of a remote port.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Listener::Remote(listener) => listener.local_addr().ok(),
            Listener::Control(_) => None,
        }
    }

    /// A second listener on the same remote port; each connection goes to one of the two.
    pub fn duplicate(&self) -> Result<Listener, ServeError> {
        let Listener::Remote(listener) = self else {
            return Err(ServeError::NotRemote);
        };
        let address = listener.local_addr();
        let bind = |source| match &address {
            Ok(address) => ServeError::Bind {
                address: *address,
                source,
            },
            Err(_) => ServeError::NotRemote,
        };
        let fd = listener.as_fd().try_clone_to_owned().map_err(bind)?;
        TcpListener::from_std(std::net::TcpListener::from(fd))
            .map(Listener::Remote)
            .map_err(bind)
    }

    fn name(&self) -> String {
        match self {
            Listener::Remote(listener) => match listener.local_addr() {
                Ok(address) => address.to_string(),
                Err(_) => "the remote port".to_owned(),
            },
            Listener::Control(socket) => socket.path().display().to_string(),
        }
    }
}

/// Has a server end, and cuts off what has not ended within this time.
pub async fn end(
    serving: JoinHandle<Result<(), ServeError>>,
    stop: &CancellationToken,
    within: Duration,
) {
    stop.cancel();
    let abort = serving.abort_handle();
    if tokio::time::timeout(within, serving).await.is_err() {
        abort.abort();
    }
}

/// Serves requests until `stop` fires, then lets running calls end for [`DRAIN_TIMEOUT`] and cuts what
/// is left. Each request first passes the proxy, which sends on what belongs to another manager that
/// leads, and then the authorizer.
pub async fn serve(
    listener: Listener,
    security: Arc<SecurityConfig>,
    authorizer: Arc<Authorizer>,
    proxy: Option<Arc<Proxy>>,
    routes: Routes,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let name = listener.name();
    let cut = CancellationToken::new();
    let incoming = accept::incoming(listener, security, cut.child_token(), stop.clone());
    let serving = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(Some(STREAMS_MAX))
        .initial_stream_window_size(Some(STREAM_WINDOW_BYTES))
        .initial_connection_window_size(Some(CONNECTION_WINDOW_BYTES))
        .http2_max_header_list_size(Some(HEADER_BYTES_MAX))
        .layer(MapResponseLayer::new(oversized::known_refusal))
        .layer(ProxyLayer::new(proxy))
        .layer(AuthorizeLayer::new(authorizer))
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
    let deadline = async {
        stop.cancelled().await;
        tokio::time::sleep(DRAIN_TIMEOUT).await;
        tracing::warn!(name, "cutting connections that do not end");
        cut.cancel();
        tokio::time::sleep(CUT_TIMEOUT).await;
    };
    let result = tokio::select! {
        result = serving => result,
        () = deadline => Ok(()),
    };
    cut.cancel();
    result.map_err(|source| ServeError::Serve { name, source })
}

#[cfg(test)]
mod tests;
