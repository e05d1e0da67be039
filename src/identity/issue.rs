//! Making certificates and signing requests.
//!
//! Profiles are exactly those of spec 02 section 4, because Docker Engines validate what we issue and
//! may sign with the same root. Names and keys of issuers are copied as raw bytes. From a request only
//! its public key is taken, after its own signature has been checked.

use super::cert::Certificate;
use super::clock::unix_secs;
use super::pem::{self, Block};
use super::private_key::{KeyError, PrivateKey, SigningKey};
use crate::api::roles::Role;
use const_oid::{AssociatedOid, ObjectIdentifier};
use der::asn1::{BitStringRef, Ia5String, OctetString, PrintableStringRef, SetOfVec, UintRef};
use der::asn1::{GeneralizedTime, UtcTime, Utf8StringRef};
use der::flagset::FlagSet;
use der::{Any, AnyRef, Decode, Encode, Sequence, ValueOrd};
use pkcs8::{AlgorithmIdentifierRef, SubjectPublicKeyInfoRef};
use ring::rand::{SecureRandom, SystemRandom};
use std::time::{Duration, SystemTime};
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, KeyUsages,
    SubjectAltName, SubjectKeyIdentifier,
};
use x509_cert::time::Time;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

/// Common name of a generated root, and DNS name of every manager (spec 02 section 1).
pub const CA_NAME: &str = "swarm-ca";

/// Label of a signing request; the other one is read as well.
const CSR_LABEL: &str = "CERTIFICATE REQUEST";
const CSR_LABEL_OLD: &str = "NEW CERTIFICATE REQUEST";

/// Life of a generated root: 7300 days.
const ROOT_LIFETIME: Duration = Duration::from_secs(630_720_000);
/// How far a root is back-dated, so that a node with a slow clock accepts it.
const ROOT_BACKDATE: Duration = Duration::from_secs(5 * 60);
/// How far a node certificate is back-dated.
const LEAF_BACKDATE: Duration = Duration::from_secs(60 * 60);

const SERIAL_BYTES: usize = 20;

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const ORGANIZATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.10");
const UNIT: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.11");
const SERVER_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");
const CLIENT_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");

/// Why a certificate could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IssueError {
    #[error("CSR Decode failed: {0}")]
    Request(&'static str),
    #[error("the certificate could not be encoded: {0}")]
    Encode(String),
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl From<der::Error> for IssueError {
    fn from(error: der::Error) -> IssueError {
        IssueError::Encode(error.to_string())
    }
}

#[derive(Sequence)]
struct Validity {
    not_before: Time,
    not_after: Time,
}

/// The signed part of a certificate, with names and keys as raw values.
#[derive(Sequence)]
struct ToBeSigned<'a> {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    version: u8,
    serial: UintRef<'a>,
    signature: AlgorithmIdentifierRef<'a>,
    issuer: AnyRef<'a>,
    validity: Validity,
    subject: AnyRef<'a>,
    public_key: AnyRef<'a>,
    #[asn1(context_specific = "3", tag_mode = "EXPLICIT")]
    extensions: Vec<Extension>,
}

/// A signed thing: certificate or request.
#[derive(Sequence)]
struct Signed<'a> {
    content: AnyRef<'a>,
    algorithm: AlgorithmIdentifierRef<'a>,
    signature: BitStringRef<'a>,
}

/// The signed part of a request. Attributes are always empty.
#[derive(Sequence)]
struct RequestInfo<'a> {
    version: u8,
    subject: AnyRef<'a>,
    public_key: AnyRef<'a>,
    #[asn1(context_specific = "0", tag_mode = "IMPLICIT")]
    attributes: SetOfVec<Any>,
}

#[derive(Sequence, ValueOrd, PartialEq, Eq, PartialOrd, Ord, Clone)]
struct Attribute {
    kind: ObjectIdentifier,
    value: Any,
}

/// A new self-signed root for a key: name `swarm-ca`, 20 years.
pub fn self_signed_root(key: &PrivateKey, now: SystemTime) -> Result<Certificate, IssueError> {
    let signer = key.signer()?;
    let public_key = key.public_key_info()?;
    let name = encode_name(&[(COMMON_NAME, CA_NAME)])?;
    let not_before = round_to_minute(now) - ROOT_BACKDATE.as_secs() as i64;
    let usage: FlagSet<KeyUsages> = KeyUsages::KeyCertSign | KeyUsages::CRLSign;
    let constraints = BasicConstraints {
        ca: true,
        path_len_constraint: None,
    };
    let extensions = vec![
        extension(&KeyUsage(usage), true)?,
        extension(&constraints, true)?,
        extension(&key_id(&public_key)?, false)?,
    ];
    let der = sign_certificate(
        &signer,
        &name,
        &name,
        &public_key,
        (not_before, not_before + ROOT_LIFETIME.as_secs() as i64),
        extensions,
    )?;
    reparse(&der)
}

/// Who a node certificate is made for.
#[derive(Debug, Clone, Copy)]
pub struct NodeNames<'a> {
    pub node_id: &'a str,
    pub role: Role,
    /// The cluster ID.
    pub organization: &'a str,
}

/// A node certificate for a public key (DER SubjectPublicKeyInfo), signed by a CA.
pub fn node_certificate(
    ca: &Certificate,
    ca_key: &SigningKey,
    public_key: &[u8],
    names: NodeNames<'_>,
    lifetime: Duration,
    now: SystemTime,
) -> Result<Certificate, IssueError> {
    let subject = encode_name(&[
        (ORGANIZATION, names.organization),
        (UNIT, names.role.unit()),
        (COMMON_NAME, names.node_id),
    ])?;
    let start = round_to_minute(now);
    let lifetime = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX / 4);
    let usage: FlagSet<KeyUsages> = KeyUsages::DigitalSignature | KeyUsages::KeyEncipherment;
    let constraints = BasicConstraints {
        ca: false,
        path_len_constraint: None,
    };
    let mut extensions = vec![
        extension(&KeyUsage(usage), true)?,
        extension(&ExtendedKeyUsage(vec![SERVER_AUTH, CLIENT_AUTH]), false)?,
        extension(&constraints, true)?,
        extension(&key_id(public_key)?, false)?,
    ];
    if let Some(id) = &ca.subject_key_id
        && ca.subject != subject
    {
        let authority = AuthorityKeyIdentifier {
            key_identifier: Some(OctetString::new(id.as_slice())?),
            ..Default::default()
        };
        extensions.push(extension(&authority, false)?);
    }
    let mut dns_names = vec![names.role.unit(), names.node_id];
    if names.role == Role::Manager {
        dns_names.push(CA_NAME);
    }
    let dns_names = dns_names
        .into_iter()
        .map(|name| Ia5String::new(name).map(GeneralName::DnsName))
        .collect::<Result<Vec<_>, _>>()?;
    extensions.push(extension(&SubjectAltName(dns_names), false)?);
    let der = sign_certificate(
        ca_key,
        &ca.subject,
        &subject,
        public_key,
        (start - LEAF_BACKDATE.as_secs() as i64, start + lifetime),
        extensions,
    )?;
    reparse(&der)
}

/// A signing request for a key, as a node sends it: no names, no attributes. PEM.
pub fn signing_request(key: &PrivateKey) -> Result<Vec<u8>, IssueError> {
    let signer = key.signer()?;
    let public_key = key.public_key_info()?;
    let no_name = encode_name(&[])?;
    let info = RequestInfo {
        version: 0,
        subject: AnyRef::from_der(&no_name)?,
        public_key: AnyRef::from_der(&public_key)?,
        attributes: SetOfVec::new(),
    };
    let der = sign(&signer, &info.to_der()?)?;
    Ok(Block::new(CSR_LABEL, der).encode().as_bytes().to_vec())
}

/// The public key (DER SubjectPublicKeyInfo) of a PEM signing request whose own signature is right.
/// Everything else that it asks for is ignored.
pub fn public_key_of_request(csr: &[u8]) -> Result<Vec<u8>, IssueError> {
    let block = pem::first(csr).ok_or(IssueError::Request("not a PEM block"))?;
    if block.label != CSR_LABEL && block.label != CSR_LABEL_OLD {
        return Err(IssueError::Request("not a certificate request"));
    }
    let (rest, request) = X509CertificationRequest::from_der(&block.der)
        .map_err(|_| IssueError::Request("not a PKCS#10 request"))?;
    if !rest.is_empty() {
        return Err(IssueError::Request("bytes after the request"));
    }
    request
        .verify_signature()
        .map_err(|_| IssueError::Request("its signature is wrong or of an unsupported kind"))?;
    Ok(request.certification_request_info.subject_pki.raw.to_vec())
}

/// Nearest minute of a time, in seconds since 1970.
fn round_to_minute(time: SystemTime) -> i64 {
    (unix_secs(time) + 30).div_euclid(60) * 60
}

fn sign_certificate(
    signer: &SigningKey,
    issuer: &[u8],
    subject: &[u8],
    public_key: &[u8],
    (not_before, not_after): (i64, i64),
    extensions: Vec<Extension>,
) -> Result<Vec<u8>, IssueError> {
    let serial = random_serial()?;
    let content = ToBeSigned {
        version: 2,
        serial: UintRef::new(&serial)?,
        signature: signer.algorithm_identifier(),
        issuer: AnyRef::from_der(issuer)?,
        validity: Validity {
            not_before: encode_time(not_before)?,
            not_after: encode_time(not_after)?,
        },
        subject: AnyRef::from_der(subject)?,
        public_key: AnyRef::from_der(public_key)?,
        extensions,
    };
    sign(signer, &content.to_der()?)
}

fn sign(signer: &SigningKey, content: &[u8]) -> Result<Vec<u8>, IssueError> {
    let signature = signer.sign(content)?;
    let signed = Signed {
        content: AnyRef::from_der(content)?,
        algorithm: signer.algorithm_identifier(),
        signature: BitStringRef::from_bytes(&signature)?,
    };
    Ok(signed.to_der()?)
}

fn reparse(der: &[u8]) -> Result<Certificate, IssueError> {
    Certificate::from_der(der).map_err(|error| IssueError::Encode(error.to_string()))
}

/// Random, positive and not zero.
fn random_serial() -> Result<[u8; SERIAL_BYTES], IssueError> {
    let mut serial = [0u8; SERIAL_BYTES];
    SystemRandom::new()
        .fill(&mut serial)
        .map_err(|_| KeyError::Crypto)?;
    serial[0] &= 0x7f;
    serial[SERIAL_BYTES - 1] |= 1;
    Ok(serial)
}

/// A distinguished name with one attribute per step, in this order.
fn encode_name(attributes: &[(ObjectIdentifier, &str)]) -> Result<Vec<u8>, IssueError> {
    let mut steps: Vec<SetOfVec<Attribute>> = Vec::with_capacity(attributes.len());
    for (kind, text) in attributes {
        let value = match PrintableStringRef::new(text) {
            Ok(printable) => Any::from(AnyRef::from(printable)),
            Err(_) => Any::from(AnyRef::from(Utf8StringRef::new(text)?)),
        };
        let mut step = SetOfVec::new();
        step.insert(Attribute { kind: *kind, value })?;
        steps.push(step);
    }
    Ok(steps.to_der()?)
}

fn encode_time(secs: i64) -> Result<Time, IssueError> {
    let since = Duration::from_secs(u64::try_from(secs).unwrap_or(0));
    match UtcTime::from_unix_duration(since) {
        Ok(time) => Ok(Time::UtcTime(time)),
        Err(_) => Ok(Time::GeneralTime(GeneralizedTime::from_unix_duration(
            since,
        )?)),
    }
}

fn extension<T: Encode + AssociatedOid>(
    value: &T,
    critical: bool,
) -> Result<Extension, IssueError> {
    Ok(Extension {
        extn_id: T::OID,
        critical,
        extn_value: OctetString::new(value.to_der()?)?,
    })
}

/// SHA-1 of the public key bits: an identifier, not a protection.
fn key_id(public_key_info: &[u8]) -> Result<SubjectKeyIdentifier, IssueError> {
    let info = SubjectPublicKeyInfoRef::from_der(public_key_info)?;
    let bits = info.subject_public_key.raw_bytes();
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, bits);
    Ok(SubjectKeyIdentifier(OctetString::new(digest.as_ref())?))
}
