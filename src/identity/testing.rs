//! Credentials for tests: a root of its own, and nodes with certificates from it.

use super::clock::Clock;
use super::issue::NodeNames;
use super::key_file::{Kek, KeyFile, NodePair};
use super::private_key::PrivateKey;
use super::root_ca::RootCa;
use super::security::{self, SecurityConfig};
use super::start::certificates_dir;
use crate::api::ids::new_id;
use crate::api::roles::Role;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

/// A cluster that consists of a root CA and an ID.
pub struct TestCluster {
    pub root: RootCa,
    pub id: String,
}

/// A node's credentials and the state directory they lie in.
pub struct TestNode {
    pub security: Arc<SecurityConfig>,
    pub dir: TempDir,
}

impl Default for TestCluster {
    fn default() -> TestCluster {
        TestCluster::new()
    }
}

impl TestCluster {
    pub fn new() -> TestCluster {
        TestCluster {
            root: RootCa::generate(Clock::system().now()).unwrap(),
            id: new_id(),
        }
    }

    /// A certificate and key from this cluster's root.
    pub fn pair(&self, node_id: &str, role: Role) -> NodePair {
        self.pair_of(node_id, role, &self.id)
    }

    /// The same for another organization.
    pub fn pair_of(&self, node_id: &str, role: Role, organization: &str) -> NodePair {
        let key = PrivateKey::generate().unwrap();
        let names = NodeNames {
            node_id,
            role,
            organization,
        };
        let public = key.public_key_info().unwrap();
        let now = Clock::system().now();
        let certificate_pem = self.root.issue_for_key(&public, names, now).unwrap();
        NodePair {
            certificate_pem,
            key,
        }
    }

    /// A node of this cluster.
    pub fn node(&self, node_id: &str, role: Role) -> TestNode {
        self.node_with(&self.pair(node_id, role), Clock::system())
    }

    /// A node with this pair, which sees this time.
    pub fn node_with(&self, pair: &NodePair, clock: Clock) -> TestNode {
        let dir = tempfile::tempdir().unwrap();
        let certificates = certificates_dir(dir.path());
        security::save_root(&certificates, self.root.roots_pem()).unwrap();
        let key_file = Arc::new(KeyFile::new(&certificates, Kek::default()));
        key_file
            .write(&pair.certificate_pem, &pair.key, None)
            .unwrap();
        let root = self.root.clone();
        let security =
            SecurityConfig::new(&certificates, key_file, root, pair, clock, true).unwrap();
        TestNode {
            security: Arc::new(security),
            dir,
        }
    }
}

/// Runs the `openssl` tool in a directory; returns its output and whether it succeeded.
pub fn openssl(dir: &Path, arguments: &[&str]) -> (String, bool) {
    let output = Command::new("openssl")
        .args(arguments)
        .current_dir(dir)
        .stdin(std::process::Stdio::null())
        .output()
        .expect("these tests need the openssl command line tool");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (text, output.status.success())
}

/// Runs `openssl` and expects success.
pub fn openssl_ok(dir: &Path, arguments: &[&str]) -> String {
    let (text, success) = openssl(dir, arguments);
    assert!(success, "openssl {arguments:?}: {text}");
    text
}
