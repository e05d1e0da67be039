//! Sessions, deadlines and counts, with time as an argument.

use super::*;

const LIMIT: RateLimit = RateLimit {
    count: 3,
    period: Duration::from_secs(8),
};
const NO_LIMIT: RateLimit = RateLimit {
    count: 3,
    period: Duration::ZERO,
};
const GRACE: Duration = Duration::from_secs(15);
const DAY: Duration = Duration::from_secs(86_400);

struct Clock(Instant);

impl Clock {
    fn start() -> Clock {
        Clock(Instant::now())
    }

    fn advance(&mut self, seconds: u64) -> Instant {
        self.0 += Duration::from_secs(seconds);
        self.0
    }
}

/// Admits and registers, as a node does whose write succeeds at once.
fn arrive(
    registry: &mut Registry,
    node_id: &str,
    now: Instant,
    limit: RateLimit,
) -> Result<Arc<LiveSession>, Refusal> {
    registry.admit(node_id, now, limit, now + GRACE)?;
    Ok(registry.register(node_id, None, now + GRACE).0)
}

fn text<T>(result: Result<T, Refusal>) -> String {
    result.map(|_| ()).unwrap_err().to_string()
}

fn silent(node_id: &str, message: &'static str) -> Fired {
    Fired::Silent {
        node_id: Arc::from(node_id),
        message,
    }
}

// 08-A1
#[test]
fn two_registrations_get_two_sessions_and_the_first_one_dies() {
    let mut registry = Registry::default();
    let now = Instant::now();
    let first = arrive(&mut registry, "n1", now, NO_LIMIT).unwrap();
    let second = arrive(&mut registry, "n1", now, NO_LIMIT).unwrap();
    assert!(!first.id.is_empty() && !second.id.is_empty() && first.id != second.id);
    assert_eq!(text(registry.session("n1", &first.id)), "session invalid");
    assert!(registry.session("n1", &second.id).is_ok());
    let report = registry.report("n1", now).unwrap();
    let ends: Vec<Option<End>> = report
        .sessions
        .iter()
        .map(|session| session.ended.map(|(_, end)| end))
        .collect();
    assert_eq!(ends, [Some(End::Replaced), None]);
}

// 08-A2
#[test]
fn the_fourth_registration_in_quick_succession_is_refused() {
    let mut registry = Registry::default();
    let mut clock = Clock::start();
    registry.add_unknown("n1", clock.0 + 2 * GRACE);
    for _ in 0..3 {
        arrive(&mut registry, "n1", clock.0, LIMIT).unwrap();
        clock.advance(1);
    }
    let refused = arrive(&mut registry, "n1", clock.0, LIMIT);
    assert_eq!(
        text(refused),
        "node n1 exceeded rate limit count of registrations"
    );
    // Seven seconds after the last accepted one; refused ones do not count as such.
    assert!(arrive(&mut registry, "n1", clock.advance(6), LIMIT).is_err());
    assert!(arrive(&mut registry, "n1", clock.advance(2), LIMIT).is_ok());
}

#[test]
fn one_node_does_not_use_up_the_registrations_of_another() {
    let mut registry = Registry::default();
    let now = Instant::now();
    while arrive(&mut registry, "n1", now, LIMIT).is_ok() {}
    assert!(arrive(&mut registry, "n2", now, LIMIT).is_ok());
}

// 08-A4
#[test]
fn each_wrong_session_gets_its_own_answer() {
    let mut registry = Registry::default();
    let mut clock = Clock::start();
    assert_eq!(text(registry.session("n1", "x")), "node not registered");
    registry.add_unknown("n1", clock.0 + 2 * GRACE);
    for session_id in ["", "x"] {
        assert_eq!(text(registry.session("n1", session_id)), "session invalid");
    }
    let session = arrive(&mut registry, "n1", clock.0, LIMIT).unwrap();
    for session_id in ["", "x"] {
        let beat = registry.beat("n1", session_id, clock.0 + GRACE);
        assert_eq!(text(beat), "session invalid");
    }
    registry.expire(clock.advance(16), DAY);
    assert_eq!(
        text(registry.session("n1", &session.id)),
        "node not registered"
    );
}

#[tokio::test]
async fn a_silent_node_expires_once_and_a_beat_puts_it_off() {
    let mut registry = Registry::default();
    let mut clock = Clock::start();
    let session = arrive(&mut registry, "n1", clock.0, LIMIT).unwrap();
    let now = clock.advance(10);
    registry.beat("n1", &session.id, now + GRACE).unwrap();
    assert_eq!(registry.expire(clock.advance(14), DAY), []);
    let fired = registry.expire(clock.advance(1), DAY);
    assert_eq!(fired, [silent("n1", "heartbeat failure")]);
    assert_eq!(session.ended().await, End::Expired);
    assert_eq!(registry.expire(clock.advance(100), DAY), []);
}

// 08-A7, the silent node
#[test]
fn a_node_that_does_not_come_back_after_a_change_of_leader_is_named_so() {
    let mut registry = Registry::default();
    let mut clock = Clock::start();
    registry.add_unknown("n1", clock.0 + 2 * GRACE);
    assert_eq!(registry.expire(clock.advance(29), DAY), []);
    let message = "heartbeat failure for node in \"unknown\" state";
    assert_eq!(
        registry.expire(clock.advance(1), DAY),
        [silent("n1", message)]
    );
}

#[test]
fn a_node_that_stays_down_is_given_up_and_one_that_returns_is_not() {
    let mut registry = Registry::default();
    let mut clock = Clock::start();
    for node_id in ["n1", "n2"] {
        registry.add_down(node_id, clock.0 + DAY);
    }
    assert!(registry.is_down("n1"));
    registry
        .admit("n2", clock.0, LIMIT, clock.0 + GRACE)
        .unwrap();
    assert!(!registry.is_down("n2"), "safe as soon as it is admitted");
    let fired = registry.expire(clock.advance(86_400), DAY);
    let node_id: Arc<str> = Arc::from("n1");
    assert_eq!(fired, [Fired::DownTooLong { node_id }]);
    registry.given_up("n1");
    assert!(!registry.is_down("n1"));
    assert_eq!(registry.next_deadline(), None);
}

#[test]
fn a_node_that_expires_while_its_registration_is_written_is_written_again() {
    let mut registry = Registry::default();
    let mut clock = Clock::start();
    arrive(&mut registry, "n1", clock.0, LIMIT).unwrap();
    registry
        .admit("n1", clock.0, LIMIT, clock.0 + GRACE)
        .unwrap();
    assert_eq!(registry.expire(clock.advance(20), DAY).len(), 1);
    let (_, was_down) = registry.register("n1", None, clock.0 + GRACE);
    assert!(was_down);
    let (_, was_down) = registry.register("n1", None, clock.0 + GRACE);
    assert!(!was_down);
}

#[tokio::test]
async fn a_removed_node_loses_its_session_and_its_deadline() {
    let mut registry = Registry::default();
    let now = Instant::now();
    let kept = arrive(&mut registry, "n1", now, LIMIT).unwrap();
    let gone = arrive(&mut registry, "n2", now, LIMIT).unwrap();
    let also_gone = arrive(&mut registry, "n3", now, LIMIT).unwrap();
    registry.remove("n2");
    registry.retain(|node_id| node_id == "n1");
    assert_eq!(gone.ended().await, End::Removed);
    assert_eq!(also_gone.ended().await, End::Removed);
    assert!(registry.session("n1", &kept.id).is_ok());
    assert_eq!(
        text(registry.session("n2", &gone.id)),
        "node not registered"
    );
    assert_eq!(registry.deadlines.len(), 1);
}

#[test]
fn a_manager_that_stood_still_blames_nobody() {
    let mut registry = Registry::default();
    let mut clock = Clock::start();
    arrive(&mut registry, "n1", clock.0, LIMIT).unwrap();
    let now = clock.advance(3600);
    registry.forgive(now + GRACE);
    assert_eq!(registry.expire(now, DAY), []);
    assert_eq!(registry.expire(clock.advance(15), DAY).len(), 1);
}

#[test]
fn deadlines_are_one_per_node_and_the_timer_hears_of_earlier_ones() {
    let mut registry = Registry::default();
    let now = Instant::now();
    registry.add_unknown("n1", now + GRACE);
    assert!(registry.take_earlier());
    registry.add_unknown("n2", now + 2 * GRACE);
    assert!(!registry.take_earlier());
    for second in 0..1000 {
        let session = arrive(&mut registry, "n2", now, NO_LIMIT).unwrap();
        let deadline = now + GRACE + Duration::from_secs(second);
        registry.beat("n2", &session.id, deadline).unwrap();
    }
    assert_eq!(registry.deadlines.len(), 2);
    registry.add_unknown("n3", now);
    assert!(registry.take_earlier());
    assert!(!registry.take_earlier());
}

#[test]
fn only_the_last_sessions_are_remembered() {
    let mut registry = Registry::default();
    let now = Instant::now();
    for port in 0..20 {
        registry.register("n1", Some(format!("10.0.0.1:{port}")), now + GRACE);
    }
    let sessions = registry.report("n1", now).unwrap().sessions;
    assert_eq!(sessions.len(), HISTORY_MAX);
    assert_eq!(sessions[7].peer.as_deref(), Some("10.0.0.1:19"));
    assert_eq!(sessions[7].ended, None);
}

#[tokio::test]
async fn stopping_ends_every_session() {
    let mut registry = Registry::default();
    let now = Instant::now();
    let session = arrive(&mut registry, "n1", now, LIMIT).unwrap();
    registry.end_all();
    assert_eq!(session.ended().await, End::Stopped);
    assert_eq!(registry.next_deadline(), None);
    assert_eq!(registry.registered_count(), 0);
}
