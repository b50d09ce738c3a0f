//! Yields a lock to clients of other libraries, which only poll, if `yield_to_foreign=on`.
//!
//! ```text
//!  fleet: all managers that hand the lock to each other, in memory, by yields and by grants
//!
//!  acquired                       first release after LONGEST            the fleet contends again
//!    |== hold ==|== hold ==|== ... ==|--------------- free ------------------->|
//!    |<--------- fleet hold -------->|  waiters are notified: not queued any more
//!                                    |<- each manager: a random cooldown ----->|
//! ```
//!
//! Hand-offs without a gap are fair within the fleet, but a client that polls never finds the lock
//! free. The process that acquired the free lock knows how long the fleet has held it, and each
//! grant carries that duration. If it is unknown, it counts as long.
//!
//! A gap that a poll can miss does not count: a task that releases the lock and acquires it again
//! continues the fleet hold.

use std::time::Duration;

use crate::protocol::ProtocolConfig;
use crate::protocol::command::Command;
use crate::protocol::contender::{Contender, ContenderState};
use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::{EventContext, KeyState, LastObserved};
use crate::protocol::wait_queue::QueueEntry;
use crate::token::Token;

impl ProtocolConfig {
    /// Returns the longest time for which an attempt is deferred in favor of other clients.
    pub(crate) const fn longest_cooldown(&self) -> Duration {
        if self.yield_to_foreign { MIN_COOLDOWN.saturating_add(COOLDOWN_SPREAD) } else { Duration::ZERO }
    }
}

/// How long the fleet has held a lock without a gap, in milliseconds. An unknown duration counts as
/// long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FleetHold(u32);

impl FleetHold {
    /// The fleet hold has just begun.
    pub(crate) const NEW: Self = Self(0);
    /// The duration is unknown.
    pub(crate) const UNKNOWN: Self = Self(u32::MAX);

    pub(crate) fn of(time: Duration) -> Self {
        Self(u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
    }

    /// Returns the duration that a grant carries.
    pub(super) fn announced(self, rules: &ProtocolConfig) -> Self {
        if rules.yield_to_foreign { self } else { Self::UNKNOWN }
    }

    /// Returns the fleet hold after `time` more.
    pub(super) fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(Self::of(time).0))
    }

    /// Returns the milliseconds, or `None` if they are unknown.
    pub(crate) fn millis(self) -> Option<u32> {
        (self != Self::UNKNOWN).then_some(self.0)
    }

    /// Returns `true` if clients of other libraries are due.
    pub(super) fn is_over(self) -> bool {
        self >= LONGEST
    }
}

/// The content of a grant message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// How long the token holds the lock unless it confirms.
    pub(crate) lease: Duration,
    /// How long the fleet has held the lock at the time of the grant.
    pub(crate) fleet_hold: FleetHold,
}

impl Grant {
    /// The lock was freed, and the token is not queued any more. A recheck confirms that.
    pub(crate) const NONE: Self = Self { lease: Duration::ZERO, fleet_hold: FleetHold::UNKNOWN };
}

/// The time after a release in which this process does not contend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cooldown {
    /// The fleet hold at the release. If it is over, a task that arrives and has the time waits
    /// until the cooldown ends.
    fleet_hold: FleetHold,
    /// When it ends.
    pub(super) until: BootInstant,
}

impl<A: Clone + PartialEq> KeyState<A> {
    /// Releases the lock under `token` when no task of this process waits. Returns the command for
    /// the server.
    pub(super) fn release_last(&mut self, token: Token, ctx: &EventContext<'_, A>) -> Command {
        let fleet_hold = self.end_hold(token, ctx.now);
        if ctx.rules.yield_to_foreign {
            self.queue.set_cooldown(Cooldown { fleet_hold, until: ctx.now.plus(MIN_COOLDOWN) });
        }
        Command::Release { fleet_hold: fleet_hold.announced(ctx.rules) }
    }

    /// Starts a cooldown: no task of this process contends for a random time, not even one that
    /// arrives meanwhile and can wait that long.
    pub(super) fn start_cooldown(&mut self, ctx: &mut EventContext<'_, A>) {
        let until = ctx.now.plus(MIN_COOLDOWN.saturating_add(ctx.random_up_to(COOLDOWN_SPREAD)));
        self.queue.not_before(until);
        if self.queue.is_empty() {
            self.queue.end_contender();
            self.queue.set_cooldown(Cooldown { fleet_hold: FleetHold::UNKNOWN, until });
        } else {
            self.pause_until(until, ctx);
        }
    }

    /// Adds a task during a cooldown. It contends at once if it cannot wait until the end, or if
    /// the fleet hold is not over.
    pub(super) fn join_in_cooldown(
        &mut self,
        waiter: QueueEntry<A>,
        cooldown: Cooldown,
        ctx: &mut EventContext<'_, A>,
    ) {
        let Cooldown { fleet_hold, until } = cooldown;
        let waits = fleet_hold.is_over() && waiter.retry_state.lasts_beyond(until);
        self.enlist(waiter);
        self.queue.end_cooldown();
        if waits {
            self.queue.observe(LastObserved::Taken(Some(until.since(ctx.now))));
            self.pause_until(until, ctx);
        } else {
            self.contend(fleet_hold, ctx);
        }
    }

    /// Ends the cooldown if its time is over.
    pub(super) fn end_cooldown_if_due(&mut self, now: BootInstant) {
        if self.queue.cooldown().is_some_and(|cooldown| now >= cooldown.until) {
            self.queue.end_cooldown();
        }
    }

    fn pause_until(&mut self, until: BootInstant, ctx: &EventContext<'_, A>) {
        let step = ContenderState::Polling { until, earliest: until };
        self.queue.set_contender(Contender::new(ctx.tokens.next(), step, FleetHold::NEW));
    }
}

/// A fleet that has held a lock for this long yields it to other clients.
const LONGEST: FleetHold = FleetHold(500);

/// The shortest cooldown. Clients that poll do so every 50 to 300 ms.
const MIN_COOLDOWN: Duration = Duration::from_millis(100);

/// The random part of a cooldown.
const COOLDOWN_SPREAD: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests;
