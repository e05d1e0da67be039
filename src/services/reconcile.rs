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

use anyhow::{Context as _, bail};
use futures::future::BoxFuture;
use futures::{StreamExt as _, TryStreamExt as _, stream};
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

/// Entries kept while the state is loaded: a minute's worth on a fast disk.
const MISSED_BATCHES_MAX: usize = 100_000;

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
        let loading = load(&term.store, machine);
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

/// Loads the machine from a view, and lets it hear what has changed since. Reading may take long on a large
/// store, so it is done off the asynchronous threads; changes are taken in meanwhile, or a busy store would
/// outrun the subscription again and again.
async fn load<R: Reconciler>(store: &Store, mut machine: R) -> anyhow::Result<(R, News)> {
    let name = machine.name();
    loop {
        let mut events = News {
            events: store.watch(&machine.interests()),
            since: 0,
        };
        let view_store = store.clone();
        let mut loading = tokio::task::spawn_blocking(move || {
            let loaded = view_store.view(|view| {
                machine.load(view, Now::system())?;
                Ok::<u64, StoreError>(view.applied())
            });
            loaded.map(|applied| (machine, applied))
        });
        let mut missed = Ok(Vec::new());
        let loaded = loop {
            tokio::select! {
                loaded = &mut loading => break loaded,
                event = events.recv(), if missed.is_ok() => note(&mut missed, event),
            }
        };
        let (loaded, applied) = loaded
            .with_context(|| format!("{name}: loading the state was interrupted"))?
            .with_context(|| format!("{name}: cannot load the state from the store"))?;
        machine = loaded;
        if let Err(RecvError::Closed) = missed {
            bail!("{name}: the store was closed while the state was loaded");
        }
        let Ok(missed) = missed else {
            debug!(
                service = name,
                "too much has changed while the state was loaded; once more"
            );
            continue;
        };
        events.since = applied;
        for batch in missed {
            if batch.index > applied {
                machine.observe(&batch, Now::system());
            }
        }
        return Ok((machine, events));
    }
}

/// Keeps a change that came while the state was loaded; gives up when there are too many.
fn note(missed: &mut Result<Vec<EventBatch>, RecvError>, event: Result<EventBatch, RecvError>) {
    let Ok(batches) = missed else {
        return;
    };
    match event {
        Ok(batch) if batches.len() < MISSED_BATCHES_MAX => batches.push(batch),
        Ok(batch) => *missed = Err(RecvError::Lagged(batch.index)),
        Err(ended) => *missed = Err(ended),
    }
}

/// A subscription without what a view has shown already.
struct News {
    events: Subscription,
    /// Index that the view showed.
    since: u64,
}

impl News {
    async fn recv(&mut self) -> Result<EventBatch, RecvError> {
        loop {
            let batch = self.events.recv().await?;
            if batch.index > self.since {
                return Ok(batch);
            }
        }
    }
}

/// Listens and works until something ends it.
async fn until_pause<R: Reconciler>(
    term: &Term,
    machine: &mut R,
    events: &mut News,
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
        StoreError::Propose(
            ProposeError::LostLeadership | ProposeError::NotLeader | ProposeError::Stopped,
        )
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

/// Items per batch in [`each_in_batches`]: the number of changes at which the store splits batches
/// (spec 04 section 6.4).
const ITEMS_PER_BATCH: usize = 200;

/// Batches of [`each_in_batches`] on their way at once.
const BATCHES_MAX: usize = 4;

/// Runs one transaction per item, bundled into batches of which several are on their way at once, so that
/// a large number of items does not wait for the disk after every two hundred. Yields each item with its
/// result, `None` for those that were refused alone.
pub async fn each_in_batches<I, R>(
    store: &Store,
    items: Vec<I>,
    what: &'static str,
    apply: impl Fn(&mut Tx, &I) -> Result<R, StoreError> + Clone + Send + Sync,
) -> Result<Vec<(I, Option<R>)>, StoreError>
where
    I: AsRef<str> + Send + Sync,
    R: Send,
{
    let mut batches = Vec::with_capacity(items.len() / ITEMS_PER_BATCH + 1);
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        let items: Vec<I> = items.by_ref().take(ITEMS_PER_BATCH).collect();
        batches.push(one_batch(store.batch(), items, what, apply.clone()));
    }
    let done: Vec<Vec<_>> = stream::iter(batches)
        .buffered(BATCHES_MAX)
        .try_collect()
        .await?;
    Ok(done.into_iter().flatten().collect())
}

async fn one_batch<I, R>(
    mut batch: Batch,
    items: Vec<I>,
    what: &'static str,
    apply: impl Fn(&mut Tx, &I) -> Result<R, StoreError> + Send + Sync,
) -> Result<Vec<(I, Option<R>)>, StoreError>
where
    I: AsRef<str> + Send + Sync,
    R: Send,
{
    let mut done = Vec::with_capacity(items.len());
    for entry in items {
        let result = item(&mut batch, what, entry.as_ref(), |tx| apply(tx, &entry)).await?;
        done.push((entry, result));
    }
    batch.commit().await?;
    Ok(done)
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

#[cfg(test)]
mod tests;
