//! Counts of what the dispatcher did since the process started, for metrics and inspection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Running totals. They survive changes of leadership.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub(super) $name: AtomicU64),+ }

        /// The totals at one moment.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Totals { $($(#[$doc])* pub $name: u64),+ }

        impl Counters {
            /// The totals now. Each is exact, together they may be a moment apart.
            pub fn totals(&self) -> Totals {
                Totals { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }
        }
    };
}

counters!(
    /// Accepted registrations and resumed sessions.
    registrations,
    /// Registrations refused because there were too many.
    registrations_refused,
    /// Nodes taken as down because they were silent.
    expiries,
    /// Accepted heartbeats.
    beats,
    /// Statuses of tasks that were reported and accepted for writing.
    task_reports,
    /// Written batches, the objects in them, and the time they took together, in microseconds.
    batches,
    batch_objects,
    batch_micros,
    /// Assignment messages, and the changes in them.
    assignment_messages,
    assignment_changes,
);

impl Counters {
    pub(super) fn batch(&self, objects: usize, took: Duration) {
        add(&self.batches, 1);
        add(&self.batch_objects, objects);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.batch_micros.fetch_add(micros, Ordering::Relaxed);
    }
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}
