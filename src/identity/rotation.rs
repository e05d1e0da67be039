//! The data keys of the node key file as the stores use them, and their exchange.

use super::dek;
use super::key_file::{KeyFile, KeyFileError};
use crate::storage::rotation::{KeyHolder, RotationError};
use crate::storage::seal::{Dek, DekRing, SealError};

/// Why the key file gives no data keys to the stores.
#[derive(Debug, thiserror::Error)]
pub enum DataKeyError {
    #[error(transparent)]
    File(#[from] KeyFileError),
    #[error("the data key in the node key file: {0}")]
    Key(#[from] SealError),
    #[error("the node key file holds no data key")]
    Missing,
}

impl KeyFile {
    /// The data keys to open the stores with; makes and writes one if there is none. While a rotation is
    /// under way the pending key is the one to write with.
    pub fn data_keys(&self) -> Result<DekRing, DataKeyError> {
        self.ensure_dek()?;
        let deks = self.deks();
        let current = key(deks.current.as_ref().ok_or(DataKeyError::Missing)?)?;
        Ok(match &deks.pending {
            Some(pending) => DekRing::new(key(pending)?, vec![current]),
            None => DekRing::single(current),
        })
    }

    /// Notes, durably, that the data key is to be exchanged. Whoever runs the manager then does it.
    pub fn request_rotation(&self) -> Result<(), KeyFileError> {
        self.update_deks(|deks| {
            deks.needs_rotation = true;
            Ok(())
        })
    }
}

fn key(dek: &dek::Dek) -> Result<Dek, SealError> {
    Dek::from_bytes(dek.as_bytes())
}

impl KeyHolder for KeyFile {
    fn begin(&self) -> Result<DekRing, RotationError> {
        self.update_deks(|deks| deks.begin_rotation().map_err(KeyFileError::Headers))
            .map_err(failed)?;
        self.data_keys().map_err(failed)
    }

    fn finish(&self) -> Result<(), RotationError> {
        self.update_deks(|deks| {
            deks.finish_rotation();
            Ok(())
        })
        .map_err(failed)
    }
}

fn failed(error: impl ToString) -> RotationError {
    RotationError::KeyFile(error.to_string())
}
