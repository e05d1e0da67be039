//! What a node does about its identity when it starts: load it, create a cluster, or join one.
//!
//! The decisions are those of spec 02 section 7. Creating a cluster writes the CA key nowhere in
//! clear; its home is the cluster object in the replicated store. Between the first files and the
//! first commit a crash would lose it, and with it the ability to ever issue a certificate, so it
//! waits in a file sealed with the node's data key until [`cluster_is_stored`] is called.

use super::clock::Clock;
use super::connect::Address;
use super::dek::Dek;
use super::files::{self, FileError};
use super::issue::NodeNames;
use super::join::{self, Applicant, JoinError};
use super::key_file::{Kek, KeyFile, KeyFileError, NodePair};
use super::private_key::{KeyError, PrivateKey};
use super::record;
use super::root_ca::{RootCa, RootCaError, RootCaParts};
use super::security::{self, SecurityConfig, SecurityError};
use super::token::{JoinToken, TokenError};
use crate::api::ids::new_id;
use crate::api::roles::Role;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Subdirectory of the state directory for everything public about the node, and its key.
const CERTIFICATES: &str = "certificates";
/// A CA key left by very old versions, or put there by an operator.
const ROOT_KEY_NAME: &str = "swarm-root-ca.key";
/// The sealed CA key of a cluster whose object is not yet stored.
const PENDING_ROOT_KEY_NAME: &str = ".swarm-root-ca.pending";
/// Exists as soon as a manager has kept raft data.
const RAFT_FORMAT: &str = "raft/FORMAT";
/// Prefix of the IDs of clusters that only take nodes in FIPS mode.
const FIPS_PREFIX: &str = "FIPS.";

/// Why a node has no usable identity.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("node is locked, and needs a valid unlock key")]
    Locked,
    #[error("error while loading TLS certificate in {path}: {source}", path = path.display())]
    Load {
        path: PathBuf,
        source: SecurityError,
    },
    #[error("the root CA in {path} cannot be used: {source}", path = path.display())]
    Root { path: PathBuf, source: RootCaError },
    #[error(
        "{dir} holds raft data of a cluster, but the certificate of the node is missing; restore \
         {dir}/certificates from a backup, or start with an empty state directory",
        dir = .0.display()
    )]
    RaftWithoutIdentity(PathBuf),
    #[error("node is not FIPS-enabled but cluster requires FIPS")]
    FipsRequired,
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error("a new root CA could not be created: {0}")]
    Create(RootCaError),
    #[error("a new key could not be created: {0}")]
    Key(#[from] KeyError),
    #[error(transparent)]
    KeyFile(KeyFileError),
    #[error(transparent)]
    Security(#[from] SecurityError),
    #[error(transparent)]
    File(#[from] FileError),
}

impl From<KeyFileError> for StartError {
    fn from(error: KeyFileError) -> StartError {
        match error {
            KeyFileError::InvalidKek(_) => StartError::Locked,
            error => StartError::KeyFile(error),
        }
    }
}

/// What decides about the identity of a node that starts.
#[derive(Clone, Debug)]
pub struct StartOptions {
    pub state_dir: PathBuf,
    /// A manager of the cluster to join; without it, a node without identity creates a cluster.
    pub join_addr: Option<String>,
    pub join_token: Option<String>,
    /// Availability a joining node asks for, as the API's enum value.
    pub availability: i32,
    /// Opens the key file of a locked manager.
    pub unlock_key: Option<Zeroizing<Vec<u8>>>,
    /// Accepts certificates whose time is past.
    pub force_new_cluster: bool,
    pub clock: Clock,
}

impl StartOptions {
    /// A node in this state directory that joins nobody.
    pub fn new(state_dir: &Path) -> StartOptions {
        StartOptions {
            state_dir: state_dir.to_owned(),
            join_addr: None,
            join_token: None,
            availability: 0,
            unlock_key: None,
            force_new_cluster: false,
            clock: Clock::system(),
        }
    }
}

/// The `certificates` directory of a state directory.
pub fn certificates_dir(state_dir: &Path) -> PathBuf {
    state_dir.join(CERTIFICATES)
}

/// Loads the node's identity, or creates a cluster, or joins one.
pub async fn load_or_create(options: &StartOptions) -> Result<Arc<SecurityConfig>, StartError> {
    files::ensure_dir(&options.state_dir, files::PRIVATE_DIR)?;
    let dir = certificates_dir(&options.state_dir);
    let kek = Kek::new(options.unlock_key.as_deref().map_or(&[], |key| key), 0);
    let key_file = Arc::new(KeyFile::new(&dir, kek));
    key_file.migrate()?;

    let root = load_root(&dir, &options.clock)?;
    let pair = key_file.read();
    if let (Some(root), Ok(pair)) = (&root, &pair) {
        return load(options, key_file, root.clone(), pair).map(Arc::new);
    }
    match pair {
        Err(KeyFileError::InvalidKek(_)) => return Err(StartError::Locked),
        Err(error) if root.is_some() && !error.is_missing() => {
            return Err(StartError::Load {
                path: key_file.certificate_path(),
                source: error.into(),
            });
        }
        _ => {}
    }
    let security = match &options.join_addr {
        Some(address) => join_cluster(options, key_file, root, address).await?,
        None if options.state_dir.join(RAFT_FORMAT).exists() => {
            return Err(StartError::RaftWithoutIdentity(options.state_dir.clone()));
        }
        None => create_cluster(options, &dir)?,
    };
    Ok(Arc::new(security))
}

/// To be called once the cluster object, and with it the CA key, is safely stored: removes the sealed
/// copy of the key.
pub fn cluster_is_stored(state_dir: &Path) -> Result<(), FileError> {
    files::remove(&certificates_dir(state_dir).join(PENDING_ROOT_KEY_NAME))
}

fn load_root(dir: &Path, clock: &Clock) -> Result<Option<RootCa>, StartError> {
    let path = security::root_path(dir);
    let Some(roots) = files::read_if_present(&path)? else {
        return Ok(None);
    };
    let key = files::read_if_present(&dir.join(ROOT_KEY_NAME))?.map(Zeroizing::new);
    let parts = RootCaParts {
        roots: &roots,
        signing: key.as_ref().map(|key| (roots.as_slice(), key.as_slice())),
        ..RootCaParts::default()
    };
    RootCa::new(parts, clock.now())
        .map(Some)
        .map_err(|source| StartError::Root { path, source })
}

fn load(
    options: &StartOptions,
    key_file: Arc<KeyFile>,
    root: RootCa,
    pair: &NodePair,
) -> Result<SecurityConfig, StartError> {
    let dir = certificates_dir(&options.state_dir);
    let path = key_file.certificate_path();
    let dek = key_file.dek();
    let root = match dek {
        Some(dek) if !root.can_sign() => with_pending_key(&dir, root, &dek, &options.clock)?,
        _ => root,
    };
    let clock = options.clock.clone();
    let allow_expired = options.force_new_cluster;
    let security = SecurityConfig::new(&dir, key_file, root, pair, clock, allow_expired)
        .map_err(|source| StartError::Load { path, source })?;
    if security.current().cluster_id().starts_with(FIPS_PREFIX) {
        return Err(StartError::FipsRequired);
    }
    Ok(security)
}

/// Adds the CA key of a cluster whose object may not have been stored before the last stop.
fn with_pending_key(
    dir: &Path,
    root: RootCa,
    dek: &Dek,
    clock: &Clock,
) -> Result<RootCa, FileError> {
    let path = dir.join(PENDING_ROOT_KEY_NAME);
    let Some(sealed) = files::read_if_present(&path)? else {
        return Ok(root);
    };
    let opened = record::open(&sealed, Some(dek.as_bytes())).map_err(|error| error.to_string());
    let with_key = opened.and_then(|key| {
        let parts = RootCaParts {
            roots: root.roots_pem(),
            signing: Some((root.roots_pem(), &key)),
            ..RootCaParts::default()
        };
        RootCa::new(parts, clock.now()).map_err(|error| error.to_string())
    });
    Ok(with_key.unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), error, "ignoring a sealed CA key");
        root
    }))
}

/// Makes a root CA, a cluster ID and the first manager's certificate.
fn create_cluster(options: &StartOptions, dir: &Path) -> Result<SecurityConfig, StartError> {
    let now = options.clock.now();
    let root = RootCa::generate(now).map_err(StartError::Create)?;
    let key = PrivateKey::generate()?;
    let (node_id, cluster_id) = (new_id(), new_id());
    let names = NodeNames {
        node_id: &node_id,
        role: Role::Manager,
        organization: &cluster_id,
    };
    let certificate_pem = root
        .issue_for_key(&key.public_key_info()?, names, now)
        .map_err(StartError::Create)?;
    let pair = NodePair {
        certificate_pem,
        key,
    };

    // No unlock key: a new cluster is not locked, whatever key was given.
    let key_file = Arc::new(KeyFile::new(dir, Kek::default()));
    let dek = Dek::generate().map_err(KeyFileError::Headers)?;
    files::ensure_dir(dir, files::PUBLIC_DIR)?;
    seal_pending_key(dir, &root, &dek)?;
    security::save_root(dir, root.roots_pem())?;
    key_file.set_initial_dek(dek);
    key_file.write(&pair.certificate_pem, &pair.key, None)?;
    tracing::info!(%cluster_id, %node_id, "created a new cluster");
    let clock = options.clock.clone();
    Ok(SecurityConfig::new(
        dir, key_file, root, &pair, clock, false,
    )?)
}

fn seal_pending_key(dir: &Path, root: &RootCa, dek: &Dek) -> Result<(), StartError> {
    let Some((_, key)) = root.signing_pem() else {
        return Ok(());
    };
    let sealed = record::seal(key, Some(dek.as_bytes()))
        .map_err(|_| StartError::Create(RootCaError::NoSigner))?;
    let path = dir.join(PENDING_ROOT_KEY_NAME);
    Ok(files::write_atomic(&path, &sealed, files::PRIVATE_FILE)?)
}

async fn join_cluster(
    options: &StartOptions,
    key_file: Arc<KeyFile>,
    root: Option<RootCa>,
    address: &str,
) -> Result<SecurityConfig, StartError> {
    let dir = certificates_dir(&options.state_dir);
    let managers = Address::tcp(address);
    let root = match root {
        Some(root) => root,
        None => {
            let token = options.join_token.as_deref().map(JoinToken::parse);
            let token = token.transpose()?;
            if token.as_ref().is_some_and(|token| token.fips) {
                return Err(StartError::FipsRequired);
            }
            let digest = token.as_ref().map(|token| &token.digest);
            let root = join::download_root(&managers, digest, &options.clock).await?;
            security::save_root(&dir, root.roots_pem())?;
            root
        }
    };
    let applicant = Applicant::Token {
        token: options.join_token.clone().unwrap_or_default(),
        availability: options.availability,
    };
    let obtained = join::obtain_certificate(&managers, &root, &applicant, &options.clock).await?;
    let pair = obtained.pair;
    key_file.write(&pair.certificate_pem, &pair.key, Some(obtained.kek))?;
    let clock = options.clock.clone();
    let security = SecurityConfig::new(&dir, key_file, root, &pair, clock, false)?;
    let credentials = security.current();
    tracing::info!(
        cluster_id = credentials.cluster_id(),
        node_id = credentials.node_id(),
        "joined"
    );
    Ok(security)
}

#[cfg(test)]
mod tests;
