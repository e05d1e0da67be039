//! When to send: gathers events until a quiet moment or until there are enough of them.

use std::time::Duration;

use tokio::time::Instant;

/// Counts relevant events since the last message. Events that change nothing for the agent are not
/// to be counted, so they do not put off what is waiting.
pub struct Batching {
    quiet: Duration,
    events_max: usize,
    events: usize,
    due: Option<Instant>,
}

impl Batching {
    pub fn new(quiet: Duration, events_max: usize) -> Batching {
        Batching {
            quiet,
            events_max,
            events: 0,
            due: None,
        }
    }

    /// Counts a relevant event. Says whether there are enough to send at once.
    pub fn count(&mut self) -> bool {
        self.events += 1;
        self.due = Some(Instant::now() + self.quiet);
        self.events >= self.events_max
    }

    /// Waits for the quiet moment after the last event; for ever if there was none.
    pub async fn quiet(&self) {
        match self.due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Starts over, because what was gathered is sent.
    pub fn sent(&mut self) {
        self.events = 0;
        self.due = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_millis(100);

    #[tokio::test(start_paused = true)]
    async fn each_event_puts_the_quiet_moment_off() {
        let start = Instant::now();
        let mut batching = Batching::new(QUIET, 100);
        for _ in 0..3 {
            assert!(!batching.count());
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        batching.quiet().await;
        assert_eq!(start.elapsed(), Duration::from_millis(220));
        batching.sent();
        let waited = tokio::time::timeout(Duration::from_secs(3600), batching.quiet()).await;
        assert!(waited.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn enough_events_are_sent_at_once() {
        let mut batching = Batching::new(QUIET, 3);
        assert_eq!(
            [batching.count(), batching.count(), batching.count()],
            [false, false, true]
        );
        batching.sent();
        assert!(!batching.count());
    }
}
