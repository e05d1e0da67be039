//! Erasing the raft data of a node that is no longer a manager (spec 02 section 15.5).
//!
//! The directory is renamed first, so that a kill leaves either all of it or nothing that a later start
//! could take for raft data. Then its data key is dropped from the node key file: what may be left on the
//! disk cannot be read any more.

use crate::identity::key_file::{KeyFile, KeyFileError};
use crate::storage::files;
use crate::storage::state_dir::StateDir;
use std::io;
use std::path::PathBuf;

/// Name of raft data on its way out, in the state directory.
const DISCARDED: &str = "raft.discarded";

/// Why raft data could not be erased.
#[derive(Debug, thiserror::Error)]
pub enum EraseError {
    #[error("cannot erase the raft data in {path}: {error}; remove the directory by hand", path = .path.display())]
    Files { path: PathBuf, error: io::Error },
    #[error("cannot drop the data key of the erased raft data: {0}")]
    Key(#[from] KeyFileError),
}

/// Erases the raft data, if there is any, and the data key. Blocks.
pub fn raft_data(state_dir: &StateDir, key_file: &KeyFile) -> Result<(), EraseError> {
    sweep(state_dir)?;
    let (raft, discarded) = (state_dir.raft(), state_dir.path().join(DISCARDED));
    match std::fs::rename(&raft, &discarded) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(EraseError::Files { path: raft, error }),
    }
    files::sync_directory(state_dir.path()).map_err(|error| EraseError::Files {
        path: state_dir.path().to_owned(),
        error,
    })?;
    key_file.update_deks(|deks| {
        *deks = Default::default();
        Ok(())
    })?;
    sweep(state_dir)
}

/// Removes what an interrupted erasure has left. Blocks.
pub fn sweep(state_dir: &StateDir) -> Result<(), EraseError> {
    let path = state_dir.path().join(DISCARDED);
    files::remove_directory(&path).map_err(|error| EraseError::Files { path, error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::roles::Role;
    use crate::identity::testing::TestCluster;

    // 03-A29: no raft data and no data key in the key file.
    #[test]
    fn nothing_is_left() {
        let node = TestCluster::new().node("node", Role::Worker);
        let state_dir = StateDir::open(node.dir.path()).unwrap();
        let key_file = node.security.key_file();
        let key_text = || std::fs::read_to_string(key_file.key_path()).unwrap();
        for round in 0..2 {
            key_file.ensure_dek().unwrap();
            assert!(key_text().contains("raft-dek"));
            std::fs::create_dir_all(state_dir.raft().join("db/1")).unwrap();
            std::fs::write(state_dir.raft_format(), "1").unwrap();
            if round == 1 {
                // A kill has left an earlier one half erased.
                std::fs::create_dir(state_dir.path().join(DISCARDED)).unwrap();
            }
            raft_data(&state_dir, key_file).unwrap();
            assert!(!state_dir.raft().exists());
            assert!(!state_dir.path().join(DISCARDED).exists());
            assert!(!key_text().contains("raft-dek"), "{}", key_text());
            assert_eq!(key_file.dek(), None);
        }
        raft_data(&state_dir, key_file).unwrap();
        key_file.read().unwrap();
    }
}
