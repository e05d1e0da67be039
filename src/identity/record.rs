//! Encrypted records: the small envelopes in which the peer keeps data keys and raft data.
//!
//! A record names its algorithm and carries ciphertext and nonce (spec 02 section 15.1). We write
//! NaCl secretbox records and read those and Fernet ones. A record without encryption is only
//! accepted where the caller says that there is no key.

use crate::api::types::MaybeEncryptedRecord;
use crate::api::types::maybe_encrypted_record::Algorithm;
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockDecryptMut, KeyIvInit};
use crypto_secretbox::aead::{Aead, KeyInit};
use crypto_secretbox::{Key, Nonce, XSalsa20Poly1305};
use data_encoding::BASE64URL;
use prost::Message;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

/// Bytes of a key after padding or cutting.
const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;

/// Why a record does not open. Callers treat all of them as "cannot decrypt".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("cannot decrypt: not an encrypted record")]
    NotARecord,
    #[error("cannot decrypt: record is encrypted")]
    Encrypted,
    #[error("cannot decrypt: record is not encrypted")]
    NotEncrypted,
    #[error("cannot decrypt record encrypted using {0}")]
    NoDecrypter(String),
    #[error("cannot decrypt: invalid nonce size {0}, expected {NONCE_BYTES}")]
    NonceSize(usize),
    #[error("cannot decrypt: wrong key or damaged record")]
    Open,
    #[error("cannot encrypt: no random numbers from the operating system")]
    Random,
}

/// Wraps a plaintext in a record: secretbox under the key, or as it is without one.
pub fn seal(plain: &[u8], key: Option<&[u8]>) -> Result<Vec<u8>, RecordError> {
    let record = match key.filter(|key| !key.is_empty()) {
        None => MaybeEncryptedRecord {
            algorithm: Algorithm::None as i32,
            data: plain.to_vec(),
            nonce: Vec::new(),
        },
        Some(key) => {
            let mut nonce = [0u8; NONCE_BYTES];
            SystemRandom::new()
                .fill(&mut nonce)
                .map_err(|_| RecordError::Random)?;
            seal_secretbox(plain, key, nonce)?
        }
    };
    Ok(record.encode_to_vec())
}

fn seal_secretbox(
    plain: &[u8],
    key: &[u8],
    nonce: [u8; NONCE_BYTES],
) -> Result<MaybeEncryptedRecord, RecordError> {
    let data = secretbox(key)
        .encrypt(&Nonce::from(nonce), plain)
        .map_err(|_| RecordError::Open)?;
    Ok(MaybeEncryptedRecord {
        algorithm: Algorithm::SecretboxSalsa20Poly1305 as i32,
        data,
        nonce: nonce.to_vec(),
    })
}

/// Opens a record. With a key, only encrypted records are accepted; without one, only plain ones.
pub fn open(record: &[u8], key: Option<&[u8]>) -> Result<Zeroizing<Vec<u8>>, RecordError> {
    let record = MaybeEncryptedRecord::decode(record).map_err(|_| RecordError::NotARecord)?;
    let algorithm = Algorithm::try_from(record.algorithm).map_err(|_| {
        RecordError::NoDecrypter(format!("the unknown algorithm {}", record.algorithm))
    })?;
    match (algorithm, key.filter(|key| !key.is_empty())) {
        (Algorithm::None, None) => Ok(Zeroizing::new(record.data)),
        (Algorithm::None, Some(_)) => Err(RecordError::NotEncrypted),
        (_, None) => Err(RecordError::Encrypted),
        (Algorithm::SecretboxSalsa20Poly1305, Some(key)) => open_secretbox(&record, key),
        (Algorithm::FernetAes128Cbc, Some(key)) => open_fernet(&record.data, key),
    }
}

fn open_secretbox(
    record: &MaybeEncryptedRecord,
    key: &[u8],
) -> Result<Zeroizing<Vec<u8>>, RecordError> {
    let nonce: [u8; NONCE_BYTES] = record
        .nonce
        .as_slice()
        .try_into()
        .map_err(|_| RecordError::NonceSize(record.nonce.len()))?;
    secretbox(key)
        .decrypt(&Nonce::from(nonce), record.data.as_slice())
        .map(Zeroizing::new)
        .map_err(|_| RecordError::Open)
}

/// Opens a Fernet token: version, time, IV, AES-128-CBC ciphertext, HMAC over all before it. The first
/// half of the key signs, the second encrypts. Its age is not checked.
fn open_fernet(token: &[u8], key: &[u8]) -> Result<Zeroizing<Vec<u8>>, RecordError> {
    const VERSION: u8 = 0x80;
    const HEAD: usize = 1 + 8;
    const IV: usize = 16;
    const MAC: usize = 32;
    let token = BASE64URL.decode(token).map_err(|_| RecordError::Open)?;
    if token.len() < HEAD + IV + MAC || token[0] != VERSION {
        return Err(RecordError::Open);
    }
    let key = padded(key);
    let (signed, mac) = token.split_at(token.len() - MAC);
    let signing = hmac::Key::new(hmac::HMAC_SHA256, &key[..16]);
    hmac::verify(&signing, signed, mac).map_err(|_| RecordError::Open)?;
    let cipher =
        cbc::Decryptor::<aes::Aes128>::new_from_slices(&key[16..], &signed[HEAD..HEAD + IV])
            .map_err(|_| RecordError::Open)?;
    cipher
        .decrypt_padded_vec_mut::<Pkcs7>(&signed[HEAD + IV..])
        .map(Zeroizing::new)
        .map_err(|_| RecordError::Open)
}

fn secretbox(key: &[u8]) -> XSalsa20Poly1305 {
    XSalsa20Poly1305::new(Key::from_slice(padded(key).as_slice()))
}

/// A key of exactly 32 bytes: shorter ones are padded with zeros at the end, longer ones cut.
fn padded(key: &[u8]) -> Zeroizing<[u8; KEY_BYTES]> {
    let mut out = Zeroizing::new([0u8; KEY_BYTES]);
    let used = key.len().min(KEY_BYTES);
    out[..used].copy_from_slice(&key[..used]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use data_encoding::{BASE64, HEXLOWER};

    fn key() -> Vec<u8> {
        (0..32).collect()
    }

    #[test]
    fn known_secretbox() {
        let nonce = std::array::from_fn(|at| at as u8);
        let record = seal_secretbox(b"swarm", &key(), nonce).unwrap();
        assert_eq!(
            HEXLOWER.encode(&record.data),
            "85376939cb692f3e6af412c8b1b57e222d88593daa"
        );
        let encoded = record.encode_to_vec();
        assert_eq!(
            BASE64.encode(&encoded),
            "CAESFYU3aTnLaS8+avQSyLG1fiItiFk9qhoYAAECAwQFBgcICQoLDA0ODxAREhMUFRYX"
        );
        assert_eq!(open(&encoded, Some(&key())).unwrap().as_slice(), b"swarm");
        assert_eq!(open(&encoded, Some(b"other")), Err(RecordError::Open));
        assert_eq!(open(&encoded, None), Err(RecordError::Encrypted));
    }

    #[test]
    fn known_fernet() {
        let token = "gAAAAABlU_EAAAECAwQFBgcICQoLDA0ODzJY8giarVq3fGtfSm-jZ6DVsiqZrXoum-8SGlC34Aw3keScdvKYo4wA2NkFiDVOPw==";
        let record = |data: &str| {
            MaybeEncryptedRecord {
                algorithm: Algorithm::FernetAes128Cbc as i32,
                data: data.as_bytes().to_vec(),
                nonce: vec![1],
            }
            .encode_to_vec()
        };
        let opened = open(&record(token), Some(&key())).unwrap();
        assert_eq!(opened.as_slice(), b"swarm");
        for damaged in ["", "!", "gAAAAA==", &token.replace("AAEC", "AAED")] {
            assert_eq!(open(&record(damaged), Some(&key())), Err(RecordError::Open));
        }
    }

    #[test]
    fn plain_records_need_the_absence_of_a_key() {
        let plain = seal(&key(), None).unwrap();
        assert_eq!(
            BASE64.encode(&plain),
            "EiAAAQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHw=="
        );
        assert_eq!(open(&plain, None).unwrap().as_slice(), key());
        assert_eq!(open(&plain, Some(&[])).unwrap().as_slice(), key());
        assert_eq!(open(&plain, Some(&key())), Err(RecordError::NotEncrypted));
        let sealed = seal(&key(), Some(&key())).unwrap();
        assert!(BASE64.encode(&sealed).starts_with("CAESM"));
    }

    #[test]
    fn bad_records() {
        assert_eq!(open(&[0xff], None), Err(RecordError::NotARecord));
        let record = MaybeEncryptedRecord {
            algorithm: Algorithm::SecretboxSalsa20Poly1305 as i32,
            data: vec![0; 40],
            nonce: vec![0; 20],
        };
        let error = open(&record.encode_to_vec(), Some(&key())).unwrap_err();
        assert_eq!(error, RecordError::NonceSize(20));
        assert!(error.to_string().contains("invalid nonce size 20"));
        let unknown = MaybeEncryptedRecord {
            algorithm: 9,
            ..Default::default()
        };
        let opened = open(&unknown.encode_to_vec(), Some(&key()));
        assert!(matches!(opened, Err(RecordError::NoDecrypter(_))));
    }
}
