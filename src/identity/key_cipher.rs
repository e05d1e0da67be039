//! Encrypting private keys under a password: PBES2 for PKCS#8, RFC 1423 for the older forms.
//!
//! Both shapes are the peer's (spec 02 sections 3.4 and 3.5), because it reads only these: PBKDF2 with
//! HMAC-SHA-1 and 2048 rounds, and OpenSSL's MD5-based derivation. They are weak against guessing a
//! human's password; here the password is a random 32-byte key. Neither is authenticated, so a
//! decryption counts only if what comes out is a private key, and even then the data key in the same
//! file has the last word.

use super::pem::Block;
use super::private_key::{KeyError, KeyForm, PrivateKey, SEC1_LABEL};
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use der::{Decode, Encode};
use md5::{Digest as _, Md5};
use pkcs8::EncryptedPrivateKeyInfo;
use pkcs8::pkcs5::EncryptionScheme;
use pkcs8::pkcs5::pbes2::{self, Kdf, Pbkdf2Params, Pbkdf2Prf};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

/// PEM label of an encrypted PKCS#8 key.
pub const ENCRYPTED_LABEL: &str = "ENCRYPTED PRIVATE KEY";

/// Rounds the peer writes.
const PBKDF2_ROUNDS: u32 = 2048;
const PBKDF2_SALT_BYTES: usize = 8;
/// Rounds beyond which a file is refused, so that a damaged one cannot stall a start.
const PBKDF2_ROUNDS_MAX: u32 = 10_000_000;
const IV_BYTES: usize = 16;
/// RFC 1423 derivation takes this much of the IV as its salt.
const LEGACY_SALT_BYTES: usize = 8;

const PROC_TYPE: &str = "Proc-Type";
const PROC_TYPE_VALUE: &str = "4,ENCRYPTED";
const DEK_INFO: &str = "DEK-Info";

/// Whether a header belongs to the encryption of the key, in whatever case it is written.
pub fn is_encryption_header(name: &str) -> bool {
    let name = name.trim();
    name.eq_ignore_ascii_case(PROC_TYPE) || name.eq_ignore_ascii_case(DEK_INFO)
}

/// Whether a block holds an encrypted key. The label does not count.
pub fn is_encrypted(block: &Block) -> bool {
    dek_info(block).is_some() || EncryptedPrivateKeyInfo::from_der(&block.der).is_ok()
}

/// Encrypts a key; the family (PKCS#8 or not) stays the same. The block has only encryption headers.
pub fn encrypt(key: &PrivateKey, password: &[u8]) -> Result<Block, KeyError> {
    let mut iv = [0u8; IV_BYTES];
    let mut salt = [0u8; PBKDF2_SALT_BYTES];
    let random = SystemRandom::new();
    random.fill(&mut iv).map_err(|_| KeyError::Crypto)?;
    random.fill(&mut salt).map_err(|_| KeyError::Crypto)?;
    match key.form() {
        KeyForm::Pkcs8 => encrypt_pbes2(key.der(), password, &salt, &iv),
        KeyForm::Sec1 | KeyForm::Pkcs1 => encrypt_legacy(key.der(), password, &iv),
    }
}

/// Reads the key of a block, decrypting it if needed. A plain key is taken whatever the password.
pub fn decrypt(block: &Block, password: Option<&[u8]>) -> Result<PrivateKey, KeyError> {
    if !is_encrypted(block) {
        return PrivateKey::from_der(&block.der);
    }
    let password = password
        .filter(|password| !password.is_empty())
        .ok_or(KeyError::Encrypted)?;
    let plain = match dek_info(block) {
        Some(info) => decrypt_legacy(&block.der, info, password)?,
        None => decrypt_pbes2(&block.der, password)?,
    };
    PrivateKey::from_der(&plain).map_err(|_| KeyError::WrongPassword)
}

fn dek_info(block: &Block) -> Option<&str> {
    let found = block
        .headers
        .iter()
        .find(|(name, _)| name.trim().eq_ignore_ascii_case(DEK_INFO))?;
    Some(&found.1)
}

fn encrypt_pbes2(
    der: &[u8],
    password: &[u8],
    salt: &[u8; PBKDF2_SALT_BYTES],
    iv: &[u8; IV_BYTES],
) -> Result<Block, KeyError> {
    let parameters = pbes2::Parameters {
        kdf: Kdf::Pbkdf2(Pbkdf2Params {
            salt,
            iteration_count: PBKDF2_ROUNDS,
            key_length: None,
            prf: Pbkdf2Prf::HmacWithSha1,
        }),
        encryption: pbes2::EncryptionScheme::Aes256Cbc { iv },
    };
    let encrypted = parameters
        .encrypt(password, der)
        .map_err(|_| KeyError::Crypto)?;
    let info = EncryptedPrivateKeyInfo {
        encryption_algorithm: EncryptionScheme::Pbes2(parameters),
        encrypted_data: &encrypted,
    };
    let der = info.to_der().map_err(|_| KeyError::Crypto)?;
    Ok(Block::new(ENCRYPTED_LABEL, der))
}

fn decrypt_pbes2(der: &[u8], password: &[u8]) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let info = EncryptedPrivateKeyInfo::from_der(der).map_err(|_| KeyError::Malformed)?;
    let EncryptionScheme::Pbes2(parameters) = &info.encryption_algorithm else {
        return Err(KeyError::Unsupported("only PBES2 supported".into()));
    };
    match &parameters.kdf {
        Kdf::Pbkdf2(kdf) if kdf.iteration_count <= PBKDF2_ROUNDS_MAX => {}
        Kdf::Pbkdf2(_) => return Err(KeyError::Unsupported("too many PBKDF2 rounds".into())),
        _ => return Err(KeyError::Unsupported("only PBKDF2 supported".into())),
    }
    parameters
        .decrypt(password, info.encrypted_data)
        .map(Zeroizing::new)
        .map_err(|_| KeyError::WrongPassword)
}

fn encrypt_legacy(der: &[u8], password: &[u8], iv: &[u8; IV_BYTES]) -> Result<Block, KeyError> {
    let key = legacy_key(password, iv, 32);
    let cipher =
        cbc::Encryptor::<aes::Aes256>::new_from_slices(&key, iv).map_err(|_| KeyError::Crypto)?;
    let mut block = Block::new(SEC1_LABEL, cipher.encrypt_padded_vec_mut::<Pkcs7>(der));
    let info = format!("AES-256-CBC,{}", HEXLOWER.encode(iv));
    block.headers = vec![
        (PROC_TYPE.to_owned(), PROC_TYPE_VALUE.to_owned()),
        (DEK_INFO.to_owned(), info),
    ];
    Ok(block)
}

fn decrypt_legacy(
    der: &[u8],
    dek_info: &str,
    password: &[u8],
) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let (cipher, iv) = dek_info.split_once(',').ok_or(KeyError::Malformed)?;
    let iv = HEXLOWER_PERMISSIVE
        .decode(iv.trim().as_bytes())
        .map_err(|_| KeyError::Malformed)?;
    match cipher.trim() {
        "AES-256-CBC" => open_cbc::<aes::Aes256>(der, password, &iv, 32),
        "AES-192-CBC" => open_cbc::<aes::Aes192>(der, password, &iv, 24),
        "AES-128-CBC" => open_cbc::<aes::Aes128>(der, password, &iv, 16),
        "DES-EDE3-CBC" => open_cbc::<des::TdesEde3>(der, password, &iv, 24),
        other => Err(KeyError::Unsupported(format!("cipher {other}"))),
    }
}

fn open_cbc<C>(
    der: &[u8],
    password: &[u8],
    iv: &[u8],
    key_bytes: usize,
) -> Result<Zeroizing<Vec<u8>>, KeyError>
where
    C: cbc::cipher::BlockCipher + cbc::cipher::BlockDecryptMut + cbc::cipher::KeyInit,
{
    if iv.len() < LEGACY_SALT_BYTES {
        return Err(KeyError::Malformed);
    }
    let key = legacy_key(password, iv, key_bytes);
    let cipher = cbc::Decryptor::<C>::new_from_slices(&key, iv).map_err(|_| KeyError::Malformed)?;
    cipher
        .decrypt_padded_vec_mut::<Pkcs7>(der)
        .map(Zeroizing::new)
        .map_err(|_| KeyError::WrongPassword)
}

/// Key derivation of RFC 1423 files: chained MD5 over password and salt, one round.
fn legacy_key(password: &[u8], iv: &[u8], key_bytes: usize) -> Zeroizing<Vec<u8>> {
    let salt = &iv[..LEGACY_SALT_BYTES.min(iv.len())];
    let mut key = Zeroizing::new(Vec::with_capacity(48));
    let mut last: Option<[u8; 16]> = None;
    while key.len() < key_bytes {
        let mut hash = Md5::new();
        if let Some(last) = last {
            hash.update(last);
        }
        hash.update(password);
        hash.update(salt);
        let digest: [u8; 16] = hash.finalize().into();
        key.extend_from_slice(&digest);
        last = Some(digest);
    }
    key.truncate(key_bytes);
    key
}

/// Results for given random values, for comparison with known ones.
#[cfg(test)]
pub(super) mod known {
    use super::*;

    /// Derived key and ciphertext of the older form.
    pub fn legacy(plain: &[u8], password: &[u8], iv: &[u8; IV_BYTES]) -> (Vec<u8>, Vec<u8>) {
        let block = encrypt_legacy(plain, password, iv).unwrap();
        (legacy_key(password, iv, 32).to_vec(), block.der.to_vec())
    }

    /// Ciphertext of the newer form.
    pub fn pbes2(
        plain: &[u8],
        password: &[u8],
        salt: &[u8; PBKDF2_SALT_BYTES],
        iv: &[u8; IV_BYTES],
    ) -> Vec<u8> {
        let block = encrypt_pbes2(plain, password, salt, iv).unwrap();
        let info = EncryptedPrivateKeyInfo::from_der(&block.der).unwrap();
        info.encrypted_data.to_vec()
    }
}
