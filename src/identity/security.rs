//! A node's credentials while it runs: trusted roots, own certificate, and their replacement.
//!
//! Root pool and certificate are held together and swapped as one. New TLS handshakes use the new
//! values, existing connections are left alone (spec 02 section 8.3). The TLS configurations handed
//! out here look up the current credentials at each handshake, so they never need to be rebuilt.

use super::cert::{CertError, Subject, Verified};
use super::clock::Clock;
use super::files::{self, FileError};
use super::key_file::{KeyFile, KeyFileError, NodePair};
use super::private_key::{KeyForm, PrivateKey};
use super::root_ca::RootCa;
use super::tls::{self, TlsError};
use crate::api::roles::Role;
use crate::api::types::{NodeRole, NodeTlsInfo};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls_pki_types::PrivateKeyDer;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;

/// Name of the trusted bundle in a state directory's `certificates/`.
const ROOT_NAME: &str = "swarm-root-ca.crt";

/// Why credentials cannot be used or replaced.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    #[error("no valid certificates found for TLS configuration: {0}")]
    Certificate(CertError),
    #[error("new root CA does not match existing TLS credentials: {0}")]
    RootMismatch(CertError),
    #[error(transparent)]
    Subject(CertError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// Trusted roots and own certificate at one moment. Immutable.
#[derive(Debug)]
pub struct Credentials {
    root: Arc<RootCa>,
    verified: Verified,
    subject: Subject,
    pub(super) handshake: tls::Handshake,
}

impl Credentials {
    /// Checks a pair against a root and prepares both for TLS.
    fn new(
        root: Arc<RootCa>,
        pair: &NodePair,
        clock: &Clock,
        allow_expired: bool,
    ) -> Result<Credentials, SecurityError> {
        let verified = root
            .verify(&pair.certificate_pem, clock.now(), allow_expired)
            .map_err(SecurityError::Certificate)?;
        let handshake = tls::Handshake::new(&root, &verified, private_key(&pair.key)?)?;
        Credentials::assemble(root, verified, handshake)
    }

    fn assemble(
        root: Arc<RootCa>,
        verified: Verified,
        handshake: tls::Handshake,
    ) -> Result<Credentials, SecurityError> {
        let leaf = verified.leaf().ok_or(CertError::NoCertificates);
        let subject = leaf
            .and_then(|leaf| leaf.node_subject())
            .map_err(SecurityError::Subject)?;
        Ok(Credentials {
            root,
            verified,
            subject,
            handshake,
        })
    }

    /// The trusted roots, and the signer if this node knows it.
    pub fn root(&self) -> &Arc<RootCa> {
        &self.root
    }

    pub fn node_id(&self) -> &str {
        &self.subject.node_id
    }

    /// The organization in the certificate.
    pub fn cluster_id(&self) -> &str {
        &self.subject.organization
    }

    /// The role in the certificate; a certificate with another unit counts as a worker's.
    pub fn role(&self) -> Role {
        self.subject.role.unwrap_or(Role::Worker)
    }

    /// The role as the API's enum.
    pub fn node_role(&self) -> NodeRole {
        match self.role() {
            Role::Worker => NodeRole::Worker,
            Role::Manager => NodeRole::Manager,
        }
    }

    /// Validity of the own certificate, seconds since 1970.
    pub fn validity(&self) -> (i64, i64) {
        self.verified
            .leaf()
            .map_or((0, 0), |leaf| (leaf.not_before, leaf.not_after))
    }

    /// What the node tells the cluster about its trust and the issuer of its certificate.
    pub fn tls_info(&self) -> NodeTlsInfo {
        NodeTlsInfo {
            trust_root: self.root.roots_pem().to_vec(),
            cert_issuer_subject: self.verified.issuer_subject.clone(),
            cert_issuer_public_key: self.verified.issuer_public_key.clone(),
        }
    }
}

fn private_key(key: &PrivateKey) -> Result<PrivateKeyDer<'static>, SecurityError> {
    let der = key.der().to_vec();
    Ok(match key.form() {
        KeyForm::Pkcs8 => PrivateKeyDer::Pkcs8(der.into()),
        KeyForm::Sec1 => PrivateKeyDer::Sec1(der.into()),
        KeyForm::Pkcs1 => PrivateKeyDer::Pkcs1(der.into()),
    })
}

/// The credentials of a running node, and the files they come from.
pub struct SecurityConfig {
    current: Arc<ArcSwap<Credentials>>,
    /// Serialises replacements.
    replacing: Mutex<()>,
    changes: watch::Sender<Arc<Credentials>>,
    key_file: Arc<KeyFile>,
    dir: PathBuf,
    clock: Clock,
    server: Arc<rustls::ServerConfig>,
    client: Arc<rustls::ClientConfig>,
}

impl std::fmt::Debug for SecurityConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecurityConfig")
            .field("subject", &self.current().subject)
            .finish_non_exhaustive()
    }
}

impl SecurityConfig {
    /// Credentials from a pair that has been read or written through `key_file`. `dir` is the state
    /// directory's `certificates/`.
    pub fn new(
        dir: &Path,
        key_file: Arc<KeyFile>,
        root: RootCa,
        pair: &NodePair,
        clock: Clock,
        allow_expired: bool,
    ) -> Result<SecurityConfig, SecurityError> {
        let first = Credentials::new(Arc::new(root), pair, &clock, allow_expired)?;
        let first = Arc::new(first);
        let current = Arc::new(ArcSwap::new(first.clone()));
        Ok(SecurityConfig {
            server: Arc::new(tls::server_config(current.clone(), &clock)?),
            client: Arc::new(tls::node_client_config(current.clone(), &clock)?),
            current,
            replacing: Mutex::new(()),
            changes: watch::Sender::new(first),
            key_file,
            dir: dir.to_owned(),
            clock,
        })
    }

    /// The credentials now.
    pub fn current(&self) -> Arc<Credentials> {
        self.current.load_full()
    }

    /// Shows the current credentials and every replacement.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Credentials>> {
        self.changes.subscribe()
    }

    pub fn key_file(&self) -> &Arc<KeyFile> {
        &self.key_file
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// TLS for accepting connections: own certificate, optional client certificates, ALPN `h2`.
    pub fn server_config(&self) -> Arc<rustls::ServerConfig> {
        self.server.clone()
    }

    /// TLS for dialling managers: own certificate, trusted roots, ALPN `h2`.
    pub fn client_config(&self) -> Arc<rustls::ClientConfig> {
        self.client.clone()
    }

    /// Trusts other roots from now on and saves them. Refused unless the own certificate verifies
    /// under them.
    pub fn replace_root(&self, root: RootCa) -> Result<(), SecurityError> {
        let _alone = self.replacing.lock();
        let now = self.current();
        let verified = root
            .roots()
            .verify_bundle(now.verified.bundle.clone(), self.clock.now(), false)
            .map_err(SecurityError::RootMismatch)?;
        let handshake = now.handshake.with_root(&root)?;
        save_root(&self.dir, root.roots_pem())?;
        let next = Credentials::assemble(Arc::new(root), verified, handshake)?;
        self.publish(next);
        Ok(())
    }

    /// Uses a new certificate and key from now on. They have been verified and written before.
    pub fn replace_certificate(&self, pair: &NodePair) -> Result<(), SecurityError> {
        let _alone = self.replacing.lock();
        let root = self.current().root.clone();
        let next = Credentials::new(root, pair, &self.clock, false)?;
        self.publish(next);
        Ok(())
    }

    fn publish(&self, next: Credentials) {
        let next = Arc::new(next);
        self.current.store(next.clone());
        self.changes.send_replace(next);
    }
}

/// Path of the trusted bundle.
pub fn root_path(dir: &Path) -> PathBuf {
    dir.join(ROOT_NAME)
}

/// Writes the trusted bundle, byte for byte.
pub fn save_root(dir: &Path, roots_pem: &[u8]) -> Result<(), FileError> {
    files::ensure_dir(dir, files::PUBLIC_DIR)?;
    files::write_atomic(&root_path(dir), roots_pem, files::PUBLIC_FILE)
}

#[cfg(test)]
mod tests;
