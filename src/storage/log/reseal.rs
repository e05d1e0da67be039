//! Writing the whole log again under another data key.
//!
//! Entries that are written over take everything behind them with them, so the log can only be written
//! again as a whole: as one batch, which a crash leaves out or leaves whole. A log that is too long for
//! that is shortened first.

use super::super::seal::DekRing;
use super::{LogError, RaftLog};
use raft_engine::LogBatch;

/// Bytes of entries written again as one batch: a tenth of a second of a slow disk.
pub const RESEAL_BYTES_MAX: u64 = 16 << 20;

impl RaftLog {
    /// Seals from now on with the ring's current key, and seals the entries of the log anew, durably. If
    /// they are more than [`RESEAL_BYTES_MAX`], those up to the first of `forget` that is enough are
    /// forgotten; whoever calls this knows that the state machine holds their effect durably. Returns the
    /// number of entries; `None` if they are too many nevertheless.
    pub fn reseal(&mut self, ring: DekRing, forget: &[u64]) -> Result<Option<u64>, LogError> {
        self.sealer
            .set_keys(ring)
            .map_err(|error| LogError::Seal { index: 0, error })?;
        let keep_all = self.truncated.index;
        for target in std::iter::once(keep_all).chain(forget.iter().copied()) {
            self.compact(target.min(self.last.index))?;
            let (first, last) = (self.first_index(), self.last_index());
            if first > last {
                return Ok(Some(0));
            }
            let entries = self.entries(first, last + 1, RESEAL_BYTES_MAX)?;
            if entries.len() as u64 != last + 1 - first {
                continue;
            }
            let mut batch = LogBatch::default();
            self.add_entries(&mut batch, &entries)?;
            self.write(batch, "write the entries again of")?;
            return Ok(Some(entries.len() as u64));
        }
        Ok(None)
    }
}
