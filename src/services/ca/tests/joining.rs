//! A whole node joins over the network: root download, certificate, renewal.

use super::*;
use crate::identity::authorize::Authorizer;
use crate::identity::connect::Address;
use crate::identity::renewal::Renewer;
use crate::identity::start::{StartError, StartOptions, load_or_create};
use crate::identity::{JoinToken, join};
use crate::services::server::{Listener, bind_remote, serve};
use std::path::Path;
use tonic::service::Routes;

/// An authority with tokens that can be parsed, and its remote port.
struct Remote {
    authority: Authority,
    address: String,
    worker_token: String,
    manager_token: String,
    _stop: tokio_util::sync::DropGuard,
}

impl Remote {
    async fn new() -> Remote {
        let mut authority = Authority::stopped().await;
        let token = || {
            let digest = authority.cluster.root.digest();
            JoinToken::generate(digest, false)
                .unwrap()
                .as_str()
                .to_owned()
        };
        let tokens = JoinTokens {
            worker: token(),
            manager: token(),
        };
        let (worker_token, manager_token) = (tokens.worker.clone(), tokens.manager.clone());
        authority
            .change_cluster(|cluster| root(cluster).join_tokens = Some(tokens))
            .await;
        authority.start().await;
        let listener = bind_remote("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stop = CancellationToken::new();
        authority.listen(listener, stop.clone());
        Remote {
            authority,
            address,
            worker_token,
            manager_token,
            _stop: stop.drop_guard(),
        }
    }

    async fn join(&self, dir: &Path, token: &str) -> Result<Arc<SecurityConfig>, StartError> {
        let options = StartOptions {
            join_addr: Some(self.address.clone()),
            join_token: Some(token.to_owned()),
            ..StartOptions::new(dir)
        };
        tokio::time::timeout(SOON * 2, load_or_create(&options))
            .await
            .expect("joined in time")
    }
}

impl Authority {
    fn listen(&self, listener: Listener, stop: CancellationToken) {
        let routes =
            Routes::new(self.service.ca_server()).add_service(self.service.node_ca_server());
        let security = self._node.security.clone();
        let authorizer = Arc::new(Authorizer::new(security.clone(), |_| false));
        tokio::spawn(serve(listener, security, authorizer, None, routes, stop));
    }
}

#[tokio::test]
async fn a_worker_joins_and_stays() {
    let remote = Remote::new().await;
    let dir = tempfile::tempdir().unwrap();
    let security = remote.join(dir.path(), &remote.worker_token).await.unwrap();
    let credentials = security.current();
    assert_eq!(credentials.role(), Role::Worker);
    assert_eq!(credentials.cluster_id(), remote.authority.cluster.id);
    assert_eq!(security.key_file().dek(), None);
    let roots = remote.authority.cluster.root.roots_pem();
    assert_eq!(credentials.tls_info().trust_root, roots);
    assert_eq!(
        remote.authority.node(credentials.node_id()).role(),
        NodeRole::Worker
    );

    // The identity is on disk: neither token nor manager is needed again.
    let again = remote.join(dir.path(), "ignored").await.unwrap();
    assert_eq!(again.current().node_id(), credentials.node_id());
}

#[tokio::test]
async fn a_manager_asks_for_the_unlock_key() {
    let remote = Remote::new().await;
    let lock = |cluster: &mut Cluster| {
        let spec = cluster.spec.get_or_insert_default();
        spec.encryption_config = Some(EncryptionConfig {
            auto_lock_managers: true,
        });
        cluster.unlock_keys = vec![EncryptionKey {
            subsystem: MANAGER_SUBSYSTEM.into(),
            key: b"unlock".to_vec(),
            ..Default::default()
        }];
    };
    remote.authority.change_cluster(lock).await;
    let dir = tempfile::tempdir().unwrap();
    let security = remote
        .join(dir.path(), &remote.manager_token)
        .await
        .unwrap();
    assert_eq!(security.current().role(), Role::Manager);
    let text = std::fs::read_to_string(security.key_file().key_path()).unwrap();
    assert!(
        text.starts_with("-----BEGIN ENCRYPTED PRIVATE KEY-----\n"),
        "{text}"
    );
    assert_eq!(security.key_file().kek().key(), Some(&b"unlock"[..]));
}

// 02-A5
#[tokio::test(start_paused = true)]
async fn another_clusters_token() {
    let remote = Remote::new().await;
    let other = TestCluster::new();
    let token = JoinToken::generate(other.root.digest(), false).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let error = remote
        .join(dir.path(), token.as_str())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("remote CA does not match fingerprint"),
        "{error}"
    );
    assert!(!dir.path().join("certificates/swarm-root-ca.crt").exists());
}

// 02-A6
#[tokio::test(start_paused = true)]
async fn a_second_root_makes_old_tokens_useless() {
    let remote = Remote::new().await;
    let both = [
        remote.authority.cluster.root.roots_pem(),
        TestCluster::new().root.roots_pem(),
    ]
    .concat();
    let stored = both.clone();
    remote
        .authority
        .change_cluster(|cluster| root(cluster).ca_cert = stored)
        .await;
    let clock = Clock::system();
    let manager = Address::tcp(&remote.address);
    let old = remote.authority.cluster.root.digest();
    let error = join::download_root(&manager, Some(old), &clock)
        .await
        .unwrap_err();
    assert!(matches!(error, join::JoinError::Fingerprint(_)), "{error}");
    let new = crate::identity::token::sha256(&both);
    let roots = join::download_root(&manager, Some(&new), &clock)
        .await
        .unwrap();
    assert_eq!(roots.roots_pem(), both);
}

#[tokio::test]
async fn a_failed_request_says_why() {
    let remote = Remote::new().await;
    let dir = tempfile::tempdir().unwrap();
    let security = remote.join(dir.path(), &remote.worker_token).await.unwrap();
    let node_id = security.current().node_id().to_owned();
    let gone = node_id.clone();
    remote
        .authority
        .store
        .update(move |tx| tx.delete::<Node>(&gone))
        .await
        .unwrap();
    let manager = Address::tcp(&remote.address);
    let applicant = join::Applicant::Member(security.clone());
    let root = security.current().root().clone();
    let error = join::obtain_certificate(&manager, &root, &applicant, security.clock()).await;
    let error = error.unwrap_err().to_string();
    let expected = format!("node {node_id} not found when attempting to renew certificate");
    assert!(error.contains(&expected), "{error}");
}

#[tokio::test]
async fn a_member_renews() {
    let remote = Remote::new().await;
    let dir = tempfile::tempdir().unwrap();
    let security = remote.join(dir.path(), &remote.worker_token).await.unwrap();
    let before = security.key_file().read().unwrap();
    let managers = Arc::new(Address::tcp(&remote.address));
    let renewer = Renewer::new(security.clone(), managers);
    let mut outcome = renewer.outcome();
    let cancel = CancellationToken::new();
    renewer.trigger().request();
    let running = tokio::spawn(renewer.run(cancel.clone()));
    let renewed = outcome.wait_for(|outcome| outcome.renewed == 1);
    tokio::time::timeout(SOON, renewed).await.unwrap().unwrap();
    let after = security.key_file().read().unwrap();
    assert_ne!(before.key, after.key);
    assert_ne!(before.certificate_pem, after.certificate_pem);
    cancel.cancel();
    running.await.unwrap();
}

// A manager renews through its own control socket.
#[tokio::test]
async fn the_own_manager_is_asked_first() {
    let remote = Remote::new().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let socket = crate::services::server::control_socket::ControlSocket::bind(&path, None);
    let stop = CancellationToken::new();
    let authority = &remote.authority;
    authority.listen(Listener::Control(socket.unwrap()), stop.clone());
    let own = Node {
        id: "manager".into(),
        role: NodeRole::Manager as i32,
        ..Default::default()
    };
    authority.store.update(|tx| tx.create(own)).await.unwrap();
    let security = authority._node.security.clone();
    let applicant = join::Applicant::Member(security.clone());
    let root = security.current().root().clone();
    let manager = Address::Unix(path);
    let obtained = join::obtain_certificate(&manager, &root, &applicant, security.clock()).await;
    let obtained = obtained.unwrap();
    let leaf = Parsed::parse_bundle(&obtained.pair.certificate_pem)
        .unwrap()
        .swap_remove(0);
    assert_eq!(
        (leaf.common_name.as_str(), leaf.units[0].as_str()),
        ("manager", "swarm-manager")
    );
    stop.cancel();
}
