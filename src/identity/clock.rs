//! The time by which certificates are judged.
//!
//! Everything in this room that compares a validity period takes its time from a [`Clock`], never
//! from the system directly. A program can be given an offset, so that the life of a certificate can
//! be tested without touching the machine's clock; a test can follow tokio's clock, so that virtual
//! time moves certificates too.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A source of wall-clock time. Clones show the same time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    /// The system's time plus a number of seconds.
    System(Arc<AtomicI64>),
    /// A fixed start plus what has passed on tokio's clock.
    Tokio {
        base: SystemTime,
        started: tokio::time::Instant,
    },
}

impl Default for Clock {
    fn default() -> Self {
        Clock::system()
    }
}

impl Clock {
    /// The system's time.
    pub fn system() -> Clock {
        Clock::with_offset(0)
    }

    /// The system's time plus `offset_secs` seconds.
    pub fn with_offset(offset_secs: i64) -> Clock {
        Clock(Source::System(Arc::new(AtomicI64::new(offset_secs))))
    }

    /// A clock that reads `base` now and follows tokio's clock, paused or not.
    pub fn following_tokio(base: SystemTime) -> Clock {
        Clock(Source::Tokio {
            base,
            started: tokio::time::Instant::now(),
        })
    }

    /// Changes the offset of a system clock in place, for all its clones; no effect on others.
    pub fn set_offset(&self, offset_secs: i64) {
        if let Source::System(offset) = &self.0 {
            offset.store(offset_secs, Ordering::Relaxed);
        }
    }

    /// The current time. Saturates at 1970 if the offset leads before it.
    pub fn now(&self) -> SystemTime {
        match &self.0 {
            Source::System(offset) => {
                let offset = offset.load(Ordering::Relaxed);
                let distance = Duration::from_secs(offset.unsigned_abs());
                let now = SystemTime::now();
                let shifted = if offset < 0 {
                    now.checked_sub(distance)
                } else {
                    now.checked_add(distance)
                };
                shifted.unwrap_or(UNIX_EPOCH)
            }
            Source::Tokio { base, started } => *base + started.elapsed(),
        }
    }

    /// Whole seconds since 1970.
    pub fn unix_secs(&self) -> i64 {
        unix_secs(self.now())
    }
}

impl rustls::time_provider::TimeProvider for Clock {
    fn current_time(&self) -> Option<rustls_pki_types::UnixTime> {
        let secs = u64::try_from(self.unix_secs()).unwrap_or(0);
        Some(rustls_pki_types::UnixTime::since_unix_epoch(
            Duration::from_secs(secs),
        ))
    }
}

/// Whole seconds since 1970 of a time; 0 for earlier ones.
pub fn unix_secs(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_moves_all_clones() {
        let clock = Clock::system();
        let clone = clock.clone();
        let before = clone.unix_secs();
        clock.set_offset(86_400);
        let moved = clone.unix_secs() - before;
        assert!((86_400..86_410).contains(&moved), "{moved}");
        clock.set_offset(i64::MIN);
        assert_eq!(clone.unix_secs(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn virtual_time_moves_the_clock() {
        let clock = Clock::following_tokio(UNIX_EPOCH + Duration::from_secs(1_000));
        tokio::time::advance(Duration::from_secs(500)).await;
        assert_eq!(clock.unix_secs(), 1_500);
    }
}
