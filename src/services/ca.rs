//! The certificate authority: services `CA` and `NodeCA`, and the loop that signs.
//!
//! A node asks for a certificate and gets its ID at once; the signing loop, which runs on the leader
//! only, then issues the certificate, and the node polls or waits for it (spec 02 section 9). The state of
//! a request is the node object itself, so a leader that takes over finds all of it in the store.
//!
//! - [`issue`]: who may ask for what, inside the transaction that grants it
//! - [`signing`]: the loop
//! - [`attempts`]: the limit on guessing tokens
//!
//! Guarantees: a token is compared with the stored one in the transaction that creates the node, so a
//! replaced token stops at once; nothing but the public key of a request is trusted; neither tokens nor
//! keys are logged. Open to strangers, this room bounds what they can hold: the size of a request, the
//! failures per address, the waits at a time.

pub mod attempts;
mod issue;
pub mod signing;

use crate::api::types::ca_server::{Ca, CaServer};
use crate::api::types::issuance_status::State;
use crate::api::types::node_ca_server::{NodeCa, NodeCaServer};
use crate::api::types::{
    Cluster, GetRootCaCertificateRequest, GetRootCaCertificateResponse, GetUnlockKeyRequest,
    GetUnlockKeyResponse, IssueNodeCertificateRequest, IssueNodeCertificateResponse, Node,
    NodeCertificateStatusRequest, NodeCertificateStatusResponse, Version,
};
use crate::identity::{Caller, Clock, SecurityConfig};
use crate::services::leader::{LeaderService, Ready, Term};
use crate::services::reconcile::drive;
use crate::services::server::MESSAGE_BYTES_MAX;
use crate::storage::{Action, Interest, RecvError, Store, StoreError, StoreObject, Table};
use arc_swap::ArcSwapOption;
use attempts::Attempts;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// Subsystem of the unlock key of managers.
const MANAGER_SUBSYSTEM: &str = "swarm-manager";
/// Largest certificate request. Real ones are below 1 KiB.
const CSR_BYTES_MAX: usize = 16 * 1024;
/// Callers that may wait for a certificate at a time.
const WAITS_MAX: usize = 16_384;
/// A waiting call is answered this much before its deadline, so that the caller learns from us that
/// nothing happened instead of guessing why the connection was silent.
const DEADLINE_MARGIN: Duration = Duration::from_millis(100);

/// The certificate authority of one manager. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct CaService {
    shared: Arc<Shared>,
}

struct Shared {
    store: Store,
    security: Arc<SecurityConfig>,
    /// Present while this manager signs.
    running: ArcSwapOption<Running>,
    attempts: Mutex<Attempts>,
    waits: Semaphore,
}

/// One run of the signing loop, which lasts as long as a term of leadership.
struct Running {
    /// Fires when the run ends.
    ended: CancellationToken,
    signer: ArcSwapOption<SignerState>,
}

/// What the cluster object says about the signer. Absent until it was read.
enum SignerState {
    Loaded,
    /// The root in the cluster object cannot be used.
    Broken(String),
}

impl CaService {
    /// The authority over the cluster of these credentials.
    pub fn new(store: Store, security: Arc<SecurityConfig>) -> CaService {
        CaService {
            shared: Arc::new(Shared {
                store,
                security,
                running: ArcSwapOption::empty(),
                attempts: Mutex::new(Attempts::new()),
                waits: Semaphore::new(WAITS_MAX),
            }),
        }
    }

    /// The gRPC service `CA`.
    pub fn ca_server(&self) -> CaServer<CaService> {
        CaServer::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// The gRPC service `NodeCA`.
    pub fn node_ca_server(&self) -> NodeCaServer<CaService> {
        NodeCaServer::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}

impl Shared {
    fn cluster_id(&self) -> String {
        self.security.current().cluster_id().to_owned()
    }

    fn cluster(&self) -> Result<Option<Arc<Cluster>>, Status> {
        let id = self.cluster_id();
        self.store
            .view(|view| view.get::<Cluster>(&id))
            .map_err(store_status)
    }

    fn clock(&self) -> &Clock {
        self.security.clock()
    }

    /// The present run, or why there is none.
    fn running(&self) -> Result<Arc<Running>, Status> {
        self.running
            .load_full()
            .ok_or_else(|| Status::aborted("CA signer is stopped"))
    }

    /// Fails unless the signer is loaded.
    fn check_ready(&self) -> Result<(), Status> {
        match self.running()?.signer.load().as_deref() {
            None => Err(Status::aborted("CA signer is still starting")),
            Some(SignerState::Loaded) => Ok(()),
            Some(SignerState::Broken(reason)) => Err(Status::unavailable(format!(
                "the root CA of the cluster cannot be used: {reason}"
            ))),
        }
    }
}

#[tonic::async_trait]
impl Ca for CaService {
    /// The trusted roots; works whether or not this manager signs.
    async fn get_root_ca_certificate(
        &self,
        _request: Request<GetRootCaCertificateRequest>,
    ) -> Result<Response<GetRootCaCertificateResponse>, Status> {
        let stored = self.shared.cluster()?;
        let stored = stored
            .as_deref()
            .and_then(|cluster| cluster.root_ca.as_ref());
        let certificate = match stored {
            Some(root) if !root.ca_cert.is_empty() => root.ca_cert.clone(),
            _ => self.shared.security.current().root().roots_pem().to_vec(),
        };
        Ok(Response::new(GetRootCaCertificateResponse { certificate }))
    }

    /// The key that managers encrypt their key files with; empty unless the cluster is locked. Read at
    /// this moment, because a joining manager depends on the latest.
    async fn get_unlock_key(
        &self,
        _request: Request<GetUnlockKeyRequest>,
    ) -> Result<Response<GetUnlockKeyResponse>, Status> {
        let cluster = self.shared.cluster()?.ok_or_else(|| {
            Status::unavailable("the cluster is not known yet; ask again in a moment")
        })?;
        let locked = cluster
            .spec
            .as_ref()
            .and_then(|spec| spec.encryption_config.as_ref())
            .is_some_and(|config| config.auto_lock_managers);
        let key = cluster
            .unlock_keys
            .iter()
            .find(|key| locked && key.subsystem == MANAGER_SUBSYSTEM);
        Ok(Response::new(GetUnlockKeyResponse {
            unlock_key: key.map(|key| key.key.clone()).unwrap_or_default(),
            version: Some(Version {
                index: cluster.version(),
            }),
        }))
    }
}

#[tonic::async_trait]
impl NodeCa for CaService {
    /// Takes a request for a certificate: a renewal for a member, a new node for a token.
    async fn issue_node_certificate(
        &self,
        request: Request<IssueNodeCertificateRequest>,
    ) -> Result<Response<IssueNodeCertificateResponse>, Status> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        if request.csr.is_empty() {
            return Err(Status::invalid_argument(
                "a certificate signing request is missing",
            ));
        }
        if request.csr.len() > CSR_BYTES_MAX {
            return Err(Status::invalid_argument(format!(
                "the certificate signing request has {} bytes, at most {CSR_BYTES_MAX} are accepted",
                request.csr.len()
            )));
        }
        self.shared.check_ready()?;
        let answer = if caller.role.is_some() {
            self.shared.renew(caller.node_id, request.csr).await
        } else {
            self.shared.admit(&caller, request).await
        };
        answer.map(Response::new)
    }

    /// The state of a request; waits until it is settled.
    async fn node_certificate_status(
        &self,
        request: Request<NodeCertificateStatusRequest>,
    ) -> Result<Response<NodeCertificateStatusResponse>, Status> {
        let deadline = deadline_of(&request);
        let node_id = request.into_inner().node_id;
        if node_id.is_empty() {
            return Err(Status::invalid_argument("a node ID is missing"));
        }
        let running = self.shared.running()?;
        let _place = self.shared.waits.try_acquire().map_err(|_| {
            Status::resource_exhausted("too many callers wait for their certificates; try again")
        })?;
        tokio::select! {
            answer = self.shared.settled(&node_id) => answer.map(Response::new),
            () = running.ended.cancelled() => Err(Status::cancelled("CA signer is stopped")),
            () = sleep_until(deadline) => Err(Status::deadline_exceeded(format!(
                "the certificate of node {node_id} is not issued yet"
            ))),
        }
    }
}

impl Shared {
    /// The answer about a node's certificate, as soon as its state is final. Reading and watching begin
    /// at the same state of the store, so no change is missed.
    async fn settled(&self, node_id: &str) -> Result<NodeCertificateStatusResponse, Status> {
        let unknown = || Status::not_found(format!("node {node_id} not found"));
        loop {
            let interest = Interest::Object(Table::Node, node_id.to_owned());
            let (node, mut changes) = self
                .store
                .view_and_watch(&[interest], |view| view.get::<Node>(node_id));
            let node = node.map_err(store_status)?.ok_or_else(unknown)?;
            if let Some(answer) = final_status(&node) {
                return Ok(answer);
            }
            loop {
                let batch = match changes.recv().await {
                    Ok(batch) => batch,
                    // Missed something: look again.
                    Err(RecvError::Lagged(_)) => break,
                    Err(RecvError::Closed) => return Err(store_status(StoreError::Closed)),
                };
                for change in &batch.changes {
                    let Some(node) = change.get::<Node>() else {
                        continue;
                    };
                    if change.action == Action::Remove {
                        return Err(unknown());
                    }
                    if let Some(answer) = final_status(node) {
                        return Ok(answer);
                    }
                }
            }
        }
    }
}

impl LeaderService for CaService {
    fn name(&self) -> &'static str {
        signing::NAME
    }

    fn run(&self, term: Term, ready: Ready) -> BoxFuture<'static, anyhow::Result<()>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let run = Run::start(shared)?;
            let machine = signing::SigningLoop::new(run.shared.clone(), run.running.clone());
            drive(term, ready, machine).await
        })
    }
}

/// Marks the authority as running; ends the run when dropped.
struct Run {
    shared: Arc<Shared>,
    running: Arc<Running>,
}

impl Run {
    fn start(shared: Arc<Shared>) -> anyhow::Result<Run> {
        let running = Arc::new(Running {
            ended: CancellationToken::new(),
            signer: ArcSwapOption::empty(),
        });
        let nobody: Option<Arc<Running>> = None;
        let before = shared
            .running
            .compare_and_swap(&nobody, Some(running.clone()));
        anyhow::ensure!(before.is_none(), "CA signer is already running");
        Ok(Run { shared, running })
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.shared.running.store(None);
        self.running.ended.cancel();
    }
}

fn final_status(node: &Node) -> Option<NodeCertificateStatusResponse> {
    let certificate = node.certificate.clone().unwrap_or_default();
    let status = certificate.status.clone().unwrap_or_default();
    match status.state() {
        State::Issued | State::Failed | State::Rotate => Some(NodeCertificateStatusResponse {
            status: Some(status),
            certificate: Some(certificate),
        }),
        State::Unknown | State::Renew | State::Pending => None,
    }
}

/// What a failure of the store means to a caller.
fn store_status(error: StoreError) -> Status {
    match error {
        StoreError::Propose(error) => Status::unavailable(error.to_string()),
        StoreError::Closed => Status::unavailable(error.to_string()),
        error => Status::internal(error.to_string()),
    }
}

/// When a waiting call should be answered, if its caller has a deadline: a little before it.
fn deadline_of<T>(request: &Request<T>) -> Option<tokio::time::Instant> {
    let text = request.metadata().get("grpc-timeout")?.to_str().ok()?;
    let timeout = parse_timeout(text)?;
    let answer_after = timeout.checked_sub(DEADLINE_MARGIN)?;
    tokio::time::Instant::now().checked_add(answer_after)
}

/// The value of the header `grpc-timeout`: up to eight digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let unit_at = text.len().checked_sub(1)?;
    let (digits, unit) = text.split_at_checked(unit_at)?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
