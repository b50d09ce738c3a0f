//! Room for clients that only poll: with `yield_to_foreign=on` a family that has had a lock for long frees it, and stays away for a while.
//!
//! ```text
//!  our family: all managers that hand the lock to each other, in memory, by yields and by grants
//!
//!  taken                       the first to let go after LONGEST              the first of us is back
//!    |== turn ==|== turn ==|== ... ==|--------------- free ------------------->|
//!    |<----------- streak ---------->|  told: you do not wait any more         |
//!                                    |<- each of us: a random time of its own->|
//! ```
//!
//! Handing over without a gap is fair among us, but who polls never finds the lock free. How long it has been going on is known to
//! whoever took the free lock, and goes with each grant; who was not told takes it for long.
//!
//! A gap that a poll is not sure to see is none: a task that lets go and comes back goes on with its family's streak.
//!
//! Not here: what the server does with those who wait (`value`, the scripts).

use std::time::Duration;

use crate::protocol::Rules;
use crate::protocol::acquire::{Asking, Step};
use crate::protocol::command::Command;
use crate::protocol::deadline::BootTime;
use crate::protocol::lane::{Cx, Heard, Lane, Stage};
use crate::protocol::queue::Waiter;

impl Rules {
    /// Returns for how long a try may be put off at most, for others to have their chance.
    pub(crate) const fn longest_cooldown(&self) -> Duration {
        if self.yield_to_foreign { LEAST_AWAY.saturating_add(MOST_MORE) } else { Duration::ZERO }
    }
}

/// For how long our family has had a lock without a break; what is not known counts as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Streak(u32);

impl Streak {
    /// It has just begun.
    pub(crate) const NEW: Self = Self(0);
    /// Nobody said.
    pub(crate) const UNKNOWN: Self = Self(u32::MAX);

    pub(crate) fn of(time: Duration) -> Self {
        Self(u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
    }

    /// Returns what whoever gets the lock is told of it.
    pub(super) fn told(self, rules: &Rules) -> Self {
        if rules.yield_to_foreign { self } else { Self::UNKNOWN }
    }

    /// Returns the streak that has gone on for `time` more.
    pub(super) fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(Self::of(time).0))
    }

    /// Returns the milliseconds, where they are known.
    pub(crate) fn millis(self) -> Option<u32> {
        (self != Self::UNKNOWN).then_some(self.0)
    }

    /// Returns whether it is somebody else's turn.
    pub(super) fn is_over(self) -> bool {
        self >= LONGEST
    }
}

/// What a token that waits is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// How long the lock is its, unless it confirms.
    pub(crate) lease: Duration,
    /// For how long its family has had the lock by then.
    pub(crate) streak: Streak,
}

impl Offer {
    /// The lock was freed: the token waits no more, and finds out when it asks.
    pub(crate) const NONE: Self = Self { lease: Duration::ZERO, streak: Streak::UNKNOWN };
}

/// A lane whose last task has let go a short while ago.
#[derive(Clone, Debug)]
pub(super) struct Away<S> {
    /// Who let go, or asked last.
    pub(super) seat: S,
    /// The streak by then. Once it is over, who comes and has the time waits until others had their chance.
    streak: Streak,
    pub(super) until: BootTime,
}

impl<S: Clone + PartialEq> Stage<S> {
    /// Returns for how long our family has had the lock, if it is ours or becomes ours at once.
    pub(super) fn streak(&self, now: BootTime) -> Streak {
        match self {
            Self::Idle => Streak::NEW,
            Self::Asking(asking) => asking.streak,
            Self::Held(hold) => hold.streak(now),
            Self::Yielding(yielding) => yielding.hold.streak(now),
            Self::Away(away) => away.streak,
        }
    }
}

impl<S: Clone + PartialEq> Lane<S> {
    /// A holder whom nobody here follows lets go. Returns what the server is to be told.
    pub(super) fn let_go_alone(&mut self, seat: &S, cx: &Cx<'_, S>) -> Command {
        let streak = self.stage.streak(cx.now);
        if !cx.rules.yield_to_foreign {
            self.stage = Stage::Idle;
            return Command::Release;
        }
        let until = cx.now.plus(LEAST_AWAY);
        self.stage = Stage::Away(Away { seat: seat.clone(), streak, until });
        Command::PassOn { streak }
    }

    /// Gives others a chance: nobody here asks for a random while, not even who comes within it and has the time.
    pub(super) fn stay_away(&mut self, seat: &S, cx: &mut Cx<'_, S>) {
        let until = cx.now.plus(LEAST_AWAY.saturating_add(cx.at_random(MOST_MORE)));
        self.queue.not_before(until);
        if self.queue.is_empty() {
            self.stage = Stage::Away(Away { seat: seat.clone(), streak: Streak::UNKNOWN, until });
        } else {
            self.pause_until(until, cx);
        }
    }

    /// A task wants the lock while others are to have a chance. One with less time than that asks at once, as does one that goes on
    /// with a streak.
    pub(super) fn join_while_away(&mut self, waiter: Waiter<S>, cx: &mut Cx<'_, S>) {
        let Stage::Away(Away { streak, until, .. }) = self.stage else { return };
        let waits = streak.is_over() && waiter.patience.lasts_beyond(until);
        self.enlist(waiter);
        if waits {
            self.queue.hear(Heard::Taken(Some(until.since(cx.now))));
            self.pause_until(until, cx);
        } else {
            self.ask(cx);
        }
    }

    fn pause_until(&mut self, until: BootTime, cx: &Cx<'_, S>) {
        let Some(head) = self.queue.head() else { return };
        let step = Step::Paused { until, earliest: until };
        self.stage = Stage::Asking(Asking::new(head.seat.clone(), cx.tokens.next(), step, Streak::NEW));
    }
}

/// A family that has had a lock for so long lets others have a chance.
const LONGEST: Streak = Streak(500);

/// The clients that poll do so every 50 to 300 ms.
const LEAST_AWAY: Duration = Duration::from_millis(100);

const MOST_MORE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests;
