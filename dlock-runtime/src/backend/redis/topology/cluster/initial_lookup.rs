//! [`InitialLookup`], the first lookup of the primaries, if the manager has started without it.
//!
//! ```text
//!  InProgress --found--> the slot map
//!      |                     ^
//!      +--failed--> Failed --+ found; each later attempt after a backoff, without end
//! ```
//!
//! Requests wait for the first attempt, and are refused at once after it has failed, as for the
//! connection to one server. That attempt is shorter than a response timeout, so a call with a
//! single try gets its reason.

use crate::backend::Request;
use crate::protocol::command::{Failure, FailureKind};

/// The state of the first lookup, until it succeeds.
pub(super) enum InitialLookup {
    /// The first attempt is in progress, and requests wait for its end.
    InProgress(Vec<Request>),
    /// The last attempt has failed.
    Failed(Failure),
}

impl InitialLookup {
    /// Returns `true` if the first attempt has not ended.
    pub(super) fn is_in_progress(&self) -> bool {
        matches!(self, Self::InProgress(_))
    }

    /// Keeps requests until the end of the first attempt, or returns them to be refused.
    pub(super) fn take(&mut self, requests: Vec<Request>) -> Vec<(Request, Failure)> {
        match self {
            Self::InProgress(waiting) => {
                waiting.extend(requests);
                Vec::new()
            }
            Self::Failed(failure) => requests.into_iter().map(|request| (request, failure.clone())).collect(),
        }
    }

    /// Records that an attempt has failed, and returns the requests that waited for it, to be
    /// refused.
    pub(super) fn fail(&mut self, failure: Failure) -> Vec<(Request, Failure)> {
        // Whatever the reason, a later attempt may succeed.
        let failure = Failure { kind: FailureKind::Passing, ..failure };
        match std::mem::replace(self, Self::Failed(failure)) {
            Self::InProgress(waiting) => self.take(waiting),
            Self::Failed(_) => Vec::new(),
        }
    }

    /// Ends the lookup, and returns the requests that wait for it.
    pub(super) fn finish(self) -> Vec<Request> {
        if let Self::InProgress(waiting) = self { waiting } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::node::test_node::acquire;

    fn keys(refused: Vec<(Request, Failure)>) -> Vec<(String, String, FailureKind)> {
        let shown = |(request, failure): (Request, Failure)| {
            (request.key.to_string(), failure.reason.to_string(), failure.kind)
        };
        refused.into_iter().map(shown).collect()
    }

    fn refused(key: &str, reason: &str) -> (String, String, FailureKind) {
        (key.to_owned(), reason.to_owned(), FailureKind::Passing)
    }

    #[test]
    fn requests_wait_for_the_first_attempt_only() {
        let mut lookup = InitialLookup::InProgress(Vec::new());
        assert!(lookup.take(vec![acquire("a"), acquire("b")]).is_empty() && lookup.is_in_progress());

        let failed = lookup.fail(Failure::new(FailureKind::Lasting, "wrong"));

        assert_eq!(keys(failed), [refused("a", "wrong"), refused("b", "wrong")]);
        assert!(!lookup.is_in_progress());
        assert_eq!(keys(lookup.take(vec![acquire("c")])), [refused("c", "wrong")]);
        assert!(lookup.fail(Failure::new(FailureKind::Lasting, "away")).is_empty());
        assert_eq!(keys(lookup.take(vec![acquire("d")])), [refused("d", "away")]);
        assert!(lookup.finish().is_empty());
    }

    #[test]
    fn requests_are_sent_when_the_primaries_are_found() {
        let mut lookup = InitialLookup::InProgress(Vec::new());
        lookup.take(vec![acquire("a")]);
        lookup.take(vec![acquire("b")]);

        let waiting: Vec<_> = lookup.finish().into_iter().map(|request| request.key).collect();

        assert_eq!(waiting.iter().map(|key| &**key).collect::<Vec<_>>(), ["a", "b"]);
    }
}
