//! From winning an election to being relied on, and back.
//!
//! Winning is not enough to serve: the new leader first applies its whole log, including the empty entry
//! that opens its term, then tells the state machine that a term begins, and only then lets the services
//! know (spec 03 section 5). [`Phase`] is the pure part of that: what the raft thread observes goes in,
//! what it has to do comes out.

/// Where this member stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not the leader.
    Follower,
    /// Leader; the log is to be applied up to `through` first.
    Elected { term: u64, through: u64 },
    /// The state machine has been told to begin the term and has not answered yet.
    Beginning { term: u64 },
    /// The services know.
    Signalled { term: u64 },
}

/// What a change of phase asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Accept proposals of the term and have the state machine begin it, behind the entries that it
    /// was handed.
    Begin { term: u64 },
    /// Tell the services.
    Signal { term: u64 },
    /// Refuse proposals, tell the services, and have the state machine end the term, if it was told to
    /// begin it.
    Lose { began: bool },
}

impl Phase {
    /// The term this member leads in.
    pub fn term(self) -> Option<u64> {
        match self {
            Phase::Follower => None,
            Phase::Elected { term, .. } | Phase::Beginning { term } | Phase::Signalled { term } => {
                Some(term)
            }
        }
    }

    /// The library's role now: the term it leads in, if it does, and the last index of its log.
    pub fn observe(&mut self, leads: Option<u64>, last: u64) -> Option<Effect> {
        if self.term() == leads {
            return None;
        }
        let lost = self.lose();
        if let Some(term) = leads {
            *self = Phase::Elected {
                term,
                through: last,
            };
        }
        lost
    }

    /// Entries up to `handed` are on their way to the state machine.
    pub fn handed(&mut self, handed: u64) -> Option<Effect> {
        match *self {
            Phase::Elected { term, through } if handed >= through => {
                *self = Phase::Beginning { term };
                Some(Effect::Begin { term })
            }
            _ => None,
        }
    }

    /// The state machine has begun every term it was told to begin, or not.
    pub fn began(&mut self, all: bool) -> Option<Effect> {
        match *self {
            Phase::Beginning { term } if all => {
                *self = Phase::Signalled { term };
                Some(Effect::Signal { term })
            }
            _ => None,
        }
    }

    /// Leadership ends, or is interrupted.
    pub fn lose(&mut self) -> Option<Effect> {
        let began = match *self {
            Phase::Follower => return None,
            Phase::Elected { .. } => false,
            Phase::Beginning { .. } | Phase::Signalled { .. } => true,
        };
        *self = Phase::Follower;
        Some(Effect::Lose { began })
    }

    /// Whether something is expected from the applier.
    pub fn waits(self) -> bool {
        matches!(self, Phase::Beginning { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_a_signalled_leader() {
        let mut phase = Phase::Follower;
        assert_eq!(phase.observe(None, 4), None);
        assert_eq!(phase.observe(Some(2), 5), None);
        assert_eq!(phase.handed(4), None);
        assert_eq!(phase.handed(5), Some(Effect::Begin { term: 2 }));
        assert_eq!(phase.handed(6), None);
        assert_eq!(phase.began(false), None);
        assert_eq!(phase.began(true), Some(Effect::Signal { term: 2 }));
        assert_eq!(phase.began(true), None);
        assert_eq!(phase.observe(Some(2), 9), None);
        assert_eq!(phase.observe(None, 9), Some(Effect::Lose { began: true }));
        assert_eq!(phase, Phase::Follower);
    }

    #[test]
    fn losing_early_ends_no_term() {
        let mut phase = Phase::Follower;
        phase.observe(Some(2), 5);
        assert_eq!(phase.observe(None, 5), Some(Effect::Lose { began: false }));
    }

    #[test]
    fn a_new_term_of_ones_own_starts_from_the_beginning() {
        let mut phase = Phase::Signalled { term: 2 };
        assert_eq!(
            phase.observe(Some(3), 7),
            Some(Effect::Lose { began: true })
        );
        assert_eq!(phase.handed(6), None);
        assert_eq!(phase.handed(7), Some(Effect::Begin { term: 3 }));
    }

    #[test]
    fn a_late_answer_of_the_state_machine_signals_nothing() {
        let mut phase = Phase::Beginning { term: 2 };
        phase.lose();
        assert_eq!(phase.began(true), None);
    }
}
