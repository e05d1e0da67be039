//! Changes from a past version onwards: first from the log, then live, without gap or duplicate.
//!
//! The log is the only history there is (spec 04 section 12), so it reaches as far back as the log was
//! kept for slow followers. It is read in small pieces, each only when the subscriber asks for more. The
//! live subscription starts when little is left to replay, so that its queue cannot overflow while a
//! long history is read.
//!
//! An entry that was discarded when it was applied had no effect and is left out. An entry of the
//! history does not hold the objects that it replaced: a replayed update has no old object, and what a
//! change matched only through its old object does not match here.

use super::events::{Change, EventBatch, Interest, RecvError, Subscription};
use super::object::AnyObject;
use super::proposer::{HistoryError, Proposer};
use super::store::Store;
use super::{StoreError, records, request};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// Entries of one piece of history. The largest entries together stay below what the log hands out at
/// once (64 MiB).
const PIECE_ENTRIES: u64 = 32;
/// Entries that may be left to replay when the live subscription begins.
const OVERLAP_ENTRIES: u64 = 1024;

/// Why a subscription to the past did not come about or ended.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ResumeError {
    #[error(transparent)]
    History(#[from] HistoryError),
    #[error(transparent)]
    Live(#[from] RecvError),
}

impl From<StoreError> for ResumeError {
    fn from(error: StoreError) -> ResumeError {
        HistoryError::Log(error.to_string()).into()
    }
}

/// A stream of [`EventBatch`]es that begins in the past; dropping it unsubscribes.
pub struct Resumption {
    store: Store,
    interests: Vec<Interest>,
    /// Read from the log and not handed out yet.
    replayed: VecDeque<EventBatch>,
    /// Everything up to this entry has been read from the log.
    reached: u64,
    phase: Phase,
}

enum Phase {
    /// There is too much history left to subscribe already.
    Behind,
    /// Subscribed to what comes after entry `until`; history up to there is still to be read.
    CatchingUp {
        until: u64,
        live: Subscription,
    },
    Live(Subscription),
}

impl Store {
    /// Everything that changed after entry `version` and matches one of `interests`, then what changes
    /// from now on. Fails if the log does not reach back that far, or not that far forward.
    pub async fn watch_from(
        &self,
        version: u64,
        interests: &[Interest],
    ) -> Result<Resumption, ResumeError> {
        let proposer = self.history_source()?;
        let position = proposer.position().ok_or(HistoryError::NoVersion)?;
        let applied = self.applied();
        if version > position.commit.max(applied) {
            return Err(HistoryError::OutOfBounds.into());
        }
        let mut resumption = Resumption {
            store: self.clone(),
            interests: interests.to_vec(),
            replayed: VecDeque::new(),
            reached: version,
            phase: Phase::Behind,
        };
        resumption.subscribe_if_near();
        // The first piece shows whether the log still reaches back to the version.
        resumption.read_piece().await?;
        Ok(resumption)
    }

    fn history_source(&self) -> Result<Arc<dyn Proposer>, HistoryError> {
        let proposer = self.inner.proposer.read().clone();
        proposer.ok_or(HistoryError::NoVersioning)
    }
}

impl Resumption {
    /// The next batch. After an error the subscription is over.
    pub async fn recv(&mut self) -> Result<EventBatch, ResumeError> {
        loop {
            if let Some(batch) = self.replayed.pop_front() {
                return Ok(batch);
            }
            if let Phase::Live(live) = &mut self.phase {
                return Ok(live.recv().await?);
            }
            self.read_piece().await?;
        }
    }

    /// Whether everything from the log has been handed out: what follows is live.
    pub fn is_live(&self) -> bool {
        self.replayed.is_empty() && matches!(self.phase, Phase::Live(_))
    }

    /// Moves on to the next phase when it is time.
    fn subscribe_if_near(&mut self) {
        if let Phase::Behind = self.phase
            && self.store.applied().saturating_sub(self.reached) <= OVERLAP_ENTRIES
        {
            let interests = &self.interests;
            let (until, mut live) = self.store.view_and_watch(interests, |tx| tx.applied());
            // The version may be one that is committed but not applied here yet.
            live.skip_through(until.max(self.reached));
            self.phase = Phase::CatchingUp { until, live };
        }
        let caught_up = match &self.phase {
            Phase::CatchingUp { until, .. } => self.reached >= *until,
            _ => false,
        };
        if caught_up
            && let Phase::CatchingUp { live, .. } =
                std::mem::replace(&mut self.phase, Phase::Behind)
        {
            self.phase = Phase::Live(live);
        }
    }

    /// Reads the next piece of the log, if anything is left to read.
    async fn read_piece(&mut self) -> Result<(), ResumeError> {
        let end = match &self.phase {
            Phase::Live(_) => return Ok(()),
            Phase::CatchingUp { until, .. } => *until,
            Phase::Behind => self.store.applied(),
        };
        let (from, to) = (self.reached, end.min(self.reached + PIECE_ENTRIES));
        if from >= to {
            return Ok(());
        }
        let store = self.store.clone();
        let interests = self.interests.clone();
        let read = tokio::task::spawn_blocking(move || read(&store, from, to, &interests)).await;
        let batches = read.map_err(|error| HistoryError::Log(error.to_string()))??;
        self.replayed.extend(batches);
        self.reached = to;
        self.subscribe_if_near();
        Ok(())
    }
}

/// The matching batches of the entries in `(from, to]`. Blocks on the disk.
fn read(
    store: &Store,
    from: u64,
    to: u64,
    interests: &[Interest],
) -> Result<Vec<EventBatch>, ResumeError> {
    let requests = store.history_source()?.changes_between(from, to)?;
    let view = store.inner.state.load_full();
    let discarded: HashSet<u64> = records::discarded(&view.view)?.0.into_iter().collect();
    let mut batches = Vec::new();
    for (index, data) in requests {
        if discarded.contains(&index) {
            continue;
        }
        let changes = changes_of(index, data)?;
        let matching = |change: &Arc<Change>| change.matches(interests);
        let changes: Vec<_> = changes.into_iter().filter(matching).collect();
        if !changes.is_empty() {
            batches.push(EventBatch { index, changes });
        }
    }
    Ok(batches)
}

fn changes_of(index: u64, data: Vec<u8>) -> Result<Vec<Arc<Change>>, HistoryError> {
    let failed = |reason: String| {
        HistoryError::Log(format!("entry {index} of the log cannot be read: {reason}"))
    };
    let request = request::decode(data.into()).map_err(|error| failed(error.to_string()))?;
    let changes = request.actions.into_iter().map(|action| {
        let (Some(action), Some((table, payload))) = (action.action, action.target) else {
            return Err(failed("unrecognized action type".into()));
        };
        let object = AnyObject::decode(table, &payload);
        Ok(Arc::new(Change {
            action,
            object: object.map_err(|error| failed(error.to_string()))?,
            old: None,
        }))
    });
    changes.collect()
}
