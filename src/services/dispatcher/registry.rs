//! Which nodes are here: sessions, deadlines, registration counts.
//!
//! The registry is plain data. Time comes in as an argument, what has to be written or ended comes
//! out as a value, and it never waits or touches the store. It lives as long as one leadership.
//!
//! Every node has at most one entry and every entry at most one deadline, all of them in one
//! ordered set, so memory is bounded by the number of nodes and one timer serves all of them. A
//! deadline belongs to its entry: what replaces the entry's session replaces the deadline with it,
//! and no expiry can ever hit a newer session.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::live_session::{End, LiveSession};
use super::refusal::Refusal;

/// Sessions of one node that are remembered for whoever has to find out why a node comes and goes.
pub const HISTORY_MAX: usize = 8;

/// Message of a node that stopped beating.
pub const MESSAGE_SILENT: &str = "heartbeat failure";

/// Message of a node that did not come back after a change of leadership.
pub const MESSAGE_SILENT_UNKNOWN: &str = r#"heartbeat failure for node in "unknown" state"#;

/// What is known of a node.
enum Presence {
    /// Its first registration of this term is under way; there is no session to speak of.
    Arriving,
    /// It was in the store when the term began, and has not registered since.
    Unknown,
    Registered(Arc<LiveSession>),
    /// Its heartbeat expired, in this term or before.
    Down,
    /// It has been down so long that its tasks were given up.
    GivenUp,
}

struct Entry {
    presence: Presence,
    deadline: Option<Instant>,
    attempts: u32,
    accepted_at: Option<Instant>,
    history: VecDeque<SessionRecord>,
}

/// One session in a node's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    pub started_at: SystemTime,
    /// Where the node called from, if that is known.
    pub peer: Option<String>,
    /// When and why it ended; `None` while it lasts.
    pub ended: Option<(SystemTime, End)>,
}

/// What is known of a node, for inspection. Session IDs are secrets and not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    pub registered: bool,
    /// When the node will be taken as down or, if it is, its tasks as orphaned; `None` if neither.
    pub deadline_in: Option<Duration>,
    /// Oldest first, the last eight.
    pub sessions: Vec<SessionRecord>,
}

/// A deadline that passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fired {
    /// The node was silent too long; it has to be written as down, with this message.
    Silent {
        node_id: Arc<str>,
        message: &'static str,
    },
    /// The node was down too long; its tasks have to be written as orphaned.
    DownTooLong { node_id: Arc<str> },
}

/// Limit on registrations: this many within this time (spec 08 section 4.3); zero time: no limit.
#[derive(Debug, Clone, Copy)]
pub struct RateLimit {
    pub count: u32,
    pub period: Duration,
}

/// See the module's comment.
#[derive(Default)]
pub struct Registry {
    entries: HashMap<Arc<str>, Entry>,
    deadlines: BTreeSet<(Instant, Arc<str>)>,
    earlier: bool,
}

impl Registry {
    /// Takes a node of the store that is not down: it has to register before the deadline.
    pub fn add_unknown(&mut self, node_id: &str, deadline: Instant) {
        let node_id = self.entry_key(node_id);
        self.set_presence(&node_id, Presence::Unknown);
        self.set_deadline(&node_id, Some(deadline));
    }

    /// Takes a node that the store has as down: its tasks are given up at the deadline.
    pub fn add_down(&mut self, node_id: &str, deadline: Instant) {
        let node_id = self.entry_key(node_id);
        self.set_presence(&node_id, Presence::Down);
        self.set_deadline(&node_id, Some(deadline));
    }

    /// Counts an attempt to register and refuses it if there were too many. An accepted one is a
    /// sign of life: the node does not expire before `deadline`, and if it was down, its tasks are
    /// safe from now on.
    pub fn admit(
        &mut self,
        node_id: &str,
        now: Instant,
        limit: RateLimit,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let key = self.entry_key(node_id);
        if let Some(entry) = self.entries.get_mut(&key)
            && !limit.period.is_zero()
        {
            let quiet = entry
                .accepted_at
                .is_none_or(|accepted| now.duration_since(accepted) > limit.period);
            entry.attempts = if quiet {
                1
            } else {
                entry.attempts.saturating_add(1)
            };
            if entry.attempts > limit.count {
                return Err(Refusal::TooManyRegistrations(node_id.to_owned()));
            }
            entry.accepted_at = Some(now);
        }
        if self.is_down(node_id) {
            self.set_presence(&key, Presence::Arriving);
            self.set_deadline(&key, None);
        }
        self.postpone(&key, deadline);
        Ok(())
    }

    /// The current session of a node, if it is the named one.
    pub fn session(&self, node_id: &str, session_id: &str) -> Result<Arc<LiveSession>, Refusal> {
        match self.entries.get(node_id).map(|entry| &entry.presence) {
            Some(Presence::Registered(session)) if session.id == session_id => {
                Ok(Arc::clone(session))
            }
            Some(Presence::Registered(_) | Presence::Unknown) => Err(Refusal::SessionInvalid),
            Some(Presence::Arriving | Presence::Down | Presence::GivenUp) | None => {
                Err(Refusal::NotRegistered)
            }
        }
    }

    /// A sign of life within a session: the node expires at `deadline` unless another comes.
    pub fn beat(
        &mut self,
        node_id: &str,
        session_id: &str,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let session = self.session(node_id, session_id)?;
        self.set_deadline(&session.node_id, Some(deadline));
        Ok(())
    }

    /// Starts a new session of a node and ends the one before. Also says whether the node was taken
    /// as down since it was admitted, in which case it must be written as ready once more.
    pub fn register(
        &mut self,
        node_id: &str,
        peer: Option<String>,
        deadline: Instant,
    ) -> (Arc<LiveSession>, bool) {
        let key = self.entry_key(node_id);
        let session = Arc::new(LiveSession::new(Arc::clone(&key)));
        let was_down = self.is_down(node_id);
        self.end_session(&key, End::Replaced);
        self.set_presence(&key, Presence::Registered(Arc::clone(&session)));
        self.set_deadline(&key, Some(deadline));
        if let Some(entry) = self.entries.get_mut(&key) {
            if entry.history.len() == HISTORY_MAX {
                entry.history.pop_front();
            }
            entry.history.push_back(SessionRecord {
                started_at: SystemTime::now(),
                peer,
                ended: None,
            });
        }
        (session, was_down)
    }

    /// Handles every deadline up to `now`. A node that was silent is down from now on, and its
    /// tasks are given up `down_period` later.
    pub fn expire(&mut self, now: Instant, down_period: Duration) -> Vec<Fired> {
        let mut fired = Vec::new();
        while let Some((deadline, node_id)) = self.deadlines.first().cloned() {
            if deadline > now {
                break;
            }
            self.set_deadline(&node_id, None);
            let Some(entry) = self.entries.get(&node_id) else {
                continue;
            };
            let message = match entry.presence {
                Presence::Registered(_) => MESSAGE_SILENT,
                Presence::Unknown => MESSAGE_SILENT_UNKNOWN,
                Presence::Down => {
                    fired.push(Fired::DownTooLong { node_id });
                    continue;
                }
                Presence::Arriving | Presence::GivenUp => continue,
            };
            self.end_session(&node_id, End::Expired);
            self.set_presence(&node_id, Presence::Down);
            self.set_deadline(&node_id, Some(now + down_period));
            fired.push(Fired::Silent { node_id, message });
        }
        fired
    }

    /// Lets no node expire before `deadline`: for a manager that stood still itself, and cannot
    /// know who called meanwhile.
    pub fn forgive(&mut self, deadline: Instant) {
        let due: Vec<Arc<str>> = self
            .deadlines
            .range(..(deadline, Arc::from("")))
            .map(|(_, node_id)| Arc::clone(node_id))
            .collect();
        for node_id in due {
            self.postpone(&node_id, deadline);
        }
    }

    /// Whether the node is down and its tasks may be given up.
    pub fn is_down(&self, node_id: &str) -> bool {
        let presence = self.entries.get(node_id).map(|entry| &entry.presence);
        matches!(presence, Some(Presence::Down))
    }

    /// The tasks of a node that was down are written as orphaned.
    pub fn given_up(&mut self, node_id: &str) {
        if self.is_down(node_id) {
            let key = self.entry_key(node_id);
            self.set_presence(&key, Presence::GivenUp);
            self.set_deadline(&key, None);
        }
    }

    /// Forgets a node that was removed from the store, and ends its session.
    pub fn remove(&mut self, node_id: &str) {
        self.end_session(node_id, End::Removed);
        self.set_deadline(node_id, None);
        self.entries.remove(node_id);
    }

    /// Forgets all nodes but these.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        let gone: Vec<Arc<str>> = self
            .entries
            .keys()
            .filter(|node_id| !keep(node_id))
            .cloned()
            .collect();
        for node_id in gone {
            self.remove(&node_id);
        }
    }

    /// Ends every session because the dispatcher stops, and forgets everything.
    pub fn end_all(&mut self) {
        for entry in self.entries.values() {
            if let Presence::Registered(session) = &entry.presence {
                session.end(End::Stopped);
            }
        }
        self.entries.clear();
        self.deadlines.clear();
    }

    /// The next deadline of any node.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Whether the next deadline has become an earlier one since this was last asked.
    pub fn take_earlier(&mut self) -> bool {
        std::mem::take(&mut self.earlier)
    }

    /// Nodes with a session.
    pub fn registered_count(&self) -> usize {
        self.entries
            .values()
            .filter(|entry| matches!(entry.presence, Presence::Registered(_)))
            .count()
    }

    /// What is known of a node.
    pub fn report(&self, node_id: &str, now: Instant) -> Option<NodeReport> {
        let entry = self.entries.get(node_id)?;
        Some(NodeReport {
            registered: matches!(entry.presence, Presence::Registered(_)),
            deadline_in: entry
                .deadline
                .map(|deadline| deadline.saturating_duration_since(now)),
            sessions: entry.history.iter().cloned().collect(),
        })
    }

    /// The shared key of a node's entry, which is made if there is none.
    fn entry_key(&mut self, node_id: &str) -> Arc<str> {
        if let Some((key, _)) = self.entries.get_key_value(node_id) {
            return Arc::clone(key);
        }
        let key: Arc<str> = Arc::from(node_id);
        self.entries.insert(
            Arc::clone(&key),
            Entry {
                presence: Presence::Arriving,
                deadline: None,
                attempts: 0,
                accepted_at: None,
                history: VecDeque::new(),
            },
        );
        key
    }

    /// Changes what a node is. The count of registrations is kept while it is present; it starts
    /// anew for a node that went down.
    fn set_presence(&mut self, node_id: &str, presence: Presence) {
        if let Some(entry) = self.entries.get_mut(node_id) {
            if matches!(presence, Presence::Down) {
                entry.attempts = 0;
                entry.accepted_at = None;
            }
            entry.presence = presence;
        }
    }

    fn end_session(&mut self, node_id: &str, end: End) {
        let Some(entry) = self.entries.get_mut(node_id) else {
            return;
        };
        if let Presence::Registered(session) = &entry.presence {
            session.end(end);
            if let Some(record) = entry.history.back_mut() {
                record.ended = Some((SystemTime::now(), end));
            }
        }
    }

    /// Moves an existing deadline to at least `deadline`.
    fn postpone(&mut self, node_id: &str, deadline: Instant) {
        let current = self.entries.get(node_id).and_then(|entry| entry.deadline);
        if current.is_some_and(|current| current < deadline) {
            self.set_deadline(node_id, Some(deadline));
        }
    }

    fn set_deadline(&mut self, node_id: &str, deadline: Option<Instant>) {
        let Some((key, _)) = self.entries.get_key_value(node_id) else {
            return;
        };
        let key = Arc::clone(key);
        let first = self.next_deadline();
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        if let Some(old) = std::mem::replace(&mut entry.deadline, deadline) {
            self.deadlines.remove(&(old, Arc::clone(&key)));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, key));
            self.earlier |= first.is_none_or(|first| new < first);
        }
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
