//! The certificate authority of a cluster: which roots are trusted, and who signs for them.
//!
//! A [`RootCa`] is immutable. It is checked when it is made (spec 02 section 4.5), so that a value that
//! exists can be used. The trusted bundle is kept as the exact bytes that were received, because its
//! digest is part of every join token.

use super::cert::{CertError, Certificate, Roots, Verified};
use super::issue::{self, IssueError, NodeNames};
use super::pem;
use super::private_key::{KeyError, PrivateKey, SigningKey};
use super::token::{Digest, sha256};
use data_encoding::HEXLOWER;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use zeroize::Zeroizing;

/// Life of a node certificate when the cluster does not say otherwise: 90 days.
pub const DEFAULT_NODE_LIFETIME: Duration = Duration::from_secs(2160 * 3600);
/// Shortest life of a node certificate; less means the default.
pub const MIN_NODE_LIFETIME: Duration = Duration::from_secs(3600);

/// Why a root CA cannot be used, or did not sign.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RootCaError {
    #[error("invalid root certificates: {0}")]
    InvalidRoots(CertError),
    #[error("no valid root CA certificates found")]
    NoRoots,
    #[error("error while validating Root CA Certificate: {0}")]
    Root(CertError),
    #[error("invalid intermediate chain: {0}")]
    Intermediates(CertError),
    #[error("must provide both a signing key and a signing cert, or neither")]
    HalfSigner,
    #[error("no valid signing CA certificates found")]
    NoSigningCertificate,
    #[error("error while validating signing CA certificate against roots and intermediates: {0}")]
    SigningCertificate(CertError),
    #[error("malformed private key")]
    MalformedKey,
    #[error("certificate key mismatch")]
    KeyMismatch,
    #[error("the first intermediate must have the same subject and public key as the signing cert")]
    IntermediateMismatch,
    /// Only the trusted roots are known here; another manager or a later moment may sign.
    #[error("no valid signer found")]
    NoSigner,
    #[error(transparent)]
    Issue(#[from] IssueError),
}

/// A CA key and its certificate.
pub struct Signer {
    certificate: Certificate,
    certificate_pem: Vec<u8>,
    key: SigningKey,
    key_pem: Zeroizing<Vec<u8>>,
}

/// Trusted roots, and the signer if it is known.
#[derive(Clone)]
pub struct RootCa {
    roots_pem: Vec<u8>,
    roots: Roots,
    digest: Digest,
    intermediates_pem: Vec<u8>,
    signer: Option<Arc<Signer>>,
    node_lifetime: Duration,
}

impl fmt::Debug for RootCa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RootCa")
            .field("digest", &self.digest_text())
            .field("signs", &self.signer.is_some())
            .finish_non_exhaustive()
    }
}

/// What a root CA is made from; all texts are PEM.
#[derive(Clone, Copy, Default)]
pub struct RootCaParts<'a> {
    pub roots: &'a [u8],
    /// Certificate and private key that sign.
    pub signing: Option<(&'a [u8], &'a [u8])>,
    /// Certificates appended to every issued one.
    pub intermediates: &'a [u8],
    /// Life of issued node certificates; see [`node_lifetime`].
    pub node_lifetime: Duration,
}

/// The life that node certificates get when a cluster asks for this one.
pub fn node_lifetime(wanted: Duration) -> Duration {
    if wanted < MIN_NODE_LIFETIME {
        DEFAULT_NODE_LIFETIME
    } else {
        wanted
    }
}

impl RootCa {
    /// A new root CA with a new P-256 key that is kept in SEC1 form, as the peer does.
    pub fn generate(now: SystemTime) -> Result<RootCa, RootCaError> {
        let key = PrivateKey::generate().map_err(IssueError::from)?;
        let certificate = issue::self_signed_root(&key, now)?;
        let roots = pem::encode_certificates([certificate.der.as_slice()]);
        let key = key.to_traditional().map_err(IssueError::from)?;
        let key_pem = key.to_block().encode();
        let parts = RootCaParts {
            roots: &roots,
            signing: Some((&roots, key_pem.as_bytes())),
            ..RootCaParts::default()
        };
        RootCa::new(parts, now)
    }

    /// A CA that only trusts.
    pub fn trusting(roots_pem: &[u8], now: SystemTime) -> Result<RootCa, RootCaError> {
        let parts = RootCaParts {
            roots: roots_pem,
            ..RootCaParts::default()
        };
        RootCa::new(parts, now)
    }

    /// Checks all parts and puts them together.
    pub fn new(parts: RootCaParts<'_>, now: SystemTime) -> Result<RootCa, RootCaError> {
        let roots = check_roots(parts.roots, now)?;
        let intermediates = check_intermediates(&roots, parts.intermediates, now)?;
        let signer = match parts.signing {
            None => None,
            Some((certificate, key)) => {
                Some(check_signer(&roots, &intermediates, certificate, key, now)?)
            }
        };
        Ok(RootCa {
            roots_pem: parts.roots.to_vec(),
            roots,
            digest: sha256(parts.roots),
            intermediates_pem: pem::normalize_bundle(parts.intermediates),
            signer: signer.map(Arc::new),
            node_lifetime: node_lifetime(parts.node_lifetime),
        })
    }

    /// The trusted bundle, exactly as it was given.
    pub fn roots_pem(&self) -> &[u8] {
        &self.roots_pem
    }

    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// SHA-256 of the bundle: what join tokens carry.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The digest as the cluster object shows it.
    pub fn digest_text(&self) -> String {
        format!("sha256:{}", HEXLOWER.encode(&self.digest))
    }

    /// The private key that signs, as PEM, and its certificate; absent if it is not known here.
    pub fn signing_pem(&self) -> Option<(&[u8], &[u8])> {
        let signer = self.signer.as_ref()?;
        Some((&signer.certificate_pem, &signer.key_pem))
    }

    /// Whether this CA can sign.
    pub fn can_sign(&self) -> bool {
        self.signer.is_some()
    }

    /// The same trust without the key.
    pub fn without_signer(&self) -> RootCa {
        RootCa {
            signer: None,
            ..self.clone()
        }
    }

    /// Issues a node certificate for a PEM signing request. The result is PEM: leaf, intermediates.
    pub fn issue(
        &self,
        csr: &[u8],
        names: NodeNames<'_>,
        now: SystemTime,
    ) -> Result<Vec<u8>, RootCaError> {
        let public_key = issue::public_key_of_request(csr)?;
        self.issue_for_key(&public_key, names, now)
    }

    /// Issues a node certificate for a public key (DER SubjectPublicKeyInfo).
    pub fn issue_for_key(
        &self,
        public_key: &[u8],
        names: NodeNames<'_>,
        now: SystemTime,
    ) -> Result<Vec<u8>, RootCaError> {
        let signer = self.signer.as_ref().ok_or(RootCaError::NoSigner)?;
        let leaf = issue::node_certificate(
            &signer.certificate,
            &signer.key,
            public_key,
            names,
            self.node_lifetime,
            now,
        )?;
        let mut bundle = pem::encode_certificates([leaf.der.as_slice()]);
        bundle.extend_from_slice(&self.intermediates_pem);
        Ok(bundle)
    }

    /// Judges a PEM bundle of a node against these roots.
    pub fn verify(
        &self,
        bundle_pem: &[u8],
        now: SystemTime,
        allow_expired: bool,
    ) -> Result<Verified, CertError> {
        let bundle = Certificate::parse_bundle(bundle_pem)?;
        self.roots.verify_bundle(bundle, now, allow_expired)
    }
}

/// The roots must be readable, of supported kinds and valid now. Whether they signed themselves is not
/// looked at: an intermediate CA may serve as a cluster's root.
fn check_roots(roots_pem: &[u8], now: SystemTime) -> Result<Roots, RootCaError> {
    let certificates = Certificate::parse_bundle(roots_pem).map_err(RootCaError::InvalidRoots)?;
    if certificates.is_empty() {
        return Err(RootCaError::NoRoots);
    }
    for (index, certificate) in certificates.iter().enumerate() {
        certificate
            .check_ca_algorithms()
            .and_then(|()| certificate.check_validity(index, now))
            .map_err(RootCaError::Root)?;
    }
    Roots::new(certificates).map_err(RootCaError::InvalidRoots)
}

fn check_intermediates(
    roots: &Roots,
    intermediates_pem: &[u8],
    now: SystemTime,
) -> Result<Vec<Certificate>, RootCaError> {
    if intermediates_pem.is_empty() {
        return Ok(Vec::new());
    }
    let intermediates =
        Certificate::parse_bundle(intermediates_pem).map_err(RootCaError::Intermediates)?;
    for (index, certificate) in intermediates.iter().enumerate() {
        certificate
            .check_validity(index, now)
            .map_err(RootCaError::Intermediates)?;
        if let Some(next) = intermediates.get(index + 1)
            && !certificate.is_signed_by(next)
        {
            let name = certificate.common_name.clone();
            return Err(RootCaError::Intermediates(CertError::NoChain {
                index,
                name,
            }));
        }
    }
    if let Some((first, rest)) = intermediates.split_first()
        && !roots.reaches(first, rest)
    {
        return Err(RootCaError::Intermediates(CertError::UnknownAuthority));
    }
    Ok(intermediates)
}

fn check_signer(
    roots: &Roots,
    intermediates: &[Certificate],
    certificate_pem: &[u8],
    key_pem: &[u8],
    now: SystemTime,
) -> Result<Signer, RootCaError> {
    if certificate_pem.is_empty() || key_pem.is_empty() {
        return Err(RootCaError::HalfSigner);
    }
    let mut certificates = Certificate::parse_bundle(certificate_pem)
        .map_err(|_| RootCaError::NoSigningCertificate)?;
    if certificates.is_empty() {
        return Err(RootCaError::NoSigningCertificate);
    }
    let certificate = certificates.swap_remove(0);
    certificate
        .check_ca_algorithms()
        .and_then(|()| certificate.check_validity(0, now))
        .map_err(RootCaError::SigningCertificate)?;
    if !roots.reaches(&certificate, intermediates) {
        let error = CertError::UnknownAuthority;
        return Err(RootCaError::SigningCertificate(error));
    }
    let key = PrivateKey::from_pem(key_pem).map_err(|_| RootCaError::MalformedKey)?;
    let public = key
        .public_key_info()
        .map_err(|_| RootCaError::MalformedKey)?;
    if !certificate.matches_key(&public) {
        return Err(RootCaError::KeyMismatch);
    }
    let signing_key = key.signer().map_err(|error| match error {
        KeyError::Unsupported(_) => RootCaError::Issue(IssueError::Key(error)),
        _ => RootCaError::MalformedKey,
    })?;
    if let Some(first) = intermediates.first()
        && (first.subject != certificate.subject
            || first.public_key_info != certificate.public_key_info)
    {
        return Err(RootCaError::IntermediateMismatch);
    }
    Ok(Signer {
        certificate,
        certificate_pem: certificate_pem.to_vec(),
        key: signing_key,
        key_pem: Zeroizing::new(key_pem.to_vec()),
    })
}

#[cfg(test)]
mod tests;
