//! The manager half of a node: runs while the node's certificate says *manager*, and only then.
//!
//! A worker that gets a manager's certificate becomes a manager: it joins the raft group through a manager
//! that it knows. A manager that gets a worker's certificate, or that was taken out of the raft group, stops
//! its manager and erases its raft data (spec 03 section 16). The agent and its tasks are not touched by
//! either: the agent only looks for its managers elsewhere.
//!
//! Guarantees: at most one manager runs at a time; raft data is erased only after the manager has ended; a
//! node that loses its role for a time founds no second group.

use super::erase;
use super::{NodeConfig, NodeError, addresses};
use crate::agent::remotes::SharedRemotes;
use crate::api::roles::Role;
use crate::api::types::node_spec::Availability;
use crate::identity::SecurityConfig;
use crate::identity::connect::connect_control;
use crate::identity::renewal::{RenewNow, Renewal};
use crate::manager::{Entry, Manager, ManagerConfig, ManagerError};
use crate::services::server::bind_remote;
use crate::storage::Store;
use crate::storage::state_dir::StateDir;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// Longest wait for another certificate after a manager was taken out of the group; waited for twice, with
/// a renewal asked for in between (spec 03 section 1).
const ROLE_CHANGE_TIMEOUT: Duration = Duration::from_secs(16);
/// After a renewal with the old role: the role manager may be about to write the new one.
const ROLE_SETTLE_TIME: Duration = Duration::from_secs(1);
/// Pause after the first start that failed while the node runs; doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest pause between two tries: whoever looks finds the reason in the log every minute.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// How the manager of a node is run.
#[derive(Debug, Clone)]
pub struct ManagerSettings {
    listen_remote: SocketAddr,
    advertise_remote: Option<String>,
    control_socket: PathBuf,
    control_group: Option<u32>,
    metrics: Option<SocketAddr>,
    availability: Availability,
    raft_tick: Duration,
    heartbeat_ticks: u32,
    election_ticks: u32,
    accept_log_loss: bool,
    force_new_cluster: bool,
}

impl From<&NodeConfig> for ManagerSettings {
    fn from(config: &NodeConfig) -> ManagerSettings {
        ManagerSettings {
            listen_remote: config.listen_remote,
            advertise_remote: config.advertise_remote.clone(),
            control_socket: config.control_socket.clone(),
            control_group: config.control_group,
            metrics: config.metrics,
            availability: config.availability,
            raft_tick: config.raft_tick,
            heartbeat_ticks: config.heartbeat_ticks,
            election_ticks: config.election_ticks,
            accept_log_loss: config.accept_log_loss,
            force_new_cluster: config.force_new_cluster,
        }
    }
}

/// A manager that runs, as the rest of the node sees it.
#[derive(Clone)]
pub struct RunningManager {
    store: Store,
    advertise: SocketAddr,
    /// Its control socket.
    pub(super) channel: Channel,
}

impl RunningManager {
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where others reach it.
    pub fn advertise(&self) -> SocketAddr {
        self.advertise
    }
}

/// Starts and stops the manager of a node.
pub struct Supervisor {
    pub settings: ManagerSettings,
    pub state_dir: Arc<StateDir>,
    pub security: Arc<SecurityConfig>,
    pub remotes: SharedRemotes,
    pub renew: RenewNow,
    /// What became of renewals.
    pub renewals: watch::Receiver<Renewal>,
    /// Shows the manager while it runs.
    pub running: watch::Sender<Option<RunningManager>>,
    pub cancel: CancellationToken,
}

/// Why a manager is not to run any longer.
enum Why {
    /// The node stops.
    Stopping,
    /// The node has a worker's certificate.
    Demoted,
    /// The raft group has let this member go.
    Removed,
    /// The manager is to be started again.
    Again,
    Failed(ManagerError),
}

impl Supervisor {
    /// What is due before the first manager may start: leftovers of an erasure, and raft data of a node that
    /// was demoted while it was down.
    pub async fn tidy(&self) -> Result<(), NodeError> {
        let state_dir = self.state_dir.clone();
        let is_worker = self.security.current().role() == Role::Worker;
        let key_file = self.security.key_file().clone();
        let tidied = tokio::task::spawn_blocking(move || {
            if is_worker && state_dir.raft().exists() {
                tracing::info!("this node is a worker now; erasing its raft data");
                return erase::raft_data(&state_dir, &key_file);
            }
            erase::sweep(&state_dir)
        });
        tidied.await.map_err(|_| NodeError::Interrupted)??;
        Ok(())
    }

    /// Starts the manager when the node starts. One that was removed and did not hear of it before it
    /// stopped begins anew.
    pub async fn start_first(&self) -> Result<Manager, NodeError> {
        match self.start(true).await {
            Err(NodeError::Manager(ManagerError::Removed)) => {
                tracing::info!("this manager was taken out of the raft group; joining it again");
                self.erase().await?;
                self.start(false).await
            }
            result => result,
        }
    }

    /// Starts the manager. Only the first start of a process may found a group.
    async fn start(&self, is_first: bool) -> Result<Manager, NodeError> {
        let settings = &self.settings;
        // Checked before anything is bound: with several addresses the operator has to choose.
        let usable = addresses::usable_addresses().map_err(NodeError::Interfaces)?;
        let flag = settings.advertise_remote.as_deref();
        addresses::advertise(flag, settings.listen_remote, &usable)?;
        let remote = bind_remote(settings.listen_remote).await?;
        let bound = remote.local_addr().unwrap_or(settings.listen_remote);
        let advertise = addresses::advertise(flag, bound, &usable)?;
        let manager = Manager::start(ManagerConfig {
            state_dir: self.state_dir.clone(),
            security: self.security.clone(),
            remote,
            advertise,
            control_socket: settings.control_socket.clone(),
            control_group: settings.control_group,
            metrics: settings.metrics,
            raft_tick: settings.raft_tick,
            heartbeat_ticks: settings.heartbeat_ticks,
            election_ticks: settings.election_ticks,
            availability: settings.availability,
            entry: self.entry(is_first),
            accept_log_loss: settings.accept_log_loss && is_first,
            force_new_cluster: settings.force_new_cluster && is_first,
        })
        .await?;
        let channel = connect_control(&settings.control_socket).await?;
        self.running.send_replace(Some(RunningManager {
            store: manager.store().clone(),
            advertise,
            channel,
        }));
        Ok(manager)
    }

    /// How a manager without raft data gets into its group. The node that founded the cluster holds the CA
    /// key until the cluster object is stored, and knows no other manager.
    fn entry(&self, is_first: bool) -> Entry {
        let credentials = self.security.current();
        let known = self.remotes.watch().borrow().clone();
        let others: Vec<String> = known
            .into_iter()
            .filter(|remote| remote.node_id != credentials.node_id() && !remote.addr.is_empty())
            .map(|remote| remote.addr)
            .collect();
        match is_first && others.is_empty() && credentials.root().can_sign() {
            true => Entry::Found,
            false => Entry::Join(others),
        }
    }

    /// Follows the node's role until the node stops. An error is one that a running manager met.
    pub async fn run(self, mut first: Option<Manager>) -> Result<(), NodeError> {
        let mut retry = RETRY_MIN;
        while self.has_role(Role::Manager).await {
            let manager = match first.take() {
                Some(manager) => manager,
                None => match self.start(false).await {
                    Ok(manager) => manager,
                    Err(error) => {
                        tracing::error!(%error, again_in = ?retry, "this node is to be a manager, but cannot");
                        tokio::select! {
                            () = tokio::time::sleep(retry) => {}
                            () = self.cancel.cancelled() => return Ok(()),
                        }
                        retry = (retry * 2).min(RETRY_MAX);
                        continue;
                    }
                },
            };
            retry = RETRY_MIN;
            let why = self.watch(&manager).await;
            self.running.send_replace(None);
            let stopped = manager.stop().await;
            match why {
                Why::Stopping => return Ok(stopped?),
                Why::Failed(error) => {
                    if let Err(error) = stopped {
                        tracing::warn!(%error, "the manager that failed did not stop in order");
                    }
                    return Err(error.into());
                }
                Why::Again => {}
                Why::Demoted => {
                    tracing::info!("this node is a worker now");
                    self.erase().await?;
                }
                Why::Removed => {
                    tracing::info!("this manager was taken out of the raft group");
                    self.erase().await?;
                    self.await_worker().await;
                }
            }
        }
        Ok(())
    }

    async fn watch(&self, manager: &Manager) -> Why {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Why::Stopping,
            is_worker = self.has_role(Role::Worker) => match is_worker {
                true => Why::Demoted,
                false => Why::Stopping,
            },
            error = manager.ended() => match error {
                ManagerError::Removed => Why::Removed,
                ManagerError::BeginAnew => Why::Again,
                error => Why::Failed(error),
            },
        }
    }

    /// Waits for a certificate of this role; false when the node stops.
    async fn has_role(&self, role: Role) -> bool {
        let mut credentials = self.security.subscribe();
        let reached = credentials.wait_for(|credentials| credentials.role() == role);
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => false,
            reached = reached => reached.is_ok(),
        }
    }

    /// After a removal a worker's certificate is to be expected. If the managers issue one of a manager
    /// instead, twice, the node was not demoted, or was promoted again, and joins anew.
    async fn await_worker(&self) {
        for _ in 0..2 {
            let mut renewals = self.renewals.clone();
            let before = renewals.borrow().renewed;
            self.renew.request();
            let renewed = async {
                let _ = renewals.wait_for(|outcome| outcome.renewed > before).await;
                tokio::time::sleep(ROLE_SETTLE_TIME).await;
            };
            tokio::select! {
                _ = self.has_role(Role::Worker) => return,
                _ = tokio::time::timeout(ROLE_CHANGE_TIMEOUT, renewed) => {}
            }
        }
        tracing::warn!("this node still has a manager's certificate; joining the raft group again");
    }

    async fn erase(&self) -> Result<(), NodeError> {
        let (state_dir, key_file) = (self.state_dir.clone(), self.security.key_file().clone());
        let erased = tokio::task::spawn_blocking(move || erase::raft_data(&state_dir, &key_file));
        Ok(erased.await.map_err(|_| NodeError::Interrupted)??)
    }
}
