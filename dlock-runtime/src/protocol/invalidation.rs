//! What follows from a hint that somebody changed a key: it is looked at.
//!
//! A hint proves nothing, and anybody may send any number of them. So it only brings forward what would be asked in any case, and
//! never more often than every few milliseconds: a contender that pauses, or is about to, looks again, a holder has the server confirm
//! its hold. Who stands in the server's queue is told by a grant and needs no hint.
//!
//! Not here: where hints come from (`backend`), what the answers mean (`acquire`, `hold`).

use std::time::Duration;

use crate::protocol::ProtocolConfig;
use crate::protocol::command::Command;
use crate::protocol::contender::{Contender, ContenderState};
use crate::protocol::deadline::BootInstant;
use crate::protocol::hold::Hold;
use crate::protocol::key_state::{EventContext, KeyPhase, KeyState};

/// What the time means that a hold has for its checks: one that may have been taken away is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verification {
    /// It is checked then for the first time, or as soon as there is a hint.
    Initial,
    /// It is checked then.
    Scheduled,
    /// It is checked once there is a hint, and not before then.
    OnInvalidation,
}

impl Verification {
    /// That of a hold which has just begun. Where the backend can tell of changes it is asked once the hold has lived for a while, and
    /// tells from then on; a little early, so that many are asked about together.
    pub(super) fn of_hold(since: BootInstant, rules: &ProtocolConfig) -> (Self, BootInstant) {
        if !rules.tracking {
            return (Self::OnInvalidation, BootInstant::START);
        }
        let grid = u64::try_from(TOGETHER.as_nanos()).unwrap_or(u64::MAX);
        (Self::Initial, BootInstant::from_nanos(since.plus(AT_AGE).nanos() / grid * grid))
    }
}

impl<A: Clone + PartialEq> KeyState<A> {
    /// Returns whether the lock is ours, and old enough to be checked: a backend that can tells of its changes from then on, and is to go
    /// on with that when it is renewed.
    pub(crate) fn is_tracked(&self) -> bool {
        match &self.phase {
            KeyPhase::Held(hold) => hold.check != Verification::Initial,
            KeyPhase::Yielding(yielding) => yielding.hold.check != Verification::Initial,
            KeyPhase::Contending(Contender {
                step: ContenderState::Confirming { is_tracked, .. }, ..
            }) => *is_tracked,
            KeyPhase::Idle | KeyPhase::Contending(_) | KeyPhase::CoolingDown(_) => false,
        }
    }

    /// Somebody may have changed the key.
    pub(crate) fn on_invalidation(&mut self, ctx: &mut EventContext<'_, A>) {
        match &mut self.phase {
            KeyPhase::Contending(contender) => {
                match &mut contender.step {
                    ContenderState::Polling { until, earliest } => {
                        let soon = match ctx.rules.wakeup_jitter {
                            Duration::ZERO => ctx.now,
                            most => ctx.now.plus(ctx.at_random(most)),
                        };
                        *until = (*until).min(soon.max(*earliest));
                    }
                    _ => contender.note_invalidation(),
                }
                self.recheck_queue(false, ctx);
            }
            KeyPhase::Held(hold) => hold.check_soon(ctx),
            KeyPhase::Idle | KeyPhase::Yielding(_) | KeyPhase::CoolingDown(_) => {}
        }
    }

    /// Nobody told of changes for a while, of any key.
    pub(crate) fn on_invalidations_missed(&mut self, ctx: &mut EventContext<'_, A>) {
        match &mut self.phase {
            KeyPhase::Held(hold) => hold.mark_unverified(ctx.now),
            _ => self.on_invalidation(ctx),
        }
    }
}

impl<A> Contender<A> {
    /// Notes a hint while a look is on its way: what it says may be older.
    pub(super) fn note_invalidation(&mut self) {
        self.hinted |= matches!(self.step, ContenderState::Enqueuing(_));
    }
}

impl<A: Clone + PartialEq> Hold<A> {
    /// Returns when the hold is to be checked.
    pub(super) fn check_due(&self) -> BootInstant {
        if self.check == Verification::OnInvalidation { BootInstant::NEVER } else { self.check_at }
    }

    /// Asks the server as soon as may be.
    pub(super) fn check_soon(&mut self, ctx: &mut EventContext<'_, A>) {
        if self.check == Verification::Initial {
            self.check_at = BootInstant::START;
        }
        self.check = Verification::Scheduled;
        self.check_if_due(ctx);
    }

    /// Has the server asked, with all others of which nobody told for a while: the hold is due, and waits for its place among them.
    pub(super) fn mark_unverified(&mut self, now: BootInstant) {
        self.check_at = if self.check == Verification::Initial { now } else { self.check_at.max(now) };
        self.check = Verification::Scheduled;
    }

    /// Asks the server whether the hold is still ours, where a hint has made that doubtful.
    pub(super) fn check_if_due(&mut self, ctx: &mut EventContext<'_, A>) {
        if ctx.now >= self.check_due() {
            (self.check, self.check_at) = (Verification::OnInvalidation, ctx.now.plus(BETWEEN_CHECKS));
            ctx.send(self.token(ctx), Command::Verify);
        }
    }
}

/// Most holds are over before: to be told of their changes would cost more than it is worth.
const AT_AGE: Duration = Duration::from_millis(100);

const TOGETHER: Duration = Duration::from_millis(20);

/// Checks are no closer together, however many hints come. It bounds how late a second theft is told, too.
const BETWEEN_CHECKS: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
