//! Requests that the raft thread answers: history, confirmed reads, the published status.
//!
//! A confirmed read asks a quorum whether this member still leads (the library's "read index"). All
//! readers that wait in one turn share one round.

use super::handle::{MemberView, Status};
use super::inbox::{HistoryPart, Request};
use super::log_store::{DiskError, LogStore};
use super::node::Node;
use crate::storage::ProposeError;
use crate::storage::proposer::HistoryError;
use crate::storage::seal::DekRing;
use raft::eraftpb::EntryType;
use raft::{ReadState, StateRole};
use std::collections::VecDeque;
use tokio::sync::oneshot;

/// Bytes of entries per piece of history, so that a turn stays short.
const HISTORY_PART_BYTES: u64 = 1024 * 1024;
/// Rounds of readers that may wait for a quorum. Beyond it readers are turned away.
const ROUNDS_MAX: usize = 1024;

type Reader = oneshot::Sender<Result<u64, ProposeError>>;

/// Readers that wait for the confirmation of their round.
struct Round {
    number: u64,
    readers: Vec<Reader>,
}

/// Readers whose round is confirmed and that wait for an index to be applied.
struct Confirmed {
    index: u64,
    readers: Vec<Reader>,
}

/// All waiting readers.
#[derive(Default)]
pub(super) struct Reads {
    last_round: u64,
    rounds: VecDeque<Round>,
    confirmed: Vec<Confirmed>,
}

impl Reads {
    /// Opens a round and returns its name for the library, or turns the readers away.
    fn open(&mut self, readers: Vec<Reader>) -> Option<Vec<u8>> {
        if self.rounds.len() >= ROUNDS_MAX {
            answer(readers, &Err(ProposeError::Busy));
            return None;
        }
        self.last_round += 1;
        self.rounds.push_back(Round {
            number: self.last_round,
            readers,
        });
        Some(self.last_round.to_be_bytes().to_vec())
    }

    /// Rounds that the library has confirmed. A confirmed round confirms all before it.
    pub fn ready(&mut self, states: Vec<ReadState>, applied: u64) {
        for state in states {
            let Ok(number) = state.request_ctx.try_into().map(u64::from_be_bytes) else {
                continue;
            };
            while self
                .rounds
                .front()
                .is_some_and(|round| round.number <= number)
            {
                if let Some(round) = self.rounds.pop_front() {
                    self.confirmed.push(Confirmed {
                        index: state.index,
                        readers: round.readers,
                    });
                }
            }
        }
        self.applied(applied);
    }

    /// Answers the readers whose index is applied.
    pub fn applied(&mut self, applied: u64) {
        let done = self
            .confirmed
            .extract_if(.., |group| group.index <= applied);
        for group in done {
            answer(group.readers, &Ok(group.index));
        }
    }

    /// Turns every reader away.
    pub fn fail(&mut self, why: &ProposeError) {
        for round in self.rounds.drain(..) {
            answer(round.readers, &Err(why.clone()));
        }
        for group in self.confirmed.drain(..) {
            answer(group.readers, &Err(why.clone()));
        }
    }

    pub fn wait_for_apply(&self) -> bool {
        !self.confirmed.is_empty()
    }
}

fn answer(readers: Vec<Reader>, result: &Result<u64, ProposeError>) {
    for reader in readers {
        // A reader that went away needs no answer.
        let _ = reader.send(result.clone());
    }
}

impl<L: LogStore> Node<L> {
    pub(super) fn serve(&mut self, requests: Vec<Request>) {
        let mut readers = Vec::new();
        for request in requests {
            match request {
                // A caller that went away needs no answer.
                Request::History { from, to, reply } => {
                    let _ = reply.send(self.history(from, to));
                }
                Request::ReadIndex { reply } => readers.push(reply),
                Request::Change(change) => self.propose_change(change),
                Request::Transfer { reply } => self.transfer(reply),
                Request::Unreachable { raft_id } => self.raw.report_unreachable(raft_id),
                Request::SnapshotSent { raft_id, delivered } => {
                    let status = match delivered {
                        true => raft::SnapshotStatus::Finish,
                        false => raft::SnapshotStatus::Failure,
                    };
                    self.raw.report_snapshot(raft_id, status);
                }
                Request::Removed => self.removed = true,
                Request::Reseal {
                    ring,
                    durable,
                    reply,
                } => {
                    let _ = reply.send(self.reseal(&ring, durable));
                }
            }
        }
        if readers.is_empty() {
            return;
        }
        if self.raw.raft.state != StateRole::Leader {
            return answer(readers, &Err(ProposeError::LostLeadership));
        }
        if let Some(round) = self.reads.open(readers) {
            self.raw.read_index(round);
        }
    }

    /// The normal entries among the first ones of `(from, to]`.
    fn history(&self, from: u64, to: u64) -> Result<HistoryPart, HistoryError> {
        let store = self.raw.store();
        let committed = self.raw.raft.raft_log.committed;
        if from >= to || to > committed || to > store.log().last_index() {
            return Err(HistoryError::OutOfBounds);
        }
        if from + 1 < store.log().first_index() {
            return Err(HistoryError::Compacted);
        }
        let entries = store
            .read(from + 1, to + 1, HISTORY_PART_BYTES)
            .map_err(|error| HistoryError::Log(error.to_string()))?;
        let through = entries
            .last()
            .map(|entry| entry.index)
            .ok_or_else(|| HistoryError::Log(format!("entry {} is missing", from + 1)))?;
        let normal = entries.into_iter().filter(|entry| {
            entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty()
        });
        Ok(HistoryPart {
            requests: normal
                .map(|entry| (entry.index, entry.data.to_vec()))
                .collect(),
            through,
        })
    }

    /// Has the log sealed anew; what slow followers need is given up only if there is no other way.
    fn reseal(&mut self, ring: &DekRing, durable: u64) -> Result<Option<u64>, DiskError> {
        let slow = self.shared.inbox.retention().slow;
        let durable = durable.min(self.applied);
        let forget = [durable.saturating_sub(slow), durable];
        self.raw.mut_store().reseal(ring, &forget)
    }

    /// Publishes the status that handles show.
    pub(super) fn publish(&self) {
        let raft = &self.raw.raft;
        let members = self.book.members().map(|member| {
            let progress = raft.prs().get(member.raft_id);
            let own = member.raft_id == raft.id;
            let leads = raft.state == StateRole::Leader;
            MemberView {
                raft_id: member.raft_id,
                node_id: member.node_id.clone(),
                addr: member.addr.clone(),
                leader: self.leader() == Some(member.raft_id),
                reachable: own
                    || self
                        .outbox
                        .is_active(member.raft_id)
                        .unwrap_or(!leads || progress.is_some_and(|p| p.recent_active)),
                match_index: match leads {
                    true => progress.map_or(0, |p| p.matched),
                    false => 0,
                },
            }
        });
        let mut status = self.shared.status.lock();
        *status = Status {
            raft_id: raft.id,
            term: raft.term,
            leader: self.leader(),
            is_leader: matches!(self.phase, super::phase::Phase::Signalled { .. }),
            first: self.raw.store().log().first_index(),
            last: raft.raft_log.last_index(),
            commit: raft.raft_log.committed,
            applied: self.applied,
            members: members.collect(),
            refusal: self.space.refusal().map(|refusal| refusal.to_string()),
        };
    }
}
