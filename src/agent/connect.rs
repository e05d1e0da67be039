//! How the agent gets a connection to a manager.
//!
//! A node that is a manager itself uses its own control socket as soon as that serves; every other node
//! chooses one of the known managers by weight (spec 03 section 13). How a remote manager is dialled (TLS,
//! client certificate) is behind [`Dialer`], so that nothing here knows about certificates.

use super::remotes::{NoRemotes, OBSERVATION, Remote, SharedRemotes};
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tonic::transport::Channel;

/// Time for establishing a connection, TLS handshake included (spec 08 section 15.2).
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a manager could not be reached.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DialError {
    /// The manager's certificate is not from the trusted root. A node that is just joining gives up on
    /// this, since it was given the address of a foreign cluster.
    #[error("{0}")]
    Untrusted(String),
    /// Anything else; worth another try.
    #[error("{0}")]
    Failed(String),
}

/// Opens connections to remote managers, with the node's certificate.
pub trait Dialer: Send + Sync + 'static {
    /// A connection that is established, not merely promised. `addr` is `host:port`.
    fn dial(&self, addr: &str) -> BoxFuture<'static, Result<Channel, DialError>>;
}

/// No connection to any manager.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    NoRemotes(#[from] NoRemotes),
    #[error("cannot connect to manager {addr}: {error}")]
    Dial { addr: String, error: DialError },
}

impl ConnectError {
    /// The manager's certificate is not from the trusted root.
    pub fn is_untrusted(&self) -> bool {
        matches!(
            self,
            ConnectError::Dial {
                error: DialError::Untrusted(_),
                ..
            }
        )
    }
}

/// Chooses and opens connections to managers.
#[derive(Clone)]
pub struct Broker {
    remotes: SharedRemotes,
    dialer: Arc<dyn Dialer>,
    local: watch::Receiver<Option<Channel>>,
}

impl Broker {
    /// `local` is the connection to this node's own control socket while that serves.
    pub fn new(
        remotes: SharedRemotes,
        dialer: Arc<dyn Dialer>,
        local: watch::Receiver<Option<Channel>>,
    ) -> Broker {
        Broker {
            remotes,
            dialer,
            local,
        }
    }

    /// A broker of a node that is never a manager.
    pub fn remote_only(remotes: SharedRemotes, dialer: Arc<dyn Dialer>) -> Broker {
        Broker::new(remotes, dialer, watch::Sender::new(None).subscribe())
    }

    pub fn remotes(&self) -> &SharedRemotes {
        &self.remotes
    }

    /// A connection to this node's own manager if it serves, else to a remote one.
    pub async fn select(&self) -> Result<Connection, ConnectError> {
        let local = self.local.borrow().clone();
        if let Some(channel) = local {
            return Ok(Connection {
                channel,
                remote: None,
                remotes: self.remotes.clone(),
            });
        }
        self.select_remote(&[]).await
    }

    /// A connection to a manager other than `excludes` (node IDs or addresses), never the local one.
    pub async fn select_remote(&self, excludes: &[&str]) -> Result<Connection, ConnectError> {
        let remote = self.remotes.select(excludes)?;
        let dialled = tokio::time::timeout(DIAL_TIMEOUT, self.dialer.dial(&remote.addr)).await;
        let error = match dialled {
            Ok(Ok(channel)) => {
                return Ok(Connection {
                    channel,
                    remote: Some(remote),
                    remotes: self.remotes.clone(),
                });
            }
            Ok(Err(error)) => error,
            Err(_) => DialError::Failed(format!("no connection within {DIAL_TIMEOUT:?}")),
        };
        self.remotes.observe_if_exists(&remote, -OBSERVATION);
        Err(ConnectError::Dial {
            addr: remote.addr,
            error,
        })
    }

    /// Resolves when this node's own manager begins to serve; at once never, even if it serves already.
    pub async fn local_appeared(&self) {
        let mut local = self.local.clone();
        local.mark_unchanged();
        while local.changed().await.is_ok() {
            if local.borrow_and_update().is_some() {
                return;
            }
        }
        std::future::pending().await
    }
}

/// An open connection. It closes when all clones of its channel are gone.
pub struct Connection {
    pub channel: Channel,
    /// `None` for the local control socket.
    pub remote: Option<Remote>,
    remotes: SharedRemotes,
}

impl Connection {
    /// Where it leads to, for messages.
    pub fn target(&self) -> &str {
        match &self.remote {
            Some(remote) => &remote.addr,
            None => "the local control socket",
        }
    }

    /// Ends the connection and remembers how well it served.
    pub fn close(self, well: bool) {
        if let Some(remote) = &self.remote {
            let observation = if well { OBSERVATION } else { -OBSERVATION };
            self.remotes.observe_if_exists(remote, observation);
        }
    }
}
