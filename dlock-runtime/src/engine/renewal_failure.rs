//! [`RenewalFailure`], why the last renewal of a hold failed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::LossCause;
use crate::key::Name;
use crate::protocol::command::Reply;

/// Why the last renewal of a hold, or the confirmation of its grant, failed.
#[derive(Clone, Debug)]
pub(crate) struct RenewalFailure {
    pub(super) reason: Arc<str>,
    /// Whether no command ran. Otherwise, a reply is missing: of this one, or of an earlier one
    /// since the last success. A refusal that follows, such as that there is no connection, may be
    /// its consequence.
    is_refused: bool,
}

impl RenewalFailure {
    /// Returns the failure that `reply` describes, if it does.
    pub(super) fn of_reply(reply: &Reply) -> Option<Self> {
        let (failure, is_refused) = match reply {
            Reply::Refused(failure) => (failure, true),
            Reply::Unknown(failure) => (failure, false),
            _ => return None,
        };
        Some(Self { reason: Arc::clone(&failure.reason), is_refused })
    }

    /// Returns `true` if it is the reason of a loss by `cause`.
    pub(super) fn explains(&self, cause: LossCause) -> bool {
        match cause {
            LossCause::Expired => true,
            // If a reply is missing, more time may help: the remedy is `grant_lease`.
            LossCause::GrantUnconfirmed => self.is_refused,
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
        let is_refused = failure.is_refused && self.get(key).is_none_or(|earlier| earlier.is_refused);
        self.0.insert(Name::clone(key), RenewalFailure { is_refused, ..failure });
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
    use crate::protocol::command::{Failure, FailureKind};

    #[test]
    fn a_failed_renewal_explains_a_loss_by_time_only() {
        let failure = || Failure::new(FailureKind::Passing, "no");
        let refused = RenewalFailure::of_reply(&Reply::Refused(failure())).expect("it is a failure");
        let unknown = RenewalFailure::of_reply(&Reply::Unknown(failure())).expect("it is a failure");
        assert!(RenewalFailure::of_reply(&Reply::Owner).is_none());

        assert!(refused.explains(LossCause::Expired) && unknown.explains(LossCause::Expired));
        assert!(refused.explains(LossCause::GrantUnconfirmed));
        assert!(!unknown.explains(LossCause::GrantUnconfirmed), "more time would help");
        let (key, mut failures) = (Name::from("order:7"), RenewalFailures::default());
        failures.record(&key, unknown);
        failures.record(&key, refused.clone());
        let later = failures.take(&key).expect("it was recorded");
        assert!(!later.explains(LossCause::GrantUnconfirmed), "the connection was closed for a timeout");
        failures.record(&key, refused.clone());
        assert!(failures.take(&key).is_some_and(|failure| failure.explains(LossCause::GrantUnconfirmed)));
        assert!(failures.is_empty());
        for cause in [LossCause::NotOwner, LossCause::MaxHold, LossCause::Shutdown, LossCause::Released] {
            assert!(!refused.explains(cause), "{cause:?}");
        }
    }
}
