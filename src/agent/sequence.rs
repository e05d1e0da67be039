//! Checks that the lists of one stream of assignments follow each other without a gap.
//!
//! A stream begins with a complete list; each further one says which state it applies to and which it
//! results in (spec 08 section 7.2). After a gap the reference is forgotten, so that the fresh stream
//! starts clean ("Do better" 22).

use crate::api::types::AssignmentsMessage;
use crate::api::types::assignments_message::Type;

/// What to do with a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is everything: what is not in it goes.
    Complete,
    /// It changes what the lists before have built up.
    Incremental,
    /// It must not be applied; the stream is useless from here on.
    Gap,
}

/// The state that the lists of one stream have built up so far.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    /// `None` before the first list.
    reference: Option<String>,
}

impl Sequence {
    /// Judges the next list of the stream.
    pub(crate) fn check(&mut self, message: &AssignmentsMessage) -> Verdict {
        let complete = message.r#type == Type::Complete as i32;
        let follows = match &self.reference {
            None => complete,
            Some(reference) => *reference == message.applies_to,
        };
        // A complete list in the middle of a stream stands on its own only if it says so.
        let fresh = complete && message.applies_to.is_empty();
        if !follows && !fresh {
            self.reference = None;
            return Verdict::Gap;
        }
        self.reference = Some(message.results_in.clone());
        if complete {
            Verdict::Complete
        } else {
            Verdict::Incremental
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(kind: Type, applies_to: &str, results_in: &str) -> AssignmentsMessage {
        AssignmentsMessage {
            r#type: kind as i32,
            applies_to: applies_to.to_owned(),
            results_in: results_in.to_owned(),
            changes: Vec::new(),
        }
    }

    #[test]
    fn chained_lists_are_taken() {
        let mut sequence = Sequence::default();
        let complete = list(Type::Complete, "", "1");
        assert_eq!(sequence.check(&complete), Verdict::Complete);
        for n in 1..5 {
            let next = list(Type::Incremental, &n.to_string(), &(n + 1).to_string());
            assert_eq!(sequence.check(&next), Verdict::Incremental);
        }
        assert_eq!(
            sequence.check(&list(Type::Complete, "", "1")),
            Verdict::Complete
        );
    }

    #[test]
    fn gaps_are_found_and_forgotten() {
        let mut sequence = Sequence::default();
        assert_eq!(
            sequence.check(&list(Type::Incremental, "1", "2")),
            Verdict::Gap,
            "a stream begins with everything"
        );
        assert_eq!(
            sequence.check(&list(Type::Complete, "", "1")),
            Verdict::Complete
        );
        assert_eq!(
            sequence.check(&list(Type::Incremental, "2", "3")),
            Verdict::Gap
        );
        assert_eq!(
            sequence.check(&list(Type::Incremental, "1", "2")),
            Verdict::Gap,
            "nothing follows a gap but a complete list"
        );
        assert_eq!(
            sequence.check(&list(Type::Complete, "", "1")),
            Verdict::Complete
        );
    }
}
