//! Certificates as this program looks at them: names, keys, validity, chains.
//!
//! [`Certificate`] keeps the parts that matter as raw bytes, because issuers are compared byte by
//! byte. Path building and signature checks are left to the webpki and x509-parser libraries; what is
//! added here are the rules of the peer that those do not have: each certificate of a bundle is signed
//! by the next one, and a chain may be judged at the last time it was valid (spec 02 section 4.5).

use super::clock::unix_secs;
use super::pem;
use super::private_key as algorithms;
use super::private_key::curve_name;
use crate::api::roles::Role;
use const_oid::ObjectIdentifier;
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use std::time::{Duration, SystemTime};
use webpki::EndEntityCert;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate, X509Name};

/// Certificates accepted in one bundle; real ones have one to three.
const BUNDLE_MAX: usize = 64;
/// Longest path from a CA certificate up to a root.
const CA_DEPTH_MAX: usize = 8;
/// Smallest RSA key of a CA.
const RSA_BITS_MIN: usize = 2048;

/// What is wrong with a certificate, a bundle or a chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertError {
    #[error("Failed to decode certificate")]
    Undecodable,
    #[error("the bundle holds more than {BUNDLE_MAX} certificates")]
    TooMany,
    #[error("no certificates to validate")]
    NoCertificates,
    #[error("certificate ({index} - {name}) not valid before {time}")]
    NotYetValid {
        index: usize,
        name: String,
        time: String,
    },
    #[error("certificate ({index} - {name}) not valid after {time}: it has expired")]
    Expired {
        index: usize,
        name: String,
        time: String,
    },
    #[error("certificates do not form a chain: ({index} - {name})")]
    NoChain { index: usize, name: String },
    #[error("certificate signed by unknown authority")]
    UnknownAuthority,
    #[error("certificate does not verify: {0}")]
    Verify(String),
    #[error("there is no time span for which all of the certificates, including a root, are valid")]
    NoCommonTime,
    #[error("unsupported RSA key parameters: {0}")]
    RsaKey(String),
    #[error("unsupported ECDSA key parameters: {0}")]
    EcKey(String),
    #[error("unknown or unsupported certificate public key algorithm")]
    KeyAlgorithm,
    #[error("unsupported signature algorithm: {0}")]
    SignatureAlgorithm(String),
    #[error("no OU found in certificate subject")]
    NoUnit,
    #[error("no organization found in certificate subject")]
    NoOrganization,
    #[error("no valid subject names found for TLS configuration")]
    NoName,
}

impl CertError {
    /// Whether the only thing wrong is that the time is past.
    pub fn is_expired(&self) -> bool {
        matches!(self, CertError::Expired { .. })
    }
}

/// One parsed certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    pub der: Vec<u8>,
    /// Subject and issuer names, DER.
    pub subject: Vec<u8>,
    pub issuer: Vec<u8>,
    /// SubjectPublicKeyInfo, DER.
    pub public_key_info: Vec<u8>,
    pub common_name: String,
    pub organizations: Vec<String>,
    pub units: Vec<String>,
    pub dns_names: Vec<String>,
    /// Seconds since 1970.
    pub not_before: i64,
    pub not_after: i64,
    pub is_ca: bool,
    pub subject_key_id: Option<Vec<u8>>,
    signature_algorithm: ObjectIdentifier,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate")
            .field("common_name", &self.common_name)
            .field("units", &self.units)
            .field("organizations", &self.organizations)
            .field("not_before", &self.not_before)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// Who a node's certificate says it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Common name.
    pub node_id: String,
    /// First organization: the cluster ID.
    pub organization: String,
    /// First organizational unit that is a role; `None` if none is.
    pub role: Option<Role>,
    /// All organizational units, in order.
    pub units: Vec<String>,
}

impl Certificate {
    /// Parses one certificate; all bytes must be used.
    pub fn from_der(der: &[u8]) -> Result<Certificate, CertError> {
        let (rest, parsed) = X509Certificate::from_der(der).map_err(|_| CertError::Undecodable)?;
        if !rest.is_empty() {
            return Err(CertError::Undecodable);
        }
        let algorithm = parsed.signature_algorithm.algorithm.as_bytes();
        let mut found = Certificate {
            der: der.to_vec(),
            subject: parsed.subject().as_raw().to_vec(),
            issuer: parsed.issuer().as_raw().to_vec(),
            public_key_info: parsed.public_key().raw.to_vec(),
            common_name: texts(parsed.subject(), "2.5.4.3").pop().unwrap_or_default(),
            organizations: texts(parsed.subject(), "2.5.4.10"),
            units: texts(parsed.subject(), "2.5.4.11"),
            dns_names: Vec::new(),
            not_before: parsed.validity().not_before.timestamp(),
            not_after: parsed.validity().not_after.timestamp(),
            is_ca: false,
            subject_key_id: None,
            signature_algorithm: ObjectIdentifier::from_bytes(algorithm)
                .map_err(|_| CertError::Undecodable)?,
        };
        for extension in parsed.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::BasicConstraints(constraints) => found.is_ca = constraints.ca,
                ParsedExtension::SubjectKeyIdentifier(id) => {
                    found.subject_key_id = Some(id.0.to_vec());
                }
                ParsedExtension::SubjectAlternativeName(names) => {
                    for name in &names.general_names {
                        if let GeneralName::DNSName(name) = name {
                            found.dns_names.push((*name).to_owned());
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// All certificates of a PEM bundle. Damaged blocks and blocks of another kind are errors: a
    /// bundle of trusted roots is used whole or not at all.
    pub fn parse_bundle(text: &[u8]) -> Result<Vec<Certificate>, CertError> {
        let mut found = Vec::new();
        let mut blocks = pem::blocks(text);
        for block in blocks.by_ref() {
            if block.label != pem::CERTIFICATE {
                return Err(CertError::Undecodable);
            }
            if found.len() == BUNDLE_MAX {
                return Err(CertError::TooMany);
            }
            found.push(Certificate::from_der(&block.der)?);
        }
        if !blocks.rest().trim_ascii().is_empty() {
            return Err(CertError::Undecodable);
        }
        Ok(found)
    }

    /// Who this node certificate is about. Fails if it lacks one of the three names.
    pub fn node_subject(&self) -> Result<Subject, CertError> {
        if self.units.is_empty() {
            return Err(CertError::NoUnit);
        }
        let organization = self
            .organizations
            .first()
            .ok_or(CertError::NoOrganization)?;
        if self.common_name.is_empty() {
            return Err(CertError::NoName);
        }
        Ok(Subject {
            node_id: self.common_name.clone(),
            organization: organization.clone(),
            role: self.units.iter().find_map(|unit| Role::from_unit(unit)),
            units: self.units.clone(),
        })
    }

    /// Whether a private key with this public half belongs to the certificate.
    pub fn matches_key(&self, public_key_info: &[u8]) -> bool {
        self.public_key_info == public_key_info
    }

    /// Checks the validity period; `index` is the place in its bundle, for the message.
    pub fn check_validity(&self, index: usize, now: SystemTime) -> Result<(), CertError> {
        let now = unix_secs(now);
        let name = self.common_name.clone();
        if now < self.not_before {
            let time = time_text(self.not_before);
            return Err(CertError::NotYetValid { index, name, time });
        }
        if now > self.not_after {
            let time = time_text(self.not_after);
            return Err(CertError::Expired { index, name, time });
        }
        Ok(())
    }

    /// Whether the other certificate's key signed this one, and the names agree.
    pub fn is_signed_by(&self, signer: &Certificate) -> bool {
        if self.issuer != signer.subject {
            return false;
        }
        let parsed = X509Certificate::from_der(&self.der);
        let signer = X509Certificate::from_der(&signer.der);
        match (parsed, signer) {
            (Ok((_, parsed)), Ok((_, signer))) => {
                parsed.verify_signature(Some(signer.public_key())).is_ok()
            }
            _ => false,
        }
    }

    /// Whether this program can use the certificate as a CA: which keys and signatures it accepts.
    pub fn check_ca_algorithms(&self) -> Result<(), CertError> {
        use algorithms::{
            ECDSA_SHA256, ECDSA_SHA384, ECDSA_SHA512, RSA_SHA256, RSA_SHA384, RSA_SHA512,
        };
        match self.signature_algorithm {
            ECDSA_SHA256 | ECDSA_SHA384 | ECDSA_SHA512 | RSA_SHA256 | RSA_SHA384 | RSA_SHA512 => {}
            other => return Err(CertError::SignatureAlgorithm(other.to_string())),
        }
        check_ca_key(&self.public_key_info)
    }

    fn to_pki(&self) -> CertificateDer<'_> {
        CertificateDer::from(self.der.as_slice())
    }
}

fn check_ca_key(public_key_info: &[u8]) -> Result<(), CertError> {
    use der::Decode;
    use x509_parser::public_key::PublicKey;

    let info = pkcs8::SubjectPublicKeyInfoRef::from_der(public_key_info)
        .map_err(|_| CertError::KeyAlgorithm)?;
    match info.algorithm.oid {
        algorithms::EC_PUBLIC_KEY => {
            let curve = info.algorithm.parameters_oid();
            let curve = curve.map_err(|_| CertError::EcKey("no named curve".into()))?;
            if curve == algorithms::P256 || curve == algorithms::P384 {
                return Ok(());
            }
            let name = curve_name(curve);
            Err(CertError::EcKey(format!(
                "a CA on curve {name} cannot be served; use P-256 or P-384"
            )))
        }
        algorithms::RSA_ENCRYPTION => {
            let (_, info) = x509_parser::x509::SubjectPublicKeyInfo::from_der(public_key_info)
                .map_err(|_| CertError::KeyAlgorithm)?;
            let Ok(PublicKey::RSA(key)) = info.parsed() else {
                return Err(CertError::KeyAlgorithm);
            };
            if key.key_size() < RSA_BITS_MIN {
                let bits = key.key_size();
                return Err(CertError::RsaKey(format!(
                    "{bits} bits, at least {RSA_BITS_MIN} needed"
                )));
            }
            if key.try_exponent() == Ok(1) {
                return Err(CertError::RsaKey("exponent 1".into()));
            }
            Ok(())
        }
        _ => Err(CertError::KeyAlgorithm),
    }
}

/// A set of trusted root certificates, prepared for path building.
#[derive(Clone, Debug)]
pub struct Roots {
    certificates: Vec<Certificate>,
    anchors: Vec<TrustAnchor<'static>>,
}

/// A leaf that verified, and who issued it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The bundle as it was given: leaf first.
    pub bundle: Vec<Certificate>,
    /// Raw subject of the certificate above the leaf in the verified path.
    pub issuer_subject: Vec<u8>,
    /// Its raw SubjectPublicKeyInfo.
    pub issuer_public_key: Vec<u8>,
}

impl Verified {
    /// The node's own certificate.
    pub fn leaf(&self) -> Option<&Certificate> {
        self.bundle.first()
    }
}

impl Roots {
    /// Trusts these certificates, whatever else they are.
    pub fn new(certificates: Vec<Certificate>) -> Result<Roots, CertError> {
        let mut anchors = Vec::with_capacity(certificates.len());
        for certificate in &certificates {
            let der = certificate.to_pki();
            let anchor =
                webpki::anchor_from_trusted_cert(&der).map_err(|_| CertError::Undecodable)?;
            anchors.push(anchor.to_owned());
        }
        Ok(Roots {
            certificates,
            anchors,
        })
    }

    pub fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    /// The roots as a rustls store.
    pub fn to_store(&self) -> rustls::RootCertStore {
        rustls::RootCertStore {
            roots: self.anchors.clone(),
        }
    }

    /// Judges a leaf bundle: every certificate valid now, each signed by the next, and a path from the
    /// first to one of these roots. With `allow_expired`, a bundle whose time is past is judged at the
    /// latest time at which all of it was valid; one that is not yet valid never passes.
    pub fn verify_bundle(
        &self,
        bundle: Vec<Certificate>,
        now: SystemTime,
        allow_expired: bool,
    ) -> Result<Verified, CertError> {
        if bundle.is_empty() {
            return Err(CertError::NoCertificates);
        }
        for (index, certificate) in bundle.iter().enumerate() {
            match certificate.check_validity(index, now) {
                Err(error) if error.is_expired() && allow_expired => {}
                other => other?,
            }
            if let Some(next) = bundle.get(index + 1)
                && !certificate.is_signed_by(next)
            {
                let name = certificate.common_name.clone();
                return Err(CertError::NoChain { index, name });
            }
        }
        let (issuer_subject, issuer_public_key) = if allow_expired {
            self.verify_at_some_time(&bundle, now)?
        } else {
            self.verify_path(&bundle, unix_secs(now))?
        };
        Ok(Verified {
            bundle,
            issuer_subject,
            issuer_public_key,
        })
    }

    /// Tries the present, then the ends of the validity periods, each time earlier than the one before.
    fn verify_at_some_time(
        &self,
        bundle: &[Certificate],
        now: SystemTime,
    ) -> Result<(Vec<u8>, Vec<u8>), CertError> {
        let mut time = unix_secs(now);
        let mut ends = bundle.iter().map(|certificate| certificate.not_after);
        loop {
            match self.verify_path(bundle, time) {
                Err(error) if error.is_expired() => {}
                other => return other,
            }
            time = ends
                .by_ref()
                .find(|end| *end < time)
                .ok_or(CertError::NoCommonTime)?;
        }
    }

    /// Builds a path from the first certificate to a root, through the others.
    fn verify_path(
        &self,
        bundle: &[Certificate],
        at_secs: i64,
    ) -> Result<(Vec<u8>, Vec<u8>), CertError> {
        let ders: Vec<CertificateDer<'_>> = bundle.iter().map(Certificate::to_pki).collect();
        let (leaf, intermediates) = ders.split_first().ok_or(CertError::NoCertificates)?;
        let end_entity = EndEntityCert::try_from(leaf).map_err(|_| CertError::Undecodable)?;
        let at = Duration::from_secs(u64::try_from(at_secs).unwrap_or(0));
        let path = end_entity
            .verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                &self.anchors,
                intermediates,
                UnixTime::since_unix_epoch(at),
                webpki::KeyUsage::client_auth(),
                None,
                None,
            )
            .map_err(|error| from_webpki(error, bundle))?;
        if let Some(issuer) = path.intermediate_certificates().next() {
            let issuer = Certificate::from_der(&issuer.der())?;
            return Ok((issuer.subject, issuer.public_key_info));
        }
        let anchor = path.anchor();
        let root = self
            .anchors
            .iter()
            .position(|candidate| {
                candidate.subject == anchor.subject
                    && candidate.subject_public_key_info == anchor.subject_public_key_info
            })
            .and_then(|at| self.certificates.get(at))
            .ok_or(CertError::UnknownAuthority)?;
        Ok((root.subject.clone(), root.public_key_info.clone()))
    }

    /// Whether a CA certificate is one of the roots or leads to one through these intermediates. Dates
    /// are not looked at.
    pub fn reaches(&self, ca: &Certificate, intermediates: &[Certificate]) -> bool {
        self.reaches_within(ca, intermediates, CA_DEPTH_MAX)
    }

    fn reaches_within(
        &self,
        ca: &Certificate,
        intermediates: &[Certificate],
        depth: usize,
    ) -> bool {
        if self.certificates.iter().any(|root| root.der == ca.der) {
            return true;
        }
        if self.certificates.iter().any(|root| ca.is_signed_by(root)) {
            return true;
        }
        depth > 0
            && intermediates.iter().enumerate().any(|(at, candidate)| {
                candidate.der != ca.der && ca.is_signed_by(candidate) && {
                    let mut rest = intermediates.to_vec();
                    rest.remove(at);
                    self.reaches_within(candidate, &rest, depth - 1)
                }
            })
    }
}

fn from_webpki(error: webpki::Error, bundle: &[Certificate]) -> CertError {
    use webpki::Error;
    let name = bundle.first().map_or("", |leaf| leaf.common_name.as_str());
    match error {
        // All generated roots have the same name, so a foreign one is only told apart by its key.
        Error::UnknownIssuer | Error::InvalidSignatureForPublicKey => CertError::UnknownAuthority,
        Error::CertExpired { not_after, .. } => CertError::Expired {
            index: 0,
            name: name.to_owned(),
            time: time_text(i64::try_from(not_after.as_secs()).unwrap_or(i64::MAX)),
        },
        Error::CertNotValidYet { not_before, .. } => CertError::NotYetValid {
            index: 0,
            name: name.to_owned(),
            time: time_text(i64::try_from(not_before.as_secs()).unwrap_or(i64::MAX)),
        },
        other => CertError::Verify(other.to_string()),
    }
}

/// All values of one attribute of a name, in order.
fn texts(name: &X509Name<'_>, oid: &str) -> Vec<String> {
    name.iter_attributes()
        .filter(|attribute| attribute.attr_type().to_id_string() == oid)
        .filter_map(|attribute| attribute.as_str().ok())
        .map(str::to_owned)
        .collect()
}

fn time_text(secs: i64) -> String {
    crate::api::time::rfc3339_nano(&prost_types::Timestamp {
        seconds: secs,
        nanos: 0,
    })
}
