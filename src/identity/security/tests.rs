//! Replacing credentials while they are in use.

use super::*;
use crate::identity::testing::TestCluster;

#[tokio::test]
async fn replacements_are_seen() {
    let cluster = TestCluster::new();
    let node = cluster.node("node", Role::Worker);
    let mut changes = node.security.subscribe();
    let before = node.security.current();
    let promoted = cluster.pair("node", Role::Manager);
    node.security.replace_certificate(&promoted).unwrap();
    changes.changed().await.unwrap();
    assert_eq!(changes.borrow_and_update().role(), Role::Manager);
    assert_eq!(before.role(), Role::Worker, "what was handed out stays");

    // Another root, under which the certificate still verifies.
    let other = TestCluster::new();
    let both = [cluster.root.roots_pem(), other.root.roots_pem()].concat();
    let both = RootCa::trusting(&both, node.security.clock().now()).unwrap();
    node.security.replace_root(both.clone()).unwrap();
    changes.changed().await.unwrap();
    let now = changes.borrow_and_update().clone();
    assert_eq!(now.role(), Role::Manager, "the renewed certificate is kept");
    assert_eq!(now.tls_info().trust_root, both.roots_pem());
    let dir = node.dir.path().join("certificates");
    assert_eq!(std::fs::read(root_path(&dir)).unwrap(), both.roots_pem());
}

#[test]
fn a_root_that_does_not_fit_is_refused() {
    let node = TestCluster::new().node("node", Role::Worker);
    let before = node.security.current();
    let error = node
        .security
        .replace_root(TestCluster::new().root)
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("new root CA does not match existing TLS credentials"),
        "{text}"
    );
    assert!(Arc::ptr_eq(&before, &node.security.current()));
    drop(node.security.subscribe());
    let pair = TestCluster::new().pair("node", Role::Worker);
    assert!(node.security.replace_certificate(&pair).is_err());
}

#[test]
fn certificates_without_names() {
    let cluster = TestCluster::new();
    let pair = cluster.pair_of("", Role::Worker, &cluster.id);
    let dir = tempfile::tempdir().unwrap();
    let key_file = Arc::new(KeyFile::new(dir.path(), crate::identity::Kek::default()));
    let root = cluster.root.clone();
    let made = SecurityConfig::new(dir.path(), key_file, root, &pair, Clock::system(), false);
    let error = made.unwrap_err().to_string();
    assert_eq!(error, "no valid subject names found for TLS configuration");
}
