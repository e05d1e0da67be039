//! Builds one manager and runs it.
//!
//! [`Manager::start`] opens the state, binds the listeners, starts the raft member and serves;
//! [`Manager::ended`] waits for a failure; [`Manager::stop`] ends everything in order within ten seconds.
//! Leader-gated services run inside the term loop of [`terms`]; everything else answers at all times. A
//! manager without raft data first gets into the group ([`joining`]), unless it is the first of its cluster.

mod joining;
mod terms;
mod wiring;

use crate::api::time;
use crate::api::types::node_spec::Availability;
use crate::api::types::{Cluster, Node, Peer, WeightedPeer};
use crate::identity::SecurityConfig;
use crate::identity::authorize::Authorizer;
use crate::raft::membership::Book;
use crate::raft::{self, ForceError, Handle, RaftError, Transport};
use crate::services::founding::DEFAULT_CLUSTER;
use crate::services::health::{self, HealthService};
use crate::services::metrics::{self, Metrics};
use crate::services::proxy::{LeaderLookup, Proxy};
use crate::services::rekey::Rekey;
use crate::services::server::control_socket::{ControlSocket, ControlSocketError};
use crate::services::server::{self, Listener, ServeError};
use crate::storage::engines::{EngineOptions, Engines, OpenError};
use crate::storage::log::{Identity, LogError, RaftLog};
use crate::storage::snapshot::Incoming;
use crate::storage::state_dir::StateDir;
use crate::storage::{By, Store, StoreError};
use joining::JoinGroupError;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Weight of every manager in the list that workers get (spec 08 section 2).
const MANAGER_WEIGHT: i64 = 10;

/// Longest wait until a change of the raft group shows in the list of managers that workers get.
const MANAGERS_INTERVAL: Duration = Duration::from_millis(250);
/// The same while there is no list yet: the first session waits for it.
const FIRST_MANAGER_INTERVAL: Duration = Duration::from_millis(10);

/// Longest wait for another leader before an orderly stop.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(2);

/// Says in the log that the other members were struck off.
const FORCED_MARKER: &str = "forced";

/// How a manager gets into a raft group when it has no raft data.
#[derive(Debug, Clone)]
pub enum Entry {
    /// It is the first of a new group.
    Found,
    /// It asks these managers, `host:port`.
    Join(Vec<String>),
}

/// How a manager is run.
pub struct ManagerConfig {
    /// Held exclusively by the caller for as long as the manager runs.
    pub state_dir: Arc<StateDir>,
    pub security: Arc<SecurityConfig>,
    /// The remote port, already bound.
    pub remote: Listener,
    /// Where others reach the remote port; never an unspecified address.
    pub advertise: SocketAddr,
    pub control_socket: PathBuf,
    /// Group that may use the control socket, as a numeric ID.
    pub control_group: Option<u32>,
    pub metrics: Option<SocketAddr>,
    pub raft_tick: Duration,
    pub heartbeat_ticks: u32,
    pub election_ticks: u32,
    /// Of this node, when it founds a cluster.
    pub availability: Availability,
    pub entry: Entry,
    /// Make a group of one out of this member: the others are lost for good.
    pub force_new_cluster: bool,
    /// Start although the log lost entries; the manager must be alone.
    pub accept_log_loss: bool,
}

/// Why a manager did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    #[error("can't initialize raft node: {0}")]
    Open(#[from] OpenError),
    #[error("can't initialize raft node: {0}")]
    Log(#[from] LogError),
    #[error("can't initialize raft node: {0}")]
    Raft(#[from] RaftError),
    #[error("cannot open the store: {0}")]
    Store(#[from] StoreError),
    #[error("cannot read the data key of the raft log: {0}")]
    Key(String),
    #[error(transparent)]
    Control(#[from] ControlSocketError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("cannot listen on {address} for metrics: {source}")]
    Metrics {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error(transparent)]
    Join(#[from] JoinGroupError),
    #[error("cannot make a new cluster: {0}")]
    Force(#[from] ForceError),
    /// The other managers have taken this one out of the raft group.
    #[error("{}", RaftError::MemberRemoved)]
    Removed,
    /// The state of the group was received; the next start puts it in place.
    #[error("{}", RaftError::BeginAnew)]
    BeginAnew,
    #[error("{0} ended unexpectedly: {1}")]
    Ended(&'static str, String),
}

/// Why a running manager cannot go on.
#[derive(Debug, Clone)]
enum Failure {
    Removed,
    BeginAnew,
    Other(String),
}

/// A running manager.
pub struct Manager {
    member: Handle,
    store: Store,
    rekey: Rekey,
    control_socket: PathBuf,
    /// Ends the listeners.
    stop_serving: CancellationToken,
    /// Ends the current term and the loop that starts terms.
    stop_terms: CancellationToken,
    terms: JoinHandle<()>,
    serving: Vec<JoinHandle<Result<(), ServeError>>>,
    /// The first failure of a part that should run for ever.
    failed: watch::Receiver<Option<Failure>>,
}

impl Manager {
    /// Opens the state, founds a cluster if there is none, and serves.
    pub async fn start(config: ManagerConfig) -> Result<Manager, ManagerError> {
        let started = Instant::now();
        let control = ControlSocket::bind(&config.control_socket, config.control_group)?;
        let Started {
            member,
            store,
            incoming,
        } = start_member(&config).await?;
        let (failure, failed) = watch::channel(None);
        let stop_serving = CancellationToken::new();
        let metrics = start_metrics(&config, &store, &stop_serving).await?;
        let rekey = Rekey::start(
            config.security.key_file().clone(),
            store.clone(),
            member.clone(),
        );
        let stop_terms = CancellationToken::new();
        let remote_health = HealthService::default();
        remote_health.set_serving(health::RAFT, true);
        let control_health = HealthService::default();
        control_health.set_serving(health::CONTROL_API, true);

        let parts = wiring::Parts::new(
            &config,
            &member,
            &store,
            &rekey,
            started,
            managers(&config, &member),
            incoming,
        );
        let authorizer = Arc::new(Authorizer::new(
            config.security.clone(),
            removed_nodes(&store),
        ));
        let lookup = LeaderLookup::new(
            Arc::new(member.clone()),
            config.raft_tick,
            node_names(&store),
        );
        let proxy = Proxy::new(lookup, config.security.clone());
        let serve = |listener, routes, name: &'static str| {
            let serving = server::serve(
                listener,
                config.security.clone(),
                authorizer.clone(),
                Some(proxy.clone()),
                routes,
                stop_serving.clone(),
            );
            let failure = failure.clone();
            tokio::spawn(async move {
                let result = serving.await;
                if let Err(error) = &result {
                    failure.send_replace(Some(Failure::Other(format!("{name}: {error}"))));
                }
                result
            })
        };
        let serving = vec![
            serve(
                Listener::Control(control),
                parts.control_routes(&control_health),
                "the control socket",
            ),
            serve(
                config.remote,
                parts.remote_routes(&remote_health),
                "the remote port",
            ),
        ];
        let terms = tokio::spawn(terms::run(
            terms::Terms {
                member: member.clone(),
                store: store.clone(),
                security: config.security.clone(),
                services: parts.leader_services(),
                availability: config.availability,
                heartbeat_ticks: config.heartbeat_ticks,
                election_ticks: config.election_ticks,
                state_dir: config.state_dir.path().to_owned(),
                metrics,
            },
            stop_terms.clone(),
        ));
        tokio::spawn(joining::keep_address(
            member.clone(),
            config.security.clone(),
            config.advertise,
            stop_serving.clone(),
        ));
        watch_member(member.clone(), failure, stop_serving.clone());
        Ok(Manager {
            member,
            store,
            rekey,
            control_socket: config.control_socket,
            stop_serving,
            stop_terms,
            terms,
            serving,
            failed,
        })
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn member(&self) -> &Handle {
        &self.member
    }

    /// The exchange of this manager's data key.
    pub fn rekey(&self) -> &Rekey {
        &self.rekey
    }

    /// Waits for the failure of a part that should run for ever, and says which.
    pub async fn ended(&self) -> ManagerError {
        let mut failed = self.failed.clone();
        let failure = match failed.wait_for(Option::is_some).await {
            Ok(failure) => failure.clone(),
            Err(_) => None,
        };
        match failure {
            Some(Failure::Removed) => ManagerError::Removed,
            Some(Failure::BeginAnew) => ManagerError::BeginAnew,
            Some(Failure::Other(reason)) => ManagerError::Ended("the manager", reason),
            None => ManagerError::Ended("the manager", "its parts are gone".to_owned()),
        }
    }

    /// Hands leadership to another member, so that nobody waits for an election. Alone there is nobody.
    async fn hand_over(&self) {
        let leads = self.member.leadership().borrow().term().is_some();
        if !leads || self.member.book().len() < 2 {
            return;
        }
        let handing = self.member.transfer_leadership();
        match tokio::time::timeout(HAND_OVER_TIMEOUT, handing).await {
            Ok(Ok(())) => tracing::info!("another manager leads now"),
            Ok(Err(error)) => tracing::warn!(%error, "stopping as the leader"),
            Err(_) => tracing::warn!("stopping as the leader: nobody took over in time"),
        }
    }

    /// Ends everything: leadership goes to another member; no new calls, running ones finish; the term's services in reverse order; the raft
    /// member last, with everything on disk. Takes at most ten seconds.
    pub async fn stop(self) -> Result<(), ManagerError> {
        self.hand_over().await;
        self.stop_serving.cancel();
        self.stop_terms.cancel();
        self.rekey.stop();
        if let Err(error) = self.terms.await {
            tracing::error!(%error, "the term loop ended badly");
        }
        for serving in self.serving {
            match serving.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "a listener ended badly"),
                Err(error) => tracing::error!(%error, "a listener's task ended badly"),
            }
        }
        // The socket may have been replaced by a newer process only if it did not answer; it answered.
        let _ = std::fs::remove_file(&self.control_socket);
        let end = self.member.stop().await;
        self.store.close();
        Ok(end?)
    }
}

/// The member that was started, and what belongs to it.
struct Started {
    member: Handle,
    store: Store,
    /// Where snapshots of other members arrive.
    incoming: Arc<Incoming>,
}

/// Opens log and database and starts the raft member on them.
async fn start_member(config: &ManagerConfig) -> Result<Started, ManagerError> {
    let keys = config.security.key_file().data_keys();
    let ring = keys.map_err(|error| ManagerError::Key(error.to_string()))?;
    let credentials = config.security.current();
    let options = EngineOptions {
        cluster_id: Some(credentials.cluster_id().to_owned()),
        accept_log_loss: config.accept_log_loss,
        ..Default::default()
    };
    let state_dir = config.state_dir.clone();
    let (node_id, cluster_id) = (
        credentials.node_id().to_owned(),
        credentials.cluster_id().to_owned(),
    );
    let mut raft_config = raft::Config::new(0, state_dir.path().to_owned());
    raft_config.tick = config.raft_tick;
    raft_config.heartbeat_ticks = config.heartbeat_ticks as usize;
    raft_config.election_ticks = config.election_ticks as usize;
    // Opening reads and checks the log: it blocks.
    let Engines { db, log, loss, .. } =
        blocking(move || Ok(Engines::open(&state_dir, &ring, &options)?)).await?;
    if let Some(loss) = loss {
        tracing::warn!(%loss, "started on what was left of the log");
    }
    let advertise = config.advertise.to_string();
    let store = Store::open(db.clone())?;
    let mut log = force(config, log, &store, &advertise).await?;
    // A member that has not read of its own admission knows nobody yet, so it asks again.
    let knows_nobody = store.membership().members.is_empty();
    let stored = log.identity().map(|identity| identity.raft_id);
    let joined = match &config.entry {
        Entry::Join(managers) if stored.is_none() || knows_nobody => {
            let (security, remote, own) = (&config.security, &config.remote, stored.unwrap_or(0));
            let answer = joining::join(security, remote, config.advertise, managers, own).await?;
            if stored.is_some_and(|stored| stored != answer.raft_id) {
                return Err(ManagerError::Removed);
            }
            tracing::info!(
                raft_id = format!("{:x}", answer.raft_id),
                members = answer.members.len(),
                "joined the raft group"
            );
            Some(answer)
        }
        _ => None,
    };
    let known = joined.as_ref().map_or(&[][..], |answer| &answer.members);
    let known = known.to_vec();
    let (log, raft_id) = blocking(move || {
        let raft_id = match (stored, joined.map(|answer| answer.raft_id)) {
            (Some(stored), _) => stored,
            (None, None) => raft::bootstrap(&mut log, &node_id, &cluster_id, &advertise)?,
            (None, Some(raft_id)) => {
                let identity = Identity {
                    raft_id,
                    node_id,
                    cluster_id,
                    address: advertise,
                    created_unix_s: u64::try_from(time::now().seconds).unwrap_or_default(),
                };
                // Everything, its own admission included, comes from the leader.
                log.claim(identity, &Default::default(), &[])?;
                raft_id
            }
        };
        Ok((log, raft_id))
    })
    .await?;
    raft_config.raft_id = raft_id;
    let incoming = Arc::new(Incoming::new(config.state_dir.clone(), db.clone()));
    raft_config.incoming = Some(incoming.clone());
    let security = config.security.clone();
    let (transport, attach) = Transport::new(raft_id, security, store.clone(), &known);
    let opened = store.clone();
    let member = blocking(move || {
        let outbox = Box::new(transport);
        Ok(Handle::start(raft_config, log, db, opened, outbox)?)
    })
    .await?;
    attach.attach(&member);
    Ok(Started {
        member,
        store,
        incoming,
    })
}

/// Strikes the other members off, if that was asked for and has not been done. Asking is remembered, so that
/// a flag that is left in place strikes nobody off who joins later; a start without it forgets.
async fn force(
    config: &ManagerConfig,
    mut log: RaftLog,
    store: &Store,
    addr: &str,
) -> Result<RaftLog, ManagerError> {
    let (wanted, addr) = (config.force_new_cluster, addr.to_owned());
    let (membership, applied) = (store.membership(), store.applied());
    blocking(move || {
        if log.identity().is_none() {
            return Ok(log);
        }
        let done = log.marker(FORCED_MARKER)?.is_some();
        match (wanted, done) {
            (true, true) => tracing::warn!(
                "--force-new-cluster was done already; this is an ordinary start. Start once without \
                 the flag before it is needed again"
            ),
            (true, false) => {
                let forced = raft::force_new_cluster(&mut log, &membership, applied, &addr)?;
                log.set_marker(FORCED_MARKER, Some("done"))?;
                tracing::warn!(
                    removed = forced.removed.len(),
                    kept_entries_of_unknown_outcome = forced.uncertain,
                    "this manager is a group of its own now"
                );
            }
            (false, true) => log.set_marker(FORCED_MARKER, None)?,
            (false, false) => {}
        }
        Ok(log)
    })
    .await
}

/// Runs what blocks beside the network.
async fn blocking<R: Send + 'static>(
    work: impl FnOnce() -> Result<R, ManagerError> + Send + 'static,
) -> Result<R, ManagerError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ManagerError::Ended("opening the state", error.to_string()))?
}

/// Serves the metrics page if it is asked for; the gauges are kept in any case.
async fn start_metrics(
    config: &ManagerConfig,
    store: &Store,
    stop: &CancellationToken,
) -> Result<Option<Arc<Metrics>>, ManagerError> {
    let metrics = match Metrics::of_process() {
        Ok(metrics) => metrics,
        Err(error) => {
            tracing::warn!(%error, "metrics are not shown");
            return Ok(None);
        }
    };
    let credentials = config.security.current();
    metrics.identify(credentials.cluster_id(), credentials.node_id());
    metrics.manager.set(1);
    if let Some(address) = config.metrics {
        let wrong = |source| ManagerError::Metrics { address, source };
        let listener = TcpListener::bind(address).await.map_err(wrong)?;
        let serving = metrics::serve(listener, metrics.clone(), store.clone(), stop.clone());
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the metrics page is gone");
            }
        });
    }
    Ok(Some(metrics))
}

/// Reports when the member ends by itself: a manager without raft must not go on answering.
fn watch_member(
    member: Handle,
    failure: watch::Sender<Option<Failure>>,
    stopping: CancellationToken,
) {
    tokio::spawn(async move {
        let end = member.ended().await;
        if !stopping.is_cancelled() {
            let reason = match end {
                Err(RaftError::MemberRemoved) => Failure::Removed,
                Err(RaftError::BeginAnew) => Failure::BeginAnew,
                Ok(()) => Failure::Other("the raft member ended".to_owned()),
                Err(error) => Failure::Other(format!("the raft member: {error}")),
            };
            failure.send_replace(Some(reason));
        }
    });
}

/// Looks a node up among those that were removed from the cluster. Without a cluster object nobody is.
fn removed_nodes(store: &Store) -> impl Fn(&str) -> bool + Send + Sync + 'static {
    let store = store.clone();
    move |node_id| {
        let clusters = store.view(|tx| tx.find::<Cluster>(By::Name(DEFAULT_CLUSTER.to_owned())));
        clusters.is_ok_and(|clusters| {
            clusters.len() == 1
                && clusters
                    .iter()
                    .any(|cluster| cluster.blacklisted_certificates.contains_key(node_id))
        })
    }
}

/// What people call a node: its host name, where one is known, and its ID.
fn node_names(store: &Store) -> impl Fn(&str) -> String + Send + Sync + 'static {
    let store = store.clone();
    move |node_id| {
        let node = store.view(|tx| tx.get::<Node>(node_id)).ok().flatten();
        let hostname = node.and_then(|node| Some(node.description.as_ref()?.hostname.clone()));
        match hostname {
            Some(hostname) if !hostname.is_empty() => format!("{hostname} ({node_id})"),
            _ => node_id.to_owned(),
        }
    }
}

/// The managers that workers are told of: all members of the raft group, this one at the address that it
/// has now. The list follows the group until nobody looks any more; it is empty only until the first entry
/// of the log is applied.
fn managers(config: &ManagerConfig, member: &Handle) -> watch::Receiver<Vec<WeightedPeer>> {
    let (own_id, own_addr) = (member.raft_id(), config.advertise.to_string());
    let list_of = move |book: &Book| -> Vec<WeightedPeer> {
        let peers = book.members().map(|member| WeightedPeer {
            peer: Some(Peer {
                node_id: member.node_id.clone(),
                addr: match member.raft_id == own_id {
                    true => own_addr.clone(),
                    false => member.addr.clone(),
                },
            }),
            weight: MANAGER_WEIGHT,
        });
        peers.collect()
    };
    let mut seen = member.book();
    let list = watch::Sender::new(list_of(&seen));
    let receiver = list.subscribe();
    let member = member.clone();
    tokio::spawn(async move {
        loop {
            let interval = match seen.is_empty() {
                true => FIRST_MANAGER_INTERVAL,
                false => MANAGERS_INTERVAL,
            };
            tokio::select! {
                () = list.closed() => return,
                _ = member.ended() => return,
                () = tokio::time::sleep(interval) => {}
            }
            let book = member.book();
            if !Arc::ptr_eq(&seen, &book) {
                list.send_replace(list_of(&book));
                seen = book;
            }
        }
    });
    receiver
}
