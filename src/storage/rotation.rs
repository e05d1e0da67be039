//! Exchanging the data key of a running manager.
//!
//! From the first moment everything new is sealed with the new key; what is already there is sealed anew
//! in the background, a few rows at a time, while the manager works on (spec 02 section 15, settled S15):
//!
//! 1. the new key stands as *pending* in the key file, durably;
//! 2. database and log switch to it; the entries the log still holds are written again as one batch;
//! 3. every sealed row and record is written again;
//! 4. the table files are merged, so that none holds what was replaced;
//! 5. the pending key becomes the only one in the key file.
//!
//! The process may end at any point. With a pending key in the key file the next start reads with both
//! keys and [`rotate`] begins again at step 2; what is already under the new key is merely looked at.
//!
//! The old key stays readable in memory until the next rotation or the end of the process, because views
//! that were opened before the end still show rows that are sealed with it. Old files of the log that
//! wait to be written over go when the log gives them back.
//!
//! A row whose seal is broken opens with no key. It is reported by name and left as it is; it does not
//! keep the old key alive.

use super::engine::{Changes, Db, DbError, Family, meta};
use super::object::Table;
use super::read::State;
use super::seal::{DekRing, KeyId, SealError};
use super::store::Store;
use super::{StoreError, records, rows};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows sealed anew while appliers wait: a few milliseconds.
const STEP_RESEALED_MAX: usize = 256;
/// Bytes of them.
const STEP_BYTES_MAX: usize = 1 << 20;
/// Rows looked at in one step; most of a pass that was interrupted is only looked at.
const STEP_ROWS_MAX: usize = 4096;
/// The shortest pause between two steps. Longer steps are followed by pauses as long as they took, so
/// that appliers have at least half of the time.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Attempts to get all entries of the log under the new key, a second apart.
const LOG_ATTEMPTS_MAX: usize = 600;
const LOG_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Damaged rows that are named; more are only counted.
const DAMAGED_NAMED_MAX: usize = 20;

/// Where the data keys of this node are kept: the node key file.
pub trait KeyHolder: Send + Sync {
    /// Makes sure that there is a pending key, durably. The pending key is the current one of the ring,
    /// the key it replaces is read with.
    fn begin(&self) -> Result<DekRing, RotationError>;
    /// The pending key becomes the only one, durably.
    fn finish(&self) -> Result<(), RotationError>;
}

/// The raft log, whoever owns it.
pub trait LogKeys: Send + Sync {
    /// Seals from now on with the ring's current key, and seals every entry of the log anew. The log may
    /// forget entries up to `durable`, which the state machine holds durably. `Ok(None)` means that too
    /// much is under way: try again later.
    fn reseal(&self, ring: DekRing, durable: u64) -> Result<Option<u64>, RotationError>;
}

/// Why a rotation did not come to its end. The pending key stays where it is; try again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RotationError {
    #[error("the data key cannot be exchanged: the node key file: {0}")]
    KeyFile(String),
    #[error("the data key cannot be exchanged: the raft log: {0}")]
    Log(String),
    #[error("the data key cannot be exchanged: {0}")]
    Store(#[from] StoreError),
    #[error("the exchange of the data key was interrupted; it goes on at the next start")]
    Interrupted,
}

impl From<DbError> for RotationError {
    fn from(error: DbError) -> RotationError {
        RotationError::Store(error.into())
    }
}

/// What a rotation is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// There is none.
    #[default]
    Idle,
    /// The pending key is in the key file.
    Pending,
    /// Database and log write with the pending key.
    Switched,
    /// Rows are sealed anew.
    Rows,
    /// Files that hold replaced rows are merged.
    Merging,
    /// The key file is about to name the new key as the only one.
    Finishing,
    /// It does; the old key opens nothing any more.
    Done,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Idle => "idle",
            Phase::Pending => "pending",
            Phase::Switched => "switched",
            Phase::Rows => "rows",
            Phase::Merging => "merging",
            Phase::Finishing => "finishing",
            Phase::Done => "done",
        }
    }
}

/// How far a rotation is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RotationProgress {
    pub phase: Phase,
    /// The key that everything is going over to.
    pub key: Option<KeyId>,
    /// Entries of the log that were sealed anew.
    pub entries: u64,
    /// Rows and records looked at so far.
    pub rows_seen: u64,
    /// Of these, sealed anew.
    pub rows_resealed: u64,
    /// Objects in the store when the pass began; there are some records beside them.
    pub rows_total: u64,
    /// Rows that no key opens.
    pub damaged: u64,
    /// The first of them by name, and what is wrong.
    pub damaged_named: Vec<String>,
}

/// Takes part in a rotation: is told of every phase and step, and may end it.
pub type Observer<'a> = &'a mut dyn FnMut(&RotationProgress) -> ControlFlow<()>;

/// Exchanges the data key, or goes on with an exchange that was interrupted. Blocks for as long as that
/// takes: run it on a thread that may.
pub fn rotate(
    keys: &dyn KeyHolder,
    store: &Store,
    log: &dyn LogKeys,
    observe: Observer<'_>,
) -> Result<RotationProgress, RotationError> {
    let mut progress = RotationProgress::default();
    let ring = keys.begin()?;
    progress.key = Some(key_of(&ring)?);
    enter(&mut progress, Phase::Pending, observe)?;

    store.set_keys(&ring)?;
    progress.entries = reseal_log(store, log, &ring, observe, &progress)?;
    enter(&mut progress, Phase::Switched, observe)?;

    progress.rows_total = Table::ALL.into_iter().map(|table| store.len(table)).sum();
    enter(&mut progress, Phase::Rows, observe)?;
    reseal_rows(store, &ring, &mut progress, observe)?;

    enter(&mut progress, Phase::Merging, observe)?;
    store.show_latest();
    store.db().drop_replaced()?;

    enter(&mut progress, Phase::Finishing, observe)?;
    keys.finish()?;
    // The key file is right from here on, whatever the observer says.
    progress.phase = Phase::Done;
    let _ = observe(&progress);
    Ok(progress)
}

fn enter(
    progress: &mut RotationProgress,
    phase: Phase,
    observe: Observer<'_>,
) -> Result<(), RotationError> {
    progress.phase = phase;
    tell(progress, observe)
}

fn tell(progress: &RotationProgress, observe: Observer<'_>) -> Result<(), RotationError> {
    match observe(progress) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(RotationError::Interrupted),
    }
}

fn key_of(ring: &DekRing) -> Result<KeyId, RotationError> {
    let id = ring.current().id();
    id.map_err(|error| RotationError::KeyFile(error.to_string()))
}

/// Has the log write its entries again.
fn reseal_log(
    store: &Store,
    log: &dyn LogKeys,
    ring: &DekRing,
    observe: Observer<'_>,
    progress: &RotationProgress,
) -> Result<u64, RotationError> {
    for _ in 0..LOG_ATTEMPTS_MAX {
        let applied = store.applied();
        store.db().sync_wal()?;
        if let Some(entries) = log.reseal(ring.clone(), applied)? {
            return Ok(entries);
        }
        tell(progress, observe)?;
        std::thread::sleep(LOG_RETRY_AFTER);
    }
    Err(RotationError::Log(
        "too much is under way to write its entries again".into(),
    ))
}

fn reseal_rows(
    store: &Store,
    ring: &DekRing,
    progress: &mut RotationProgress,
    observe: Observer<'_>,
) -> Result<(), RotationError> {
    let mut pass = Pass::new(ring, key_of(ring)?);
    loop {
        let started = Instant::now();
        let more = store.reseal_step(&mut pass, progress)?;
        tell(progress, observe)?;
        if !more {
            return Ok(());
        }
        std::thread::sleep(started.elapsed().max(PAUSE_MIN));
    }
}

/// One walk over everything that is sealed.
struct Pass<'a> {
    ring: &'a DekRing,
    key: KeyId,
    ranges: Vec<Range>,
    /// Index of the range under way, and the last key of it that was looked at.
    at: usize,
    after: Vec<u8>,
}

/// Keys with one prefix, whose values are sealed behind a header of this many bytes.
struct Range {
    family: Family,
    prefix: Vec<u8>,
    header_bytes: usize,
}

impl<'a> Pass<'a> {
    fn new(ring: &'a DekRing, key: KeyId) -> Pass<'a> {
        let rows = Table::ALL.into_iter().map(|table| Range {
            family: rows::family_of(table),
            prefix: vec![table as u8],
            header_bytes: rows::HEADER_BYTES,
        });
        let records = records::sealed_prefixes().into_iter().map(|prefix| Range {
            family: Family::Idx,
            prefix: prefix.to_vec(),
            header_bytes: 0,
        });
        Pass {
            ring,
            key,
            ranges: rows.chain(records).collect(),
            at: 0,
            after: Vec::new(),
        }
    }
}

/// What one step did.
#[derive(Default)]
struct Step {
    rows: usize,
    resealed: usize,
    bytes: usize,
}

impl Step {
    fn is_full(&self) -> bool {
        self.rows >= STEP_ROWS_MAX
            || self.resealed >= STEP_RESEALED_MAX
            || self.bytes >= STEP_BYTES_MAX
    }
}

impl Store {
    fn db(&self) -> Arc<Db> {
        self.inner.state.load().view.db().clone()
    }

    /// Writes from now on with the ring's current key. What is not a row is sealed anew at once.
    fn set_keys(&self, ring: &DekRing) -> Result<(), StoreError> {
        // Under the applier's lock no write is under way that was sealed before and comes after.
        let _applier = self.inner.applier.lock();
        set_keys(&self.db(), ring)
    }

    /// Seals the next few rows anew. False at the end of the pass.
    fn reseal_step(
        &self,
        pass: &mut Pass<'_>,
        progress: &mut RotationProgress,
    ) -> Result<bool, StoreError> {
        let _applier = self.inner.applier.lock();
        let db = self.db();
        if db.sealer().current_key() != pass.key {
            // An installed snapshot has put another database in place since.
            set_keys(&db, pass.ring)?;
            *pass = Pass::new(pass.ring, pass.key);
        }
        let mut step = Step::default();
        let mut changes = db.changes();
        while let Some(range) = pass.ranges.get(pass.at) {
            let ended = reseal_range(
                &db,
                range,
                &mut pass.after,
                &mut step,
                &mut changes,
                progress,
            )?;
            if ended {
                pass.at += 1;
                pass.after.clear();
            }
            if step.is_full() {
                break;
            }
        }
        changes.commit()?;
        progress.rows_seen += step.rows as u64;
        progress.rows_resealed += step.resealed as u64;
        Ok(pass.at < pass.ranges.len())
    }

    /// Shows the state that everybody sees through a new view, so that the old one's rows can go.
    fn show_latest(&self) {
        let _applier = self.inner.applier.lock();
        let state = self.inner.state.load_full();
        self.inner.state.store(Arc::new(State {
            view: state.view.db().view(),
            applied: state.applied,
            applied_term: state.applied_term,
            summary: state.summary.clone(),
            cache: state.cache.clone(),
        }));
    }
}

fn set_keys(db: &Arc<Db>, ring: &DekRing) -> Result<(), StoreError> {
    db.set_keys(ring.clone())?;
    let membership = db.get(Family::Meta, meta::MEMBERSHIP)?;
    if membership.is_none() {
        return Ok(());
    }
    let membership = rows::read_membership(&db.view())?;
    let mut changes = db.changes();
    rows::put_membership(&mut changes, db, &membership)?;
    Ok(changes.commit()?)
}

/// Goes on with a range behind the key `after`. True if it is done.
fn reseal_range(
    db: &Arc<Db>,
    range: &Range,
    after: &mut Vec<u8>,
    step: &mut Step,
    changes: &mut Changes<'_>,
    progress: &mut RotationProgress,
) -> Result<bool, StoreError> {
    let view = db.view();
    let mut rows = view.rows_with_prefix(range.family, &range.prefix)?;
    if !after.is_empty() {
        let next = [after.as_slice(), &[0]].concat();
        rows.seek(&next);
    }
    while let Some((key, sealed)) = rows.next_row()? {
        let context: [&[u8]; 2] = [range.family.name().as_bytes(), key];
        match db.sealer().reseal(&context, range.header_bytes, sealed) {
            Ok(None) => {}
            Ok(Some(anew)) => {
                step.resealed += 1;
                step.bytes += anew.len();
                changes.put(range.family, key, &anew);
            }
            Err(error) => note_damage(key, &error, progress),
        }
        step.rows += 1;
        key.clone_into(after);
        if step.is_full() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn note_damage(key: &[u8], error: &SealError, progress: &mut RotationProgress) {
    let what = format!("{}: {error}", rows::describe(key));
    tracing::error!(damage = %what, "a record cannot be sealed anew; {}", rows::ADVICE);
    progress.damaged += 1;
    if progress.damaged_named.len() < DAMAGED_NAMED_MAX {
        progress.damaged_named.push(what);
    }
}
