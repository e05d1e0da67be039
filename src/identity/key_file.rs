//! The node key file and the certificate beside it.
//!
//! One [`KeyFile`] owns the two files `swarm-node.key` and `swarm-node.crt`; all work on them goes
//! through its lock. The key's PEM headers carry the version of the key-encryption key (KEK) and the
//! raft data keys, so key, headers and KEK can never get out of step (spec 02 section 6.4).
//!
//! The pair is replaced so that a crash at any point leaves a pair: the new certificate is put beside
//! the old one under another name, then the key is replaced, then the certificate is moved into
//! place. A reader that finds a key without its certificate looks for the other name.

use super::cert::Certificate;
use super::dek::{Dek, DekError, DekHeaders};
use super::files::{self, FileError};
use super::key_cipher;
use super::pem::{self, Block};
use super::private_key::{KeyError, PrivateKey};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const KEY_NAME: &str = "swarm-node.key";
const CERT_NAME: &str = "swarm-node.crt";
/// The new certificate while a pair is being replaced.
const NEXT_CERT_NAME: &str = ".swarm-node.crt";
/// A key that very old versions may have left.
const OLD_KEY_NAME: &str = ".swarm-node.key";

const KEK_VERSION: &str = "kek-version";

/// What can go wrong with the node key file.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The key is encrypted, and the KEK is absent or wrong.
    #[error("the node key {path} is locked: no or a wrong unlock key was given", path = .0.display())]
    InvalidKek(PathBuf),
    #[error("unable to read TLS key headers: {0}")]
    Headers(DekError),
    #[error("the node key {path} cannot be used: {error}", path = path.display())]
    Key { path: PathBuf, error: KeyError },
    #[error("the certificate {path} does not belong to the node key", path = .0.display())]
    Mismatch(PathBuf),
}

impl KeyFileError {
    /// Whether the key or the certificate is simply not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, KeyFileError::File(error) if error.is_missing())
    }
}

/// A key-encryption key and its version. Without a key, the file is written in clear.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Kek {
    /// Empty if there is none.
    key: Zeroizing<Vec<u8>>,
    /// Index of the cluster object the key came from; 0 if never locked.
    pub version: u64,
}

impl Kek {
    /// A KEK with these bytes; empty bytes mean none.
    pub fn new(key: &[u8], version: u64) -> Kek {
        Kek {
            key: Zeroizing::new(key.to_vec()),
            version,
        }
    }

    /// The bytes, if there are any.
    pub fn key(&self) -> Option<&[u8]> {
        Some(self.key.as_slice()).filter(|key| !key.is_empty())
    }
}

impl std::fmt::Debug for Kek {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let set = self.key().is_some();
        write!(f, "Kek {{ set: {set}, version: {} }}", self.version)
    }
}

/// A node's certificate bundle and private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePair {
    /// Leaf first, then intermediates.
    pub certificate_pem: Vec<u8>,
    pub key: PrivateKey,
}

/// Keeper of the node key file.
#[derive(Debug)]
pub struct KeyFile {
    dir: PathBuf,
    state: Mutex<State>,
}

/// What is known of the file: under which KEK it is, and its data keys.
#[derive(Debug, Default)]
struct State {
    kek: Kek,
    deks: DekHeaders,
}

impl KeyFile {
    /// The key file in `dir` (a state directory's `certificates/`), to be opened with this KEK if it
    /// is encrypted. Touches nothing yet.
    pub fn new(dir: &Path, kek: Kek) -> KeyFile {
        let state = State {
            kek,
            deks: DekHeaders::default(),
        };
        KeyFile {
            dir: dir.to_owned(),
            state: Mutex::new(state),
        }
    }

    pub fn key_path(&self) -> PathBuf {
        self.dir.join(KEY_NAME)
    }

    pub fn certificate_path(&self) -> PathBuf {
        self.dir.join(CERT_NAME)
    }

    /// The KEK the file is written under.
    pub fn kek(&self) -> Kek {
        self.state.lock().kek.clone()
    }

    /// The data keys, as last read or written.
    pub fn deks(&self) -> DekHeaders {
        self.state.lock().deks.clone()
    }

    /// The data key in use, if this node has one.
    pub fn dek(&self) -> Option<Dek> {
        self.state.lock().deks.current.clone()
    }

    /// Brings a key that a very old version left behind into place, or removes it.
    pub fn migrate(&self) -> Result<(), KeyFileError> {
        let _state = self.state.lock();
        let old = self.dir.join(OLD_KEY_NAME);
        let Some(content) = files::read_if_present(&old)? else {
            return Ok(());
        };
        let certificate = files::read_if_present(&self.certificate_path())?;
        let pairs = match (PrivateKey::from_pem(&content), certificate) {
            (Ok(key), Some(certificate)) => is_pair(&certificate, &key),
            _ => false,
        };
        if pairs {
            files::rename(&old, &self.key_path())?;
        } else {
            files::remove(&old)?;
        }
        Ok(())
    }

    /// Reads the pair, decrypting the key if needed, and finishes a replacement that was interrupted.
    /// A plain key is accepted whatever the KEK. The data keys are taken into memory even if the
    /// certificate turns out to be missing, so that the next write keeps them.
    pub fn read(&self) -> Result<NodePair, KeyFileError> {
        let mut state = self.state.lock();
        let (block, key) = self.read_key(&state.kek)?;
        state.deks = self.read_deks(&block, &state.kek)?;
        let version = block.header(KEK_VERSION).map(str::parse);
        if let Some(Ok(version)) = version {
            state.kek.version = version;
        }
        let certificate_pem = self.read_certificate(&key)?;
        files::sweep_temporary(&self.dir);
        if files::readable_by_others(&self.key_path()) {
            let path = self.key_path();
            tracing::warn!(path = %path.display(), "the node key can be read by others; chmod 600 it");
        }
        Ok(NodePair {
            certificate_pem,
            key,
        })
    }

    /// Replaces certificate and key. A new KEK encrypts the key and its data keys (or, if it is empty,
    /// leaves them in clear); `None` keeps the present one.
    pub fn write(
        &self,
        certificate_pem: &[u8],
        key: &PrivateKey,
        new_kek: Option<Kek>,
    ) -> Result<(), KeyFileError> {
        let mut state = self.state.lock();
        let kek = new_kek.unwrap_or_else(|| state.kek.clone());
        files::ensure_dir(&self.dir, files::PUBLIC_DIR)?;
        let next = self.dir.join(NEXT_CERT_NAME);
        let bundle = pem::normalize_bundle(certificate_pem);
        files::write_atomic(&next, &bundle, files::PUBLIC_FILE)?;
        let mut block = self.key_block(key, &kek)?;
        block.headers.extend(headers(&state.deks, &kek)?);
        self.write_key(&block)?;
        state.kek = kek;
        files::rename(&next, &self.certificate_path())?;
        Ok(())
    }

    /// Changes the data keys. The key itself stays as it is, byte for byte, with its encryption; the
    /// other headers are written anew. Nothing changes in memory if the write fails.
    pub fn update_deks<R>(
        &self,
        change: impl FnOnce(&mut DekHeaders) -> Result<R, KeyFileError>,
    ) -> Result<R, KeyFileError> {
        let mut state = self.state.lock();
        let mut deks = state.deks.clone();
        let result = change(&mut deks)?;
        let path = self.key_path();
        let mut block = self.block_of(&files::read(&path)?)?;
        block
            .headers
            .retain(|(name, _)| key_cipher::is_encryption_header(name));
        block.headers.extend(headers(&deks, &state.kek)?);
        self.write_key(&block)?;
        state.deks = deks;
        Ok(result)
    }

    /// The data key in use; makes and writes one if there is none.
    pub fn ensure_dek(&self) -> Result<Dek, KeyFileError> {
        if let Some(present) = self.dek() {
            return Ok(present);
        }
        let fresh = Dek::generate().map_err(KeyFileError::Headers)?;
        self.update_deks(|deks| Ok(deks.current.get_or_insert(fresh).clone()))
    }

    /// Sets the data keys that the first write of a new file will carry.
    pub(super) fn set_initial_dek(&self, dek: Dek) {
        self.state.lock().deks.current.get_or_insert(dek);
    }

    fn block_of(&self, content: &[u8]) -> Result<Block, KeyFileError> {
        pem::first(content).ok_or_else(|| self.key_error(KeyError::NotPem))
    }

    fn read_key(&self, kek: &Kek) -> Result<(Block, PrivateKey), KeyFileError> {
        let content = Zeroizing::new(files::read(&self.key_path())?);
        let block = self.block_of(&content)?;
        let key = key_cipher::decrypt(&block, kek.key()).map_err(|error| match error {
            KeyError::Encrypted | KeyError::WrongPassword => {
                KeyFileError::InvalidKek(self.key_path())
            }
            error => self.key_error(error),
        })?;
        Ok((block, key))
    }

    fn read_deks(&self, block: &Block, kek: &Kek) -> Result<DekHeaders, KeyFileError> {
        DekHeaders::from_headers(&block.headers, kek.key()).map_err(|error| match error {
            DekError::InvalidKek(_) => KeyFileError::InvalidKek(self.key_path()),
            error => KeyFileError::Headers(error),
        })
    }

    fn read_certificate(&self, key: &PrivateKey) -> Result<Vec<u8>, KeyFileError> {
        let path = self.certificate_path();
        let error = match files::read(&path) {
            Ok(certificate) if is_pair(&certificate, key) => return Ok(certificate),
            Ok(_) => KeyFileError::Mismatch(path.clone()),
            Err(error) => KeyFileError::File(error),
        };
        let next = self.dir.join(NEXT_CERT_NAME);
        match files::read_if_present(&next)? {
            Some(certificate) if is_pair(&certificate, key) => {
                files::rename(&next, &path)?;
                Ok(certificate)
            }
            Some(_) => {
                files::remove(&next)?;
                Err(error)
            }
            None => Err(error),
        }
    }

    fn key_block(&self, key: &PrivateKey, kek: &Kek) -> Result<Block, KeyFileError> {
        match kek.key() {
            Some(password) => {
                key_cipher::encrypt(key, password).map_err(|error| self.key_error(error))
            }
            None => Ok(key.to_block()),
        }
    }

    fn write_key(&self, block: &Block) -> Result<(), KeyFileError> {
        let content = block.encode();
        files::write_atomic(&self.key_path(), content.as_bytes(), files::PRIVATE_FILE)?;
        Ok(())
    }

    fn key_error(&self, error: KeyError) -> KeyFileError {
        KeyFileError::Key {
            path: self.key_path(),
            error,
        }
    }
}

/// All headers of a key file but those of its encryption.
fn headers(deks: &DekHeaders, kek: &Kek) -> Result<Vec<(String, String)>, KeyFileError> {
    let mut headers = deks.to_headers(kek.key()).map_err(KeyFileError::Headers)?;
    headers.push((KEK_VERSION.to_owned(), kek.version.to_string()));
    Ok(headers)
}

/// Whether the first certificate of a bundle belongs to a key.
fn is_pair(certificate_pem: &[u8], key: &PrivateKey) -> bool {
    let Some(block) = pem::first(certificate_pem) else {
        return false;
    };
    match (Certificate::from_der(&block.der), key.public_key_info()) {
        (Ok(certificate), Ok(public)) => certificate.matches_key(&public),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
