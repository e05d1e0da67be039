//! The worker's own data key: seals everything the agent writes about its tasks (settled P10).
//!
//! The key is random and lies in `worker/key`, mode 0600, as a small JSON record that names how the key
//! is wrapped. The only form so far is `none`, the key in clear: a node without an unlock key has no
//! better place for it. A record of another form is refused, never overwritten.

use crate::storage::files;
use crate::storage::seal::{Dek, DekRing, SealError, Sealer};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::hmac;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Version of the record.
const VERSION: u32 = 1;
/// The key in clear.
const WRAPPING_NONE: &str = "none";

/// The key could not be read or made.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot {attempt} the worker key {}: {error}", path.display())]
    Io {
        attempt: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    #[error("the worker key {} is not usable: {reason}", path.display())]
    Form { path: PathBuf, reason: String },
    #[error("worker key: {0}")]
    Seal(#[from] SealError),
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    wrapping: String,
    key: String,
}

/// The data key of this node's worker half.
#[derive(Debug, Clone)]
pub struct WorkerKey(Dek);

impl WorkerKey {
    /// Reads the key, or makes a new one if there is no file.
    pub fn open_or_create(path: &Path) -> Result<WorkerKey, KeyError> {
        match std::fs::read(path) {
            Ok(bytes) => WorkerKey::parse(path, &bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => WorkerKey::create(path),
            Err(error) => Err(KeyError::Io {
                attempt: "read",
                path: path.to_owned(),
                error,
            }),
        }
    }

    fn create(path: &Path) -> Result<WorkerKey, KeyError> {
        let key = Dek::generate()?;
        let record = Record {
            version: VERSION,
            wrapping: WRAPPING_NONE.to_owned(),
            key: BASE64.encode(key.expose()),
        };
        serde_json::to_vec(&record)
            .map_err(io::Error::from)
            .and_then(|text| files::replace(path, &text, 0o600))
            .map_err(|error| KeyError::Io {
                attempt: "write",
                path: path.to_owned(),
                error,
            })?;
        Ok(WorkerKey(key))
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<WorkerKey, KeyError> {
        let form = |reason: String| KeyError::Form {
            path: path.to_owned(),
            reason,
        };
        let record: Record =
            serde_json::from_slice(bytes).map_err(|error| form(error.to_string()))?;
        if record.version != VERSION || record.wrapping != WRAPPING_NONE {
            return Err(form(format!(
                "version {} with wrapping {:?}; a newer release wrote it, use that",
                record.version, record.wrapping
            )));
        }
        let key = BASE64
            .decode(&record.key)
            .map_err(|error| form(error.to_string()))?;
        Ok(WorkerKey(Dek::from_bytes(&key)?))
    }

    /// A sealer for the rows of the task database with this salt.
    pub(crate) fn row_sealer(&self, salt: &[u8]) -> Result<Sealer, SealError> {
        Sealer::new(DekRing::single(self.0.clone()), salt, "worker rows")
    }

    /// The key for the log of one task. It opens nothing but that log, so that it can be given to the
    /// process that writes it.
    pub(crate) fn log_key(&self, task_id: &str) -> Result<Dek, SealError> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.0.expose());
        let mut context = hmac::Context::with_key(&key);
        context.update(b"task log\0");
        context.update(task_id.as_bytes());
        Dek::from_bytes(context.sign().as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn made_once_and_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let made = WorkerKey::open_or_create(&path).unwrap();
        let read = WorkerKey::open_or_create(&path).unwrap();
        assert_eq!(made.0.expose(), read.0.expose());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_ne!(
            made.log_key("a").unwrap().expose(),
            made.log_key("b").unwrap().expose()
        );
    }

    #[test]
    fn unknown_forms_are_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        for content in [
            "",
            r#"{"version":1,"wrapping":"kek","key":"AAAA"}"#,
            r#"{"version":1,"wrapping":"none","key":"AAAA"}"#,
        ] {
            std::fs::write(&path, content).unwrap();
            assert!(WorkerKey::open_or_create(&path).is_err(), "{content}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
    }
}
