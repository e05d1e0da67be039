//! The joining side of the certificate authority: downloading the root, obtaining a certificate.
//!
//! A node that has nothing but a token downloads the root certificates over an unverified connection
//! and compares them with the digest in the token; then it asks for a certificate with the token, over
//! a verified connection, and waits until it is issued. A node with a certificate renews it the same
//! way, showing the old one instead of a token (spec 02 sections 7 and 9.7).
//!
//! Every wait here is bounded; the whole ends when the caller drops it. A request that the manager
//! declares failed ends with the manager's reason.

use super::cert::CertError;
use super::clock::Clock;
use super::connect::{self, Address, ConnectError, PeerName, Protection};
use super::issue::{self, IssueError};
use super::key_file::{Kek, KeyFileError, NodePair};
use super::private_key::{KeyError, PrivateKey};
use super::root_ca::{RootCa, RootCaError};
use super::security::SecurityConfig;
use super::tls::{self, TlsError};
use super::token::{Digest, sha256};
use crate::api::roles::Role;
use crate::api::types::ca_client::CaClient;
use crate::api::types::issuance_status::State;
use crate::api::types::node_ca_client::NodeCaClient;
use crate::api::types::{
    GetRootCaCertificateRequest, GetUnlockKeyRequest, IssueNodeCertificateRequest,
    NodeCertificateStatusRequest, NodeCertificateStatusResponse,
};
use data_encoding::HEXLOWER;
use rand::Rng;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use zeroize::Zeroizing;

/// Longest wait for the answer to one call.
const RPC_TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts at a download or a certificate.
const ATTEMPTS: u32 = 5;
/// Pause between attempts of a node that joins.
pub const JOIN_PAUSE: Duration = Duration::from_secs(2);
/// Polling the status: base, step and limit of the random wait.
const POLL: Backoff = Backoff {
    base: Duration::from_secs(1),
    factor: Duration::from_secs(1),
    max: Duration::from_secs(30),
};

/// Why a node did not get its root or certificate.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("no manager is known that could be asked for a certificate")]
    NoManager,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{address} refused the call {call}: {status}", status = .status.message())]
    Call {
        address: Address,
        call: &'static str,
        status: Box<Status>,
    },
    #[error("remote CA does not match fingerprint. Expected: {}", HEXLOWER.encode(.0))]
    Fingerprint(Digest),
    #[error("the root certificates that were downloaded cannot be used: {0}")]
    Root(#[from] RootCaError),
    #[error("no certificate in CertificateStatus response")]
    NoCertificate,
    #[error("the manager did not issue a certificate: {0}")]
    Failed(String),
    #[error("the certificate that was issued cannot be used: {0}")]
    Certificate(CertError),
    #[error("the certificate that was issued is not for the key of this node")]
    ForeignKey,
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Issue(#[from] IssueError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
}

/// Where managers can be found. Implemented by what keeps the node's list of managers.
pub trait Managers: Send + Sync {
    /// A manager to ask next; with `remote_only` never this node's own. `None` if none is known.
    fn pick(&self, remote_only: bool) -> Option<Address>;
    /// Tells how it went, so that bad managers are picked less often.
    fn observe(&self, address: &Address, good: bool);
}

/// A single manager, as named on the command line.
impl Managers for Address {
    fn pick(&self, _remote_only: bool) -> Option<Address> {
        Some(self.clone())
    }

    fn observe(&self, _address: &Address, _good: bool) {}
}

/// A growing random wait: with n failures, anything below min(max, base + factor * 2^(n-1)).
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub base: Duration,
    pub factor: Duration,
    pub max: Duration,
}

impl Backoff {
    /// The wait after this many consecutive failures; none after none.
    pub fn wait(&self, failures: u32) -> Duration {
        if failures == 0 {
            return Duration::ZERO;
        }
        let doubled = self.factor.saturating_mul(1 << (failures - 1).min(20));
        let limit = self.base.saturating_add(doubled).min(self.max);
        limit.mul_f64(rand::rng().random_range(0.0..1.0))
    }
}

/// Downloads the trusted roots from a manager. Without a digest the first answer is trusted.
pub async fn download_root(
    managers: &dyn Managers,
    digest: Option<&Digest>,
    clock: &Clock,
) -> Result<RootCa, JoinError> {
    let mut attempt = 1;
    loop {
        match download_root_once(managers, digest, clock).await {
            Ok(root) => return Ok(root),
            Err(error) if attempt >= ATTEMPTS => return Err(error),
            Err(error) => tracing::warn!(%error, attempt, "downloading the root CA failed"),
        }
        attempt += 1;
        tokio::time::sleep(JOIN_PAUSE).await;
    }
}

async fn download_root_once(
    managers: &dyn Managers,
    digest: Option<&Digest>,
    clock: &Clock,
) -> Result<RootCa, JoinError> {
    let address = managers.pick(true).ok_or(JoinError::NoManager)?;
    let protection = Protection::unverified(clock)?;
    let channel = connect::connect(&address, protection).await;
    let channel = channel.inspect_err(|_| managers.observe(&address, false))?;
    let request = bounded(GetRootCaCertificateRequest {});
    let answer = CaClient::new(channel)
        .get_root_ca_certificate(request)
        .await;
    let roots = answer
        .map_err(|status| refused(&address, "GetRootCACertificate", status))?
        .into_inner()
        .certificate;
    if let Some(expected) = digest
        && sha256(&roots) != *expected
    {
        return Err(JoinError::Fingerprint(*expected));
    }
    Ok(RootCa::trusting(&roots, clock.now())?)
}

/// By what a node proves that it may have a certificate.
#[derive(Clone)]
pub enum Applicant {
    /// A new node.
    Token {
        token: String,
        /// Availability that the new node asks for, as the API's enum value.
        availability: i32,
    },
    /// A member, with its present certificate.
    Member(Arc<SecurityConfig>),
}

/// A certificate that was issued, and the key-encryption key that goes with its role.
#[derive(Debug)]
pub struct Obtained {
    pub pair: NodePair,
    /// The role in the certificate.
    pub role: Role,
    pub kek: Kek,
}

/// Obtains a certificate from the managers. Nothing is written.
pub async fn obtain_certificate(
    managers: &dyn Managers,
    root: &RootCa,
    applicant: &Applicant,
    clock: &Clock,
) -> Result<Obtained, JoinError> {
    let key = PrivateKey::generate()?;
    let csr = issue::signing_request(&key)?;
    let certificate_pem = request_certificate(managers, root, applicant, &csr, clock).await?;
    let verified = root
        .verify(&certificate_pem, clock.now(), false)
        .map_err(JoinError::Certificate)?;
    let leaf = verified.leaf().ok_or(JoinError::NoCertificate)?;
    if !leaf.matches_key(&key.public_key_info()?) {
        return Err(JoinError::ForeignKey);
    }
    let subject = leaf.node_subject().map_err(JoinError::Certificate)?;
    let pair = NodePair {
        certificate_pem,
        key,
    };
    let kek = match subject.role {
        Some(Role::Manager) => fetch_kek(managers, root, &pair, clock).await?,
        _ => Kek::default(),
    };
    Ok(Obtained {
        pair,
        role: subject.role.unwrap_or(Role::Worker),
        kek,
    })
}

async fn request_certificate(
    managers: &dyn Managers,
    root: &RootCa,
    applicant: &Applicant,
    csr: &[u8],
    clock: &Clock,
) -> Result<Vec<u8>, JoinError> {
    let mut attempt = 1;
    loop {
        // The own manager is asked first; if it cannot help, others are.
        let remote_only = attempt > 1;
        let asked = Asked {
            managers,
            protection: protection_for(root, applicant, clock)?,
            csr,
        };
        match asked.once(applicant, remote_only).await {
            Ok(certificate) => return Ok(certificate),
            Err(error @ JoinError::Failed(_)) => return Err(error),
            Err(error) if attempt >= ATTEMPTS => return Err(error),
            Err(error) => tracing::warn!(%error, attempt, "obtaining a certificate failed"),
        }
        attempt += 1;
        if let Applicant::Token { .. } = applicant {
            tokio::time::sleep(JOIN_PAUSE).await;
        }
    }
}

fn protection_for(
    root: &RootCa,
    applicant: &Applicant,
    clock: &Clock,
) -> Result<Protection, JoinError> {
    Ok(match applicant {
        Applicant::Member(security) => Protection::node(security),
        Applicant::Token { .. } => {
            let config = tls::anonymous_client_config(root, clock)?;
            Protection::Tls(Arc::new(config), PeerName::Ca)
        }
    })
}

/// One request on its way: who can be asked, how, and for what.
struct Asked<'a> {
    managers: &'a dyn Managers,
    protection: Protection,
    csr: &'a [u8],
}

impl Asked<'_> {
    async fn connect(&self, remote_only: bool) -> Result<(Address, Channel), JoinError> {
        let address = self
            .managers
            .pick(remote_only)
            .ok_or(JoinError::NoManager)?;
        let protection = match &address {
            // The own control socket knows who is asking.
            Address::Unix(_) => Protection::Plain,
            Address::Tcp(_) => self.protection.clone(),
        };
        match connect::connect(&address, protection).await {
            Ok(channel) => Ok((address, channel)),
            Err(error) => {
                self.managers.observe(&address, false);
                Err(error.into())
            }
        }
    }

    async fn once(&self, applicant: &Applicant, remote_only: bool) -> Result<Vec<u8>, JoinError> {
        let (address, channel) = self.connect(remote_only).await?;
        let (token, availability) = match applicant {
            Applicant::Token {
                token,
                availability,
            } => (token.clone(), *availability),
            Applicant::Member(_) => (String::new(), 0),
        };
        let request = IssueNodeCertificateRequest {
            csr: self.csr.to_vec(),
            token,
            availability,
            ..Default::default()
        };
        let node_id = NodeCaClient::new(channel.clone())
            .issue_node_certificate(bounded(request))
            .await
            .map_err(|status| {
                self.managers.observe(&address, false);
                refused(&address, "IssueNodeCertificate", status)
            })?
            .into_inner()
            .node_id;
        self.managers.observe(&address, true);
        self.wait_until_issued(&node_id, channel).await
    }

    async fn wait_until_issued(
        &self,
        node_id: &str,
        mut channel: Channel,
    ) -> Result<Vec<u8>, JoinError> {
        let mut polls = 0;
        loop {
            tokio::time::sleep(POLL.wait(polls)).await;
            polls += 1;
            let request = bounded(NodeCertificateStatusRequest {
                node_id: node_id.to_owned(),
            });
            let answer = NodeCaClient::new(channel.clone())
                .node_certificate_status(request)
                .await;
            match answer {
                Ok(answer) => {
                    if let Some(issued) = self.judge(answer.into_inner())? {
                        return Ok(issued);
                    }
                }
                // Our own limit on a call that waits for the state to change.
                Err(status) if is_timeout(&status) => {}
                Err(status) => {
                    tracing::debug!(node_id, error = status.message(), "asking another manager");
                    channel = self.connect(true).await?.1;
                }
            }
        }
    }

    /// The certificate, if the answer is about our request and has one; an error if it failed.
    fn judge(&self, answer: NodeCertificateStatusResponse) -> Result<Option<Vec<u8>>, JoinError> {
        let status = answer.status.unwrap_or_default();
        let certificate = answer.certificate.ok_or(JoinError::NoCertificate)?;
        if certificate.csr != self.csr {
            return Ok(None);
        }
        match status.state() {
            State::Issued | State::Rotate if certificate.certificate.is_empty() => {
                Err(JoinError::NoCertificate)
            }
            State::Issued | State::Rotate => Ok(Some(certificate.certificate)),
            State::Failed => Err(JoinError::Failed(status.err)),
            _ => Ok(None),
        }
    }
}

/// Asks for the key-encryption key of managers with the new certificate, so that the key file of a
/// manager of a locked cluster is never written in clear.
async fn fetch_kek(
    managers: &dyn Managers,
    root: &RootCa,
    pair: &NodePair,
    clock: &Clock,
) -> Result<Kek, JoinError> {
    let mut attempt = 1;
    loop {
        match fetch_kek_once(managers, root, pair, clock).await {
            Ok(kek) => return Ok(kek),
            Err(error) if attempt >= ATTEMPTS => return Err(error),
            Err(error) => tracing::warn!(%error, attempt, "asking for the unlock key failed"),
        }
        attempt += 1;
        tokio::time::sleep(JOIN_PAUSE).await;
    }
}

async fn fetch_kek_once(
    managers: &dyn Managers,
    root: &RootCa,
    pair: &NodePair,
    clock: &Clock,
) -> Result<Kek, JoinError> {
    let address = managers.pick(false).ok_or(JoinError::NoManager)?;
    let protection = match &address {
        Address::Unix(_) => Protection::Plain,
        Address::Tcp(_) => {
            let chain = super::pem::blocks(&pair.certificate_pem)
                .map(|block| CertificateDer::from(block.der.to_vec()))
                .collect();
            let key = PrivateKeyDer::Pkcs8(pair.key.to_pkcs8()?.der().to_vec().into());
            let config = tls::client_config_with(root, chain, key, clock)?;
            Protection::Tls(Arc::new(config), PeerName::Ca)
        }
    };
    let channel = connect::connect(&address, protection).await;
    let channel = channel.inspect_err(|_| managers.observe(&address, false))?;
    let request = bounded(GetUnlockKeyRequest {});
    match CaClient::new(channel).get_unlock_key(request).await {
        Ok(answer) => {
            let answer = answer.into_inner();
            let key = Zeroizing::new(answer.unlock_key);
            let version = answer.version.map_or(0, |version| version.index);
            Ok(Kek::new(&key, version))
        }
        Err(status) if status.code() == Code::Unimplemented => Ok(Kek::default()),
        Err(status) => Err(refused(&address, "GetUnlockKey", status)),
    }
}

fn bounded<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(RPC_TIMEOUT);
    request
}

/// Whether a call ended because of its deadline: ours (reported as cancelled) or the server's.
fn is_timeout(status: &Status) -> bool {
    matches!(status.code(), Code::DeadlineExceeded)
        || (status.code() == Code::Cancelled && status.message().contains("Timeout expired"))
}

fn refused(address: &Address, call: &'static str, status: Status) -> JoinError {
    JoinError::Call {
        address: address.clone(),
        call,
        status: Box::new(status),
    }
}
