//! What is known about the other end of a connection, before anything is asked over it.
//!
//! The accept loop builds one [`Connection`] per accepted connection; every request on it carries a
//! clone among its extensions.

use super::cert::{CertError, Certificate, Subject};
use rustls_pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The other end of a connection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Address of the other end; `None` on the control socket.
    pub remote_addr: Option<SocketAddr>,
    /// True on the control socket.
    pub local: bool,
    /// The certificates that the other end presented, DER, leaf first. They verified against the
    /// trusted roots when the connection was made. Empty for anonymous callers.
    pub chain: Arc<[CertificateDer<'static>]>,
    /// Names in the leaf; absent without certificate or if a name is missing from it.
    pub subject: Option<Arc<Subject>>,
    /// Closes this connection when cancelled.
    pub close: CancellationToken,
}

impl Connection {
    /// A connection on the control socket.
    pub fn local(close: CancellationToken) -> Connection {
        Connection {
            remote_addr: None,
            local: true,
            chain: Arc::from([]),
            subject: None,
            close,
        }
    }

    /// A connection over the network with the certificates that were presented and verified.
    pub fn remote(
        remote_addr: SocketAddr,
        chain: &[CertificateDer<'_>],
        close: CancellationToken,
    ) -> Result<Connection, CertError> {
        let subject = match chain.first() {
            None => None,
            Some(leaf) => Certificate::from_der(leaf)?.node_subject().ok(),
        };
        Ok(Connection {
            remote_addr: Some(remote_addr),
            local: false,
            chain: chain.iter().map(|der| der.clone().into_owned()).collect(),
            subject: subject.map(Arc::new),
            close,
        })
    }

    /// Whether a certificate was presented.
    pub fn has_certificate(&self) -> bool {
        !self.chain.is_empty()
    }
}
