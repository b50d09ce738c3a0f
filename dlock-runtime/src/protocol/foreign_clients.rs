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

use crate::protocol::ProtocolConfig;
use crate::protocol::command::Command;
use crate::protocol::contender::{Contender, ContenderState};
use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::{EventContext, KeyPhase, KeyState, LastObserved};
use crate::protocol::wait_queue::QueueEntry;

impl ProtocolConfig {
    /// Returns for how long a try may be put off at most, for others to have their chance.
    pub(crate) const fn longest_cooldown(&self) -> Duration {
        if self.yield_to_foreign { LEAST_AWAY.saturating_add(MOST_MORE) } else { Duration::ZERO }
    }
}

/// For how long our family has had a lock without a break; what is not known counts as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FleetHold(u32);

impl FleetHold {
    /// It has just begun.
    pub(crate) const NEW: Self = Self(0);
    /// Nobody said.
    pub(crate) const UNKNOWN: Self = Self(u32::MAX);

    pub(crate) fn of(time: Duration) -> Self {
        Self(u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
    }

    /// Returns what whoever gets the lock is told of it.
    pub(super) fn told(self, rules: &ProtocolConfig) -> Self {
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
pub(crate) struct Grant {
    /// How long the lock is its, unless it confirms.
    pub(crate) lease: Duration,
    /// For how long its family has had the lock by then.
    pub(crate) fleet_hold: FleetHold,
}

impl Grant {
    /// The lock was freed: the token waits no more, and finds out when it asks.
    pub(crate) const NONE: Self = Self { lease: Duration::ZERO, fleet_hold: FleetHold::UNKNOWN };
}

/// A lane whose last task has let go a short while ago.
#[derive(Clone, Debug)]
pub(super) struct Cooldown<A> {
    /// Who let go, or asked last.
    pub(super) acquisition: A,
    /// The streak by then. Once it is over, who comes and has the time waits until others had their chance.
    fleet_hold: FleetHold,
    pub(super) until: BootInstant,
}

impl<A: Clone + PartialEq> KeyPhase<A> {
    /// Returns for how long our family has had the lock, if it is ours or becomes ours at once.
    pub(super) fn fleet_hold(&self, now: BootInstant) -> FleetHold {
        match self {
            Self::Idle => FleetHold::NEW,
            Self::Contending(contender) => contender.fleet_hold,
            Self::Held(hold) => hold.fleet_hold(now),
            Self::Yielding(yielding) => yielding.hold.fleet_hold(now),
            Self::CoolingDown(cooldown) => cooldown.fleet_hold,
        }
    }
}

impl<A: Clone + PartialEq> KeyState<A> {
    /// A holder whom nobody here follows lets go. Returns what the server is to be told.
    pub(super) fn release_last(&mut self, acquisition: &A, ctx: &EventContext<'_, A>) -> Command {
        let fleet_hold = self.phase.fleet_hold(ctx.now);
        if !ctx.rules.yield_to_foreign {
            self.phase = KeyPhase::Idle;
            return Command::Release;
        }
        let until = ctx.now.plus(LEAST_AWAY);
        self.phase = KeyPhase::CoolingDown(Cooldown { acquisition: acquisition.clone(), fleet_hold, until });
        Command::ReleaseWithFleetHold { fleet_hold }
    }

    /// Gives others a chance: nobody here asks for a random while, not even who comes within it and has the time.
    pub(super) fn start_cooldown(&mut self, acquisition: &A, ctx: &mut EventContext<'_, A>) {
        let until = ctx.now.plus(LEAST_AWAY.saturating_add(ctx.at_random(MOST_MORE)));
        self.queue.not_before(until);
        if self.queue.is_empty() {
            self.phase = KeyPhase::CoolingDown(Cooldown {
                acquisition: acquisition.clone(),
                fleet_hold: FleetHold::UNKNOWN,
                until,
            });
        } else {
            self.pause_until(until, ctx);
        }
    }

    /// A task wants the lock while others are to have a chance. One with less time than that asks at once, as does one that goes on
    /// with a streak.
    pub(super) fn join_in_cooldown(&mut self, waiter: QueueEntry<A>, ctx: &mut EventContext<'_, A>) {
        let KeyPhase::CoolingDown(Cooldown { fleet_hold, until, .. }) = self.phase else { return };
        let waits = fleet_hold.is_over() && waiter.retry_state.lasts_beyond(until);
        self.enlist(waiter);
        if waits {
            self.queue.observe(LastObserved::Taken(Some(until.since(ctx.now))));
            self.pause_until(until, ctx);
        } else {
            self.contend(ctx);
        }
    }

    fn pause_until(&mut self, until: BootInstant, ctx: &EventContext<'_, A>) {
        let Some(head) = self.queue.head() else { return };
        let step = ContenderState::Polling { until, earliest: until };
        self.phase = KeyPhase::Contending(Contender::new(
            head.acquisition.clone(),
            ctx.tokens.next(),
            step,
            FleetHold::NEW,
        ));
    }
}

/// A family that has had a lock for so long lets others have a chance.
const LONGEST: FleetHold = FleetHold(500);

/// The clients that poll do so every 50 to 300 ms.
const LEAST_AWAY: Duration = Duration::from_millis(100);

const MOST_MORE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests;
