//! Defers renewals and verifications of a hold while many others are in flight.
//!
//! See also `engine::renewal_throttle`, which decides when to defer.

use crate::protocol::deadline::BootInstant;
use crate::protocol::hold::Hold;
use crate::protocol::invalidation::Verification;
use crate::protocol::key_state::KeyState;

impl<A: Clone + PartialEq> KeyState<A> {
    /// Defers what is due at `now` until `until`, if it can wait so long.
    ///
    /// Returns `false` and changes nothing if more than renewals and verifications is due, or if
    /// one of them cannot wait.
    pub(crate) fn defer(&mut self, now: BootInstant, until: BootInstant) -> bool {
        let mut other = BootInstant::NEVER;
        self.timers(&mut |timer, at| {
            if !timer.is_deferrable() {
                other = other.min(at);
            }
        });
        let mut holds = self.holds.active_mut().peekable();
        now < other && holds.peek().is_some() && holds.all(|hold| hold.defer(now, until))
    }
}

impl<A: Clone + PartialEq> Hold<A> {
    /// A renewal does not wait once half the lease has passed: the rest is for retries. A renewal
    /// that confirms a grant does not wait at all. A verification always can.
    fn defer(&mut self, now: BootInstant, until: BootInstant) -> bool {
        if self.next_renewal <= now {
            if self.needs_confirmation() || until.plus(self.lease() / 2) > self.deadline().at() {
                return false;
            }
            self.next_renewal = until;
        }
        if self.check != Verification::OnInvalidation && self.check_at <= now {
            self.check_at = until;
        }
        true
    }
}

#[cfg(test)]
mod tests;
