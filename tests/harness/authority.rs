//! A certificate authority whose key the test holds, so that it can make what a cluster would never issue;
//! and TLS clients that show such certificates.

use rustls::{AlertDescription, ClientConfig, SupportedProtocolVersion};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use swarm_manager::api::ids::new_id;
use swarm_manager::api::roles::Role;
use swarm_manager::identity::connect::{Address, PeerName, Protection, connect};
use swarm_manager::identity::issue::NodeNames;
use swarm_manager::identity::private_key::PrivateKey;
use swarm_manager::identity::start::certificates_dir;
use swarm_manager::identity::{Kek, KeyFile, RootCa, pem, security};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::Channel;

/// File in which an operator may give a first manager the key of its CA.
const ROOT_KEY_NAME: &str = "swarm-root-ca.key";
/// Longest wait for a handshake or its refusal.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// A root CA, and the cluster it is for.
pub struct Authority {
    root: RootCa,
    pub cluster_id: String,
}

/// A node certificate with its key.
pub struct Identity {
    certificates_pem: Vec<u8>,
    key: PrivateKey,
}

impl Authority {
    pub fn new() -> Authority {
        Authority {
            root: RootCa::generate(SystemTime::now()).expect("a root CA"),
            cluster_id: new_id(),
        }
    }

    /// A certificate of this cluster.
    pub fn issue(&self, role: Role) -> Identity {
        self.issue_for(role, &new_id(), &self.cluster_id, SystemTime::now())
    }

    pub fn issue_for(
        &self,
        role: Role,
        node_id: &str,
        organization: &str,
        now: SystemTime,
    ) -> Identity {
        let key = PrivateKey::generate().expect("a key");
        let names = NodeNames {
            node_id,
            role,
            organization,
        };
        let public_key = key.public_key_info().expect("a public key");
        let certificates_pem = self.root.issue_for_key(&public_key, names, now);
        Identity {
            certificates_pem: certificates_pem.expect("a certificate"),
            key,
        }
    }

    /// Puts the identity of a first manager, and the CA's key, into a state directory.
    pub fn install(&self, state_dir: &Path) {
        let dir = certificates_dir(state_dir);
        std::fs::create_dir_all(&dir).expect("a directory");
        security::save_root(&dir, self.root.roots_pem()).expect("a root certificate");
        let (_, key) = self.root.signing_pem().expect("a CA key");
        std::fs::write(dir.join(ROOT_KEY_NAME), key).expect("a CA key");
        let manager = self.issue(Role::Manager);
        KeyFile::new(&dir, Kek::default())
            .write(&manager.certificates_pem, &manager.key, None)
            .expect("a certificate and key");
    }

    /// A TLS client that trusts this CA.
    pub fn client(&self, identity: Option<&Identity>, how: &Tls) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(how.versions)
            .expect("TLS versions")
            .with_root_certificates(self.root.roots().to_store());
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder
                .with_client_auth_cert(identity.chain(), identity.key())
                .expect("a pair"),
        };
        config.alpn_protocols = vec![how.protocol.as_bytes().to_vec()];
        Arc::new(config)
    }

    /// A gRPC channel to a manager of this cluster.
    pub async fn dial(&self, remote: &str, identity: Option<&Identity>) -> Channel {
        let config = self.client(identity, &Tls::default());
        let protection = Protection::Tls(config, PeerName::Manager);
        let channel = connect(&Address::tcp(remote), protection).await;
        channel.expect("the remote port answers")
    }
}

impl Identity {
    fn chain(&self) -> Vec<CertificateDer<'static>> {
        let blocks = pem::blocks(&self.certificates_pem);
        blocks
            .map(|block| CertificateDer::from(block.der.to_vec()))
            .collect()
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        let key = self.key.to_pkcs8().expect("a PKCS#8 key");
        PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.der().to_vec()))
    }
}

/// What a TLS client offers.
pub struct Tls {
    pub versions: &'static [&'static SupportedProtocolVersion],
    /// Protocol inside TLS (ALPN).
    pub protocol: &'static str,
}

impl Default for Tls {
    fn default() -> Tls {
        Tls {
            versions: rustls::ALL_VERSIONS,
            protocol: "h2",
        }
    }
}

/// Connects and waits for the first byte that the server sends, or for the reason why it refuses.
pub async fn handshake(remote: &str, config: Arc<ClientConfig>) -> Result<(), AlertDescription> {
    let shaking = async {
        let stream = TcpStream::connect(remote).await.expect("a connection");
        let name = ServerName::try_from("swarm-manager").expect("a name");
        let mut stream = TlsConnector::from(config).connect(name, stream).await?;
        // A TLS 1.3 client has finished before the server has looked at its certificate.
        stream.read_u8().await
    };
    let result = tokio::time::timeout(HANDSHAKE_TIMEOUT, shaking).await;
    match result.expect("an answer in time") {
        Ok(_) => Ok(()),
        Err(error) => {
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
            match inner {
                Some(rustls::Error::AlertReceived(alert)) => Err(*alert),
                _ => panic!("neither served nor refused with an alert: {error}"),
            }
        }
    }
}
