//! The reaction to an invalidation: another client may have changed a key, so its state is checked.
//!
//! An invalidation proves nothing, and any client can send any number of them. So it only moves
//! forward what is due anyway, at most once in 10 ms for a hold and once in 2 ms for a contender. A
//! polling contender retries, and a holder verifies its hold. A queued contender is notified by a
//! grant and needs no invalidation.

use std::time::Duration;

use crate::protocol::ProtocolConfig;
use crate::protocol::command::Command;
use crate::protocol::contender::{Contender, ContenderState};
use crate::protocol::deadline::BootInstant;
use crate::protocol::hold::Hold;
use crate::protocol::key_state::{EventContext, KeyState};
use crate::protocol::retained::RetainedHold;

/// The meaning of a hold's time for its checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verification {
    /// The hold is checked then for the first time, or at the first invalidation.
    Initial,
    /// The hold is checked then.
    Scheduled,
    /// The hold is checked at the next invalidation, and not before that time.
    OnInvalidation,
}

impl Verification {
    /// Returns the first check of a hold. If the backend supports tracking, the check starts it. It
    /// is due after [`FIRST_CHECK_AGE`], rounded down so that many holds are checked together.
    pub(super) fn of_hold(since: BootInstant, rules: &ProtocolConfig) -> (Self, BootInstant) {
        if !rules.tracking {
            return (Self::OnInvalidation, BootInstant::START);
        }
        let grid = u64::try_from(CHECK_GRID.as_nanos()).unwrap_or(u64::MAX);
        (Self::Initial, BootInstant::from_nanos(since.plus(FIRST_CHECK_AGE).nanos() / grid * grid))
    }
}

impl<A: Clone + PartialEq> KeyState<A> {
    /// Returns `true` if this process holds or retains the key and its first check was sent: the
    /// backend tracks the key from then on, and continues at renewals.
    pub(crate) fn is_tracked(&self) -> bool {
        let of_contender = |contender: &Contender| match contender.step {
            ContenderState::Confirming { is_tracked, .. } => is_tracked,
            _ => false,
        };
        self.holds.iter().any(Hold::is_tracked)
            || self.contender().is_some_and(of_contender)
            || self.queue.retained().iter().any(RetainedHold::is_tracked)
    }

    /// Handles a possible change of the key.
    pub(crate) fn on_invalidation(&mut self, ctx: &mut EventContext<'_, A>) {
        self.revalidate_contender(ctx);
        self.holds.active_mut().for_each(|hold| hold.check_soon(ctx));
    }

    /// Handles a gap in which invalidations of all keys may have been missed.
    pub(crate) fn on_invalidations_missed(&mut self, ctx: &mut EventContext<'_, A>) {
        self.revalidate_contender(ctx);
        self.holds.active_mut().for_each(|hold| hold.mark_unverified(ctx.now));
    }

    fn revalidate_contender(&mut self, ctx: &mut EventContext<'_, A>) {
        if let Some(contender) = self.queue.contender_mut() {
            contender.on_invalidation(ctx);
            self.recheck_queue(false, ctx);
        }
    }
}

impl Contender {
    /// Moves the next attempt of a polling contender to now, or to soon if other clients receive
    /// the invalidation later.
    fn on_invalidation<A>(&mut self, ctx: &EventContext<'_, A>) {
        if let ContenderState::Polling { until, earliest } = &mut self.step {
            let soon = match ctx.rules.wakeup_jitter {
                Duration::ZERO => ctx.now,
                most => ctx.now.plus(ctx.random_up_to(most)),
            };
            *until = (*until).min(soon.max(*earliest));
        }
        self.note_invalidation();
    }

    /// Records an invalidation while an enqueue is in flight: its reply may be older.
    pub(super) fn note_invalidation(&mut self) {
        self.revalidate |= matches!(self.step, ContenderState::Enqueuing(_));
    }
}

impl<A: Clone + PartialEq> Hold<A> {
    /// Returns `true` if the backend tracks the key of the hold.
    pub(super) fn is_tracked(&self) -> bool {
        self.check != Verification::Initial
    }

    /// Returns when the hold is checked next.
    pub(super) fn check_due(&self) -> BootInstant {
        if self.check == Verification::OnInvalidation { BootInstant::NEVER } else { self.check_at }
    }

    /// Checks the hold as soon as the minimum interval allows.
    pub(super) fn check_soon(&mut self, ctx: &mut EventContext<'_, A>) {
        if self.check == Verification::Initial {
            self.check_at = BootInstant::START;
        }
        self.check = Verification::Scheduled;
        self.check_if_due(ctx);
    }

    /// Makes a check due, with those of all other holds whose invalidations may have been missed.
    pub(super) fn mark_unverified(&mut self, now: BootInstant) {
        self.check_at = if self.check == Verification::Initial { now } else { self.check_at.max(now) };
        self.check = Verification::Scheduled;
    }

    /// Sends the check if it is due.
    pub(super) fn check_if_due(&mut self, ctx: &mut EventContext<'_, A>) {
        if ctx.now >= self.check_due() {
            (self.check, self.check_at) = (Verification::OnInvalidation, ctx.now.plus(MIN_CHECK_INTERVAL));
            ctx.send(self.token, Command::Verify);
        }
    }
}

/// The age of a hold at its first check. Most holds end before, and tracking them would cost more
/// than it is worth.
const FIRST_CHECK_AGE: Duration = Duration::from_millis(100);

/// Checks that are due within this time are due together.
const CHECK_GRID: Duration = Duration::from_millis(20);

/// The shortest time between two checks of a hold. It also bounds how late a second loss is
/// noticed.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
