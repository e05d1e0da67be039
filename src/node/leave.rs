//! Leaving the cluster: a node ends for good, in an order in which nothing is lost that others need.
//!
//! Whoever may enter the state directory asks over a socket in it, whatever the node's role. A manager first
//! has itself demoted, which the cluster refuses if too few managers would be left; then the tasks of the
//! node are removed, which may take a minute; last goes what the node keeps on disk. A kill in between
//! leaves a node that can be started, and asked to leave, again (settled P11).
//!
//! The node's object stays in the cluster, as *down*, until somebody removes it.

use super::supervisor::RunningManager;
use crate::api::admin::node_server::{Node as NodeApi, NodeServer};
use crate::api::admin::{LeaveNodeRequest, LeaveNodeResponse};
use crate::api::roles::Role;
use crate::api::types::control_client::ControlClient;
use crate::api::types::{GetNodeRequest, NodeRole, UpdateNodeRequest};
use crate::identity::SecurityConfig;
use crate::identity::authorize::Authorizer;
use crate::services::server::control_socket::ControlSocket;
use crate::services::server::{self, Listener, ServeError};
use crate::storage::files;
use crate::storage::state_dir::StateDir;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// Name of the socket in the state directory.
const SOCKET: &str = "node.sock";
/// Longest wait for the demotion of a manager that leaves.
const DEMOTION_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the last answer may take to get out.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a node does not leave.
#[derive(Debug, thiserror::Error)]
pub enum LeaveError {
    #[error("this manager is just starting or stopping; try again in a moment, or use --force")]
    Unsettled,
    #[error("this node is a manager and cannot be demoted: {0}; use --force to leave all the same")]
    Demotion(String),
    #[error(
        "this manager is to be demoted, but that is not done after {} s; it goes on, so leave again \
         later, or use --force",
        DEMOTION_TIMEOUT.as_secs()
    )]
    Slow,
    #[error(
        "{0} tasks of this node could not be removed; leave again later, or use --force to leave them \
         behind"
    )]
    Tasks(usize),
    #[error("cannot remove {path}: {error}; remove it by hand", path = .path.display())]
    Files { path: PathBuf, error: io::Error },
}

/// Somebody wants the node to leave.
pub struct LeaveAsk {
    pub force: bool,
    reply: oneshot::Sender<Result<LeaveNodeResponse, Status>>,
}

impl LeaveAsk {
    /// The node stays.
    pub fn refuse(self, reason: &LeaveError) {
        let _ = self
            .reply
            .send(Err(Status::failed_precondition(reason.to_string())));
    }

    pub(super) fn grant(self, answer: LeaveNodeResponse) {
        let _ = self.reply.send(Ok(answer));
    }
}

/// Path of the node's socket.
pub fn socket_path(state_dir: &Path) -> PathBuf {
    state_dir.join(SOCKET)
}

/// The socket, served.
pub struct NodeSocket {
    asks: tokio::sync::Mutex<mpsc::Receiver<LeaveAsk>>,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl NodeSocket {
    /// Serves until stopped. A socket that cannot be made, for instance because its path is too long, is
    /// only logged: a node that cannot be asked to leave can still work.
    pub fn start(state_dir: &StateDir, security: &Arc<SecurityConfig>) -> Option<NodeSocket> {
        let socket = match ControlSocket::bind(&socket_path(state_dir.path()), None) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(%error, "this node cannot be asked to leave");
                return None;
            }
        };
        let (asks, inbox) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(server::serve(
            Listener::Control(socket),
            security.clone(),
            Arc::new(Authorizer::new(security.clone(), |_| false)),
            None,
            Routes::new(NodeServer::new(NodeService { asks })),
            stop.clone(),
        ));
        Some(NodeSocket {
            asks: tokio::sync::Mutex::new(inbox),
            stop,
            serving,
        })
    }

    /// The next wish to leave.
    pub async fn asked(&self) -> LeaveAsk {
        match self.asks.lock().await.recv().await {
            Some(ask) => ask,
            None => std::future::pending().await,
        }
    }

    /// Lets the last answer out and ends.
    pub async fn stop(self) {
        server::end(self.serving, &self.stop, ANSWER_TIMEOUT).await;
    }
}

struct NodeService {
    asks: mpsc::Sender<LeaveAsk>,
}

#[tonic::async_trait]
impl NodeApi for NodeService {
    async fn leave(
        &self,
        request: Request<LeaveNodeRequest>,
    ) -> Result<Response<LeaveNodeResponse>, Status> {
        let (reply, answer) = oneshot::channel();
        let ask = LeaveAsk {
            force: request.into_inner().force,
            reply,
        };
        self.asks
            .try_send(ask)
            .map_err(|_| Status::failed_precondition("this node is leaving already"))?;
        let answer = answer
            .await
            .map_err(|_| Status::aborted("the node was stopped before it had left"))?;
        answer.map(Response::new)
    }
}

/// Has the manager of this node demoted and waits until it is gone. Nothing to do on a worker.
pub(super) async fn demote(
    security: &SecurityConfig,
    running: &watch::Receiver<Option<RunningManager>>,
) -> Result<(), LeaveError> {
    let credentials = security.current();
    let manager = running.borrow().clone();
    let Some(manager) = manager else {
        return match credentials.role() {
            Role::Worker => Ok(()),
            Role::Manager => Err(LeaveError::Unsettled),
        };
    };
    let refused = |status: Status| LeaveError::Demotion(status.message().to_owned());
    let mut control = ControlClient::new(manager.channel.clone());
    drop(manager);
    let node_id = credentials.node_id().to_owned();
    let request = GetNodeRequest {
        node_id: node_id.clone(),
    };
    let answer = control.get_node(request).await.map_err(refused)?;
    let node = answer.into_inner().node.unwrap_or_default();
    let mut spec = node.spec.unwrap_or_default();
    if spec.desired_role() != NodeRole::Worker {
        spec.set_desired_role(NodeRole::Worker);
        let request = UpdateNodeRequest {
            node_id,
            node_version: node.meta.and_then(|meta| meta.version),
            spec: Some(spec),
        };
        control.update_node(request).await.map_err(refused)?;
    }
    let mut running = running.clone();
    let mut role = security.subscribe();
    let demoted = async {
        let _ = role
            .wait_for(|credentials| credentials.role() == Role::Worker)
            .await;
        let _ = running.wait_for(Option::is_none).await;
    };
    tokio::time::timeout(DEMOTION_TIMEOUT, demoted)
        .await
        .map_err(|_| LeaveError::Slow)
}

/// Removes everything that a node keeps, its identity last: what is left of an interrupted removal can be
/// started as the same node. Blocks.
pub fn wipe(state_dir: &StateDir) -> Result<(), LeaveError> {
    let root = state_dir.path();
    let parts = [
        root.join("raft"),
        root.join("raft.discarded"),
        state_dir.worker(),
        state_dir.state_json(),
        state_dir.certificates(),
    ];
    for path in parts {
        let removed = match std::fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => std::fs::remove_dir_all(&path),
            Ok(_) => std::fs::remove_file(&path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(LeaveError::Files { path, error });
            }
            _ => {}
        }
    }
    files::sync_directory(root).map_err(|error| LeaveError::Files {
        path: root.to_owned(),
        error,
    })
}
