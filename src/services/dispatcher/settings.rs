//! The numbers the dispatcher works with, each with its source, and the choice of heartbeat periods.

use std::time::Duration;

use rand::Rng;

use crate::api::time;
use crate::api::types::Cluster;

/// Heartbeat period of a cluster whose object names none (spec 08 section 2).
pub const HEARTBEAT_PERIOD: Duration = Duration::from_secs(5);

/// How far a chosen period may lie from the configured one, so that beats do not come in step. For
/// short periods it is a tenth of the period, which is the same at the default.
const HEARTBEAT_EPSILON: Duration = Duration::from_millis(500);

/// Bounds of the configured period. The lower one keeps 10,000 agents below 100,000 beats a second,
/// the upper one keeps every deadline within the range of the clock.
const HEARTBEAT_PERIOD_BOUNDS: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(86_400));

/// Bytes of an encoded task status. Engines report a few hundred; anything near the limit of one
/// log entry (1.5 MiB) could never be stored together with its task.
pub const STATUS_BYTES_MAX: usize = 256 * 1024;

/// Bytes of an encoded node description, for the same reason.
pub const DESCRIPTION_BYTES_MAX: usize = 1024 * 1024;

/// Everything that a test or an operator may want to be different. `Default` is what the peer does.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A node is down when it was silent for this many of its periods.
    pub grace_periods: u32,
    /// The same for a node that has not registered since leadership changed.
    pub grace_periods_unknown: u32,
    /// A node may register this often within [`Settings::rate_limit_period`].
    pub rate_limit_count: u32,
    /// Silence after the last accepted registration that clears the count; zero: no limit.
    pub rate_limit_period: Duration,
    /// Time after which the tasks of a node that is down are given up as orphaned.
    pub node_down_period: Duration,
    /// Longest time a reported status waits for its write.
    pub write_interval: Duration,
    /// Queued task or node writes that are written without waiting for the interval.
    pub write_items_max: usize,
    /// Queued status reports above which reporters have to wait: their count and bytes.
    pub queued_reports_max: usize,
    pub queued_report_bytes_max: usize,
    /// Longest time a reporter or a registration waits for its turn or its write. Agents give up a
    /// session that has said nothing for 5 s.
    pub write_wait_max: Duration,
    /// Registrations that may be under way together; others wait for their turn.
    pub registrations_max: usize,
    /// Quiet time after the last relevant event before an assignment message is sent.
    pub assignment_quiet: Duration,
    /// Relevant events after which an assignment message is sent at once.
    pub assignment_events_max: usize,
    /// Streams that one session may have open together. An agent uses two, and for a moment twice
    /// as many when it reconnects.
    pub session_streams_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            grace_periods: 3,
            grace_periods_unknown: 6,
            rate_limit_count: 3,
            rate_limit_period: Duration::from_secs(8),
            node_down_period: Duration::from_secs(24 * 60 * 60),
            write_interval: Duration::from_millis(100),
            write_items_max: 10_000,
            queued_reports_max: 40_000,
            queued_report_bytes_max: 64 * 1024 * 1024,
            write_wait_max: Duration::from_secs(5),
            registrations_max: 2_000,
            assignment_quiet: Duration::from_millis(100),
            assignment_events_max: 100,
            session_streams_max: 8,
        }
    }
}

/// The heartbeat period that a cluster object asks for, within sane bounds.
pub fn heartbeat_period(cluster: &Cluster) -> Duration {
    let configured = cluster
        .spec
        .as_ref()
        .and_then(|spec| spec.dispatcher.as_ref())
        .and_then(|dispatcher| dispatcher.heartbeat_period.as_ref());
    let period = time::to_std_or_zero(configured);
    if period.is_zero() {
        return HEARTBEAT_PERIOD;
    }
    let (lowest, highest) = HEARTBEAT_PERIOD_BOUNDS;
    period.clamp(lowest, highest)
}

/// One period for one beat of one node: uniform within epsilon of the configured one.
pub fn choose_period(configured: Duration) -> Duration {
    let epsilon = HEARTBEAT_EPSILON.min(configured / 10);
    if epsilon.is_zero() {
        return configured;
    }
    rand::rng().random_range(configured - epsilon..configured + epsilon)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{ClusterSpec, DispatcherConfig};

    fn cluster(period: Option<prost_types::Duration>) -> Cluster {
        Cluster {
            spec: Some(ClusterSpec {
                dispatcher: Some(DispatcherConfig {
                    heartbeat_period: period,
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    // 08-A5, the draws.
    #[test]
    fn chosen_periods_stay_within_epsilon() {
        for _ in 0..1000 {
            let period = choose_period(HEARTBEAT_PERIOD);
            assert!(period >= Duration::from_millis(4500) && period < Duration::from_millis(5500));
            let short = choose_period(Duration::from_millis(100));
            assert!(short >= Duration::from_millis(90) && short < Duration::from_millis(110));
        }
    }

    #[test]
    fn the_period_comes_from_the_cluster_if_it_is_usable() {
        let span = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
        for (configured, expected) in [
            (None, HEARTBEAT_PERIOD),
            (span(0, 0), HEARTBEAT_PERIOD),
            (span(-3, 0), HEARTBEAT_PERIOD),
            (span(30, 0), Duration::from_secs(30)),
            (span(0, 1), Duration::from_millis(100)),
            (span(i64::MAX, 0), Duration::from_secs(86_400)),
        ] {
            assert_eq!(heartbeat_period(&cluster(configured)), expected);
        }
        assert_eq!(heartbeat_period(&Cluster::default()), HEARTBEAT_PERIOD);
    }
}
