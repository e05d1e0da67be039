//! One node: its identity, its addresses, and the supervision of its agent and its manager.
//!
//! Every node runs an agent; a node whose certificate says *manager* also runs a manager, from the moment
//! it gets such a certificate to the moment it gets another ([`supervisor`]). A manager's own agent talks to
//! it over the control socket, any other agent to the managers it knows of. Stopping a node leaves its tasks
//! running, so that a manager can be upgraded without restarting work.

pub mod addresses;
mod changes;
mod erase;
pub mod leave;
mod remotes;
mod supervisor;

use crate::agent::connect::Broker;
use crate::agent::dependencies::Dependencies;
use crate::agent::executor::Executor;
use crate::agent::key::{KeyError, WorkerKey};
use crate::agent::remotes::{Remote, SharedRemotes, load};
use crate::agent::worker::Left;
use crate::agent::{Agent, AgentConfig, AgentError, AgentHandle};
use crate::api::admin::LeaveNodeResponse;
use crate::api::roles::Role;
use crate::api::types::node_spec::Availability;
use crate::identity::SecurityConfig;
use crate::identity::connect::ConnectError;
use crate::identity::renewal::Renewer;
use crate::identity::start::{StartError, StartOptions, load_or_create};
use crate::manager::ManagerError;
use crate::services::server::ServeError;
use crate::storage::state_dir::{StateDir, StateDirError, create_dir};
use addresses::{AddressError, DEFAULT_REMOTE_PORT};
use changes::Changes;
use erase::EraseError;
use leave::{LeaveAsk, LeaveError, NodeSocket};
use remotes::{NodeDialer, NodeManagers};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
pub use supervisor::RunningManager;
use supervisor::{ManagerSettings, Supervisor};
use tokio::sync::watch;
use tokio::task::JoinHandle;
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
    /// Make a cluster with this node as its only manager: the others are lost for good.
    pub force_new_cluster: bool,
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
    #[error(transparent)]
    Erase(#[from] EraseError),
    #[error(transparent)]
    Leave(#[from] LeaveError),
    #[error("the node was interrupted")]
    Interrupted,
    #[error("{0}")]
    Ended(Arc<NodeError>),
}

/// A running node.
pub struct Node {
    agent: AgentHandle,
    security: Arc<SecurityConfig>,
    /// The manager, while there is one.
    running: watch::Receiver<Option<RunningManager>>,
    /// Supervises the manager until the node stops.
    supervision: JoinHandle<()>,
    /// Why the supervision ended by itself.
    failed: watch::Receiver<Option<Arc<NodeError>>>,
    /// Where the node can be asked to leave.
    socket: Option<NodeSocket>,
    /// Ends renewal and the background tasks of the node.
    cancel: CancellationToken,
    /// Held until everything that writes has ended.
    state_dir: Arc<StateDir>,
}

impl Node {
    /// Locks the state directory, obtains an identity and starts what the role asks for.
    pub async fn start(config: NodeConfig) -> Result<Node, NodeError> {
        let state_dir = Arc::new(StateDir::open(&config.state_dir)?);
        let security = identity(&config, &state_dir).await?;
        let cancel = CancellationToken::new();
        let remotes = known_managers(&config, &state_dir)?;
        let (running, seen) = watch::channel(None);
        let socket = config.control_socket.clone();
        let managers = NodeManagers::new(remotes.clone(), seen.clone(), socket);
        let renewer = Renewer::new(security.clone(), Arc::new(managers));
        let renew = renewer.trigger();
        let supervisor = Supervisor {
            settings: ManagerSettings::from(&config),
            state_dir: state_dir.clone(),
            security: security.clone(),
            remotes: remotes.clone(),
            renew: renew.clone(),
            renewals: renewer.outcome(),
            running,
            cancel: cancel.clone(),
        };
        supervisor.tidy().await?;
        let manager = match security.current().role() {
            Role::Manager => Some(supervisor.start_first().await?),
            Role::Worker => None,
        };
        tokio::spawn(renewer.run(cancel.clone()));
        let dialer = Arc::new(NodeDialer(security.clone()));
        let broker = Broker::new(remotes, dialer, own_channel(seen.clone(), cancel.clone()));
        let agent = start_agent(config, &state_dir, &security, broker, &cancel).await;
        let agent = match agent {
            Ok(agent) => agent,
            Err(error) => {
                cancel.cancel();
                if let Some(manager) = manager {
                    manager.stop().await?;
                }
                return Err(error);
            }
        };
        let changes = Changes {
            security: security.clone(),
            renew,
        };
        tokio::spawn(changes.follow(agent.changes(), cancel.clone()));
        let (failure, failed) = watch::channel(None);
        let supervision = tokio::spawn(async move {
            if let Err(error) = supervisor.run(manager).await {
                failure.send_replace(Some(Arc::new(error)));
            }
        });
        Ok(Node {
            agent,
            running: seen,
            supervision,
            failed,
            socket: NodeSocket::start(&state_dir, &security),
            security,
            cancel,
            state_dir,
        })
    }

    /// Waits until the node is registered with a manager.
    pub async fn ready(&self) -> Result<(), NodeError> {
        Ok(self.agent.ready().await?)
    }

    pub fn security(&self) -> &Arc<SecurityConfig> {
        &self.security
    }

    /// This node's manager, while it is one.
    pub fn manager(&self) -> Option<RunningManager> {
        self.running.borrow().clone()
    }

    /// Waits until a part of the node has ended by itself, and says why.
    pub async fn ended(&self) -> NodeError {
        let mut failed = self.failed.clone();
        let manager = async {
            match failed.wait_for(Option::is_some).await {
                Ok(failure) => failure.clone(),
                // It ended in order, because the node stops.
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            error = manager => error.map_or(NodeError::Interrupted, NodeError::Ended),
            result = self.agent.ended() => match result {
                Ok(()) => AgentError::Stopped.into(),
                Err(error) => error.into(),
            },
        }
    }

    /// Waits until somebody wants the node to leave.
    pub async fn leave_asked(&self) -> LeaveAsk {
        match &self.socket {
            Some(socket) => socket.asked().await,
            None => std::future::pending().await,
        }
    }

    /// Makes ready for leaving: a manager has itself demoted. An error means that the node stays.
    pub async fn prepare_leave(&self, ask: &LeaveAsk) -> Result<(), LeaveError> {
        match ask.force {
            true => Ok(()),
            false => leave::demote(&self.security, &self.running).await,
        }
    }

    /// Removes the tasks, ends everything and erases what the node keeps. The tasks that are left, if that
    /// was forced, or else an error, are told to who asked.
    pub async fn leave(mut self, ask: LeaveAsk) -> Result<(), NodeError> {
        let left = match self.agent.leave().await? {
            Left::Clean => 0,
            Left::Remaining(count) => count,
        };
        let (socket, state_dir) = (self.socket.take(), self.state_dir.clone());
        let node_id = self.security.current().node_id().to_owned();
        let ended = self.end(Ok(())).await;
        let result = match left {
            0 => Ok(()),
            _ if ask.force => Ok(()),
            count => Err(LeaveError::Tasks(count)),
        };
        let result = match result {
            Ok(()) => tokio::task::spawn_blocking(move || leave::wipe(&state_dir))
                .await
                .map_err(|_| NodeError::Interrupted)?,
            refused => refused,
        };
        match &result {
            Ok(()) => ask.grant(LeaveNodeResponse {
                node_id,
                tasks_left: u32::try_from(left).unwrap_or(u32::MAX),
            }),
            Err(error) => ask.refuse(error),
        }
        if let Some(socket) = socket {
            socket.stop().await;
        }
        result?;
        ended
    }

    /// Ends the agent, then the manager. Tasks go on running.
    pub async fn stop(mut self) -> Result<(), NodeError> {
        let agent = self.agent.stop().await;
        if let Some(socket) = self.socket.take() {
            socket.stop().await;
        }
        self.end(agent).await
    }

    /// Waits for the manager and tells how everything ended.
    async fn end(self, agent: Result<(), AgentError>) -> Result<(), NodeError> {
        self.cancel.cancel();
        self.supervision.await.map_err(|_| NodeError::Interrupted)?;
        if let Some(error) = self.failed.borrow().clone() {
            return Err(NodeError::Ended(error));
        }
        Ok(agent?)
    }
}

/// The channel to this node's own manager, for its agent. It is never closed while the node runs.
fn own_channel(
    mut running: watch::Receiver<Option<RunningManager>>,
    cancel: CancellationToken,
) -> watch::Receiver<Option<Channel>> {
    let channel_of =
        |running: &Option<RunningManager>| running.as_ref().map(|running| running.channel.clone());
    let sender = watch::Sender::new(channel_of(&running.borrow_and_update()));
    let receiver = sender.subscribe();
    tokio::spawn(async move {
        while let Some(Ok(())) = cancel.run_until_cancelled(running.changed()).await {
            sender.send_replace(channel_of(&running.borrow_and_update()));
        }
        cancel.cancelled().await;
    });
    receiver
}

async fn identity(
    config: &NodeConfig,
    state_dir: &StateDir,
) -> Result<Arc<SecurityConfig>, NodeError> {
    let options = StartOptions {
        join_addr: config.join_addr.clone(),
        join_token: config.join_token.clone(),
        availability: config.availability as i32,
        force_new_cluster: config.force_new_cluster,
        ..StartOptions::new(state_dir.path())
    };
    Ok(load_or_create(&options).await?)
}

/// The managers remembered from earlier, or the one to join through.
fn known_managers(config: &NodeConfig, state_dir: &StateDir) -> Result<SharedRemotes, NodeError> {
    let initial = match &config.join_addr {
        Some(addr) => vec![Remote {
            node_id: String::new(),
            addr: with_port(addr),
        }],
        // They are lost, and would only be asked in vain.
        None if config.force_new_cluster => Vec::new(),
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
