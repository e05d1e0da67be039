//! What the library has ready: entries for the log, messages for others, committed entries.
//!
//! The rule is to persist before promising (spec 03 section 20.2, R1): entries and hard state of one
//! turn go into the log as one batch, and answers to other members leave only when it is durable. A
//! leader's own messages may leave before, because a follower's fsync can then overlap with its own.
//!
//! A commit index alone is never worth an fsync, nor a write of its own: it travels with the next batch.

use super::applier::{Handed, Task};
use super::convert::{self, ChangeKind};
use super::error::Fatal;
use super::inbox::Wishes;
use super::log_store::{DiskError, LogStore, RETRY_AFTER, entry_cost};
use super::node::Node;
use crate::api::raftpb;
use crate::storage::Membership;
use raft::eraftpb::{Entry, EntryType, Message};
use raft::{LightReady, Ready};
use std::sync::atomic::Ordering;
use std::time::Instant;

impl<L: LogStore> Node<L> {
    /// One round with the library. False when a stop was asked for while the disk was full.
    pub(super) fn handle_ready(&mut self) -> Result<bool, Fatal> {
        self.raw.store().set_gate(self.gate_open());
        let mut ready = self.raw.ready();
        self.raw.store().set_gate(true);
        if !ready.snapshot().is_empty() {
            let metadata = ready.snapshot().get_metadata();
            let (index, term) = (metadata.index, metadata.term);
            return self.begin_anew(index, term);
        }
        self.send(ready.take_messages());
        let entries = ready.take_entries();
        if !self.persist(&entries, ready.must_sync())? {
            return Ok(false);
        }
        self.send(ready.take_persisted_messages());
        self.follow_role()?;
        let committed = ready.take_committed_entries();
        self.hand_on(committed)?;
        self.reads.ready(ready.take_read_states(), self.applied);
        let mut light = self.advance(ready);
        self.send(light.take_messages());
        let committed = light.take_committed_entries();
        self.hand_on(committed)?;
        Ok(true)
    }

    /// The library has accepted a snapshot: this member ends, and its next start puts the state in place
    /// that was received. Its promises are kept; what its log holds is not needed any more.
    fn begin_anew(&mut self, index: u64, term: u64) -> Result<bool, Fatal> {
        let mut hard_state = self.raw.raft.hard_state();
        let log = self.raw.mut_store().log_mut();
        hard_state.commit = hard_state.commit.min(log.last_index());
        log.append(&[], &hard_state)
            .map_err(|error| Fatal::Log(error.to_string()))?;
        let incoming = self.incoming.as_ref().ok_or_else(|| {
            Fatal::Library("it accepted a snapshot although none was stepped".into())
        })?;
        let accepted = incoming
            .accept(index, term)
            .map_err(|error| Fatal::Log(error.to_string()))?;
        match accepted {
            true => tracing::info!(
                index,
                "received the state of the group; starting anew on it"
            ),
            // Nothing was answered yet, so the leader sends again.
            false => tracing::warn!(
                index,
                "the received state was replaced by another; starting anew without it"
            ),
        }
        self.end_threads(false)?;
        Err(Fatal::BeginAnew)
    }

    fn advance(&mut self, ready: Ready) -> LightReady {
        self.raw.store().set_gate(self.gate_open());
        let light = self.raw.advance_append(ready);
        self.raw.store().set_gate(true);
        light
    }

    fn send(&mut self, messages: Vec<Message>) {
        if messages.is_empty() {
            return;
        }
        let messages = messages.into_iter().filter_map(convert::message_to_wire);
        self.outbox.send(messages.collect());
    }

    // -------------------------------------------------------------------------------- persisting

    /// Writes one batch if something in it matters; see the module's comment. Tries again for as long
    /// as the disk is full, and returns false if a stop was asked for meanwhile.
    fn persist(&mut self, entries: &[Entry], sync: bool) -> Result<bool, Fatal> {
        if !sync && entries.is_empty() {
            return Ok(true);
        }
        let hard_state = self.raw.raft.hard_state();
        let mut stalled = false;
        loop {
            match self.raw.mut_store().append(entries, &hard_state) {
                Ok(()) => break,
                Err(DiskError::Broken(reason)) => return Err(Fatal::Log(reason)),
                Err(DiskError::Full(reason)) if !stalled => {
                    stalled = true;
                    tracing::error!(%reason, "the raft log cannot be written; retrying until there is space");
                    self.log_is_full(Some(reason))?;
                }
                Err(DiskError::Full(_)) => {}
            }
            if !self.wait_for_space() {
                return Ok(false);
            }
        }
        self.upkeep.wrote();
        if stalled {
            tracing::info!("the raft log can be written again");
            self.log_is_full(None)?;
        }
        Ok(true)
    }

    /// Serves reads until it is time for another attempt; false if the member is to stop.
    fn wait_for_space(&mut self) -> bool {
        let until = Instant::now() + RETRY_AFTER;
        let only_requests = Wishes {
            proposals: false,
            progress: false,
            all: false,
        };
        while Instant::now() < until {
            if self.shared.inbox.is_stopping() {
                return false;
            }
            let intake = self.shared.inbox.wait(only_requests, until);
            self.serve(intake.requests);
        }
        true
    }

    /// Closes the log, with everything known now unless a write had to be given up: the hard state may
    /// then speak of entries that the log does not hold.
    pub(super) fn close_log(&mut self, complete: bool) -> Result<(), Fatal> {
        let hard_state = self.raw.raft.hard_state();
        let store = self.raw.mut_store();
        let known = match complete {
            true => store.append(&[], &hard_state),
            false => Ok(()),
        };
        match known.and_then(|()| store.log_mut().close()) {
            Ok(()) => Ok(()),
            // The commit index is all that is missing; the next start finds it out by itself.
            Err(DiskError::Full(reason)) => {
                tracing::warn!(%reason, "stopping without the last commit index");
                Ok(())
            }
            Err(DiskError::Broken(reason)) => Err(Fatal::Log(reason)),
        }
    }

    // --------------------------------------------------------------------------------- committed

    /// Passes committed entries to the applier. The library learns of configuration changes here, in
    /// log order; the applier records the outcome together with the entry.
    fn hand_on(&mut self, committed: Vec<Entry>) -> Result<(), Fatal> {
        self.publish_indexes();
        let Some(last) = committed.last().map(|entry| entry.index) else {
            return Ok(());
        };
        let mut batch = Vec::with_capacity(committed.len());
        for entry in committed {
            let membership = match entry.get_entry_type() {
                EntryType::EntryNormal => None,
                EntryType::EntryConfChange if entry.data.is_empty() => None,
                EntryType::EntryConfChange => Some(self.change_configuration(&entry)?),
                EntryType::EntryConfChangeV2 => {
                    return Err(unknown(&entry, "it is a version 2 configuration change"));
                }
            };
            self.handed_bytes += entry_cost(&entry);
            batch.push(Handed { entry, membership });
        }
        self.handed = last;
        self.send_task(Task::Entries(batch))
    }

    /// Processes a committed configuration change and returns where it leads.
    fn change_configuration(&mut self, entry: &Entry) -> Result<Membership, Fatal> {
        let (kind, change) = convert::decode_conf_change(entry.index, &entry.data)
            .map_err(|error| unknown(entry, &error.to_string()))?;
        if let Err(verdict) = self.book.validate(kind, &change) {
            tracing::debug!(index = entry.index, %verdict, "configuration change without effect");
        }
        let outcome = self.book.process(kind, &change);
        tracing::info!(index = entry.index, ?outcome, "raft configuration change");
        self.shared.book.store(self.book.clone().into());
        let conf_state = self.apply_to_library(entry, kind, &change)?;
        self.outbox.follow(&self.book);
        self.change_applied(&change);
        if self.book.is_removed(self.raw.raft.id) {
            self.removed = true;
        }
        Ok(Membership {
            conf_state: convert::conf_state_from_library(conf_state),
            members: self.book.members().cloned().collect(),
            removed: self.book.removed().collect(),
        })
    }

    /// Changes the library's configuration. It never hears of an update: its own change of that number
    /// would take the member's vote away (spec 03 section 19.2).
    fn apply_to_library(
        &mut self,
        entry: &Entry,
        kind: ChangeKind,
        change: &raftpb::ConfChange,
    ) -> Result<raft::eraftpb::ConfState, Fatal> {
        let unchanged = self.raw.raft.prs().conf().to_conf_state();
        if kind == ChangeKind::Update || change.node_id.unwrap_or_default() == raft::INVALID_ID {
            return Ok(unchanged);
        }
        match convert::conf_change_to_library(change) {
            Some(change) => self
                .raw
                .apply_conf_change(&change)
                .map_err(|error| unknown(entry, &error.to_string())),
            None => Ok(unchanged),
        }
    }

    /// Publishes where the log stands. This comes before the entries are handed on: whoever sees an
    /// entry applied must see an end of the log that is not before it, because the next transaction is
    /// stamped with it (settled S13).
    fn publish_indexes(&self) {
        let log = &self.raw.raft.raft_log;
        self.shared.last.store(log.last_index(), Ordering::Release);
        self.shared.commit.store(log.committed, Ordering::Release);
    }
}

fn unknown(entry: &Entry, reason: &str) -> Fatal {
    Fatal::Entry {
        index: entry.index,
        term: entry.term,
        reason: reason.to_owned(),
    }
}
