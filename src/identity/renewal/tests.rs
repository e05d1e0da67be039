//! When a certificate is renewed, in virtual time.

use super::*;
use crate::api::roles::Role;
use crate::identity::connect::Address;
use crate::identity::testing::{TestCluster, TestNode};
use crate::identity::{Clock, RootCa, RootCaParts};
use parking_lot::Mutex;
use std::time::SystemTime;

const HOUR: i64 = 3600;

// 02-A33 (the formula)
#[test]
fn between_half_and_four_fifths_of_the_span() {
    let not_before = 1_700_000_000;
    for span_hours in [2, 24, 2161] {
        let span = span_hours * HOUR;
        for draw in [0.0, 0.1, 0.5, 0.9, 0.999_999] {
            let at = renewal_time(not_before, not_before + span, draw);
            let part = (at - not_before) as f64 / span as f64;
            assert!((0.5..0.8).contains(&part), "{part}");
            assert_eq!((at - not_before) % 60, 0);
        }
        let early = renewal_time(not_before, not_before + span, 0.0);
        let late = renewal_time(not_before, not_before + span, 0.999_999);
        assert_eq!(early - not_before, span / 2 / 60 * 60);
        assert_eq!(late - not_before, (span / 60 * 4 / 5 - 1) * 60);
    }
    // A window of less than a minute is its lower end.
    assert_eq!(renewal_time(0, 120, 0.9), 60);
    assert_eq!(renewal_time(0, 0, 0.5), 0);
    let extreme = renewal_time(i64::MIN, i64::MAX, 0.5);
    assert!(extreme < i64::MAX);
}

/// Knows no manager; notes when it was asked.
struct Nobody {
    asked: Mutex<Vec<i64>>,
    clock: Clock,
}

impl Managers for Nobody {
    fn pick(&self, _remote_only: bool) -> Option<Address> {
        self.asked.lock().push(self.clock.unix_secs());
        None
    }

    fn observe(&self, _address: &Address, _good: bool) {}
}

/// A node whose certificate lives for an hour and was issued `age` ago, on a virtual clock.
fn node(age: Duration) -> (TestNode, Clock) {
    let mut cluster = TestCluster::new();
    let now = SystemTime::now();
    let (certificate, key) = cluster.root.signing_pem().unwrap();
    let parts = RootCaParts {
        roots: certificate,
        signing: Some((certificate, key)),
        node_lifetime: Duration::from_secs(3600),
        ..RootCaParts::default()
    };
    cluster.root = RootCa::new(parts, now).unwrap();
    let pair = cluster.pair("node", Role::Worker);
    let clock = Clock::following_tokio(now + age);
    (cluster.node_with(&pair, clock.clone()), clock)
}

struct Watched {
    clock: Clock,
    nobody: Arc<Nobody>,
    outcome: watch::Receiver<Renewal>,
    cancel: CancellationToken,
    issued: i64,
    _node: TestNode,
}

fn watched(age: Duration) -> Watched {
    let (node, clock) = node(age);
    let nobody = Arc::new(Nobody {
        asked: Mutex::default(),
        clock: clock.clone(),
    });
    let renewer = Renewer::new(node.security.clone(), nobody.clone());
    let cancel = CancellationToken::new();
    let watched = Watched {
        clock,
        nobody,
        outcome: renewer.outcome(),
        cancel: cancel.clone(),
        issued: node.security.current().validity().0 + HOUR,
        _node: node,
    };
    tokio::spawn(renewer.run(cancel));
    watched
}

impl Watched {
    /// Waits for failures; returns the time of the first attempt.
    async fn failures(&mut self, count: u32) -> i64 {
        self.outcome
            .wait_for(|outcome| outcome.failures >= count)
            .await
            .unwrap();
        self.nobody.asked.lock()[0]
    }
}

// 02-A33
#[tokio::test(start_paused = true)]
async fn the_first_attempt_is_in_its_window() {
    let mut watched = watched(Duration::ZERO);
    let first = watched.failures(1).await;
    // The span of two hours counts from an hour before the issue; half of it is over at once.
    let minutes = (first - watched.issued) / 60;
    assert!((0..=36).contains(&minutes), "{minutes}");
    let error = watched.outcome.borrow().error.clone().unwrap();
    assert!(error.to_string().contains("no manager is known"), "{error}");
    watched.cancel.cancel();
}

// 02-A33
#[tokio::test(start_paused = true)]
async fn an_expired_certificate_is_renewed_at_once_and_again() {
    let mut watched = watched(Duration::from_secs(5 * 3600));
    let started = watched.clock.unix_secs();
    assert!(watched.failures(1).await - started <= 1);
    // Retries spread out, but never further apart than an hour.
    watched.failures(12).await;
    assert!(watched.clock.unix_secs() - started < 12 * HOUR);
    watched.cancel.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_wish_is_granted_after_a_moment() {
    let (node, clock) = node(Duration::ZERO);
    // A long-lived certificate: no renewal of its own accord.
    let cluster = TestCluster::new();
    drop(node);
    let pair = cluster.pair("node", Role::Worker);
    let node = cluster.node_with(&pair, clock.clone());
    let nobody = Arc::new(Nobody {
        asked: Mutex::default(),
        clock,
    });
    let renewer = Renewer::new(node.security.clone(), nobody.clone());
    let mut outcome = renewer.outcome();
    let trigger = renewer.trigger();
    let cancel = CancellationToken::new();
    let running = tokio::spawn(renewer.run(cancel.clone()));
    tokio::time::sleep(Duration::from_secs(3 * 24 * 3600)).await;
    assert!(nobody.asked.lock().is_empty());
    let started = tokio::time::Instant::now();
    trigger.request();
    trigger.request();
    outcome
        .wait_for(|outcome| outcome.failures >= 1)
        .await
        .unwrap();
    assert!(started.elapsed() >= FORCED_PAUSE);
    assert!(started.elapsed() < FORCED_PAUSE + Duration::from_secs(2));
    cancel.cancel();
    running.await.unwrap();
}

#[test]
fn retries_grow_to_an_hour() {
    assert_eq!(RETRY.wait(0), Duration::ZERO);
    for failures in 1..100 {
        let limit = Duration::from_secs(5 + 5 * (1 << (failures - 1).min(10)));
        assert!(RETRY.wait(failures) < limit.min(RETRY.max));
    }
}
