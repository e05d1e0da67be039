//! Changes of the group that this member makes as its leader: members added, moved and removed, leadership
//! handed over.
//!
//! One change is under way at a time; the next is refused until it is applied here. Whoever asked is
//! answered when that has happened, or when this member stops leading: the outcome is then unknown, and the
//! committed configuration tells.

use super::convert::{self, ChangeKind};
use super::error::RaftError;
use super::handle::{Handle, Leadership};
use super::inbox::Request;
use super::log_store::LogStore;
use super::node::Node;
use crate::api::raftpb;
use crate::api::types::RaftMember;
use prost::Message as _;
use raft::StateRole;
use raft::eraftpb::{Message, MessageType};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Pause before a change is proposed again while another one is under way.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Longest wait for a change to be applied. A quorum that is there answers within a second.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(20);
/// Wait for another leader after a hand-over, before it is asked for again: an election timeout.
const TRANSFER_LOOK: Duration = Duration::from_millis(1500);
/// Longest time for handing leadership over (settled R1, with the default tick).
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(7);

/// Longest wait for transactions under way before leadership is handed over all the same.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(1);

/// A change that somebody wants.
pub(super) struct Change {
    pub kind: ChangeKind,
    pub member: RaftMember,
    pub reply: oneshot::Sender<Result<(), ChangeError>>,
}

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ChangeError {
    /// Another one is under way.
    Busy,
    Failed(RaftError),
}

/// A hand-over that waits for what is under way.
pub(super) struct Handing {
    until: std::time::Instant,
    reply: oneshot::Sender<Result<(), RaftError>>,
}

/// The change under way.
pub(super) struct Pending {
    id: u64,
    reply: oneshot::Sender<Result<(), ChangeError>>,
}

impl Handle {
    /// Adds a member; done when that is applied here.
    pub async fn add_member(&self, member: RaftMember) -> Result<(), RaftError> {
        self.change(ChangeKind::Add, member).await
    }

    /// Gives a member another address; done when that is applied here.
    pub async fn update_member(&self, member: RaftMember) -> Result<(), RaftError> {
        self.change(ChangeKind::Update, member).await
    }

    /// Removes a member, unless too few reachable ones would remain (spec 03 section 7.4); done when that
    /// is applied here.
    pub async fn remove_member(&self, raft_id: u64) -> Result<(), RaftError> {
        if !self.book().may_remove(raft_id, |id| self.reaches(id)) {
            return Err(RaftError::CannotRemoveMember);
        }
        let member = RaftMember {
            raft_id,
            ..RaftMember::default()
        };
        self.change(ChangeKind::Remove, member).await
    }

    async fn change(&self, kind: ChangeKind, member: RaftMember) -> Result<(), RaftError> {
        let deadline = Instant::now() + CHANGE_TIMEOUT;
        loop {
            let (reply, answer) = oneshot::channel();
            let change = Change {
                kind,
                member: member.clone(),
                reply,
            };
            if !self.shared.inbox.request(Request::Change(change)) {
                return Err(RaftError::NoRaftMember);
            }
            let answer = tokio::time::timeout_at(deadline, answer).await;
            match answer {
                Ok(Ok(Ok(()))) => return Ok(()),
                Ok(Ok(Err(ChangeError::Failed(error)))) => return Err(error),
                Ok(Ok(Err(ChangeError::Busy))) if Instant::now() < deadline => {
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                // No quorum answers; the change may still be made.
                Err(_) | Ok(Ok(Err(ChangeError::Busy))) => return Err(RaftError::NoClusterLeader),
                Ok(Err(_)) => return Err(RaftError::NoRaftMember),
            }
        }
    }

    /// Hands leadership to the reachable member that is furthest; done when another leader is known.
    pub async fn transfer_leadership(&self) -> Result<(), RaftError> {
        let deadline = Instant::now() + TRANSFER_TIMEOUT;
        let mut leadership = self.leadership();
        loop {
            let (reply, answer) = oneshot::channel();
            if !self.shared.inbox.request(Request::Transfer { reply }) {
                return Err(RaftError::NoRaftMember);
            }
            answer.await.unwrap_or(Err(RaftError::NoRaftMember))?;
            let own = self.raft_id();
            let other = leadership.wait_for(|state| match state {
                Leadership::Follower { leader } => leader.is_some_and(|leader| leader != own),
                Leadership::Leader { .. } => false,
            });
            match tokio::time::timeout(TRANSFER_LOOK, other).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(_)) => return Err(RaftError::NoRaftMember),
                Err(_) if Instant::now() >= deadline => return Err(RaftError::NoClusterLeader),
                Err(_) => {}
            }
        }
    }

    /// A message did not reach a member.
    pub(super) fn report_unreachable(&self, raft_id: u64) {
        self.shared.inbox.request(Request::Unreachable { raft_id });
    }

    /// A snapshot was delivered to a member, or not. The library sends it nothing else until then.
    pub(super) fn report_snapshot(&self, raft_id: u64, delivered: bool) {
        let sent = Request::SnapshotSent { raft_id, delivered };
        self.shared.inbox.request(sent);
    }

    /// Another member says that this one was removed.
    pub(super) fn report_removed(&self) {
        self.shared.inbox.request(Request::Removed);
    }
}

impl<L: LogStore> Node<L> {
    /// Proposes a change, if none is under way.
    pub(super) fn propose_change(&mut self, change: Change) {
        let refuse = |reply: oneshot::Sender<_>, error| {
            let _ = reply.send(Err(error));
        };
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader || !self.is_signalled() {
            return refuse(change.reply, ChangeError::Failed(RaftError::LostLeadership));
        }
        if self.change.is_some() || raft.has_pending_conf() || raft.lead_transferee.is_some() {
            return refuse(change.reply, ChangeError::Busy);
        }
        self.last_change += 1;
        let wire = raftpb::ConfChange {
            id: Some(self.last_change),
            r#type: Some(wire_kind(change.kind) as i32),
            node_id: Some(change.member.raft_id),
            context: Some(change.member.encode_to_vec()),
        };
        if let Err(verdict) = self.book.validate(change.kind, &wire) {
            return refuse(change.reply, ChangeError::Failed(verdict));
        }
        let entry = convert::conf_change_entry(&wire);
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.raw.raft.id;
        message.set_entries(vec![entry].into());
        match self.raw.raft.step(message) {
            Ok(()) => {
                self.change = Some(Pending {
                    id: self.last_change,
                    reply: change.reply,
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the consensus library refused a configuration change");
                refuse(change.reply, ChangeError::Busy);
            }
        }
    }

    /// A change was applied here; answers whoever asked for it.
    pub(super) fn change_applied(&mut self, change: &raftpb::ConfChange) {
        let id = change.id.unwrap_or_default();
        if let Some(pending) = self.change.take_if(|pending| pending.id == id) {
            let _ = pending.reply.send(Ok(()));
        }
    }

    /// This member leads no longer: what is under way has an unknown outcome.
    pub(super) fn fail_change(&mut self) {
        if let Some(pending) = self.change.take() {
            let lost = ChangeError::Failed(RaftError::LostLeadership);
            let _ = pending.reply.send(Err(lost));
        }
    }

    /// Begins to hand leadership over: no more proposals are taken, and once those under way are applied
    /// another member is told to stand for election.
    pub(super) fn transfer(&mut self, reply: oneshot::Sender<Result<(), RaftError>>) {
        let raft = &self.raw.raft;
        let refusal = match (raft.state, self.furthest_member()) {
            (StateRole::Leader, Some(_)) => {
                self.handing = Some(Handing {
                    until: std::time::Instant::now() + QUIET_WAIT_MAX,
                    reply,
                });
                return;
            }
            (StateRole::Leader, None) => RaftError::NoClusterLeader,
            _ => RaftError::LostLeadership,
        };
        let _ = reply.send(Err(refusal));
    }

    /// The reachable member that has most of the log.
    fn furthest_member(&self) -> Option<u64> {
        let raft = &self.raw.raft;
        let candidates = self.book.members().filter(|member| {
            member.raft_id != raft.id && self.outbox.is_active(member.raft_id) != Some(false)
        });
        candidates
            .filter_map(|member| Some((raft.prs().get(member.raft_id)?.matched, member.raft_id)))
            .max()
            .map(|(_, raft_id)| raft_id)
    }

    /// Hands leadership over when nothing is under way any more, or when that takes too long.
    pub(super) fn hand_over_when_quiet(&mut self, now: std::time::Instant) {
        let Some(handing) = self.handing.take() else {
            return;
        };
        let log = &self.raw.raft.raft_log;
        let quiet = log.committed == log.last_index() && self.applied == log.committed;
        if !quiet && now < handing.until && self.raw.raft.state == StateRole::Leader {
            self.handing = Some(handing);
            return;
        }
        let result = match (self.raw.raft.state, self.furthest_member()) {
            (StateRole::Leader, Some(target)) => {
                tracing::info!(to = format!("{target:x}"), "handing leadership over");
                self.handed_over = quiet;
                self.raw.transfer_leader(target);
                Ok(())
            }
            (StateRole::Leader, None) => Err(RaftError::NoClusterLeader),
            _ => Err(RaftError::LostLeadership),
        };
        let _ = handing.reply.send(result);
    }
}

fn wire_kind(kind: ChangeKind) -> raftpb::ConfChangeType {
    match kind {
        ChangeKind::Add => raftpb::ConfChangeType::ConfChangeAddNode,
        ChangeKind::Remove => raftpb::ConfChangeType::ConfChangeRemoveNode,
        ChangeKind::Update => raftpb::ConfChangeType::ConfChangeUpdateNode,
    }
}
