//! TLS configurations: versions, verification, and credentials that can be replaced while running.
//!
//! Facts of spec 01 section 6 and spec 02 section 8: TLS 1.2 and 1.3, ALPN `h2` always selected, no
//! session resumption (a resumed session would skip the current roots), an empty list of acceptable
//! CA names (a Go client then always sends its certificate), client certificates optional but, if
//! presented, verified.

use super::cert::Verified;
use super::clock::Clock;
use super::root_ca::RootCa;
use super::security::Credentials;
use arc_swap::ArcSwap;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use std::sync::Arc;

/// The only protocol spoken over TLS here: HTTP/2.
pub const ALPN: &[u8] = b"h2";

/// A TLS configuration that could not be made.
#[derive(Debug, Clone, thiserror::Error)]
#[error("TLS cannot be set up: {0}")]
pub struct TlsError(String);

fn broken(error: impl std::fmt::Display) -> TlsError {
    TlsError(error.to_string())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// What the handshakes of one set of credentials need.
#[derive(Clone, Debug)]
pub struct Handshake {
    key: Arc<CertifiedKey>,
    clients: Arc<dyn ClientCertVerifier>,
    servers: Arc<WebPkiServerVerifier>,
}

impl Handshake {
    /// Prepares a root pool and an own certificate with its key.
    pub fn new(
        root: &RootCa,
        verified: &Verified,
        key: PrivateKeyDer<'static>,
    ) -> Result<Handshake, TlsError> {
        let chain = verified
            .bundle
            .iter()
            .map(|certificate| CertificateDer::from(certificate.der.clone()))
            .collect();
        let key = CertifiedKey::from_der(chain, key, &provider()).map_err(broken)?;
        let (clients, servers) = verifiers(root)?;
        Ok(Handshake {
            key: Arc::new(key),
            clients,
            servers,
        })
    }

    /// The same certificate with another root pool.
    pub fn with_root(&self, root: &RootCa) -> Result<Handshake, TlsError> {
        let (clients, servers) = verifiers(root)?;
        Ok(Handshake {
            key: self.key.clone(),
            clients,
            servers,
        })
    }
}

type Verifiers = (Arc<dyn ClientCertVerifier>, Arc<WebPkiServerVerifier>);

fn verifiers(root: &RootCa) -> Result<Verifiers, TlsError> {
    let store = Arc::new(root.roots().to_store());
    let clients = WebPkiClientVerifier::builder_with_provider(store.clone(), provider())
        .allow_unauthenticated()
        .clear_root_hint_subjects()
        .build()
        .map_err(broken)?;
    let servers = WebPkiServerVerifier::builder_with_provider(store, provider())
        .build()
        .map_err(broken)?;
    Ok((clients, servers))
}

/// The credentials of this moment, asked at each handshake.
#[derive(Clone, Debug)]
struct Current(Arc<ArcSwap<Credentials>>);

impl Current {
    fn key(&self) -> Arc<CertifiedKey> {
        self.0.load().handshake.key.clone()
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key())
    }
}

impl ResolvesClientCert for Current {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(self.key())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Current {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let clients = self.0.load().handshake.clients.clone();
        clients.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let clients = self.0.load().handshake.clients.clone();
        clients.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let clients = self.0.load().handshake.clients.clone();
        clients.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.load().handshake.clients.supported_verify_schemes()
    }
}

impl ServerCertVerifier for Current {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let servers = self.0.load().handshake.servers.clone();
        servers.verify_server_cert(end_entity, intermediates, server_name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let servers = self.0.load().handshake.servers.clone();
        servers.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let servers = self.0.load().handshake.servers.clone();
        servers.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.load().handshake.servers.supported_verify_schemes()
    }
}

/// Accepts any server certificate, but still checks that the server holds its key. For the download of
/// the root certificates, whose digest is checked instead, and for local sockets.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The server side of a manager, for the remote port and the control socket.
pub(super) fn server_config(
    credentials: Arc<ArcSwap<Credentials>>,
    clock: &Clock,
) -> Result<ServerConfig, TlsError> {
    let current = Arc::new(Current(credentials));
    let mut config = ServerConfig::builder_with_details(provider(), Arc::new(clock.clone()))
        .with_safe_default_protocol_versions()
        .map_err(broken)?
        .with_client_cert_verifier(current.clone())
        .with_cert_resolver(current);
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The client side of a node with a certificate.
pub(super) fn node_client_config(
    credentials: Arc<ArcSwap<Credentials>>,
    clock: &Clock,
) -> Result<ClientConfig, TlsError> {
    let current = Arc::new(Current(credentials));
    let config = ClientConfig::builder_with_details(provider(), Arc::new(clock.clone()))
        .with_safe_default_protocol_versions()
        .map_err(broken)?
        .dangerous()
        .with_custom_certificate_verifier(current.clone())
        .with_client_cert_resolver(current);
    Ok(finish(config))
}

/// A client that trusts these roots and shows no certificate: for the first certificate of a node.
pub fn anonymous_client_config(root: &RootCa, clock: &Clock) -> Result<ClientConfig, TlsError> {
    let config = ClientConfig::builder_with_details(provider(), Arc::new(clock.clone()))
        .with_safe_default_protocol_versions()
        .map_err(broken)?
        .with_root_certificates(root.roots().to_store())
        .with_no_client_auth();
    Ok(finish(config))
}

/// A client that trusts these roots and shows this certificate bundle.
pub fn client_config_with(
    root: &RootCa,
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clock: &Clock,
) -> Result<ClientConfig, TlsError> {
    let config = ClientConfig::builder_with_details(provider(), Arc::new(clock.clone()))
        .with_safe_default_protocol_versions()
        .map_err(broken)?
        .with_root_certificates(root.roots().to_store())
        .with_client_auth_cert(certificates, key)
        .map_err(broken)?;
    Ok(finish(config))
}

/// A client that verifies nothing and shows no certificate.
pub fn unverified_client_config(clock: &Clock) -> Result<ClientConfig, TlsError> {
    let config = ClientConfig::builder_with_details(provider(), Arc::new(clock.clone()))
        .with_safe_default_protocol_versions()
        .map_err(broken)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider())))
        .with_no_client_auth();
    Ok(finish(config))
}

fn finish(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config
}
