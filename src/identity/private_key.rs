//! Private keys of nodes and of certificate authorities: reading all forms, converting, signing.
//!
//! Accepted are PKCS#8, SEC1 (elliptic curves) and PKCS#1 (RSA); see spec 02 section 3. The bytes are
//! kept as they were read, so that writing a key back changes nothing. Which form a key has is judged
//! by its content, never by its label. Keys are wiped from memory when dropped and never printed.

use super::pem::{self, Block};
use const_oid::ObjectIdentifier;
use der::asn1::{BitStringRef, OctetStringRef};
use der::{Decode, Encode, Sequence};
use pkcs8::{AlgorithmIdentifierRef, PrivateKeyInfo, SubjectPublicKeyInfoRef};
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, KeyPair, RsaKeyPair};
use std::fmt;
use zeroize::Zeroizing;

pub(super) const EC_PUBLIC_KEY: ObjectIdentifier =
    ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
pub(super) const RSA_ENCRYPTION: ObjectIdentifier =
    ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
pub(super) const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
pub(super) const P384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");
pub(super) const P521: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.35");

pub(super) const ECDSA_SHA256: ObjectIdentifier =
    ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.2");
pub(super) const ECDSA_SHA384: ObjectIdentifier =
    ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.3");
pub(super) const ECDSA_SHA512: ObjectIdentifier =
    ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.4");
pub(super) const RSA_SHA256: ObjectIdentifier =
    ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.11");
pub(super) const RSA_SHA384: ObjectIdentifier =
    ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.12");
pub(super) const RSA_SHA512: ObjectIdentifier =
    ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.13");

/// PEM label of a plain PKCS#8 key.
pub const PKCS8_LABEL: &str = "PRIVATE KEY";
/// PEM label of a SEC1 key.
pub const SEC1_LABEL: &str = "EC PRIVATE KEY";
/// PEM label of a PKCS#1 key.
pub const PKCS1_LABEL: &str = "RSA PRIVATE KEY";
/// A block that some tools put before a SEC1 key; it says nothing the key does not say.
const EC_PARAMETERS_LABEL: &str = "EC PARAMETERS";

/// What is wrong with a private key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("invalid pem bytes")]
    NotPem,
    #[error("invalid private key")]
    Malformed,
    #[error("unsupported private key: {0}")]
    Unsupported(String),
    /// Encrypted, and no password was given.
    #[error("the private key is encrypted")]
    Encrypted,
    /// Decryption failed, or what it gave is not a key.
    #[error("the private key cannot be decrypted with this key")]
    WrongPassword,
    #[error("the private key could not be generated or used for signing")]
    Crypto,
}

/// The encodings a key can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyForm {
    Pkcs8,
    Sec1,
    Pkcs1,
}

impl KeyForm {
    /// The PEM label of the form.
    pub fn label(self) -> &'static str {
        match self {
            KeyForm::Pkcs8 => PKCS8_LABEL,
            KeyForm::Sec1 => SEC1_LABEL,
            KeyForm::Pkcs1 => PKCS1_LABEL,
        }
    }
}

/// ECPrivateKey of RFC 5915.
#[derive(Sequence)]
struct EcPrivateKey<'a> {
    version: u8,
    private_key: OctetStringRef<'a>,
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", optional = "true")]
    curve: Option<ObjectIdentifier>,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT", optional = "true")]
    public_key: Option<BitStringRef<'a>>,
}

/// A private key in the form it was read or made.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey {
    form: KeyForm,
    der: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for PrivateKey {
    /// Names the form only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({:?})", self.form)
    }
}

/// The parts of a key, whatever its form.
enum Material<'a> {
    Ec {
        curve: ObjectIdentifier,
        private: &'a [u8],
        public: &'a [u8],
    },
    Rsa {
        pkcs1: &'a [u8],
    },
}

impl PrivateKey {
    /// A new P-256 key in PKCS#8 form.
    pub fn generate() -> Result<PrivateKey, KeyError> {
        let algorithm = &signature::ECDSA_P256_SHA256_ASN1_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new())
            .map_err(|_| KeyError::Crypto)?;
        PrivateKey::from_der(document.as_ref())
    }

    /// Reads a key in any plain form.
    pub fn from_der(der: &[u8]) -> Result<PrivateKey, KeyError> {
        let form = if PrivateKeyInfo::from_der(der).is_ok() {
            KeyForm::Pkcs8
        } else if EcPrivateKey::from_der(der).is_ok_and(|key| key.version == 1) {
            KeyForm::Sec1
        } else if RsaKeyPair::from_der(der).is_ok() {
            KeyForm::Pkcs1
        } else {
            return Err(KeyError::Malformed);
        };
        let key = PrivateKey {
            form,
            der: Zeroizing::new(der.to_vec()),
        };
        key.material()?;
        Ok(key)
    }

    /// Reads a plain key from PEM text.
    pub fn from_pem(text: &[u8]) -> Result<PrivateKey, KeyError> {
        let block = pem::blocks(text)
            .find(|block| block.label != EC_PARAMETERS_LABEL)
            .ok_or(KeyError::NotPem)?;
        PrivateKey::from_der(&block.der)
    }

    pub fn form(&self) -> KeyForm {
        self.form
    }

    /// The key's bytes in its form.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// The key as a PEM block without headers.
    pub fn to_block(&self) -> Block {
        Block::new(self.form.label(), self.der.to_vec())
    }

    /// The same key in PKCS#8 form.
    pub fn to_pkcs8(&self) -> Result<PrivateKey, KeyError> {
        let (algorithm, inner) = match self.material()? {
            _ if self.form == KeyForm::Pkcs8 => return Ok(self.clone()),
            Material::Ec { curve, .. } => {
                let mut key = EcPrivateKey::from_der(&self.der).map_err(|_| KeyError::Malformed)?;
                key.curve = None;
                (curve_algorithm(curve), encode(&key)?)
            }
            Material::Rsa { pkcs1 } => (rsa_algorithm(), Zeroizing::new(pkcs1.to_vec())),
        };
        let algorithm = algorithm_ref(&algorithm)?;
        let der = encode(&PrivateKeyInfo::new(algorithm, &inner))?;
        Ok(PrivateKey {
            form: KeyForm::Pkcs8,
            der,
        })
    }

    /// The same key in the form that belongs to its kind alone: SEC1, or PKCS#1 for RSA.
    pub fn to_traditional(&self) -> Result<PrivateKey, KeyError> {
        if self.form != KeyForm::Pkcs8 {
            return Ok(self.clone());
        }
        let info = PrivateKeyInfo::from_der(&self.der).map_err(|_| KeyError::Malformed)?;
        match self.material()? {
            Material::Rsa { pkcs1 } => Ok(PrivateKey {
                form: KeyForm::Pkcs1,
                der: Zeroizing::new(pkcs1.to_vec()),
            }),
            Material::Ec { curve, .. } => {
                let mut key =
                    EcPrivateKey::from_der(info.private_key).map_err(|_| KeyError::Malformed)?;
                key.curve = Some(curve);
                Ok(PrivateKey {
                    form: KeyForm::Sec1,
                    der: encode(&key)?,
                })
            }
        }
    }

    /// The public half as a DER SubjectPublicKeyInfo.
    pub fn public_key_info(&self) -> Result<Vec<u8>, KeyError> {
        let (algorithm, public) = match self.material()? {
            Material::Ec { curve, public, .. } => (curve_algorithm(curve), public.to_vec()),
            Material::Rsa { pkcs1 } => {
                let pair = RsaKeyPair::from_der(pkcs1).map_err(|_| KeyError::Malformed)?;
                (rsa_algorithm(), pair.public_key().as_ref().to_vec())
            }
        };
        let info = SubjectPublicKeyInfoRef {
            algorithm: algorithm_ref(&algorithm)?,
            subject_public_key: BitStringRef::from_bytes(&public)
                .map_err(|_| KeyError::Malformed)?,
        };
        info.to_der().map_err(|_| KeyError::Malformed)
    }

    /// The key, ready to sign.
    pub fn signer(&self) -> Result<SigningKey, KeyError> {
        match self.material()? {
            Material::Ec {
                curve,
                private,
                public,
            } => SigningKey::ec(curve, private, public),
            Material::Rsa { pkcs1 } => SigningKey::rsa(pkcs1),
        }
    }

    fn material(&self) -> Result<Material<'_>, KeyError> {
        let (ec, curve) = match self.form {
            KeyForm::Pkcs1 => return Ok(Material::Rsa { pkcs1: &self.der }),
            KeyForm::Sec1 => (self.der.as_slice(), None),
            KeyForm::Pkcs8 => {
                let info = PrivateKeyInfo::from_der(&self.der).map_err(|_| KeyError::Malformed)?;
                if info.algorithm.oid == RSA_ENCRYPTION {
                    return Ok(Material::Rsa {
                        pkcs1: info.private_key,
                    });
                }
                if info.algorithm.oid != EC_PUBLIC_KEY {
                    let oid = info.algorithm.oid;
                    return Err(KeyError::Unsupported(format!("algorithm {oid}")));
                }
                let curve = info.algorithm.parameters_oid();
                (info.private_key, curve.ok())
            }
        };
        let key = EcPrivateKey::from_der(ec).map_err(|_| KeyError::Malformed)?;
        let curve = curve.or(key.curve).ok_or(KeyError::Malformed)?;
        let public = key
            .public_key
            .and_then(|bits| bits.as_bytes())
            .ok_or_else(|| KeyError::Unsupported("the public key is not part of it".into()))?;
        Ok(Material::Ec {
            curve,
            private: key.private_key.as_bytes(),
            public,
        })
    }
}

/// A name for a curve that a person knows.
pub(super) fn curve_name(curve: ObjectIdentifier) -> String {
    match curve {
        P256 => "P-256".into(),
        P384 => "P-384".into(),
        P521 => "P-521".into(),
        other => other.to_string(),
    }
}

/// An algorithm identifier with its parameters in DER.
struct Algorithm {
    oid: ObjectIdentifier,
    parameters: Vec<u8>,
}

fn curve_algorithm(curve: ObjectIdentifier) -> Algorithm {
    let mut parameters = vec![0x06, curve.as_bytes().len() as u8];
    parameters.extend_from_slice(curve.as_bytes());
    Algorithm {
        oid: EC_PUBLIC_KEY,
        parameters,
    }
}

fn rsa_algorithm() -> Algorithm {
    Algorithm {
        oid: RSA_ENCRYPTION,
        parameters: vec![0x05, 0x00],
    }
}

fn algorithm_ref(algorithm: &Algorithm) -> Result<AlgorithmIdentifierRef<'_>, KeyError> {
    let parameters =
        der::AnyRef::from_der(&algorithm.parameters).map_err(|_| KeyError::Malformed)?;
    Ok(AlgorithmIdentifierRef {
        oid: algorithm.oid,
        parameters: Some(parameters),
    })
}

fn encode(value: &impl Encode) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let der = value.to_der().map_err(|_| KeyError::Malformed)?;
    Ok(Zeroizing::new(der))
}

/// A key that signs certificates and requests. The digest follows the strength of the key.
pub struct SigningKey {
    pair: Pair,
    algorithm: ObjectIdentifier,
}

enum Pair {
    Ec(EcdsaKeyPair),
    Rsa(RsaKeyPair, &'static dyn signature::RsaEncoding),
}

impl SigningKey {
    fn ec(curve: ObjectIdentifier, private: &[u8], public: &[u8]) -> Result<Self, KeyError> {
        let (ring_algorithm, algorithm) = match curve {
            P256 => (&signature::ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_SHA256),
            P384 => (&signature::ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_SHA384),
            other => {
                let name = curve_name(other);
                return Err(KeyError::Unsupported(format!(
                    "curve {name}; use P-256 or P-384"
                )));
            }
        };
        let random = SystemRandom::new();
        let pair =
            EcdsaKeyPair::from_private_key_and_public_key(ring_algorithm, private, public, &random)
                .map_err(|_| KeyError::Malformed)?;
        Ok(SigningKey {
            pair: Pair::Ec(pair),
            algorithm,
        })
    }

    fn rsa(pkcs1: &[u8]) -> Result<Self, KeyError> {
        let pair = RsaKeyPair::from_der(pkcs1)
            .map_err(|error| KeyError::Unsupported(error.to_string()))?;
        let bits = pair.public().modulus_len() * 8;
        let (padding, algorithm): (&'static dyn signature::RsaEncoding, _) = if bits >= 4096 {
            (&signature::RSA_PKCS1_SHA512, RSA_SHA512)
        } else if bits >= 3072 {
            (&signature::RSA_PKCS1_SHA384, RSA_SHA384)
        } else {
            (&signature::RSA_PKCS1_SHA256, RSA_SHA256)
        };
        Ok(SigningKey {
            pair: Pair::Rsa(pair, padding),
            algorithm,
        })
    }

    /// The signature algorithm this key uses.
    pub fn algorithm(&self) -> ObjectIdentifier {
        self.algorithm
    }

    /// The algorithm as it stands in a certificate: RSA ones have NULL parameters, EC ones none.
    pub fn algorithm_identifier(&self) -> AlgorithmIdentifierRef<'static> {
        AlgorithmIdentifierRef {
            oid: self.algorithm,
            parameters: match self.pair {
                Pair::Ec(_) => None,
                Pair::Rsa(..) => Some(der::AnyRef::NULL),
            },
        }
    }

    /// Signs a message; for curves the signature is in ASN.1 form.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Ec(pair) => {
                let made = pair.sign(&random, message).map_err(|_| KeyError::Crypto)?;
                Ok(made.as_ref().to_vec())
            }
            Pair::Rsa(pair, padding) => {
                let mut made = vec![0; pair.public().modulus_len()];
                pair.sign(*padding, &random, message, &mut made)
                    .map_err(|_| KeyError::Crypto)?;
                Ok(made)
            }
        }
    }
}

#[cfg(test)]
mod tests;
