//! The lease of the owner of a record: when it is renewed, and when it is lost.
//!
//! An idempotent call or a scheduled job runs its body under such a lease. Its times are those of a
//! hold: `renewal` gives the times of renewals, and `deadline` when a lease is over. A loss is
//! final: a body that was stopped does not continue.

use std::time::Duration;

use crate::error::LossCause;
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::protocol::renewal;

/// The terms of the lease of an owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnerTerms {
    /// The lease, on which the times of renewals depend.
    pub(crate) lease: Duration,
    /// How long after the start of a renewal no other owner can exist; at least the lease.
    pub(crate) validity: Duration,
    /// When the body must stop although the lease is renewed; `NEVER` if there is no limit.
    pub(crate) ends: BootInstant,
}

/// The reply to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseReply {
    Renewed,
    /// The record has another owner, or none.
    Lost(LossCause),
}

/// The lease of one owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnerLease {
    terms: OwnerTerms,
    /// The sort key of the owner's token.
    place: (u64, u64),
    deadline: Deadline,
    next_renewal: BootInstant,
    loss: Option<LossCause>,
}

impl OwnerLease {
    /// Creates the lease that a request sent at `sent` has begun.
    pub(crate) fn new(terms: OwnerTerms, sent: BootInstant, place: (u64, u64)) -> Self {
        Self {
            terms,
            place,
            deadline: Deadline::of_lease(sent, terms.validity),
            next_renewal: renewal::due(sent, terms.lease, place),
            loss: None,
        }
    }

    /// Returns why the body must stop at `now`; `None` if it may continue.
    pub(crate) fn loss_at(&self, now: BootInstant) -> Option<LossCause> {
        self.loss.or_else(|| match now {
            now if now >= self.terms.ends => Some(LossCause::MaxHold),
            now if !self.deadline.holds_at(now) => Some(LossCause::Expired),
            _ => None,
        })
    }

    /// Returns when the body must stop unless the lease is renewed.
    pub(crate) fn ends(&self) -> BootInstant {
        self.deadline.at().min(self.terms.ends)
    }

    /// Returns when the next renewal is sent, unless the lease is lost before.
    pub(crate) fn next_renewal(&self) -> BootInstant {
        self.next_renewal
    }

    /// Handles the end, at `now`, of a renewal that was sent at `sent`. `None`: without a reply.
    pub(crate) fn on_renewal_ended(
        &mut self,
        reply: Option<LeaseReply>,
        (sent, now): (BootInstant, BootInstant),
    ) {
        let lease = self.terms.lease;
        match reply {
            Some(LeaseReply::Lost(cause)) => self.mark_lost(cause),
            _ if self.loss_at(now).is_some() => {}
            Some(LeaseReply::Renewed) => {
                self.deadline = self.deadline.or_later(Deadline::of_lease(sent, self.terms.validity));
                self.next_renewal = renewal::due(sent, lease, self.place);
            }
            None => self.next_renewal = renewal::retry_at(now, lease, self.deadline.at().since(now)),
        }
    }

    /// Marks the lease as lost. The first cause counts.
    pub(crate) fn mark_lost(&mut self, cause: LossCause) {
        self.loss.get_or_insert(cause);
    }
}

#[cfg(test)]
mod tests;
