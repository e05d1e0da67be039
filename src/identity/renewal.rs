//! Keeping the own certificate young: when it is renewed, and how failures are retried.
//!
//! A certificate is renewed at a random minute between half and four fifths of its life, so that the
//! nodes of a cluster do not all come at once (spec 02 section 11). An expired one is renewed at once. The
//! decision is the pure function [`renewal_time`]; the loop around it only sleeps and asks.

use super::join::{self, Applicant, Backoff, JoinError, Managers};
use super::key_file::KeyFileError;
use super::security::{SecurityConfig, SecurityError};
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

/// Why a certificate was not renewed.
#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    #[error(transparent)]
    Obtain(#[from] JoinError),
    #[error("the new certificate could not be saved: {0}")]
    Save(#[from] KeyFileError),
    #[error("the new certificate could not be put to use: {0}")]
    Use(#[from] SecurityError),
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
    forced: Arc<Notify>,
    outcome: watch::Sender<Renewal>,
}

/// Asks a [`Renewer`] to renew soon. At most one such request is remembered.
#[derive(Clone, Debug)]
pub struct RenewNow(Arc<Notify>);

impl RenewNow {
    pub fn request(&self) {
        self.0.notify_one();
    }
}

impl Renewer {
    /// A renewer that asks these managers.
    pub fn new(security: Arc<SecurityConfig>, managers: Arc<dyn Managers>) -> Renewer {
        Renewer {
            security,
            managers,
            forced: Arc::default(),
            outcome: watch::Sender::new(Renewal::default()),
        }
    }

    /// Asks for a renewal before its time.
    pub fn trigger(&self) -> RenewNow {
        RenewNow(self.forced.clone())
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
                () = self.forced.notified() => tokio::time::sleep(FORCED_PAUSE).await,
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
        let failures = self.outcome.borrow().failures;
        if failures > 0 || not_after < now {
            return now + RETRY.wait(failures).as_secs() as i64;
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
                tracing::error!(%error, "renewing the node certificate failed");
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
        let pair = obtained.pair;
        self.security
            .key_file()
            .write(&pair.certificate_pem, &pair.key, Some(obtained.kek))?;
        self.security.replace_certificate(&pair)?;
        let (_, not_after) = self.security.current().validity();
        tracing::info!(not_after, "renewed the node certificate");
        Ok(())
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
