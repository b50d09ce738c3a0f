//! What is due for a hold and can wait: questions to the server, while many others have theirs on their way.
//!
//! Not here: when it has to wait (`engine`), what is asked (`hold`, `hint`).

use crate::protocol::deadline::BootInstant;
use crate::protocol::hold::Hold;
use crate::protocol::invalidation::Verification;
use crate::protocol::key_state::{KeyPhase, KeyState};

impl<A: Clone + PartialEq> KeyState<A> {
    /// Has what is due at `now` be due at `until` instead, where it is only renewals and checks, which can wait so long. Returns whether
    /// they can; else all is as before.
    pub(crate) fn defer(&mut self, now: BootInstant, until: BootInstant) -> bool {
        let other = self.queue.due().min(self.retained_due());
        match &mut self.phase {
            KeyPhase::Held(hold) if now < other => hold.defer(now, until),
            _ => false,
        }
    }
}

impl<A: Clone + PartialEq> Hold<A> {
    /// A renewal does not wait once half the lease has gone: the rest is for tries that are not answered. Nor does what confirms a grant. A
    /// check does.
    fn defer(&mut self, now: BootInstant, until: BootInstant) -> bool {
        if !self.deadline().holds_at(now) || now >= self.bounds_due() {
            return false;
        }
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
