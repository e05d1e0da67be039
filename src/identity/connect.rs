//! Dialling managers: TCP with TLS, unix sockets in plain HTTP/2 or with TLS that verifies nothing.
//!
//! The name checked in a manager's certificate is its role or `swarm-ca`, never a host name (spec 02
//! section 8.2). A channel reconnects by itself when its connection ends; each new connection shows
//! the credentials of that moment. Dialling is bounded by [`DIAL_TIMEOUT`], TLS included.

use super::clock::Clock;
use super::security::SecurityConfig;
use super::tls::{self, TlsError};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

/// Longest wait for a connection (spec 02 section 2).
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Port of a manager's address that names none.
pub const DEFAULT_PORT: u16 = 2377;

/// Where a manager listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// `host:port`.
    Tcp(String),
    Unix(PathBuf),
}

impl Address {
    /// A TCP address; [`DEFAULT_PORT`] is added if the text has no port.
    pub fn tcp(text: &str) -> Address {
        let bare_v6 = text.parse::<std::net::Ipv6Addr>().is_ok();
        if bare_v6 {
            return Address::Tcp(format!("[{text}]:{DEFAULT_PORT}"));
        }
        let has_port = text
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if has_port {
            Address::Tcp(text.to_owned())
        } else {
            Address::Tcp(format!("{text}:{DEFAULT_PORT}"))
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => f.write_str(address),
            Address::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// The name that a server's certificate must carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerName {
    /// Any manager.
    Manager,
    /// A manager in its part as certificate authority, before this node has a certificate.
    Ca,
}

impl PeerName {
    fn as_str(self) -> &'static str {
        match self {
            PeerName::Manager => "swarm-manager",
            PeerName::Ca => super::issue::CA_NAME,
        }
    }
}

/// How a connection is protected.
#[derive(Clone, Debug)]
pub enum Protection {
    /// Not at all: our own control socket.
    Plain,
    Tls(Arc<ClientConfig>, PeerName),
}

impl Protection {
    /// This node's certificate and roots, towards a manager.
    pub fn node(security: &SecurityConfig) -> Protection {
        Protection::Tls(security.client_config(), PeerName::Manager)
    }

    /// TLS that verifies nothing: for a Docker Engine's control socket.
    pub fn unverified(clock: &Clock) -> Result<Protection, TlsError> {
        let config = tls::unverified_client_config(clock)?;
        Ok(Protection::Tls(Arc::new(config), PeerName::Manager))
    }
}

/// A manager that could not be reached.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot connect to {address}: {reason}")]
pub struct ConnectError {
    pub address: Address,
    reason: String,
    untrusted: bool,
}

impl ConnectError {
    fn new(address: &Address, error: &(dyn Error + 'static)) -> ConnectError {
        let refusal = tls_error(error);
        ConnectError {
            address: address.clone(),
            reason: match refusal {
                Some(refusal) => refusal.to_string(),
                None => innermost(error),
            },
            untrusted: matches!(refusal, Some(rustls::Error::InvalidCertificate(_))),
        }
    }

    /// Whether the certificate of the other side was refused: it belongs to another cluster, say.
    pub fn is_untrusted(&self) -> bool {
        self.untrusted
    }
}

/// Connects now.
pub async fn connect(address: &Address, protection: Protection) -> Result<Channel, ConnectError> {
    let dialler = dialler(address.clone(), protection.clone());
    endpoint(&protection)
        .connect_with_connector(dialler)
        .await
        .map_err(|error| ConnectError::new(address, &error))
}

/// Connects at the first request.
pub fn connect_lazy(address: &Address, protection: Protection) -> Channel {
    let dialler = dialler(address.clone(), protection.clone());
    endpoint(&protection).connect_with_connector_lazy(dialler)
}

/// Connects to a manager over TCP with this node's certificate.
pub async fn connect_manager(
    security: &SecurityConfig,
    address: &str,
) -> Result<Channel, ConnectError> {
    connect(&Address::tcp(address), Protection::node(security)).await
}

/// Connects to one of our control sockets.
pub async fn connect_control(path: &Path) -> Result<Channel, ConnectError> {
    connect(&Address::Unix(path.to_owned()), Protection::Plain).await
}

/// Requests name the expected server, which peers neither check nor route by. The scheme says nothing
/// about TLS; that is the dialler's business.
fn endpoint(protection: &Protection) -> Endpoint {
    let origin = match protection {
        Protection::Tls(_, PeerName::Ca) => "http://swarm-ca",
        _ => "http://swarm-manager",
    };
    Endpoint::from_static(origin)
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

type Dialled = TokioIo<Box<dyn Io>>;

fn dialler(
    address: Address,
    protection: Protection,
) -> impl tower::Service<
    http::Uri,
    Response = Dialled,
    Error = io::Error,
    Future = futures::future::BoxFuture<'static, io::Result<Dialled>>,
> + Send
+ Clone {
    tower::service_fn(move |_uri| {
        let dialling = dial(address.clone(), protection.clone());
        let bounded: futures::future::BoxFuture<'static, _> = Box::pin(async move {
            tokio::time::timeout(DIAL_TIMEOUT, dialling)
                .await
                .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no answer in 5 s"))?
        });
        bounded
    })
}

async fn dial(address: Address, protection: Protection) -> io::Result<Dialled> {
    let stream: Box<dyn Io> = match address {
        Address::Unix(path) => protect(UnixStream::connect(path).await?, protection).await?,
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            keep_alive(&stream)?;
            protect(stream, protection).await?
        }
    };
    Ok(TokioIo::new(stream))
}

async fn protect(stream: impl Io + 'static, protection: Protection) -> io::Result<Box<dyn Io>> {
    match protection {
        Protection::Plain => Ok(Box::new(stream)),
        Protection::Tls(config, name) => {
            let name = ServerName::try_from(name.as_str()).map_err(io::Error::other)?;
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            Ok(Box::new(stream))
        }
    }
}

/// Lets the system notice a peer that vanished without a word: first probe after a minute, then
/// every 15 s.
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(15))?;
    Ok(())
}

/// The cause at the bottom, which says what happened.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// The error of the TLS handshake among the causes, which I/O errors carry inside.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut cause = Some(error);
    while let Some(found) = cause {
        let inner = found
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        if let Some(refusal) = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            return Some(refusal);
        }
        cause = found.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_port_is_added() {
        for (text, address) in [
            ("10.0.0.1", "10.0.0.1:2377"),
            ("10.0.0.1:99", "10.0.0.1:99"),
            ("manager.example", "manager.example:2377"),
            ("manager.example:1", "manager.example:1"),
            ("fd00::1", "[fd00::1]:2377"),
            ("[fd00::1]:7", "[fd00::1]:7"),
            ("[fd00::1]", "[fd00::1]:2377"),
        ] {
            assert_eq!(Address::tcp(text), Address::Tcp(address.into()), "{text}");
        }
    }
}
