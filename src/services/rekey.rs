//! Exchanges this manager's data key when that is due, whoever leads.
//!
//! What is due stands in the node key file: a mark, or a pending key that an earlier run of the program
//! left. The thread of this room looks there when it is woken and every few seconds, and works until
//! nothing is due. A failure is logged and tried again; the pending key stays in the key file until
//! everything is under it.

use crate::identity::KeyFile;
use crate::identity::key_file::KeyFileError;
use crate::raft::Handle;
use crate::storage::Store;
use crate::storage::rotation::{self, Phase, RotationError, RotationProgress};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Time between two looks into the key file's state, and before a failed exchange is tried again.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Time between two lines of progress in the log.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The exchange of this manager's data key. Cheap to clone.
#[derive(Clone)]
pub struct Rekey {
    shared: Arc<Shared>,
    thread: Option<Thread>,
}

struct Shared {
    keys: Arc<KeyFile>,
    progress: watch::Sender<RotationProgress>,
    stopped: AtomicBool,
}

impl Rekey {
    /// Starts to look after the data key. Without a thread to do so, what is due waits for a restart.
    pub fn start(keys: Arc<KeyFile>, store: Store, member: Handle) -> Rekey {
        let shared = Arc::new(Shared {
            keys,
            progress: watch::Sender::default(),
            stopped: AtomicBool::new(false),
        });
        let work = shared.clone();
        let spawned = thread::Builder::new()
            .name("rekey".into())
            .spawn(move || work.run(&store, &member));
        let thread = match spawned {
            Ok(handle) => Some(handle.thread().clone()),
            Err(error) => {
                tracing::error!(%error, "no thread to exchange the data key with");
                None
            }
        };
        Rekey { shared, thread }
    }

    /// Notes durably that the data key is to be exchanged, and begins. An exchange that is under way is
    /// followed by another one.
    pub fn request(&self) -> Result<(), KeyFileError> {
        self.shared.keys.request_rotation()?;
        self.wake();
        Ok(())
    }

    /// Has the key file looked at now; for whoever has changed it.
    pub fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }

    /// How far the present exchange is, or how the last one ended.
    pub fn progress(&self) -> watch::Receiver<RotationProgress> {
        self.shared.progress.subscribe()
    }

    /// Ends the thread after the step under way. What is not finished goes on at the next start.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.wake();
    }
}

impl Shared {
    fn run(&self, store: &Store, member: &Handle) {
        while !self.is_stopped() {
            if !self.keys.deks().rotation_due() {
                thread::park_timeout(LOOK_EVERY);
                continue;
            }
            match self.exchange(store, member) {
                Ok(()) => {}
                Err(RotationError::Interrupted) if self.is_stopped() => {
                    tracing::info!("the exchange of the data key goes on at the next start");
                }
                Err(error) => {
                    tracing::error!(%error, "the data key is not exchanged yet; trying again");
                    thread::park_timeout(LOOK_EVERY);
                }
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn exchange(&self, store: &Store, member: &Handle) -> Result<(), RotationError> {
        let started = Instant::now();
        let mut reported = started;
        let mut observe = |progress: &RotationProgress| {
            if progress.phase == Phase::Pending || reported.elapsed() >= REPORT_EVERY {
                reported = Instant::now();
                report(progress);
            }
            self.progress.send_replace(progress.clone());
            match self.is_stopped() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let done = rotation::rotate(&*self.keys, store, member, &mut observe)?;
        tracing::info!(
            key = done.key.map(tracing::field::display),
            rows = done.rows_resealed,
            entries = done.entries,
            damaged = done.damaged,
            seconds = started.elapsed().as_secs_f32(),
            "the data key is exchanged"
        );
        Ok(())
    }
}

fn report(progress: &RotationProgress) {
    tracing::info!(
        phase = progress.phase.name(),
        key = progress.key.map(tracing::field::display),
        rows_seen = progress.rows_seen,
        objects = progress.rows_total,
        "exchanging the data key"
    );
}
