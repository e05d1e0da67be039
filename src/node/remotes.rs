//! How the parts of a node find managers: the renewal of its certificate, and its agent's sessions.

use super::supervisor::RunningManager;
use crate::agent::connect::{DialError, Dialer};
use crate::agent::remotes::{OBSERVATION, Remote, SharedRemotes};
use crate::identity::SecurityConfig;
use crate::identity::connect::{Address, connect_manager};
use crate::identity::join::Managers;
use futures::future::BoxFuture;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;
use tonic::transport::Channel;

/// The managers a certificate can be asked from: this node's own first, while it runs.
pub struct NodeManagers {
    remotes: SharedRemotes,
    own: watch::Receiver<Option<RunningManager>>,
    own_socket: PathBuf,
}

impl NodeManagers {
    pub fn new(
        remotes: SharedRemotes,
        own: watch::Receiver<Option<RunningManager>>,
        own_socket: PathBuf,
    ) -> NodeManagers {
        NodeManagers {
            remotes,
            own,
            own_socket,
        }
    }
}

impl Managers for NodeManagers {
    fn pick(&self, remote_only: bool) -> Option<Address> {
        if !remote_only && self.own.borrow().is_some() {
            return Some(Address::Unix(self.own_socket.clone()));
        }
        let remote = self.remotes.select(&[]).ok()?;
        Some(Address::tcp(&remote.addr))
    }

    fn observe(&self, address: &Address, good: bool) {
        let Address::Tcp(addr) = address else {
            return;
        };
        let weight = if good { OBSERVATION } else { -OBSERVATION };
        let known: Vec<Remote> = self.remotes.watch().borrow().clone();
        for remote in known.iter().filter(|remote| remote.addr == *addr) {
            self.remotes.observe_if_exists(remote, weight);
        }
    }
}

/// Dials managers with this node's certificate.
pub struct NodeDialer(pub Arc<SecurityConfig>);

impl Dialer for NodeDialer {
    fn dial(&self, addr: &str) -> BoxFuture<'static, Result<Channel, DialError>> {
        let (security, addr) = (self.0.clone(), addr.to_owned());
        Box::pin(async move {
            connect_manager(&security, &addr).await.map_err(|error| {
                if error.is_untrusted() {
                    DialError::Untrusted(error.to_string())
                } else {
                    DialError::Failed(error.to_string())
                }
            })
        })
    }
}
