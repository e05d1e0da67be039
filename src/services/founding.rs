//! What a cluster consists of at its beginning: the default cluster object, the first manager's node, the
//! ingress network and the first network keys.
//!
//! Every leader runs [`found`] at the start of its term. It creates what is absent, in one transaction, and
//! changes nothing that is there; its failure ends the term.

use crate::api::ids::new_id;
use crate::api::types::issuance_status::State as IssuanceState;
use crate::api::types::node_spec::{Availability, Membership};
use crate::api::types::*;
use crate::identity::token::TokenError;
use crate::identity::{Credentials, JoinToken};
use crate::services::keys;
use crate::storage::{By, Store, StoreError, Tx};
use prost_types::Duration;
use std::sync::Arc;

/// Name of the one cluster object.
pub const DEFAULT_CLUSTER: &str = "default";
/// Name of the network that carries published ports.
pub const INGRESS_NETWORK: &str = "ingress";

/// Finished tasks kept per slot (spec 03 section 1).
const TASK_HISTORY: i64 = 5;
/// Heartbeat period of nodes (spec 03 section 1).
const HEARTBEAT_PERIOD_SECONDS: i64 = 5;
/// Life of node certificates: 90 days (spec 03 section 1).
const CERTIFICATE_EXPIRY_SECONDS: i64 = 2160 * 3600;
/// Log entries between compactions, and entries kept for slow followers (spec 03 section 1).
const SNAPSHOT_INTERVAL: u64 = 10_000;
const SLOW_FOLLOWER_ENTRIES: u64 = 500;

/// What the first leader of a cluster writes into it.
pub struct Founder {
    /// Of this node, with the CA key if it founds the cluster.
    pub credentials: Arc<Credentials>,
    pub availability: Availability,
    pub heartbeat_ticks: u32,
    pub election_ticks: u32,
}

/// Why a cluster could not be founded.
#[derive(Debug, thiserror::Error)]
pub enum FoundingError {
    #[error("cannot write the first objects of the cluster: {0}")]
    Store(#[from] StoreError),
    #[error("cannot make the join tokens of the cluster: {0}")]
    Token(#[from] TokenError),
}

/// Creates the cluster, this node and, with a new cluster, the ingress network, unless they exist. Says
/// whether the cluster is new.
pub async fn found(store: &Store, founder: &Founder) -> Result<bool, FoundingError> {
    store.update(|tx| founder.found(tx)).await
}

impl Founder {
    fn found(&self, tx: &mut Tx) -> Result<bool, FoundingError> {
        let is_new = self.ensure_cluster(tx)?;
        if is_new {
            tx.create(ingress_network())?;
        }
        self.ensure_node(tx)?;
        Ok(is_new)
    }

    fn ensure_cluster(&self, tx: &mut Tx) -> Result<bool, FoundingError> {
        let existing = tx.find::<Cluster>(By::Name(DEFAULT_CLUSTER.to_owned()))?;
        if let Some(cluster) = existing.first() {
            let mut cluster = Cluster::clone(cluster);
            if keys::ensure_network_keys(&mut cluster) {
                tx.update(cluster)?;
            }
            return Ok(false);
        }
        let mut cluster = Cluster {
            id: self.credentials.cluster_id().to_owned(),
            spec: Some(self.cluster_spec()),
            root_ca: Some(self.root_ca()?),
            ..Default::default()
        };
        keys::ensure_network_keys(&mut cluster);
        tx.create(cluster)?;
        Ok(true)
    }

    fn cluster_spec(&self) -> ClusterSpec {
        ClusterSpec {
            annotations: Some(Annotations {
                name: DEFAULT_CLUSTER.to_owned(),
                ..Default::default()
            }),
            orchestration: Some(OrchestrationConfig {
                task_history_retention_limit: TASK_HISTORY,
            }),
            raft: Some(RaftConfig {
                snapshot_interval: SNAPSHOT_INTERVAL,
                keep_old_snapshots: 0,
                log_entries_for_slow_followers: SLOW_FOLLOWER_ENTRIES,
                heartbeat_tick: self.heartbeat_ticks,
                election_tick: self.election_ticks,
            }),
            dispatcher: Some(DispatcherConfig {
                heartbeat_period: Some(seconds(HEARTBEAT_PERIOD_SECONDS)),
            }),
            ca_config: Some(CaConfig {
                node_cert_expiry: Some(seconds(CERTIFICATE_EXPIRY_SECONDS)),
                ..Default::default()
            }),
            encryption_config: Some(EncryptionConfig::default()),
            ..Default::default()
        }
    }

    fn root_ca(&self) -> Result<RootCa, TokenError> {
        let root = self.credentials.root();
        let token =
            || JoinToken::generate(root.digest(), false).map(|token| token.as_str().to_owned());
        Ok(RootCa {
            ca_key: root
                .signing_pem()
                .map(|(_, key)| key.to_vec())
                .unwrap_or_default(),
            ca_cert: root.roots_pem().to_vec(),
            ca_cert_hash: root.digest_text(),
            join_tokens: Some(JoinTokens {
                worker: token()?,
                manager: token()?,
            }),
            ..Default::default()
        })
    }

    /// The role is written as *manager* at once: with *worker* the first renewal, before anything
    /// reconciles roles, would turn this manager into a worker.
    fn ensure_node(&self, tx: &mut Tx) -> Result<(), FoundingError> {
        let node_id = self.credentials.node_id();
        if tx.get::<Node>(node_id)?.is_some() {
            return Ok(());
        }
        tx.create(Node {
            id: node_id.to_owned(),
            certificate: Some(Certificate {
                role: NodeRole::Manager as i32,
                status: Some(IssuanceStatus {
                    state: IssuanceState::Issued as i32,
                    ..Default::default()
                }),
                cn: node_id.to_owned(),
                ..Default::default()
            }),
            spec: Some(NodeSpec {
                desired_role: NodeRole::Manager as i32,
                membership: Membership::Accepted as i32,
                availability: self.availability as i32,
                ..Default::default()
            }),
            role: NodeRole::Manager as i32,
            ..Default::default()
        })?;
        Ok(())
    }
}

fn ingress_network() -> Network {
    Network {
        id: new_id(),
        spec: Some(NetworkSpec {
            annotations: Some(Annotations {
                name: INGRESS_NETWORK.to_owned(),
                ..Default::default()
            }),
            driver_config: Some(Driver::default()),
            ipam: Some(IpamOptions {
                driver: Some(Driver::default()),
                ..Default::default()
            }),
            ingress: true,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn seconds(seconds: i64) -> Duration {
    Duration { seconds, nanos: 0 }
}
