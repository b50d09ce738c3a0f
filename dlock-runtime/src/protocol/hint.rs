//! What follows from a hint that somebody changed a key: it is looked at.
//!
//! A hint proves nothing, and anybody may send any number of them. So it only brings forward what would be asked in any case, and
//! never more often than every few milliseconds: a contender that pauses, or is about to, looks again, a holder has the server confirm
//! its hold. Who stands in the server's queue is told by a grant and needs no hint.
//!
//! Not here: where hints come from (`backend`), what the answers mean (`acquire`, `hold`).

use std::time::Duration;

use crate::protocol::Rules;
use crate::protocol::acquire::{Asking, Step};
use crate::protocol::command::Command;
use crate::protocol::deadline::BootTime;
use crate::protocol::hold::Hold;
use crate::protocol::lane::{Cx, Lane, Stage};

/// What the time means that a hold has for its checks: one that may have been taken away is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// It is checked then for the first time, or as soon as there is a hint.
    First,
    /// It is checked then.
    Due,
    /// It is checked once there is a hint, and not before then.
    Rests,
}

impl Check {
    /// That of a hold which has just begun. Where the backend can tell of changes it is asked once the hold has lived for a while, and
    /// tells from then on; a little early, so that many are asked about together.
    pub(super) fn of_hold(since: BootTime, rules: &Rules) -> (Self, BootTime) {
        if !rules.tracking {
            return (Self::Rests, BootTime::START);
        }
        let grid = u64::try_from(TOGETHER.as_nanos()).unwrap_or(u64::MAX);
        (Self::First, BootTime::from_nanos(since.plus(AT_AGE).nanos() / grid * grid))
    }
}

impl<S: Clone + PartialEq> Lane<S> {
    /// Returns whether the lock is ours, and old enough to be checked: a backend that can tells of its changes from then on, and is to go
    /// on with that when it is renewed.
    pub(crate) fn is_watched(&self) -> bool {
        match &self.stage {
            Stage::Held(hold) => hold.check != Check::First,
            Stage::Yielding(yielding) => yielding.hold.check != Check::First,
            Stage::Asking(Asking { step: Step::Confirming { is_watched, .. }, .. }) => *is_watched,
            Stage::Idle | Stage::Asking(_) | Stage::Away(_) => false,
        }
    }

    /// Somebody may have changed the key.
    pub(crate) fn touched(&mut self, cx: &mut Cx<'_, S>) {
        match &mut self.stage {
            Stage::Asking(asking) => {
                match &mut asking.step {
                    Step::Paused { until, earliest } => {
                        let soon = match cx.rules.hold_back {
                            Duration::ZERO => cx.now,
                            most => cx.now.plus(cx.at_random(most)),
                        };
                        *until = (*until).min(soon.max(*earliest));
                    }
                    _ => asking.note_hint(),
                }
                self.ask_again(false, cx);
            }
            Stage::Held(hold) => hold.check_soon(cx),
            Stage::Idle | Stage::Yielding(_) | Stage::Away(_) => {}
        }
    }

    /// Nobody told of changes for a while, of any key.
    pub(crate) fn untold(&mut self, cx: &mut Cx<'_, S>) {
        match &mut self.stage {
            Stage::Held(hold) => hold.doubt(cx.now),
            _ => self.touched(cx),
        }
    }
}

impl<S> Asking<S> {
    /// Notes a hint while a look is on its way: what it says may be older.
    pub(super) fn note_hint(&mut self) {
        self.hinted |= matches!(self.step, Step::Enqueuing(_));
    }
}

impl<S: Clone + PartialEq> Hold<S> {
    /// Returns when the hold is to be checked.
    pub(super) fn check_due(&self) -> BootTime {
        if self.check == Check::Rests { BootTime::NEVER } else { self.check_at }
    }

    /// Asks the server as soon as may be.
    pub(super) fn check_soon(&mut self, cx: &mut Cx<'_, S>) {
        if self.check == Check::First {
            self.check_at = BootTime::START;
        }
        self.check = Check::Due;
        self.check_if_due(cx);
    }

    /// Has the server asked, with all others of which nobody told for a while: the hold is due, and waits for its place among them.
    pub(super) fn doubt(&mut self, now: BootTime) {
        self.check_at = if self.check == Check::First { now } else { self.check_at.max(now) };
        self.check = Check::Due;
    }

    /// Asks the server whether the hold is still ours, where a hint has made that doubtful.
    pub(super) fn check_if_due(&mut self, cx: &mut Cx<'_, S>) {
        if cx.now >= self.check_due() {
            (self.check, self.check_at) = (Check::Rests, cx.now.plus(BETWEEN_CHECKS));
            cx.send(self.token(cx), Command::Check);
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
