//! Batches: long series of small changes in few entries.
//!
//! The changes of one inner call stay together. They collect in an open transaction, which is proposed
//! when it has grown large, when the batch is committed, or when another writer comes: its transaction
//! has to follow in the log, and no lock is held between the calls of a batch. One proposed part may be
//! under way while the next one is filled.

use super::StoreError;
use super::head::{Origin, Outcome, Writer};
use super::proposer::{MAX_REQUEST_BYTES, ProposeError};
use super::request::REQUEST_ID_BYTES;
use super::store::Store;
use super::tx::{Savepoint, Tx};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Changes after which an open transaction is proposed (spec 04 section 6.4).
pub const BATCH_CHANGES_MAX: usize = 200;
/// Encoded bytes after which an open transaction is proposed: three quarters of the largest request.
pub const BATCH_BYTES_MAX: usize = MAX_REQUEST_BYTES / 4 * 3;
/// Proposed parts that may be under way when the next inner call begins.
const PARTS_UNDER_WAY_MAX: usize = 1;

/// A long series of small changes, split into entries of at most 200 changes or 1,179,648 bytes.
pub struct Batch {
    store: Store,
    shared: Arc<Mutex<Shared>>,
    under_way: VecDeque<Outcome>,
}

/// What a batch shares with the writers that propose its open part for it.
#[derive(Default)]
pub(super) struct Shared {
    /// Parts proposed since the batch last looked.
    proposed: VecDeque<Outcome>,
    failed: Option<StoreError>,
    /// The batch is gone; its open part is not to be written.
    dropped: bool,
}

/// The part of a batch that is not proposed yet. Lives under the writer lock.
pub(super) struct OpenBatch {
    owner: Arc<Mutex<Shared>>,
    tx: Tx,
    origin: Origin,
}

impl Batch {
    pub(super) fn new(store: Store) -> Batch {
        Batch {
            store,
            shared: Arc::default(),
            under_way: VecDeque::new(),
        }
    }

    /// One inner transaction: all of it lands in one entry, or, on an error, none of it. Commits what
    /// is open when it has grown large. After a failed commit every later call returns that error.
    /// Transactions of others may come in between two calls: read again what the call depends on.
    pub async fn update<R, E>(
        &mut self,
        f: impl FnOnce(&mut Tx) -> Result<R, E> + Send,
    ) -> Result<R, E>
    where
        R: Send,
        E: From<StoreError> + Send,
    {
        self.settle(PARTS_UNDER_WAY_MAX).await?;
        let store = self.store.clone();
        let mut writer = store.lock_writer().await?;
        store.flush_open(&mut writer, Some(&self.shared));
        self.check()?;
        let (mut tx, mut origin) = match writer.open.take() {
            Some(open) => (open.tx, open.origin),
            None => store.begin(),
        };
        // Should the closure panic, what it was given is lost: say so instead of going on without it.
        self.shared.lock().failed = Some(StoreError::Rule("a call of the batch was interrupted"));
        let before = tx.savepoint();
        let result = f(&mut tx);
        self.shared.lock().failed = None;

        let result = match result {
            Ok(value) if tx.request_bytes() > MAX_REQUEST_BYTES => {
                match self.split(&mut tx, &before, origin) {
                    Some(rest) => {
                        store.propose_open(self.open(tx, origin));
                        (tx, origin) = rest;
                        Ok(value)
                    }
                    None => Err(E::from(ProposeError::TooLarge.into())),
                }
            }
            result => result,
        };
        if result.is_err() {
            tx.roll_back(before);
        }
        let full = tx.changes().len() >= BATCH_CHANGES_MAX || tx.request_bytes() >= BATCH_BYTES_MAX;
        writer.open = Some(self.open(tx, origin));
        if full {
            store.flush_open(&mut writer, None);
        }
        result
    }

    fn open(&self, tx: Tx, origin: Origin) -> OpenBatch {
        OpenBatch {
            owner: self.shared.clone(),
            tx,
            origin,
        }
    }

    /// Cuts the last call off an open transaction that has become too large with it. `None` if that is
    /// not possible: the call is too large alone, or touches what an earlier one touched.
    fn split(&self, tx: &mut Tx, before: &Savepoint, origin: Origin) -> Option<(Tx, Origin)> {
        let alone = tx.request_bytes() - before.bytes + REQUEST_ID_BYTES;
        if alone > MAX_REQUEST_BYTES {
            return None;
        }
        let rest = tx.split_off(before)?;
        let origin = Origin {
            term: origin.term,
            stamp: origin.stamp.map(|stamp| stamp + 1),
        };
        Some((rest, origin))
    }

    /// Commits what is still open. A batch that is dropped instead leaves it unwritten.
    pub async fn commit(mut self) -> Result<(), StoreError> {
        let store = self.store.clone();
        {
            let mut writer = store.lock_writer().await?;
            store.flush_open(&mut writer, None);
        }
        self.settle(0).await
    }

    /// Waits until at most `under_way` proposed parts are not yet applied. Returns the error of the
    /// first part that failed.
    async fn settle(&mut self, under_way: usize) -> Result<(), StoreError> {
        self.under_way.append(&mut self.shared.lock().proposed);
        self.check()?;
        while self.under_way.len() > under_way {
            let Some(oldest) = self.under_way.front_mut() else {
                break;
            };
            let outcome = oldest.ready().await;
            self.under_way.pop_front();
            if let Err(error) = outcome {
                self.shared.lock().failed = Some(error);
                break;
            }
        }
        self.check()
    }

    fn check(&self) -> Result<(), StoreError> {
        match &self.shared.lock().failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.shared.lock().dropped = true;
        // If somebody is writing right now, the open part has been dealt with or will be discarded.
        if let Ok(mut writer) = self.store.inner.writer.try_lock()
            && let Some(open) = &writer.open
            && Arc::ptr_eq(&open.owner, &self.shared)
        {
            writer.open = None;
        }
    }
}

impl Store {
    /// Proposes the open part of a batch, unless it belongs to `except`. The caller holds the writer
    /// lock. Its outcome is the business of the batch.
    pub(super) fn flush_open(&self, writer: &mut Writer, except: Option<&Arc<Mutex<Shared>>>) {
        match &writer.open {
            Some(open) if except.is_some_and(|own| Arc::ptr_eq(own, &open.owner)) => {}
            Some(_) => {
                if let Some(open) = writer.open.take() {
                    self.propose_open(open);
                }
            }
            None => {}
        }
    }

    fn propose_open(&self, open: OpenBatch) {
        let mut shared = open.owner.lock();
        if shared.dropped || shared.failed.is_some() {
            return;
        }
        match self.submit(open.tx, open.origin) {
            Ok(outcome) => shared.proposed.push_back(outcome),
            Err(error) => shared.failed = Some(error),
        }
    }
}
