//! Whether what database, log and watermark say fits together: a pure function of what was read.
//!
//! With A = applied index, T = truncated state, L = last entry, C = commit index (spec 03 section 20.2,
//! R6, as settled in S9):
//!
//! | condition | verdict |
//! |---|---|
//! | A < T | the database lost what the log has forgotten: refuse |
//! | A is the place of an unfinished snapshot installation | finish it: the log begins anew behind A |
//! | L < max(A, C, mark) | the log lost its end: refuse |
//! | the term at A or at the mark differs | the log is not the one that was applied: refuse |
//! | else | start; commit := max(C, A), because an unsynced commit index may lag |

use crate::storage::engine::Applied;
use crate::storage::log::scan::Damage;
use crate::storage::log::{LogPosition, Mark};

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub applied: Applied,
    /// A snapshot installation that had not reached the log.
    pub installing: Option<Applied>,
    pub truncated: LogPosition,
    pub last: LogPosition,
    /// Term of the log's entry at the applied index, if the log has it.
    pub term_at_applied: Option<u64>,
    pub hard_state_term: u64,
    pub commit: u64,
    pub mark: Result<Mark, String>,
    /// Term of the log's entry at the mark, if the log has it.
    pub term_at_mark: Option<u64>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Start with this commit index.
    Start {
        commit: u64,
    },
    /// Begin the log anew behind this place, then start.
    FinishInstall {
        at: LogPosition,
    },
    Refuse(Refusal),
}

const REJOIN: &str = "a member of a group gets a fresh copy with `swarmd --rejoin`";
const RESTORE: &str =
    "restore a backup, or let the member join its group again with `swarmd --rejoin`";
const ACCEPT: &str =
    "a manager that is alone starts with `--accept-log-loss`, which prints how much is lost";

/// Why raft data is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("log file {}, offset {}: {}; {REJOIN}; {ACCEPT}", .0.place.file.display(), .0.place.offset, .0.reason)]
    Damage(Damage),
    #[error(
        "the log ends at entry {last}, but entry {expected} was {proof}: its end is lost; {REJOIN}; {ACCEPT}"
    )]
    TailLost {
        last: u64,
        /// The highest entry that is known to have been there.
        expected: u64,
        /// How that is known.
        proof: &'static str,
    },
    #[error(
        "the log holds entry {index} of term {log_term}, but {proof} says term {expected_term}; {REJOIN}; {ACCEPT}"
    )]
    OtherTerm {
        index: u64,
        log_term: u64,
        expected_term: u64,
        proof: &'static str,
    },
    #[error(
        "the log's term is {term}, but term {expected} was reached: its newest records are lost; {REJOIN}; {ACCEPT}"
    )]
    TermLost { term: u64, expected: u64 },
    #[error("the watermark that proves the log complete is unusable ({0}); {REJOIN}; {ACCEPT}")]
    NoMark(String),
    #[error(
        "the database ends at entry {applied}, but the log begins behind entry {truncated}; {RESTORE}"
    )]
    StateBehind { applied: u64, truncated: u64 },
    #[error("the log does not say which member it belongs to, but data is present; {RESTORE}")]
    NoIdentity,
    #[error("raft/db/ACTIVE is missing or unreadable ({0}), but the log is in use; {RESTORE}")]
    NoDatabase(String),
    #[error(
        "it belongs to cluster {found}, but this node's certificate to cluster {expected}; use the state directory of that cluster, or an empty one"
    )]
    OtherCluster { found: String, expected: String },
    #[error(
        "log entries may only be given up by a manager that is alone, and this one has {} fellow managers; {REJOIN}",
        .voters - 1
    )]
    NotAlone { voters: usize },
    #[error("raft/FORMAT {0}; start the release that wrote it")]
    Format(String),
}

impl Refusal {
    /// True if `--accept-log-loss` can go on from here.
    pub fn is_log_loss(&self) -> bool {
        matches!(
            self,
            Refusal::Damage(_)
                | Refusal::TailLost { .. }
                | Refusal::OtherTerm { .. }
                | Refusal::TermLost { .. }
                | Refusal::NoMark(_)
        )
    }
}

/// Decides.
pub fn judge(seen: &Seen) -> Verdict {
    let applied = LogPosition {
        index: seen.applied.index,
        term: seen.applied.term,
    };
    if seen.applied.index < seen.truncated.index {
        return Verdict::Refuse(Refusal::StateBehind {
            applied: seen.applied.index,
            truncated: seen.truncated.index,
        });
    }
    if seen.installing == Some(seen.applied) && seen.truncated != applied {
        return Verdict::FinishInstall { at: applied };
    }
    match find_loss(seen) {
        Some(refusal) => Verdict::Refuse(refusal),
        None => Verdict::Start {
            commit: seen.commit.max(seen.applied.index),
        },
    }
}

/// What shows that the log is not whole.
fn find_loss(seen: &Seen) -> Option<Refusal> {
    let mark = match &seen.mark {
        Ok(mark) => mark,
        Err(reason) => return Some(Refusal::NoMark(reason.clone())),
    };
    let (expected, proof) = [
        (seen.applied.index, "applied"),
        (seen.commit, "committed"),
        (mark.last.index, "written and synced"),
    ]
    .into_iter()
    .max_by_key(|(index, _)| *index)?;
    if seen.last.index < expected {
        return Some(Refusal::TailLost {
            last: seen.last.index,
            expected,
            proof,
        });
    }
    let comparisons = [
        (
            seen.term_at_applied,
            seen.applied.index,
            seen.applied.term,
            "the database",
        ),
        (
            seen.term_at_mark,
            mark.last.index,
            mark.last.term,
            "the watermark",
        ),
    ];
    for (log_term, index, expected_term, proof) in comparisons {
        if let Some(log_term) = log_term
            && log_term != expected_term
        {
            return Some(Refusal::OtherTerm {
                index,
                log_term,
                expected_term,
                proof,
            });
        }
    }
    let expected = mark.hard_state_term.max(seen.last.term);
    (seen.hard_state_term < expected).then_some(Refusal::TermLost {
        term: seen.hard_state_term,
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(index: u64, term: u64) -> LogPosition {
        LogPosition { index, term }
    }

    /// Log of entries 11..=20 of term 2, applied up to 15, committed 18, marked 19.
    fn healthy() -> Seen {
        Seen {
            applied: Applied { index: 15, term: 2 },
            installing: None,
            truncated: position(10, 1),
            last: position(20, 2),
            term_at_applied: Some(2),
            hard_state_term: 3,
            commit: 18,
            mark: Ok(Mark {
                last: position(19, 2),
                hard_state_term: 3,
            }),
            term_at_mark: Some(2),
        }
    }

    fn refusal(change: impl FnOnce(&mut Seen)) -> Refusal {
        let mut seen = healthy();
        change(&mut seen);
        match judge(&seen) {
            Verdict::Refuse(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }

    // 01-A14
    #[test]
    fn a_lagging_commit_index_is_raised_to_the_applied_one() {
        assert_eq!(judge(&healthy()), Verdict::Start { commit: 18 });
        let lagging = Seen {
            commit: 3,
            ..healthy()
        };
        assert_eq!(judge(&lagging), Verdict::Start { commit: 15 });
    }

    // 01-A13
    #[test]
    fn a_log_that_ends_too_early_is_refused_whatever_proves_it() {
        let expected = |expected, proof| Refusal::TailLost {
            last: 20,
            expected,
            proof,
        };
        assert_eq!(
            refusal(|seen| seen.applied.index = 21),
            expected(21, "applied")
        );
        assert_eq!(refusal(|seen| seen.commit = 22), expected(22, "committed"));
        let marked = refusal(|seen| {
            seen.mark = Ok(Mark {
                last: position(23, 2),
                hard_state_term: 3,
            });
        });
        assert_eq!(marked, expected(23, "written and synced"));
        assert!(marked.is_log_loss());
        assert!(marked.to_string().contains("--accept-log-loss"));
    }

    #[test]
    fn another_history_is_refused() {
        assert!(matches!(
            refusal(|seen| seen.term_at_applied = Some(1)),
            Refusal::OtherTerm {
                index: 15,
                log_term: 1,
                expected_term: 2,
                ..
            }
        ));
        assert!(matches!(
            refusal(|seen| seen.term_at_mark = Some(3)),
            Refusal::OtherTerm {
                index: 19,
                log_term: 3,
                ..
            }
        ));
        assert!(matches!(
            refusal(|seen| seen.hard_state_term = 2),
            Refusal::TermLost {
                term: 2,
                expected: 3
            }
        ));
        assert!(matches!(
            refusal(|seen| seen.mark = Err("gone".into())),
            Refusal::NoMark(_)
        ));
    }

    #[test]
    fn a_database_behind_the_log_is_refused_for_good() {
        let refusal = refusal(|seen| seen.applied = Applied { index: 9, term: 1 });
        assert_eq!(
            refusal,
            Refusal::StateBehind {
                applied: 9,
                truncated: 10
            }
        );
        assert!(!refusal.is_log_loss());
    }

    // The log side of 04-A37, an interrupted snapshot installation
    #[test]
    fn only_an_announced_installation_resets_the_log() {
        let snapshot = Applied { index: 50, term: 4 };
        let mut seen = Seen {
            applied: snapshot,
            installing: Some(snapshot),
            term_at_applied: None,
            ..healthy()
        };
        assert_eq!(
            judge(&seen),
            Verdict::FinishInstall {
                at: position(50, 4)
            }
        );
        seen.installing = Some(Applied { index: 49, term: 4 });
        assert!(matches!(
            judge(&seen),
            Verdict::Refuse(Refusal::TailLost { .. })
        ));
        // Once the log has been reset there is nothing left to finish.
        seen.installing = Some(snapshot);
        (seen.truncated, seen.last) = (position(50, 4), position(50, 4));
        (seen.hard_state_term, seen.term_at_applied) = (4, Some(4));
        assert_eq!(judge(&seen), Verdict::Start { commit: 50 });
    }

    #[test]
    fn an_empty_log_behind_a_compaction_starts() {
        let seen = Seen {
            applied: Applied { index: 20, term: 2 },
            truncated: position(20, 2),
            term_at_applied: Some(2),
            term_at_mark: None,
            ..healthy()
        };
        assert_eq!(judge(&seen), Verdict::Start { commit: 20 });
    }
}
