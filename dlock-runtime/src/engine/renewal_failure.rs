//! [`RenewalFailure`], why the last renewal of a hold failed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::LossCause;
use crate::key::Name;
use crate::protocol::command::{FailureKind, Reply};
use crate::protocol::deadline::BootInstant;

/// Why the last renewal of a hold, or the confirmation of its grant, failed.
#[derive(Clone, Debug)]
pub(crate) struct RenewalFailure {
    pub(super) reason: Arc<str>,
    /// When the renewal was sent.
    sent: BootInstant,
    /// When the last renewal was sent that may have no reply, since the last success. Later
    /// refusals, such as that there is no connection, may be its consequence.
    unanswered: Option<BootInstant>,
    /// Whether another client has replaced the value of the key.
    is_foreign: bool,
}

impl RenewalFailure {
    /// Returns the failure that `reply`, to a renewal sent at `sent`, describes, if it does.
    pub(super) fn of_reply(reply: &Reply, sent: BootInstant) -> Option<Self> {
        let (failure, unanswered) = match reply {
            Reply::Refused(failure) => (failure, None),
            Reply::Unknown(failure) => {
                // A permanent failure of a command that may have run is the server's reply.
                let may_be_unanswered = failure.kind == FailureKind::Passing || failure.connection_lost;
                (failure, may_be_unanswered.then_some(sent))
            }
            _ => return None,
        };
        let is_foreign = failure.kind == FailureKind::WrongKind;
        Some(Self { reason: Arc::clone(&failure.reason), sent, unanswered, is_foreign })
    }

    /// Returns `true` if the renewal is repeated. Otherwise, the hold is lost.
    pub(super) fn is_repeated(&self) -> bool {
        !self.is_foreign
    }

    /// Returns what concerns a hold that began at `start`: replies to renewals of an earlier hold
    /// may come late.
    pub(super) fn since(self, start: BootInstant) -> Option<Self> {
        let unanswered = self.unanswered.filter(|sent| *sent >= start);
        (self.sent >= start).then_some(Self { unanswered, ..self })
    }

    /// Returns `true` if it is the reason of a loss by `cause`.
    pub(super) fn explains(&self, cause: LossCause) -> bool {
        match cause {
            LossCause::Expired => true,
            // If a reply is missing, more time may help: the remedy is `grant_lease`.
            LossCause::GrantUnconfirmed => self.unanswered.is_none(),
            LossCause::NotOwner => self.is_foreign,
            _ => false,
        }
    }
}

/// The failures of the keys of a shard. A key has one only after a renewal has failed, so they are
/// not part of its entry.
#[derive(Debug, Default)]
pub(super) struct RenewalFailures(BTreeMap<Name, RenewalFailure>);

impl RenewalFailures {
    /// Records why the last renewal of the hold of `key` failed.
    pub(super) fn record(&mut self, key: &Name, failure: RenewalFailure) {
        let unanswered = failure.unanswered.or_else(|| self.get(key)?.unanswered);
        self.0.insert(Name::clone(key), RenewalFailure { unanswered, ..failure });
    }

    pub(super) fn get(&self, key: &Name) -> Option<&RenewalFailure> {
        self.0.get(key)
    }

    /// Returns and forgets the failure of `key`.
    pub(super) fn take(&mut self, key: &Name) -> Option<RenewalFailure> {
        if self.is_empty() { None } else { self.0.remove(key) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::Failure;

    fn at(millis: u64) -> BootInstant {
        BootInstant::START.plus(std::time::Duration::from_millis(millis))
    }

    fn failed(reply: fn(Failure) -> Reply, kind: FailureKind, sent: u64) -> RenewalFailure {
        let reply = reply(Failure::new(kind, "no"));
        RenewalFailure::of_reply(&reply, at(sent)).expect("it is a failure")
    }

    fn refused(sent: u64) -> RenewalFailure {
        failed(Reply::Refused, FailureKind::Passing, sent)
    }

    fn unanswered(sent: u64) -> RenewalFailure {
        failed(Reply::Unknown, FailureKind::Passing, sent)
    }

    #[test]
    fn a_failed_renewal_explains_only_the_losses_that_it_causes() {
        let foreign = failed(Reply::Refused, FailureKind::WrongKind, 0);
        let lost = |failure: Failure| Reply::Unknown(failure.with_connection_lost());
        let lost = failed(lost, FailureKind::Lasting, 0);
        assert!(RenewalFailure::of_reply(&Reply::Owner, at(0)).is_none());

        for (failure, explained) in [
            (refused(0), &[LossCause::Expired, LossCause::GrantUnconfirmed][..]),
            (unanswered(0), &[LossCause::Expired]), // more time would help to confirm a grant
            (
                failed(Reply::Unknown, FailureKind::Lasting, 0), // the server replied with an error
                &[LossCause::Expired, LossCause::GrantUnconfirmed],
            ),
            (lost, &[LossCause::Expired]),
            (foreign.clone(), &[LossCause::Expired, LossCause::GrantUnconfirmed, LossCause::NotOwner]),
        ] {
            for cause in [
                LossCause::Expired,
                LossCause::GrantUnconfirmed,
                LossCause::NotOwner,
                LossCause::MaxHold,
                LossCause::Shutdown,
                LossCause::Released,
                LossCause::Forked,
            ] {
                assert_eq!(failure.explains(cause), explained.contains(&cause), "{failure:?} {cause:?}");
            }
        }
        assert!(refused(0).is_repeated() && unanswered(0).is_repeated() && !foreign.is_repeated());
    }

    #[test]
    fn a_missing_reply_counts_until_the_next_success() {
        let (key, mut failures) = (Name::from("order:7"), RenewalFailures::default());
        failures.record(&key, unanswered(1));
        failures.record(&key, refused(2));

        let later = failures.take(&key).expect("it was recorded");

        assert!(!later.explains(LossCause::GrantUnconfirmed), "the connection was closed for a timeout");
        failures.record(&key, refused(3));
        assert!(failures.take(&key).is_some_and(|failure| failure.explains(LossCause::GrantUnconfirmed)));
        assert!(failures.is_empty());
    }

    #[test]
    fn late_replies_of_an_earlier_hold_are_no_reason() {
        assert!(refused(1).since(at(2)).is_none());
        let (key, mut failures) = (Name::from("order:7"), RenewalFailures::default());
        failures.record(&key, unanswered(1));
        failures.record(&key, refused(2));
        let both = failures.take(&key).expect("it was recorded");

        let of_second = both.clone().since(at(2)).expect("the refusal is its own");

        assert!(of_second.explains(LossCause::GrantUnconfirmed));
        assert!(!both.since(at(1)).expect("both are its own").explains(LossCause::GrantUnconfirmed));
    }
}
