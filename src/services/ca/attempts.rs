//! How often an address may be wrong about a token.
//!
//! Ten failures within a minute, counted from the first, and the address is not listened to until that
//! minute is over (settled I6). Addresses of one IPv6 network of 64 bits count as one. Only so many
//! addresses are remembered; the one not seen for longest is forgotten first.

use lru::LruCache;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroUsize;
use std::time::Duration;
use tokio::time::Instant;

/// Failures after which an address is refused.
pub const FAILURES_MAX: u32 = 10;
/// How long failures count.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Addresses remembered.
const ADDRESSES_MAX: NonZeroUsize = NonZeroUsize::new(65_536).unwrap();

struct Failures {
    first: Instant,
    count: u32,
}

/// The failures of the last minute, by address. Callers without address share one count.
pub struct Attempts {
    by_address: LruCache<Option<IpAddr>, Failures>,
}

impl Default for Attempts {
    fn default() -> Attempts {
        Attempts::new()
    }
}

impl Attempts {
    pub fn new() -> Attempts {
        Attempts {
            by_address: LruCache::new(ADDRESSES_MAX),
        }
    }

    /// Whether an address may try.
    pub fn allowed(&mut self, address: Option<IpAddr>, now: Instant) -> bool {
        let key = address.map(network);
        match self.by_address.peek(&key) {
            Some(failures) if now.duration_since(failures.first) >= WINDOW => {
                self.by_address.pop(&key);
                true
            }
            Some(failures) => failures.count < FAILURES_MAX,
            None => true,
        }
    }

    /// Notes a failure.
    pub fn failed(&mut self, address: Option<IpAddr>, now: Instant) {
        let fresh = || Failures {
            first: now,
            count: 0,
        };
        let failures = self
            .by_address
            .get_or_insert_mut(address.map(network), fresh);
        if now.duration_since(failures.first) >= WINDOW {
            *failures = fresh();
        }
        failures.count = failures.count.saturating_add(1);
    }
}

/// What counts as one address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn ten_failures_a_minute() {
        let start = Instant::now();
        let mut attempts = Attempts::new();
        let guesser = address("192.0.2.1");
        for _ in 0..FAILURES_MAX {
            assert!(attempts.allowed(guesser, start));
            attempts.failed(guesser, start);
        }
        let almost = start + WINDOW - Duration::from_millis(1);
        assert!(!attempts.allowed(guesser, almost));
        assert!(attempts.allowed(address("192.0.2.2"), almost));
        assert!(attempts.allowed(None, almost));
        assert!(attempts.allowed(guesser, start + WINDOW));
        attempts.failed(guesser, start + WINDOW);
        assert!(attempts.allowed(guesser, start + WINDOW));
    }

    #[test]
    fn a_v6_network_is_one_address() {
        let start = Instant::now();
        let mut attempts = Attempts::new();
        for host in 0..FAILURES_MAX {
            attempts.failed(address(&format!("2001:db8::{host:x}")), start);
            attempts.failed(address(&format!("::ffff:192.0.2.{host}")), start);
        }
        assert!(!attempts.allowed(address("2001:db8::ffff"), start));
        assert!(attempts.allowed(address("2001:db8:0:1::1"), start));
        assert!(attempts.allowed(address("192.0.2.3"), start));
    }
}
