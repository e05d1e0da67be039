//! What a node does about what the managers say of it: certificates, roots, roles.
//!
//! The wish for a role is followed by level: whenever the wish or the certificate changes, the two are
//! compared, and as long as they differ the renewal is asked for a certificate of the other role.

use crate::agent::view::{NodeChange, NodeChanges};
use crate::api::roles::Role;
use crate::api::types::NodeRole;
use crate::identity::renewal::RenewNow;
use crate::identity::{RootCa, SecurityConfig};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Follows the managers' word. See the module's comment.
pub struct Changes {
    pub security: Arc<SecurityConfig>,
    pub renew: RenewNow,
}

impl Changes {
    /// Runs until the agent ends or `cancel` fires.
    pub async fn follow(self, mut changes: NodeChanges, cancel: CancellationToken) {
        let mut credentials = self.security.subscribe();
        let mut desired = None;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                change = changes.next() => match change {
                    None => return,
                    Some(change) => self.act(change, &mut desired),
                },
                changed = credentials.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.compare(desired);
                }
            }
        }
    }

    fn act(&self, change: NodeChange, desired: &mut Option<Role>) {
        match change {
            NodeChange::CertificateRotation => self.renew.request(),
            NodeChange::RootCa(roots) => self.trust(&roots),
            NodeChange::DesiredRole(role) => {
                *desired = Some(role_of(role));
                self.compare(*desired);
            }
            // The managers will now issue what was perhaps asked for in vain before.
            NodeChange::Role(role) => {
                if self.renew.expected() == Some(role_of(role)) {
                    self.renew.request();
                }
            }
            NodeChange::VxlanPort(_) => {}
        }
    }

    fn compare(&self, desired: Option<Role>) {
        let Some(desired) = desired else {
            return;
        };
        if desired == self.security.current().role() {
            self.renew.expect_nothing();
        } else if self.renew.expected() != Some(desired) {
            tracing::info!(role = desired.unit(), "this node is to have another role");
            self.renew.expect(desired);
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

fn role_of(role: NodeRole) -> Role {
    match role {
        NodeRole::Worker => Role::Worker,
        NodeRole::Manager => Role::Manager,
    }
}
