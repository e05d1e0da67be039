//! Starting with nothing, with an identity, and with damaged ones.

use super::*;
use crate::identity::pem;
use crate::identity::testing::TestCluster;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use tempfile::TempDir;

async fn start(dir: &TempDir) -> Result<Arc<SecurityConfig>, StartError> {
    load_or_create(&StartOptions::new(dir.path())).await
}

fn path(dir: &TempDir, name: &str) -> PathBuf {
    certificates_dir(dir.path()).join(name)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Every file below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

// 02-A1, 02-A17, 01-A21 (the files of this room)
#[tokio::test]
async fn a_new_cluster() {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("deep/state");
    let security = load_or_create(&StartOptions::new(&dir)).await.unwrap();
    let credentials = security.current();
    assert_eq!(credentials.role(), Role::Manager);
    assert!(crate::api::ids::is_valid_id(credentials.node_id()));
    assert!(crate::api::ids::is_valid_id(credentials.cluster_id()));
    assert!(credentials.root().can_sign());
    assert_eq!(security.key_file().dek().unwrap().as_bytes().len(), 32);
    let (certificate, key) = credentials.root().signing_pem().unwrap();
    assert_eq!(certificate, credentials.root().roots_pem());

    assert_eq!(mode(&dir), 0o700);
    for file in files(&dir) {
        let expected = match file.extension() {
            Some(extension) if extension == "crt" => 0o644,
            _ => 0o600,
        };
        assert_eq!(mode(&file), expected, "{}", file.display());
        let content = fs::read(&file).unwrap();
        let key = pem::first(key).unwrap();
        let position = content
            .windows(key.der.len())
            .position(|part| part == key.der.as_slice());
        assert_eq!(position, None, "the CA key is in {}", file.display());
    }
    cluster_is_stored(&dir).unwrap();
    let certificates = certificates_dir(&dir);
    let mut names: Vec<_> = files(&certificates)
        .iter()
        .map(|file| {
            file.strip_prefix(&certificates)
                .unwrap()
                .display()
                .to_string()
        })
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["swarm-node.crt", "swarm-node.key", "swarm-root-ca.crt"]
    );
    cluster_is_stored(&dir).unwrap();
}

#[tokio::test]
async fn a_restart_keeps_the_identity() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(&dir).await.unwrap();
    let key = first
        .current()
        .root()
        .signing_pem()
        .map(|pair| pair.1.to_vec());
    // Before the cluster is stored, the CA key survives a crash.
    let second = start(&dir).await.unwrap();
    assert_eq!(second.current().node_id(), first.current().node_id());
    assert_eq!(second.current().cluster_id(), first.current().cluster_id());
    assert_eq!(second.key_file().dek(), first.key_file().dek());
    assert_eq!(
        second
            .current()
            .root()
            .signing_pem()
            .map(|pair| pair.1.to_vec()),
        key
    );
    cluster_is_stored(dir.path()).unwrap();
    let third = start(&dir).await.unwrap();
    assert!(!third.current().root().can_sign());
    assert_eq!(third.current().tls_info(), first.current().tls_info());
}

#[tokio::test]
async fn a_crash_while_creating_starts_afresh() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(&dir).await.unwrap();
    for missing in ["swarm-node.crt", "swarm-node.key", "swarm-root-ca.crt"] {
        fs::remove_file(path(&dir, missing)).unwrap();
        let next = start(&dir).await.unwrap();
        assert_ne!(
            next.current().cluster_id(),
            first.current().cluster_id(),
            "{missing}"
        );
        assert!(next.current().root().can_sign());
    }
    // A manager that has kept raft data does not forget who it was.
    fs::create_dir(dir.path().join("raft")).unwrap();
    fs::write(dir.path().join(RAFT_FORMAT), "1").unwrap();
    start(&dir).await.unwrap();
    fs::remove_file(path(&dir, "swarm-node.crt")).unwrap();
    let error = start(&dir).await.unwrap_err();
    assert!(
        matches!(error, StartError::RaftWithoutIdentity(_)),
        "{error}"
    );
    assert!(path(&dir, "swarm-node.key").exists());
}

#[tokio::test]
async fn a_locked_node_needs_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(&dir).await.unwrap();
    let pair = first.key_file().read().unwrap();
    let kek = Kek::new(b"unlock", 5);
    first
        .key_file()
        .write(&pair.certificate_pem, &pair.key, Some(kek))
        .unwrap();
    for unlock_key in [None, Some(Zeroizing::new(b"wrong".to_vec()))] {
        let options = StartOptions {
            unlock_key,
            ..StartOptions::new(dir.path())
        };
        let error = load_or_create(&options).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "node is locked, and needs a valid unlock key"
        );
    }
    let options = StartOptions {
        unlock_key: Some(Zeroizing::new(b"unlock".to_vec())),
        ..StartOptions::new(dir.path())
    };
    let unlocked = load_or_create(&options).await.unwrap();
    assert_eq!(unlocked.current().node_id(), first.current().node_id());
    assert_eq!(unlocked.key_file().dek(), first.key_file().dek());
    // The encrypted key also stops a start without root certificate from creating a cluster.
    fs::remove_file(path(&dir, "swarm-root-ca.crt")).unwrap();
    assert!(matches!(start(&dir).await, Err(StartError::Locked)));
}

#[tokio::test]
async fn certificates_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let security = start(&dir).await.unwrap();
    let day = 24 * 3600;
    let at = |days: i64, force_new_cluster| StartOptions {
        clock: Clock::with_offset(days * day),
        force_new_cluster,
        ..StartOptions::new(dir.path())
    };
    let error = load_or_create(&at(100, false))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("error while loading TLS certificate in"),
        "{error}"
    );
    assert!(error.contains("expired"), "{error}");
    assert!(load_or_create(&at(100, true)).await.is_ok());
    let error = load_or_create(&at(-1, true)).await.unwrap_err().to_string();
    assert!(error.contains("not valid before"), "{error}");

    let other = TestCluster::new();
    fs::write(path(&dir, "swarm-root-ca.crt"), other.root.roots_pem()).unwrap();
    let error = start(&dir).await.unwrap_err().to_string();
    assert!(error.contains("unknown authority"), "{error}");
    fs::write(path(&dir, "swarm-root-ca.crt"), "garbage").unwrap();
    let error = start(&dir).await.unwrap_err().to_string();
    assert!(error.contains("swarm-root-ca.crt"), "{error}");
    drop(security);
}

#[tokio::test]
async fn clusters_that_demand_fips_mode() {
    let cluster = TestCluster::new();
    let pair = cluster.pair_of("node", Role::Worker, "FIPS.cluster");
    let node = cluster.node_with(&pair, Clock::system());
    let error = start(&node.dir).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "node is not FIPS-enabled but cluster requires FIPS"
    );

    let empty = tempfile::tempdir().unwrap();
    let token = JoinToken::generate(cluster.root.digest(), true).unwrap();
    let options = StartOptions {
        join_addr: Some("127.0.0.1:1".into()),
        join_token: Some(token.as_str().to_owned()),
        ..StartOptions::new(empty.path())
    };
    let error = load_or_create(&options).await.unwrap_err();
    assert!(matches!(error, StartError::FipsRequired), "{error}");
}

// 02-A5
#[tokio::test]
async fn a_bad_token_stops_at_once() {
    let empty = tempfile::tempdir().unwrap();
    let options = StartOptions {
        join_addr: Some("127.0.0.1:1".into()),
        join_token: Some("invalidtoken".into()),
        ..StartOptions::new(empty.path())
    };
    let error = load_or_create(&options).await.unwrap_err();
    assert_eq!(error.to_string(), "invalid join token");
}

#[tokio::test(start_paused = true)]
async fn nobody_answers_a_joining_node() {
    let empty = tempfile::tempdir().unwrap();
    let token = JoinToken::generate(TestCluster::new().root.digest(), false).unwrap();
    let options = StartOptions {
        join_addr: Some("127.0.0.1:1".into()),
        join_token: Some(token.as_str().to_owned()),
        ..StartOptions::new(empty.path())
    };
    let started = tokio::time::Instant::now();
    let error = load_or_create(&options).await.unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:1"), "{error}");
    assert!(
        started.elapsed() >= Duration::from_secs(8),
        "four pauses of 2 s"
    );
    assert!(!path(&empty, "swarm-root-ca.crt").exists());
}
