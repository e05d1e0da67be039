//! The signing loop: issues the certificates that nodes have asked for.
//!
//! Level-triggered: it starts with all nodes that wait for a certificate and hears of later ones. What
//! cannot be signed at the moment (no key is known) waits for the next tick or for another root; what can
//! never be signed (an unreadable request) is marked as failed with the reason. Before a certificate is
//! stored the node is looked at again: if it has meanwhile sent another request or changed its role, the
//! certificate is dropped and the new request is signed instead (spec 02 section 9.6).

use super::{Running, Shared, SignerState};
use crate::api::roles::Role;
use crate::api::time::to_std_or_zero;
use crate::api::types::issuance_status::State;
use crate::api::types::node_spec::Membership;
use crate::api::types::{Certificate, Cluster, IssuanceStatus, Node, NodeRole, RootCa as Stored};
use crate::identity::issue::NodeNames;
use crate::identity::root_ca::{RootCaError, RootCaParts};
use crate::identity::{Clock, RootCa};
use crate::services::reconcile::{Now, Reconciler, item, read};
use crate::storage::{
    Action, AnyObject, By, EventBatch, Interest, ReadTx, Store, StoreError, Table, Tx,
};
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

pub const NAME: &str = "ca";

/// How often requests that could not be signed are tried again (spec 02 section 2).
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Certificates signed in one piece of work: some milliseconds.
const SIGN_MAX: usize = 64;

/// What the loop knows. Bounded by the number of nodes.
pub(super) struct SigningLoop {
    shared: Arc<Shared>,
    running: Arc<Running>,
    cluster_id: String,
    /// The cluster object's parts the signer was made from.
    made_from: Option<(Stored, Duration)>,
    signer: Option<Arc<RootCa>>,
    /// Nodes that wait for a certificate.
    waiting: BTreeSet<String>,
    /// Nodes that have to wait for the next tick.
    postponed: BTreeSet<String>,
    retry_at: Option<Instant>,
    /// A moment in the past: work is due since then.
    created: Instant,
}

/// Nodes to sign for, and by whom.
pub(super) struct Work {
    nodes: BTreeSet<String>,
    signer: Arc<RootCa>,
    clock: Clock,
    cluster_id: String,
}

/// Nodes that could not be signed for at the moment, and by whom.
pub(super) struct Postponed {
    nodes: BTreeSet<String>,
    signer: Arc<RootCa>,
}

impl SigningLoop {
    pub(super) fn new(shared: Arc<Shared>, running: Arc<Running>) -> SigningLoop {
        SigningLoop {
            cluster_id: shared.cluster_id(),
            shared,
            running,
            made_from: None,
            signer: None,
            waiting: BTreeSet::new(),
            postponed: BTreeSet::new(),
            retry_at: None,
            created: Instant::now(),
        }
    }

    /// Makes the signer anew if the cluster object's root or the life of certificates has changed. A
    /// root that cannot be used is reported, and the previous one, if any, stays.
    fn follow(&mut self, cluster: &Cluster) {
        let mut root = cluster.root_ca.clone().unwrap_or_default();
        root.join_tokens = None;
        let lifetime = node_lifetime(cluster);
        if self.made_from.as_ref() == Some(&(root.clone(), lifetime)) {
            return;
        }
        match signer_of(&root, lifetime, self.shared.clock().now()) {
            Ok(signer) => {
                let state = SignerState::Loaded;
                self.running.signer.store(Some(Arc::new(state)));
                self.signer = Some(Arc::new(signer));
                self.made_from = Some((root, lifetime));
                self.waiting.append(&mut self.postponed);
            }
            Err(error) => {
                tracing::error!(%error, "the root CA in the cluster object cannot be used");
                if self.signer.is_none() {
                    let state = SignerState::Broken(error.to_string());
                    self.running.signer.store(Some(Arc::new(state)));
                }
            }
        }
    }

    fn note(&mut self, node: &Node) {
        if needs_certificate(node) {
            self.postponed.remove(&node.id);
            self.waiting.insert(node.id.clone());
        }
    }
}

impl Reconciler for SigningLoop {
    type Work = Work;
    type Outcome = Postponed;

    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> Vec<Interest> {
        vec![
            Interest::Table(Table::Node),
            Interest::Object(Table::Cluster, self.cluster_id.clone()),
        ]
    }

    fn load(&mut self, view: &ReadTx, _now: Now) -> Result<(), StoreError> {
        self.waiting.clear();
        self.postponed.clear();
        if let Some(cluster) = view.get::<Cluster>(&self.cluster_id)? {
            self.follow(&cluster);
        }
        for node in view.find::<Node>(By::All)? {
            self.note(&node);
        }
        Ok(())
    }

    fn observe(&mut self, batch: &EventBatch, _now: Now) {
        for change in &batch.changes {
            match (&change.object, change.action) {
                (AnyObject::Cluster(cluster), Action::Create | Action::Update) => {
                    self.follow(cluster);
                }
                (AnyObject::Node(node), Action::Remove) => {
                    self.waiting.remove(&node.id);
                    self.postponed.remove(&node.id);
                }
                (AnyObject::Node(node), _) => self.note(node),
                _ => {}
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        if self.signer.is_some() && !self.waiting.is_empty() {
            return Some(self.created);
        }
        self.retry_at.filter(|_| !self.postponed.is_empty())
    }

    fn plan(&mut self, now: Now) -> Option<Work> {
        if self
            .retry_at
            .is_some_and(|retry_at| retry_at <= now.instant)
        {
            self.retry_at = None;
            self.waiting.append(&mut self.postponed);
        }
        let signer = self.signer.clone()?;
        let mut nodes = BTreeSet::new();
        while nodes.len() < SIGN_MAX {
            let Some(node) = self.waiting.pop_first() else {
                break;
            };
            nodes.insert(node);
        }
        if nodes.is_empty() {
            return None;
        }
        Some(Work {
            nodes,
            signer,
            clock: self.shared.clock().clone(),
            cluster_id: self.cluster_id.clone(),
        })
    }

    fn perform(store: Store, work: Work) -> BoxFuture<'static, Result<Postponed, StoreError>> {
        Box::pin(sign_all(store, work))
    }

    fn settle(&mut self, outcome: Postponed, now: Now) {
        let Postponed { nodes, signer } = outcome;
        let current = self
            .signer
            .as_ref()
            .is_some_and(|now| Arc::ptr_eq(now, &signer));
        if !current {
            // Another signer has come meanwhile, and may be able to.
            self.waiting.extend(nodes);
        } else if !nodes.is_empty() {
            self.postponed.extend(nodes);
            self.retry_at.get_or_insert(now.instant + RETRY_INTERVAL);
        }
    }
}

/// Whether a certificate is to be made for a node.
fn needs_certificate(node: &Node) -> bool {
    let accepted = node
        .spec
        .as_ref()
        .is_some_and(|spec| spec.membership() == Membership::Accepted);
    let certificate = node.certificate.as_ref();
    let status = certificate.and_then(|certificate| certificate.status.as_ref());
    match status.map(IssuanceStatus::state) {
        Some(State::Renew) => true,
        Some(State::Pending) => accepted,
        _ => false,
    }
}

fn node_lifetime(cluster: &Cluster) -> Duration {
    let config = cluster
        .spec
        .as_ref()
        .and_then(|spec| spec.ca_config.as_ref());
    to_std_or_zero(config.and_then(|config| config.node_cert_expiry.as_ref()))
}

/// The signer that the cluster object describes. While a root is being replaced, the new key signs and
/// its certificate, signed by the old root, goes along with every certificate.
fn signer_of(
    root: &Stored,
    node_lifetime: Duration,
    now: SystemTime,
) -> Result<RootCa, RootCaError> {
    let (certificate, key, intermediates) = match &root.root_rotation {
        Some(next) => (
            next.cross_signed_ca_cert.as_slice(),
            next.ca_key.as_slice(),
            next.cross_signed_ca_cert.as_slice(),
        ),
        None => (root.ca_cert.as_slice(), root.ca_key.as_slice(), &[][..]),
    };
    let parts = RootCaParts {
        roots: &root.ca_cert,
        signing: Some((certificate, key)).filter(|_| !key.is_empty()),
        intermediates,
        node_lifetime,
    };
    RootCa::new(parts, now)
}

/// What came of one signature.
enum Signed {
    Done(Certificate),
    /// Cannot be done now.
    Later,
}

async fn sign_all(store: Store, work: Work) -> Result<Postponed, StoreError> {
    let ids: Vec<String> = work.nodes.iter().cloned().collect();
    let nodes = read(&store, move |view| {
        ids.iter().map(|id| view.get::<Node>(id)).collect()
    });
    let nodes: Vec<Option<Arc<Node>>> = nodes.await?;
    let mut postponed = BTreeSet::new();
    let mut batch = store.batch();
    for node in nodes.into_iter().flatten() {
        let wanted = match &node.certificate {
            Some(wanted) if needs_certificate(&node) => wanted,
            _ => continue,
        };
        match sign(wanted, &work) {
            Some(Signed::Done(made)) => {
                let wanted = wanted.clone();
                let change = |tx: &mut Tx| store_certificate(tx, &node.id, &wanted, made);
                item(&mut batch, "store the certificate", &node.id, change).await?;
            }
            Some(Signed::Later) => {
                // The others would fare the same; they are spared until the next tick.
                postponed = work.nodes.clone();
                break;
            }
            None => {}
        }
    }
    batch.commit().await?;
    Ok(Postponed {
        nodes: postponed,
        signer: work.signer,
    })
}

/// Signs one request. `None` for a node whose record makes no sense.
fn sign(wanted: &Certificate, work: &Work) -> Option<Signed> {
    let role = match NodeRole::try_from(wanted.role) {
        Ok(NodeRole::Worker) => Role::Worker,
        Ok(NodeRole::Manager) => Role::Manager,
        Err(_) => {
            tracing::error!(
                node_id = wanted.cn,
                role = wanted.role,
                "unknown role; not signing"
            );
            return None;
        }
    };
    let names = NodeNames {
        node_id: &wanted.cn,
        role,
        organization: &work.cluster_id,
    };
    let (state, err, certificate) = match work.signer.issue(&wanted.csr, names, work.clock.now()) {
        Ok(certificate) => (State::Issued, String::new(), certificate),
        Err(RootCaError::NoSigner) => return Some(Signed::Later),
        Err(error) => {
            tracing::warn!(node_id = wanted.cn, %error, "a certificate request was refused");
            (State::Failed, error.to_string(), Vec::new())
        }
    };
    Some(Signed::Done(Certificate {
        status: Some(IssuanceStatus {
            state: state as i32,
            err,
        }),
        certificate,
        ..wanted.clone()
    }))
}

/// Stores a result unless the node has moved on since it was signed for.
fn store_certificate(
    tx: &mut Tx,
    node_id: &str,
    wanted: &Certificate,
    made: Certificate,
) -> Result<(), StoreError> {
    let Some(stored) = tx.get::<Node>(node_id)? else {
        return Ok(());
    };
    if stored.certificate.as_ref() != Some(wanted) || !needs_certificate(&stored) {
        return Ok(());
    }
    let mut node = Node::clone(&stored);
    node.certificate = Some(made);
    tx.update(node)?;
    Ok(())
}
