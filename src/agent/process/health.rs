//! Health checks of a task: when to run them, and what their results mean.
//!
//! [`Tracker`] is the pure part. The rules are those of a container engine: a check that succeeds makes the
//! task healthy; `retries` failures in a row make it unhealthy; failures before the first success do not
//! count during the start period.

use crate::api::time;
use crate::api::types::HealthConfig;
use std::time::Duration;

/// What counts when a spec leaves it out, as with a container engine.
const INTERVAL: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(30);
const RETRIES: u32 = 3;

/// A health check as it is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Health {
    /// Program and arguments.
    pub(crate) test: Vec<String>,
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
    pub(crate) retries: u32,
    pub(crate) start_period: Duration,
    /// Pause between checks during the start period.
    pub(crate) start_interval: Duration,
}

impl Health {
    /// The check of a spec; `None` if there is none or it is switched off.
    pub(crate) fn of(config: Option<&HealthConfig>) -> Result<Option<Health>, String> {
        let Some(config) = config else {
            return Ok(None);
        };
        let Some((kind, rest)) = config.test.split_first() else {
            return Ok(None);
        };
        let test = match (kind.as_str(), rest) {
            ("NONE", _) => return Ok(None),
            ("CMD", [_, ..]) => rest.to_vec(),
            ("CMD-SHELL", [script]) => {
                vec!["/bin/sh".to_owned(), "-c".to_owned(), script.clone()]
            }
            _ => {
                return Err(format!(
                    "health check {:?} is not of the form NONE, CMD with a program, or CMD-SHELL with one script",
                    config.test
                ));
            }
        };
        let or = |span: Option<&prost_types::Duration>, default| match time::to_std_or_zero(span) {
            Duration::ZERO => default,
            span => span,
        };
        let interval = or(config.interval.as_ref(), INTERVAL);
        Ok(Some(Health {
            test,
            interval,
            timeout: or(config.timeout.as_ref(), TIMEOUT),
            retries: u32::try_from(config.retries)
                .ok()
                .filter(|retries| *retries > 0)
                .unwrap_or(RETRIES),
            start_period: time::to_std_or_zero(config.start_period.as_ref()),
            start_interval: or(config.start_interval.as_ref(), interval),
        }))
    }
}

/// What the checks so far say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Starting,
    Healthy,
    Unhealthy,
}

/// Follows the results of a task's checks.
#[derive(Debug)]
pub(crate) struct Tracker {
    retries: u32,
    start_period: Duration,
    failures: u32,
    verdict: Verdict,
}

impl Tracker {
    pub(crate) fn new(health: &Health) -> Tracker {
        Tracker {
            retries: health.retries,
            start_period: health.start_period,
            failures: 0,
            verdict: Verdict::Starting,
        }
    }

    /// Takes the result of a check that began `age` after the task started.
    pub(crate) fn observe(&mut self, success: bool, age: Duration) -> Verdict {
        if success {
            self.failures = 0;
            self.verdict = Verdict::Healthy;
        } else if self.verdict != Verdict::Starting || age >= self.start_period {
            self.failures += 1;
            if self.failures >= self.retries {
                self.verdict = Verdict::Unhealthy;
            }
        }
        self.verdict
    }

    /// Failures in a row that count.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Pause before the next check.
    pub(crate) fn pause(&self, health: &Health, age: Duration) -> Duration {
        if self.verdict == Verdict::Starting && age < self.start_period {
            health.start_interval
        } else {
            health.interval
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: i64) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds, nanos: 0 })
    }

    fn config(test: &[&str]) -> HealthConfig {
        HealthConfig {
            test: test.iter().map(|word| (*word).to_owned()).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn forms() {
        assert_eq!(Health::of(None), Ok(None));
        assert_eq!(Health::of(Some(&config(&[]))), Ok(None));
        assert_eq!(Health::of(Some(&config(&["NONE"]))), Ok(None));
        let shell = Health::of(Some(&config(&["CMD-SHELL", "true && false"]))).unwrap();
        assert_eq!(shell.unwrap().test, ["/bin/sh", "-c", "true && false"]);
        let health = Health::of(Some(&config(&["CMD", "curl", "-f"])))
            .unwrap()
            .unwrap();
        assert_eq!(health.test, ["curl", "-f"]);
        assert_eq!(
            (health.interval, health.timeout, health.retries),
            (INTERVAL, TIMEOUT, RETRIES)
        );
        for bad in [
            &["CMD"][..],
            &["curl"],
            &["CMD-SHELL"],
            &["CMD-SHELL", "a", "b"],
        ] {
            assert!(Health::of(Some(&config(bad))).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_start_period_forgives_until_the_first_success() {
        let health = Health::of(Some(&HealthConfig {
            interval: seconds(10),
            retries: 2,
            start_period: seconds(60),
            start_interval: seconds(1),
            ..config(&["CMD", "check"])
        }))
        .unwrap()
        .unwrap();
        let age = Duration::from_secs;
        let mut tracker = Tracker::new(&health);
        for n in 0..5 {
            assert_eq!(tracker.observe(false, age(n)), Verdict::Starting);
            assert_eq!(tracker.pause(&health, age(n)), age(1));
        }
        assert_eq!(tracker.observe(true, age(6)), Verdict::Healthy);
        assert_eq!(tracker.pause(&health, age(6)), age(10));
        assert_eq!(
            tracker.observe(false, age(7)),
            Verdict::Healthy,
            "one is no more"
        );
        assert_eq!(tracker.observe(true, age(8)), Verdict::Healthy);
        assert_eq!(tracker.observe(false, age(9)), Verdict::Healthy);
        assert_eq!(tracker.observe(false, age(10)), Verdict::Unhealthy);
        assert_eq!(tracker.failures(), 2);

        let mut late = Tracker::new(&health);
        assert_eq!(late.observe(false, age(60)), Verdict::Starting);
        assert_eq!(late.observe(false, age(61)), Verdict::Unhealthy);
    }
}
