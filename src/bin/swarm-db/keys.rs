//! Opening a stopped node's directory: with the data keys of its key file, which is read and not touched.

use anyhow::{Context as _, bail};
use data_encoding::BASE64_NOPAD;
use std::path::Path;
use swarm_manager::identity::{Dek, DekHeaders, Kek, KeyFile, pem};
use swarm_manager::storage::EngineOptions;
use swarm_manager::storage::inspect::Inspection;
use swarm_manager::storage::seal::{self, DekRing};
use swarm_manager::storage::state_dir::StateDir;
use zeroize::Zeroizing;

/// Text in front of an unlock key that people are given.
const UNLOCK_PREFIX: &str = "SWMKEY-1-";

/// Opens a stopped node's directory for looking at it.
pub fn open(dir: &Path, unlock_key: Option<&str>) -> anyhow::Result<Inspection> {
    let dir = StateDir::open_shared(dir)?;
    let ring = data_keys(&dir, unlock_key)?;
    Ok(Inspection::open(dir, &ring, &EngineOptions::default())?)
}

/// The data keys in the headers of the node key. `unlock_key` is needed if the node is locked.
fn data_keys(dir: &StateDir, unlock_key: Option<&str>) -> anyhow::Result<DekRing> {
    let kek = unlock_key.map(parse_unlock_key).transpose()?;
    let path = KeyFile::new(&dir.certificates(), Kek::default()).key_path();
    let content = std::fs::read(&path)
        .map(Zeroizing::new)
        .with_context(|| format!("cannot read the node key {}", path.display()))?;
    let Some(block) = pem::first(&content) else {
        bail!("{} is not a node key", path.display());
    };
    let bytes = kek.as_ref().map(|kek| kek.as_slice());
    let headers = DekHeaders::from_headers(&block.headers, bytes).with_context(|| {
        let hint = match bytes {
            None => "give the unlock key with --unlock-key",
            Some(_) => "the unlock key is wrong, or the node is not locked",
        };
        format!("cannot open the data keys in {}; {hint}", path.display())
    })?;
    let Some(current) = headers.current else {
        bail!(
            "{} holds no data key: this node is not a manager",
            path.display()
        );
    };
    // While a rotation runs, both keys are in use.
    let (writing, older) = match headers.pending {
        Some(pending) => (pending, vec![convert(&current)?]),
        None => (current, Vec::new()),
    };
    Ok(DekRing::new(convert(&writing)?, older))
}

fn convert(dek: &Dek) -> anyhow::Result<seal::Dek> {
    Ok(seal::Dek::from_bytes(dek.as_bytes())?)
}

fn parse_unlock_key(text: &str) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    text.strip_prefix(UNLOCK_PREFIX)
        .and_then(|encoded| BASE64_NOPAD.decode(encoded.as_bytes()).ok())
        .map(Zeroizing::new)
        .with_context(|| format!("invalid key string: an unlock key begins with {UNLOCK_PREFIX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlock_keys_have_one_form() {
        let text = "SWMKEY-1-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
        let bytes: Vec<u8> = (0..32).collect();
        assert_eq!(*parse_unlock_key(text).unwrap(), bytes);
        for bad in ["", "AAEC", "SWMKEY-1-AA=", "SWMKEY-1-*"] {
            assert!(parse_unlock_key(bad).is_err(), "{bad}");
        }
    }
}
