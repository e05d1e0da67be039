//! Keeping the own certificate young: when it is renewed, and how failures are retried.
//!
//! A certificate is renewed at a random minute between half and four fifths of its life, so that the
//! nodes of a cluster do not all come at once (spec 02 section 11). An expired one is renewed at once. The
//! decision is the pure function [`renewal_time`]; the loop around it only sleeps and asks.
//!
//! When a node is to change its role, the renewal is repeated until the managers issue a certificate of
//! that role; one of a third role is not put to use.

use super::join::{self, Applicant, Backoff, JoinError, Managers};
use super::key_file::KeyFileError;
use super::security::{SecurityConfig, SecurityError};
use crate::api::roles::Role;
use parking_lot::Mutex;
use rand::Rng;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// Pause before a renewal that was asked for, so that requests which come together are one.
const FORCED_PAUSE: Duration = Duration::from_millis(500);
/// The wall clock is looked at this often while waiting: it may be set, and the machine may sleep.
const RECHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// Retries after failures.
const RETRY: Backoff = Backoff {
    base: Duration::from_secs(5),
    factor: Duration::from_secs(5),
    max: Duration::from_secs(3600),
};

/// Retries while another role is awaited. The managers grant it as soon as the raft group has let the node
/// go, usually within seconds.
const ROLE_RETRY: Backoff = Backoff {
    base: Duration::from_secs(1),
    factor: Duration::from_secs(1),
    max: Duration::from_secs(60),
};

/// Why a certificate was not renewed.
#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    #[error(transparent)]
    Obtain(#[from] JoinError),
    #[error("the new certificate could not be saved: {0}")]
    Save(#[from] KeyFileError),
    #[error("the new certificate could not be put to use: {0}")]
    Use(#[from] SecurityError),
    #[error("the managers do not yet issue a certificate of a {}", .0.unit())]
    OtherRole(Role),
}

/// What the last renewal came to.
#[derive(Debug, Clone, Default)]
pub struct Renewal {
    /// Successful renewals since the start.
    pub renewed: u64,
    /// Failures in a row.
    pub failures: u32,
    /// Why the last one failed, if it did.
    pub error: Option<Arc<RenewalError>>,
}

/// Renews the certificate of a node for as long as it runs.
pub struct Renewer {
    security: Arc<SecurityConfig>,
    managers: Arc<dyn Managers>,
    wishes: RenewNow,
    outcome: watch::Sender<Renewal>,
}

/// Asks a [`Renewer`] to renew soon. At most one such request is remembered.
#[derive(Clone, Debug, Default)]
pub struct RenewNow {
    forced: Arc<Notify>,
    expected: Arc<Mutex<Option<Role>>>,
}

impl RenewNow {
    pub fn request(&self) {
        self.forced.notify_one();
    }

    /// Asks for renewals until the certificate has this role. The same wish again changes nothing.
    pub fn expect(&self, role: Role) {
        if self.expected.lock().replace(role) != Some(role) {
            self.request();
        }
    }

    /// The certificate may stay as it is.
    pub fn expect_nothing(&self) {
        *self.expected.lock() = None;
    }

    /// A certificate of this role is in use.
    fn met(&self, role: Role) {
        let mut expected = self.expected.lock();
        if *expected == Some(role) {
            *expected = None;
        }
    }

    /// The role that is awaited.
    pub fn expected(&self) -> Option<Role> {
        *self.expected.lock()
    }
}

impl Renewer {
    /// A renewer that asks these managers.
    pub fn new(security: Arc<SecurityConfig>, managers: Arc<dyn Managers>) -> Renewer {
        Renewer {
            security,
            managers,
            wishes: RenewNow::default(),
            outcome: watch::Sender::new(Renewal::default()),
        }
    }

    /// Asks for a renewal before its time.
    pub fn trigger(&self) -> RenewNow {
        self.wishes.clone()
    }

    /// Shows what became of each renewal.
    pub fn outcome(&self) -> watch::Receiver<Renewal> {
        self.outcome.subscribe()
    }

    /// Runs until cancelled.
    pub async fn run(self, cancel: CancellationToken) {
        let mut due = self.due();
        loop {
            let now = self.security.clock().unix_secs();
            let wait = Duration::from_secs(u64::try_from(due - now).unwrap_or(0));
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.wishes.forced.notified() => tokio::time::sleep(FORCED_PAUSE).await,
                () = tokio::time::sleep(wait.min(RECHECK_INTERVAL)) => {
                    if wait > RECHECK_INTERVAL {
                        continue;
                    }
                }
            }
            let result = tokio::select! {
                () = cancel.cancelled() => return,
                result = self.renew() => result,
            };
            self.note(result);
            due = self.due();
        }
    }

    /// When to renew, in seconds since 1970.
    fn due(&self) -> i64 {
        let credentials = self.security.current();
        let (not_before, not_after) = credentials.validity();
        let now = self.security.clock().unix_secs();
        let outcome = self.outcome.borrow();
        let failures = outcome.failures;
        if failures > 0 || not_after < now {
            let retry = match outcome.error.as_deref() {
                Some(RenewalError::OtherRole(_)) => ROLE_RETRY,
                _ => RETRY,
            };
            return now + retry.wait(failures).as_secs() as i64;
        }
        let draw = rand::rng().random_range(0.0..1.0);
        renewal_time(not_before, not_after, draw)
    }

    fn note(&self, result: Result<(), RenewalError>) {
        self.outcome.send_modify(|outcome| match result {
            Ok(()) => {
                outcome.renewed += 1;
                outcome.failures = 0;
                outcome.error = None;
            }
            Err(error) => {
                match &error {
                    RenewalError::OtherRole(_) => {
                        tracing::info!(%error, "waiting for another role")
                    }
                    error => tracing::error!(%error, "renewing the node certificate failed"),
                }
                outcome.failures = outcome.failures.saturating_add(1);
                outcome.error = Some(Arc::new(error));
            }
        });
    }

    /// Obtains, saves and uses a new certificate.
    async fn renew(&self) -> Result<(), RenewalError> {
        let root = self.security.current().root().clone();
        let applicant = Applicant::Member(self.security.clone());
        let clock = self.security.clock();
        let obtained = join::obtain_certificate(&*self.managers, &root, &applicant, clock).await?;
        let expected = self.wishes.expected();
        let unexpected = expected.filter(|role| *role != obtained.role);
        if let Some(role) = unexpected
            && obtained.role != self.security.current().role()
        {
            return Err(RenewalError::OtherRole(role));
        }
        let pair = obtained.pair;
        self.security
            .key_file()
            .write(&pair.certificate_pem, &pair.key, Some(obtained.kek))?;
        self.security.replace_certificate(&pair)?;
        let (_, not_after) = self.security.current().validity();
        tracing::info!(
            not_after,
            role = obtained.role.unit(),
            "renewed the node certificate"
        );
        match unexpected {
            Some(role) => Err(RenewalError::OtherRole(role)),
            None => {
                self.wishes.met(obtained.role);
                Ok(())
            }
        }
    }
}

/// When a certificate with this validity is renewed; all times in seconds since 1970. `draw` is a random
/// number in 0..1 that chooses the minute.
pub fn renewal_time(not_before: i64, not_after: i64, draw: f64) -> i64 {
    let minutes = not_after.saturating_sub(not_before) / 60;
    let earliest = minutes / 2;
    // Four fifths.
    let latest = minutes.saturating_mul(4) / 5;
    let window = (latest - earliest).max(1);
    let chosen = earliest + ((window as f64 * draw) as i64).clamp(0, window - 1);
    not_before.saturating_add(chosen.saturating_mul(60))
}

#[cfg(test)]
mod tests;
