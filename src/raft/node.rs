//! The raft thread: one turn after another over the consensus library and the log.
//!
//! A turn takes everything that waits in the inbox, lets the library process it, and then handles what
//! the library has ready: one batch for the log with one fsync, messages, committed entries
//! (spec 03 section 20.8). Only this thread calls the library and the log.
//!
//! The order within a turn matters. Messages are stepped before the clock ticks, so that a member that
//! was paused hears its leader before it suspects him. Proposals become one library message, so that a
//! turn costs one append per follower however many transactions it carries.
//!
//! Ticks come from deadlines, not from a counter: those missed during a pause or a slow fsync are
//! dropped, never made up for (settled R1).

use super::applier::Task;
use super::changes::{Handing, Pending};
use super::error::Fatal;
use super::handle::{Leadership, Shared};
use super::inbox::{Intake, Wishes};
use super::log_store::{LogStore, LogView};
use super::membership::Book;
use super::outbox::Outbox;
use super::phase::{Effect, Phase};
use super::reads::Reads;
use super::space::Space;
use super::upkeep::Upkeep;
use crate::storage::snapshot::Incoming;
use crate::storage::{Proposal, ProposeError};
use crossbeam_channel::{Sender, TrySendError};
use raft::eraftpb::{Entry, Message, MessageType};
use raft::{RawNode, StateRole};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes of entries that may be handed to the applier and not be applied yet, 32 MiB. Beyond it,
/// committed entries stay in the log until the applier has caught up.
const APPLY_BACKLOG_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Tasks that may wait for the applier; the gate shuts early enough for the markers of a turn.
pub(super) const APPLY_TASKS_MAX: usize = 1024;
const APPLY_TASKS_GATE: usize = APPLY_TASKS_MAX - 64;
/// Bytes of proposals in the log but not yet handed to the applier, beyond which no new ones are taken.
const UNCOMMITTED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// An orderly stop waits this long for queued proposals to be committed; alone it takes milliseconds.
const STOP_WAIT_MAX: Duration = Duration::from_secs(2);

/// The raft thread's state.
pub(super) struct Node<L: LogStore> {
    pub raw: RawNode<LogView<L>>,
    pub outbox: Box<dyn Outbox>,
    pub applier: Sender<Task>,
    pub shared: Arc<Shared>,
    pub book: Book,
    pub phase: Phase,
    /// Begin markers sent to the applier.
    pub begins: u64,
    /// Last index handed to the applier, and the cost of all that was handed since the start.
    pub handed: u64,
    pub handed_bytes: u64,
    /// What the applier has reported.
    pub applied: u64,
    pub applied_bytes: u64,
    /// Campaign without waiting for an election timeout, if this member is alone.
    pub campaign: bool,
    pub reads: Reads,
    /// The change of the group under way, and the number of the last one.
    pub change: Option<Pending>,
    pub last_change: u64,
    /// Leadership is about to be handed over, as soon as everything in the log is applied.
    pub handing: Option<Handing>,
    /// It was handed over with nothing under way: what waited had not been begun.
    pub handed_over: bool,
    /// This member was removed from the group.
    pub removed: bool,
    /// Where snapshots of other members arrive.
    pub incoming: Option<Arc<Incoming>>,
    pub upkeep: Upkeep,
    pub space: Space,
    pub tick: Duration,
    pub next_tick: Instant,
}

/// What follows a turn.
enum Next {
    Turn,
    /// An orderly stop was asked for.
    Stop,
    /// The same, while a write waits for space on the disk: it will never be made.
    Abandon,
    /// This member is not one of the group any more.
    Removed,
}

impl<L: LogStore> Node<L> {
    /// Runs until an orderly stop.
    pub fn run(&mut self) -> Result<(), Fatal> {
        self.publish();
        loop {
            let deadline = match self.has_work() {
                true => Instant::now(),
                false => self.next_tick,
            };
            let intake = self.shared.inbox.wait(self.wishes(), deadline);
            match self.turn(intake)? {
                Next::Turn => {}
                Next::Stop => return self.finish(),
                Next::Abandon => return self.end_threads(false),
                Next::Removed => {
                    tracing::warn!("this manager was removed from the raft group");
                    self.end_threads(true)?;
                    return Err(Fatal::Removed);
                }
            }
        }
    }

    /// Whether the library has something to handle that does not wait for the applier.
    fn has_work(&self) -> bool {
        self.gate_open() && self.raw.has_ready()
    }

    pub(super) fn gate_open(&self) -> bool {
        self.handed_bytes - self.applied_bytes < APPLY_BACKLOG_BYTES_MAX
            && self.applier.len() < APPLY_TASKS_GATE
    }

    fn wishes(&self) -> Wishes {
        Wishes {
            proposals: self.takes_proposals(),
            progress: !self.gate_open()
                || self.campaign
                || self.handing.is_some()
                || self.phase.waits()
                || self.reads.wait_for_apply()
                || self.upkeep.waits_for_sync(),
            all: true,
        }
    }

    /// Proposals wait in the inbox while too much is under way, and during a leadership transfer.
    fn takes_proposals(&self) -> bool {
        self.gate_open()
            && self.raw.raft.uncommitted_size() < UNCOMMITTED_BYTES_MAX
            && self.raw.raft.lead_transferee.is_none()
            && self.handing.is_none()
    }

    fn turn(&mut self, intake: Intake) -> Result<Next, Fatal> {
        self.take_progress(&intake)?;
        for message in intake.messages {
            self.step(message);
        }
        let now = Instant::now();
        let tick = now >= self.next_tick;
        if tick {
            self.next_tick = now + self.tick;
            self.raw.tick();
        }
        if !intake.proposals.is_empty() {
            self.look_at_space(now);
        }
        self.propose(intake.proposals)?;
        self.serve(intake.requests);
        if self.raw.has_ready() && !self.handle_ready()? {
            return Ok(Next::Abandon);
        }
        self.begin_if_complete()?;
        self.campaign_if_alone()?;
        self.hand_over_when_quiet(now);
        if tick {
            self.keep_up(now)?;
            self.publish();
        }
        Ok(match (self.removed, intake.stop) {
            (true, _) => Next::Removed,
            (false, true) => Next::Stop,
            (false, false) => Next::Turn,
        })
    }

    fn take_progress(&mut self, intake: &Intake) -> Result<(), Fatal> {
        let progress = &intake.progress;
        if progress.applied > self.applied {
            self.applied = progress.applied;
            self.applied_bytes = progress.applied_bytes;
            self.raw.advance_apply_to(self.applied);
            self.reads.applied(self.applied);
        }
        self.tables_are_full(&progress.full)?;
        if let Some(effect) = self.phase.began(progress.begun == self.begins) {
            self.take_effect(effect, ProposeError::LostLeadership)?;
        }
        self.compact(progress)
    }

    /// Hands a message to the library, unless it would end the process.
    fn step(&mut self, message: Message) {
        let kind = message.get_msg_type();
        let from = message.from;
        if self.book.is_alone(self.raw.raft.id) {
            // Nobody can lead a group of one but its member: whoever else writes is mistaken, and a
            // higher term of his must not depose it.
            tracing::debug!(
                from = format!("{from:x}"),
                ?kind,
                "raft message of a stranger dropped"
            );
            return;
        }
        if kind == MessageType::MsgHeartbeat && message.commit > self.raw.raft.raft_log.last_index()
        {
            tracing::error!(
                from = format!("{from:x}"),
                commit = message.commit,
                last = self.raw.raft.raft_log.last_index(),
                "the leader believes that this manager holds log entries it does not have: its raft \
                 data was lost or replaced. It takes no part in the group; let it leave and join anew"
            );
            return;
        }
        if kind == MessageType::MsgSnapshot && self.incoming.is_none() {
            tracing::warn!(
                from = format!("{from:x}"),
                "dropping a raft snapshot: this member has no place for it"
            );
            return;
        }
        if let Err(error) = self.raw.step(message) {
            tracing::debug!(from = format!("{from:x}"), ?kind, %error, "raft message refused");
        }
    }

    /// Appends proposals as one message.
    fn propose(&mut self, proposals: Vec<Proposal>) -> Result<(), Fatal> {
        let raft = &self.raw.raft;
        let leads = raft.state == StateRole::Leader && self.phase.term() == Some(raft.term);
        if proposals.is_empty() || !leads {
            // Leadership was lost in this very turn; the end of the term fails them.
            return Ok(());
        }
        self.handed_over = false;
        let entries = proposals.into_iter().map(|proposal| Entry {
            data: proposal.data.into(),
            ..Entry::default()
        });
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.raw.raft.id;
        message.set_entries(entries.collect::<Vec<_>>().into());
        if let Err(error) = self.raw.raft.step(message) {
            // Later transactions are built on the refused ones, so all that are under way fail.
            tracing::warn!(%error, "the consensus library refused proposals");
            self.interrupt(ProposeError::Dropped)?;
        }
        Ok(())
    }

    /// Once after the start: a member that is alone need not wait for an election timeout. Everything
    /// committed is applied first, because the configuration may change by it.
    fn campaign_if_alone(&mut self) -> Result<(), Fatal> {
        let log = &self.raw.raft.raft_log;
        if !self.campaign || self.book.is_empty() || log.applied < log.committed {
            return Ok(());
        }
        self.campaign = false;
        if self.book.is_alone(self.raw.raft.id) && self.raw.raft.promotable() {
            self.raw.campaign()?;
        }
        Ok(())
    }

    // ------------------------------------------------------------------------------- leadership

    /// Follows the library's role. Called before committed entries are handed on, so that the end of a
    /// term comes before the entries of the next one.
    pub(super) fn follow_role(&mut self) -> Result<(), Fatal> {
        let raft = &self.raw.raft;
        let leads = (raft.state == StateRole::Leader).then_some(raft.term);
        if let Some(effect) = self.phase.observe(leads, raft.raft_log.last_index()) {
            let why = match std::mem::take(&mut self.handed_over) {
                true => ProposeError::NotLeader,
                false => ProposeError::LostLeadership,
            };
            self.take_effect(effect, why)?;
        }
        let leader = self.leader();
        self.shared.leadership.send_if_modified(|now| match now {
            Leadership::Follower { leader: known } if *known != leader => {
                *known = leader;
                true
            }
            _ => false,
        });
        Ok(())
    }

    /// Begins the term once everything up to the election is on its way to the state machine.
    fn begin_if_complete(&mut self) -> Result<(), Fatal> {
        match self.phase.handed(self.handed) {
            Some(effect) => self.take_effect(effect, ProposeError::LostLeadership),
            None => Ok(()),
        }
    }

    /// Fails everything under way in this term and begins the term again, without losing leadership.
    pub(super) fn interrupt(&mut self, why: ProposeError) -> Result<(), Fatal> {
        if let Some(Effect::Lose { began: true }) = self.phase.lose() {
            self.shared.inbox.accept(None);
            self.send_task(Task::EndTerm(why))?;
        }
        let raft = &self.raw.raft;
        let leads = (raft.state == StateRole::Leader).then_some(raft.term);
        self.phase.observe(leads, raft.raft_log.last_index());
        Ok(())
    }

    pub(super) fn take_effect(&mut self, effect: Effect, why: ProposeError) -> Result<(), Fatal> {
        match effect {
            Effect::Begin { term } => {
                self.shared.inbox.accept(Some(term));
                self.begins += 1;
                self.send_task(Task::BeginTerm(term))
            }
            Effect::Signal { term } => {
                self.shared.signalled.store(term, Ordering::Release);
                self.publish();
                self.shared
                    .leadership
                    .send_replace(Leadership::Leader { term });
                tracing::info!(term, "this manager leads the raft group");
                Ok(())
            }
            Effect::Lose { began } => {
                self.shared.inbox.accept(None);
                self.shared.signalled.store(0, Ordering::Release);
                self.publish();
                let leader = self.leader();
                self.shared
                    .leadership
                    .send_replace(Leadership::Follower { leader });
                self.reads.fail(&ProposeError::LostLeadership);
                self.fail_change();
                match began {
                    true => self.send_task(Task::EndTerm(why)),
                    false => Ok(()),
                }
            }
        }
    }

    /// Whether the services were told that this member leads.
    pub(super) fn is_signalled(&self) -> bool {
        matches!(self.phase, Phase::Signalled { .. })
    }

    /// The leader's raft ID, if one is known.
    pub(super) fn leader(&self) -> Option<u64> {
        let id = self.raw.raft.leader_id;
        (id != raft::INVALID_ID).then_some(id)
    }

    /// Queues a task. The gate keeps room for markers, which are few.
    pub(super) fn send_task(&self, task: Task) -> Result<(), Fatal> {
        self.applier.try_send(task).map_err(|error| match error {
            TrySendError::Disconnected(_) => Fatal::ThreadGone("apply"),
            TrySendError::Full(_) => {
                Fatal::Library("the queue of the apply thread is full in spite of its gate".into())
            }
        })
    }

    // ------------------------------------------------------------------------------------- stop

    /// Commits what was queued before the stop, as far as a quorum answers, and ends.
    fn finish(&mut self) -> Result<(), Fatal> {
        let deadline = Instant::now() + STOP_WAIT_MAX;
        while self.unfinished() && Instant::now() < deadline {
            let until = match self.has_work() {
                true => Instant::now(),
                false => self.next_tick.min(deadline),
            };
            let mut wishes = self.wishes();
            wishes.progress = true;
            let intake = self.shared.inbox.wait(wishes, until);
            match self.turn(intake)? {
                Next::Abandon => return self.end_threads(false),
                Next::Removed => break,
                Next::Turn | Next::Stop => {}
            }
        }
        self.end_threads(true)
    }

    /// Ends the term, the applier and the log. `complete` says that the log has everything that the
    /// library knows of.
    pub(super) fn end_threads(&mut self, complete: bool) -> Result<(), Fatal> {
        if let Some(effect) = self.phase.lose() {
            self.take_effect(effect, ProposeError::Stopped)?;
        }
        self.send_task(Task::Stop)?;
        self.close_log(complete)
    }

    fn unfinished(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        self.shared.inbox.has_proposals()
            || (self.raw.raft.state == StateRole::Leader && log.committed < log.last_index())
            || self.handed < log.committed
    }
}
