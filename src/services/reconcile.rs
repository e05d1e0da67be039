//! The loop that level-triggered leader services share.
//!
//! A service that turns the store's state into decisions is written as a [`Reconciler`]: a state machine
//! that is loaded from one consistent view, hears of every later change in log order, and from time to
//! time takes what it has found to be wrong as a piece of work. The work is done in transactions that
//! read again what they depend on, so a decision taken on old knowledge does no harm. [`drive`] brings
//! the machine together with the store, the clock and the end of the term.
//!
//! Guarantees: at most one piece of work is under way, and changes are heard meanwhile, so that writing
//! a great many objects does not make the subscription fall behind. A missed event, a full queue or a
//! failed write costs a fresh [`Reconciler::load`], never correctness. Nothing is written once the term
//! has ended, except what was proposed before.
//!
//! The machines never see a clock or a store on their own: time and views are arguments. That is what lets
//! tests tell their stories in virtual time.

use std::time::Duration;

use anyhow::Context as _;
use futures::future::BoxFuture;
use prost_types::Timestamp;
use tokio::time::Instant;
use tracing::{debug, error, warn};

use super::leader::{Ready, Term};
use crate::api::time;
use crate::storage::{
    Batch, EventBatch, Interest, ProposeError, ReadTx, RecvError, Store, StoreError, Subscription,
    Tx,
};

/// One moment, as both clocks show it.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// For delays and deadlines.
    pub instant: Instant,
    /// For what is written into objects, and for comparisons with what others wrote there.
    pub wall: Timestamp,
}

impl Now {
    /// The present.
    pub fn system() -> Now {
        Now {
            instant: Instant::now(),
            wall: time::now(),
        }
    }
}

/// A level-triggered state machine; see the module's comment.
pub trait Reconciler: Send + 'static {
    /// What one pass is going to do.
    type Work: Send + 'static;
    /// What came of it.
    type Outcome: Send + 'static;

    /// Short name for logs.
    fn name(&self) -> &'static str;

    /// The changes it has to hear of.
    fn interests(&self) -> Vec<Interest>;

    /// Forgets what it knows of the store and learns it anew from a view. Called at the start of a term
    /// and whenever events or writes were lost; whatever the view shows to be wrong becomes work.
    fn load(&mut self, view: &ReadTx, now: Now) -> Result<(), StoreError>;

    /// Hears what one committed entry changed.
    fn observe(&mut self, batch: &EventBatch, now: Now);

    /// When [`Reconciler::plan`] should be asked next; a moment in the past means at once.
    fn next_due(&self) -> Option<Instant>;

    /// Takes the work that is due.
    fn plan(&mut self, now: Now) -> Option<Self::Work>;

    /// Does it. An error means that an unknown part of it was done.
    fn perform(
        store: Store,
        work: Self::Work,
    ) -> BoxFuture<'static, Result<Self::Outcome, StoreError>>;

    /// Hears what came of the work. Changes that the work caused may have been observed before.
    fn settle(&mut self, outcome: Self::Outcome, now: Now);
}

/// Pause before the first fresh start after a failed write; doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(1);

/// Longest pause between two attempts: a full disk or an overloaded group is looked at once a minute.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// How long a service that was refused as "not leader" waits for its term to be ended.
const TERM_END_WAIT_MAX: Duration = Duration::from_secs(30);

/// Why the inner loop ended.
enum Pause {
    /// The term is over.
    Ended,
    /// Events were missed.
    Lagged,
    /// A write failed.
    Failed(StoreError),
}

/// Runs a state machine until the term ends.
pub async fn drive<R: Reconciler>(term: Term, ready: Ready, mut machine: R) -> anyhow::Result<()> {
    let mut ready = Some(ready);
    let mut retry = RETRY_MIN;
    loop {
        let loading = load(term.store.clone(), machine);
        let (loaded, mut events) = tokio::select! {
            biased;
            () = term.cancel.cancelled() => return Ok(()),
            loaded = loading => loaded?,
        };
        machine = loaded;
        if let Some(ready) = ready.take() {
            ready.loaded();
        }
        let started = Instant::now();
        match until_pause(&term, &mut machine, &mut events).await? {
            Pause::Ended => return Ok(()),
            Pause::Lagged => {
                debug!(
                    service = machine.name(),
                    "events were missed; loading the state again"
                );
            }
            Pause::Failed(failure) => {
                if started.elapsed() > RETRY_MAX {
                    retry = RETRY_MIN;
                }
                if !wait_after_failure(&term, machine.name(), failure, retry).await? {
                    return Ok(());
                }
                retry = (retry * 2).min(RETRY_MAX);
            }
        }
    }
}

/// Loads the machine from a view and subscribes to what follows. Reading may take long on a large
/// store, so it is done off the asynchronous threads.
async fn load<R: Reconciler>(store: Store, mut machine: R) -> anyhow::Result<(R, Subscription)> {
    let name = machine.name();
    let loading = tokio::task::spawn_blocking(move || {
        let interests = machine.interests();
        let (loaded, events) =
            store.view_and_watch(&interests, |view| machine.load(view, Now::system()));
        loaded.map(|()| (machine, events))
    });
    loading
        .await
        .with_context(|| format!("{name}: loading the state was interrupted"))?
        .with_context(|| format!("{name}: cannot load the state from the store"))
}

/// Listens and works until something ends it.
async fn until_pause<R: Reconciler>(
    term: &Term,
    machine: &mut R,
    events: &mut Subscription,
) -> anyhow::Result<Pause> {
    type Working<O> = BoxFuture<'static, Result<O, StoreError>>;
    let mut working: Option<Working<R::Outcome>> = None;
    loop {
        if working.is_none() {
            let now = Now::system();
            if machine.next_due().is_some_and(|due| due <= now.instant) {
                working = machine
                    .plan(now)
                    .map(|work| R::perform(term.store.clone(), work));
            }
        }
        let due = machine.next_due().filter(|_| working.is_none());
        // Not biased: neither a flood of events nor a long piece of work may starve the other.
        tokio::select! {
            () = term.cancel.cancelled() => return Ok(Pause::Ended),
            event = events.recv() => match event {
                Ok(batch) => machine.observe(&batch, Now::system()),
                Err(RecvError::Lagged(_)) => return finish(term, working).await,
                Err(RecvError::Closed) => return Ok(Pause::Failed(StoreError::Closed)),
            },
            outcome = finished(&mut working) => {
                working = None;
                match outcome {
                    Ok(outcome) => machine.settle(outcome, Now::system()),
                    Err(failure) => return Ok(Pause::Failed(failure)),
                }
            }
            () = reached(due) => {}
        }
    }
}

/// The outcome of the work under way; never, if there is none.
async fn finished<O>(
    working: &mut Option<BoxFuture<'static, Result<O, StoreError>>>,
) -> Result<O, StoreError> {
    match working {
        Some(working) => working.await,
        None => std::future::pending().await,
    }
}

/// Lets the work under way come to its end after events were missed. What it has proposed may not show
/// in a view yet, and must not be done a second time.
async fn finish<O>(
    term: &Term,
    mut working: Option<BoxFuture<'static, Result<O, StoreError>>>,
) -> anyhow::Result<Pause> {
    if working.is_none() {
        return Ok(Pause::Lagged);
    }
    tokio::select! {
        () = term.cancel.cancelled() => Ok(Pause::Ended),
        outcome = finished(&mut working) => {
            Ok(outcome.map_or_else(Pause::Failed, |_| Pause::Lagged))
        }
    }
}

/// Returns at a moment; never, if there is none.
async fn reached(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Decides what a failed write means. `Ok(true)`: load again and go on; `Ok(false)`: the term is over.
async fn wait_after_failure(
    term: &Term,
    service: &'static str,
    failure: StoreError,
    retry: Duration,
) -> anyhow::Result<bool> {
    match failure {
        StoreError::Propose(ProposeError::LostLeadership | ProposeError::Stopped)
        | StoreError::Closed => {
            let ended = tokio::time::timeout(TERM_END_WAIT_MAX, term.cancel.cancelled()).await;
            ended.map(|()| false).with_context(|| {
                format!("{service}: writes are refused ({failure}), yet the term goes on")
            })
        }
        StoreError::Disk(_) => {
            Err(failure).with_context(|| format!("{service}: cannot use the store"))
        }
        _ => {
            warn!(service, %failure, retry_s = retry.as_secs(), "a write failed; trying again later");
            tokio::select! {
                () = term.cancel.cancelled() => Ok(false),
                () = tokio::time::sleep(retry) => Ok(true),
            }
        }
    }
}

/// Reads from a view off the asynchronous threads: what is read may be large.
pub async fn read<R: Send + 'static>(
    store: &Store,
    f: impl FnOnce(&ReadTx) -> Result<R, StoreError> + Send + 'static,
) -> Result<R, StoreError> {
    let store = store.clone();
    let reading = tokio::task::spawn_blocking(move || store.view(f));
    reading.await.unwrap_or_else(|failure| {
        Err(StoreError::Disk(format!(
            "a read was interrupted: {failure}"
        )))
    })
}

/// One item of a batch. What is wrong with the item alone is logged and skips it (`Ok(None)`); only what
/// concerns the batch as a whole is an error.
pub async fn item<R: Send>(
    batch: &mut Batch,
    what: &'static str,
    id: &str,
    change: impl FnOnce(&mut Tx) -> Result<R, StoreError> + Send,
) -> Result<Option<R>, StoreError> {
    let mut refused = None;
    let result = batch
        .update(|tx| change(tx).inspect_err(|failure| refused = Some(failure.clone())))
        .await;
    match (result, refused) {
        (Ok(value), _) => Ok(Some(value)),
        (Err(failure), Some(_)) if concerns_one_object(&failure) => {
            error!(id, %failure, "cannot {what}");
            Ok(None)
        }
        (Err(failure), _) => Err(failure),
    }
}

/// Whether an error of a transaction says something about the object that it wrote, not about the store.
fn concerns_one_object(failure: &StoreError) -> bool {
    match failure {
        StoreError::Exist
        | StoreError::NotExist
        | StoreError::NameConflict
        | StoreError::InvalidFindBy
        | StoreError::SequenceConflict { .. }
        | StoreError::NoKind
        | StoreError::Rule(_) => true,
        StoreError::Propose(_) | StoreError::Disk(_) | StoreError::Closed => false,
    }
}
