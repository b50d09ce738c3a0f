//! [`KeyTimer`]: every reason for which a key wakes up.

use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::{KeyPhase, KeyState};

/// A reason to call [`KeyState::on_timeout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyTimer {
    /// A hold is renewed or confirmed, or a failed renewal is repeated.
    Renewal,
    /// A hold is verified, because its key may have changed.
    Verification,
    /// The lease of a hold ends, and the hold is lost.
    Expiry,
    /// The `max_hold` of a hold ends, and the hold is lost.
    MaxHold,
    /// The key of a hold that has ended is released, or its time to live is set again.
    MinHold,
    /// The contender checks that its token is still in the server's queue.
    QueueCheck,
    /// The contender, which is not queued, tries again.
    Poll,
    /// The `retry` of the head of the local queue allows the next try.
    Retry,
    /// A call ends its wait, or uses up a retry behind another task of this process.
    WaitTimeout,
    /// The cooldown ends.
    Cooldown,
}

impl KeyTimer {
    /// Returns `true` if the work can wait while many renewals are in flight.
    pub(super) const fn is_deferrable(self) -> bool {
        matches!(self, Self::Renewal | Self::Verification)
    }
}

impl<A: Clone + PartialEq> KeyState<A> {
    /// Returns a time at or before the first at which [`on_timeout`](Self::on_timeout) has work to
    /// do.
    pub(crate) fn next_timeout(&self) -> BootInstant {
        let mut next = BootInstant::NEVER;
        self.timers(&mut |_, at| next = next.min(at));
        next
    }

    /// Passes each timer to `set`. The time is [`BootInstant::NEVER`] if the timer is not set.
    pub(super) fn timers(&self, set: &mut impl FnMut(KeyTimer, BootInstant)) {
        match &self.phase {
            KeyPhase::Idle | KeyPhase::Yielding(_) => {}
            KeyPhase::CoolingDown(cooldown) => set(KeyTimer::Cooldown, cooldown.until),
            KeyPhase::Contending(contender) => contender.timers(set),
            KeyPhase::Held(hold) => hold.timers(set),
        }
        self.queue.timers(set);
    }
}

#[cfg(test)]
mod tests;
