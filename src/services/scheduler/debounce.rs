//! When to schedule: soon after the last change of a burst, and never long after the first.

use std::time::Duration;

use tokio::time::Instant;

/// Quiet time after a change before a pass (spec 07 section 3).
const QUIET: Duration = Duration::from_millis(50);

/// A burst longer than this is not waited out (spec 07 section 3).
const BURST_MAX: Duration = Duration::from_secs(1);

/// Collects changes into bursts.
#[derive(Debug, Default)]
pub struct Debounce {
    /// First change of the burst, and when the burst ends as far as is known.
    burst: Option<(Instant, Instant)>,
}

impl Debounce {
    /// Something has changed.
    pub fn changed(&mut self, now: Instant) {
        self.burst = Some(match self.burst {
            None => (now, now + QUIET),
            Some((first, _)) if now.duration_since(first) > BURST_MAX => (first, now),
            Some((first, _)) => (first, now + QUIET),
        });
    }

    /// Do not wait: there is more to do.
    pub fn at_once(&mut self, now: Instant) {
        self.burst = Some((now, now));
    }

    /// When the next pass is due.
    pub fn due(&self) -> Option<Instant> {
        self.burst.map(|(_, due)| due)
    }

    /// A pass has begun.
    pub fn clear(&mut self) {
        self.burst = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // 07-A18
    #[test]
    fn a_single_change_waits_for_quiet() {
        let start = Instant::now();
        let mut debounce = Debounce::default();
        debounce.changed(start);
        assert_eq!(debounce.due(), Some(start + QUIET));
        debounce.clear();
        assert_eq!(debounce.due(), None);
    }

    // 07-A18
    #[test]
    fn a_long_burst_is_cut() {
        let start = Instant::now();
        let mut debounce = Debounce::default();
        let mut fired = None;
        for change in 0..60 {
            let now = start + change * Duration::from_millis(20);
            if debounce.due().is_some_and(|due| due <= now) {
                fired = debounce.due();
                break;
            }
            debounce.changed(now);
        }
        let waited = fired.expect("a pass during the burst") - start;
        assert!(waited > BURST_MAX, "{waited:?}");
        assert!(waited <= BURST_MAX + QUIET, "{waited:?}");
    }
}
