//! How long to wait before the next try to open a session (spec 08 section 15.2).

use rand::Rng;
use std::time::Duration;

/// Step of the first failure.
const STEP: Duration = Duration::from_millis(100);
/// Longest wait.
const MAX: Duration = Duration::from_secs(8);

/// Grows with each failure in a row: 100, 300, 700, 1500, 3100, 6300, 8000 ms. The wait itself is uniform
/// below that, so that the nodes of a cluster do not come back all at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backoff(Duration);

impl Backoff {
    /// Notes a failure.
    pub fn grow(&mut self) {
        self.0 = (STEP + 2 * self.0).min(MAX);
    }

    /// Notes a success.
    pub fn reset(&mut self) {
        self.0 = Duration::ZERO;
    }

    /// The upper end of the next wait.
    pub fn ceiling(&self) -> Duration {
        self.0
    }

    /// A wait.
    pub fn draw<R: Rng>(&self, random: &mut R) -> Duration {
        self.0.mul_f64(random.random::<f64>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // 08-A31
    #[test]
    fn delays() {
        let mut backoff = Backoff::default();
        let mut random = rand::rng();
        assert_eq!(backoff.draw(&mut random), Duration::ZERO);
        for expected in [100, 300, 700, 1500, 3100, 6300, 8000, 8000] {
            backoff.grow();
            assert_eq!(backoff.ceiling(), Duration::from_millis(expected));
            for _ in 0..100 {
                assert!(backoff.draw(&mut random) < backoff.ceiling());
            }
        }
        backoff.reset();
        assert_eq!(backoff.ceiling(), Duration::ZERO);
    }
}
