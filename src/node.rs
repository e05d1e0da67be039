//! One node: its identity, its addresses, and the supervision of its agent and its manager.
//!
//! Every node runs an agent; a node whose certificate says *manager* also runs a manager. A manager's own
//! agent talks to it over the control socket, any other agent to the managers it knows of. Stopping a node
//! leaves its tasks running, so that a manager can be upgraded without restarting work.

pub mod addresses;
mod remotes;

use crate::agent::connect::Broker;
use crate::agent::dependencies::Dependencies;
use crate::agent::executor::Executor;
use crate::agent::key::{KeyError, WorkerKey};
use crate::agent::remotes::{Remote, SharedRemotes, load};
use crate::agent::view::{NodeChange, NodeChanges};
use crate::agent::{Agent, AgentConfig, AgentError, AgentHandle};
use crate::api::roles::Role;
use crate::api::types::node_spec::Availability;
use crate::identity::connect::{ConnectError, connect_control};
use crate::identity::renewal::{RenewNow, Renewer};
use crate::identity::start::{StartError, StartOptions, load_or_create};
use crate::identity::{RootCa, SecurityConfig};
use crate::manager::{Manager, ManagerConfig, ManagerError};
use crate::services::server::{ServeError, bind_remote};
use crate::storage::state_dir::{StateDir, StateDirError, create_dir};
use addresses::{AddressError, DEFAULT_REMOTE_PORT};
use remotes::{NodeDialer, NodeManagers};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// How a node is run.
pub struct NodeConfig {
    pub state_dir: PathBuf,
    /// A manager to join through, `HOST[:PORT]`; without one a node without identity founds a cluster.
    pub join_addr: Option<String>,
    pub join_token: Option<String>,
    /// Reported instead of the machine's name.
    pub hostname: Option<String>,
    pub listen_remote: SocketAddr,
    pub advertise_remote: Option<String>,
    pub control_socket: PathBuf,
    pub control_group: Option<u32>,
    pub metrics: Option<SocketAddr>,
    pub availability: Availability,
    pub raft_tick: Duration,
    pub heartbeat_ticks: u32,
    pub election_ticks: u32,
    pub accept_log_loss: bool,
    /// Makes what runs the tasks, once the state directory is locked.
    pub executor: ExecutorMaker,
}

/// What an executor is made of.
pub struct ExecutorParts {
    pub node_id: String,
    /// `<state directory>/worker`.
    pub worker_dir: PathBuf,
    pub worker_key: WorkerKey,
    /// Secrets and configs that the node's tasks are given.
    pub dependencies: Arc<Dependencies>,
}

/// Makes the executor once the node knows who it is.
pub type ExecutorMaker = Box<dyn FnOnce(ExecutorParts) -> anyhow::Result<Arc<dyn Executor>> + Send>;

/// Why a node did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    #[error(transparent)]
    Identity(#[from] StartError),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("cannot list the network interfaces: {0}")]
    Interfaces(std::io::Error),
    #[error(transparent)]
    Listen(#[from] ServeError),
    #[error("manager stopped: {0}")]
    Manager(#[from] ManagerError),
    #[error("cannot reach the own control socket: {0}")]
    Control(#[from] ConnectError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("cannot read the list of managers: {0}")]
    Remotes(std::io::Error),
    #[error("agent stopped: {0}")]
    Agent(#[from] AgentError),
    #[error("the task executor cannot be used: {0:#}")]
    Executor(anyhow::Error),
    #[error(
        "this node joined as a manager, which is not available yet: join with the worker token"
    )]
    JoinAsManager,
}

/// A running node.
pub struct Node {
    agent: AgentHandle,
    manager: Option<Manager>,
    security: Arc<SecurityConfig>,
    advertise: Option<SocketAddr>,
    /// Ends renewal and the background tasks of the node.
    cancel: CancellationToken,
    /// Held until everything that writes has ended.
    _state_dir: Arc<StateDir>,
}

impl Node {
    /// Locks the state directory, obtains an identity and starts what the role asks for.
    pub async fn start(config: NodeConfig) -> Result<Node, NodeError> {
        let state_dir = Arc::new(StateDir::open(&config.state_dir)?);
        let security = identity(&config, &state_dir).await?;
        let is_manager = security.current().role() == Role::Manager;
        let cancel = CancellationToken::new();
        let local = watch::Sender::new(None::<Channel>);
        let (manager, advertise) = if is_manager {
            let (manager, advertise) = start_manager(&config, &state_dir, &security).await?;
            local.send_replace(Some(connect_control(&config.control_socket).await?));
            (Some(manager), Some(advertise))
        } else {
            (None, None)
        };
        let remotes = known_managers(&config, &state_dir)?;
        let own_socket = is_manager.then(|| config.control_socket.clone());
        let renewer = Renewer::new(
            security.clone(),
            Arc::new(NodeManagers::new(remotes.clone(), own_socket)),
        );
        let renew_now = renewer.trigger();
        tokio::spawn(renewer.run(cancel.clone()));
        let broker = Broker::new(
            remotes,
            Arc::new(NodeDialer(security.clone())),
            local.subscribe(),
        );
        let agent = start_agent(config, &state_dir, &security, broker, &cancel).await?;
        let changes = Changes {
            security: security.clone(),
            renew_now,
            is_manager,
        };
        tokio::spawn(changes.follow(agent.changes(), cancel.clone()));
        // The agent's side of this channel must not see it close while the node runs.
        tokio::spawn(keep(local, cancel.clone()));
        Ok(Node {
            agent,
            manager,
            security,
            advertise,
            cancel,
            _state_dir: state_dir,
        })
    }

    /// Waits until the node is registered with a manager.
    pub async fn ready(&self) -> Result<(), NodeError> {
        Ok(self.agent.ready().await?)
    }

    pub fn security(&self) -> &Arc<SecurityConfig> {
        &self.security
    }

    pub fn manager(&self) -> Option<&Manager> {
        self.manager.as_ref()
    }

    /// Where others reach this manager.
    pub fn advertise(&self) -> Option<SocketAddr> {
        self.advertise
    }

    /// Waits until a part of the node has ended by itself, and says why.
    pub async fn ended(&self) -> NodeError {
        let manager = async {
            match &self.manager {
                Some(manager) => manager.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            error = manager => error.into(),
            result = self.agent.ended() => match result {
                Ok(()) => AgentError::Stopped.into(),
                Err(error) => error.into(),
            },
        }
    }

    /// Ends the agent, then the manager. Tasks go on running.
    pub async fn stop(self) -> Result<(), NodeError> {
        self.cancel.cancel();
        let agent = self.agent.stop().await;
        if let Some(manager) = self.manager {
            manager.stop().await?;
        }
        Ok(agent?)
    }
}

async fn identity(
    config: &NodeConfig,
    state_dir: &StateDir,
) -> Result<Arc<SecurityConfig>, NodeError> {
    let options = StartOptions {
        join_addr: config.join_addr.clone(),
        join_token: config.join_token.clone(),
        availability: config.availability as i32,
        ..StartOptions::new(state_dir.path())
    };
    Ok(load_or_create(&options).await?)
}

async fn start_manager(
    config: &NodeConfig,
    state_dir: &Arc<StateDir>,
    security: &Arc<SecurityConfig>,
) -> Result<(Manager, SocketAddr), NodeError> {
    let has_raft_data = state_dir.raft_format().exists();
    if !has_raft_data && !security.current().root().can_sign() {
        // Without the CA key this node did not found the cluster, so it must join its group.
        return Err(NodeError::JoinAsManager);
    }
    // Checked before anything is bound: with several addresses the operator has to choose.
    let usable = addresses::usable_addresses().map_err(NodeError::Interfaces)?;
    addresses::advertise(
        config.advertise_remote.as_deref(),
        config.listen_remote,
        &usable,
    )?;
    let remote = bind_remote(config.listen_remote).await?;
    let bound = remote.local_addr().unwrap_or(config.listen_remote);
    let advertise = addresses::advertise(config.advertise_remote.as_deref(), bound, &usable)?;
    let manager = Manager::start(ManagerConfig {
        state_dir: state_dir.clone(),
        security: security.clone(),
        remote,
        advertise,
        control_socket: config.control_socket.clone(),
        control_group: config.control_group,
        metrics: config.metrics,
        raft_tick: config.raft_tick,
        heartbeat_ticks: config.heartbeat_ticks,
        election_ticks: config.election_ticks,
        availability: config.availability,
        accept_log_loss: config.accept_log_loss,
    })
    .await?;
    Ok((manager, advertise))
}

/// The managers remembered from earlier, or the one to join through.
fn known_managers(config: &NodeConfig, state_dir: &StateDir) -> Result<SharedRemotes, NodeError> {
    let initial = match &config.join_addr {
        Some(addr) => vec![Remote {
            node_id: String::new(),
            addr: with_port(addr),
        }],
        None => load(&state_dir.state_json()).map_err(NodeError::Remotes)?,
    };
    Ok(SharedRemotes::new(initial))
}

/// `HOST:PORT`, with the default port where none is named.
fn with_port(addr: &str) -> String {
    let bare_v6 = addr.parse::<std::net::Ipv6Addr>().is_ok();
    match (bare_v6, addr.rsplit_once(':')) {
        (true, _) => format!("[{addr}]:{DEFAULT_REMOTE_PORT}"),
        (false, Some((_, port))) if port.parse::<u16>().is_ok() => addr.to_owned(),
        _ => format!("{addr}:{DEFAULT_REMOTE_PORT}"),
    }
}

async fn start_agent(
    config: NodeConfig,
    state_dir: &Arc<StateDir>,
    security: &Arc<SecurityConfig>,
    broker: Broker,
    cancel: &CancellationToken,
) -> Result<AgentHandle, NodeError> {
    let dependencies = Dependencies::new();
    let worker_dir = state_dir.worker();
    create_dir(&worker_dir)?;
    let worker_key = WorkerKey::open_or_create(&worker_dir.join("key"))?;
    let parts = ExecutorParts {
        node_id: security.current().node_id().to_owned(),
        worker_dir: worker_dir.clone(),
        worker_key: worker_key.clone(),
        dependencies: dependencies.clone(),
    };
    let executor = (config.executor)(parts).map_err(NodeError::Executor)?;
    let (tls_info, tls_info_seen) = watch::channel(Some(security.current().tls_info()));
    let mut credentials = security.subscribe();
    let cancel = cancel.clone();
    tokio::spawn(async move {
        while let Some(Ok(())) = cancel.run_until_cancelled(credentials.changed()).await {
            tls_info.send_replace(Some(credentials.borrow_and_update().tls_info()));
        }
    });
    Ok(Agent::start(AgentConfig {
        hostname: config.hostname.unwrap_or_default(),
        worker_dir,
        worker_key,
        state_file: state_dir.state_json(),
        broker,
        executor,
        dependencies,
        tls_info: tls_info_seen,
        fail_if_untrusted: config.join_addr.is_some(),
    })
    .await?)
}

/// Keeps a sender alive until the node stops.
async fn keep<T>(sender: watch::Sender<T>, cancel: CancellationToken) {
    cancel.cancelled().await;
    drop(sender);
}

/// What the node does about what the managers say of it.
struct Changes {
    security: Arc<SecurityConfig>,
    renew_now: RenewNow,
    is_manager: bool,
}

impl Changes {
    async fn follow(self, mut changes: NodeChanges, cancel: CancellationToken) {
        while let Some(Some(change)) = cancel.run_until_cancelled(changes.next()).await {
            match change {
                NodeChange::CertificateRotation => self.renew_now.request(),
                NodeChange::RootCa(roots) => self.trust(&roots),
                NodeChange::Role(role) if (role as i32 == 1) != self.is_manager => {
                    tracing::warn!(
                        ?role,
                        "another role is wanted of this node; changing roles is not available yet"
                    );
                }
                NodeChange::Role(_) | NodeChange::DesiredRole(_) | NodeChange::VxlanPort(_) => {}
            }
        }
    }

    /// Trusts other roots if they differ from the present ones.
    fn trust(&self, roots: &[u8]) {
        let current = self.security.current();
        if current.root().roots_pem() == roots {
            return;
        }
        let root = RootCa::trusting(roots, self.security.clock().now());
        let result = root.map_err(|error| error.to_string()).and_then(|root| {
            self.security
                .replace_root(root)
                .map_err(|error| error.to_string())
        });
        match result {
            Ok(()) => {
                tracing::info!("the cluster has other root certificates; they are trusted now")
            }
            Err(error) => {
                tracing::error!(%error, "the cluster's new root certificates were not taken over")
            }
        }
    }
}
