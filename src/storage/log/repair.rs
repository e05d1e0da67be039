//! What an opening may change in a log: only what the comparison of both engines calls for, and what a
//! person asked for who accepts the loss of entries.

use super::records::{HardStateRecord, key};
use super::{LogError, Mark, MarkFile, RaftLog};
use raft_engine::LogBatch;

impl RaftLog {
    /// Puts a new mark for the present end of the log in the place of one that is missing, damaged or
    /// promises more than the log holds.
    pub(in crate::storage) fn replace_mark(&mut self) -> Result<(), LogError> {
        let mark = Mark {
            last: self.last,
            hard_state_term: self.hard_state.term,
        };
        self.mark = Some(MarkFile::create(&self.mark_path, mark)?);
        Ok(())
    }

    /// Raises the commit index in memory; it is written with the next batch.
    pub(in crate::storage) fn raise_commit(&mut self, commit: u64) {
        if commit > self.hard_state.commit {
            self.hard_state.commit = commit;
            self.commit_unwritten = true;
        }
    }

    /// Sets the hard state without regard to the present one, durably.
    pub(in crate::storage) fn force_hard_state(
        &mut self,
        term: u64,
        vote: u64,
        commit: u64,
    ) -> Result<(), LogError> {
        let hard_state = HardStateRecord { term, vote, commit };
        let mut batch = LogBatch::default();
        self.put_record(&mut batch, key::HARD_STATE, &hard_state)?;
        self.write(batch, "write the hard state of")?;
        self.hard_state = hard_state;
        self.commit_unwritten = false;
        Ok(())
    }
}
