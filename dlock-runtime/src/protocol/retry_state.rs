//! The limits of one call: its `retry` and its `wait`, and what remains of them.
//!
//! ```text
//!  neither   one try
//!  retry N   N more tries, each after a delay of the policy; the call ends with the reply to the last
//!  wait d    until d has passed
//!  both      whichever ends first
//! ```
//!
//! A notification of a release uses up no retry. A server that is slow or does not reply cannot
//! extend a call: without `wait`, the limit is one response timeout for each try, plus the delays
//! between them. A try may need two requests and take longer, and then the other tries have less
//! time.

use std::time::Duration;

use crate::protocol::deadline::BootInstant;
use crate::protocol::timers::KeyTimer;
use crate::retry::RetryPolicy;

/// The remaining retries and the remaining wait of one call.
#[derive(Clone, Debug)]
pub(crate) struct RetryState {
    started: BootInstant,
    limit: BootInstant,
    /// When the call ends even without a reply: at its limit, or up to 50 ms later while the first
    /// reply may be in flight. Without `wait`, when its tries have had their time. Each delay moves
    /// it.
    over_at: BootInstant,
    retries: u32,
    retries_used: u32,
    next_try: BootInstant,
    policy: RetryPolicy,
    /// How long each try may take.
    response_timeout: Duration,
    draw: u32,
    try_only: bool,
    /// Whether the call has retried after a lost connection.
    has_tried_again: bool,
}

/// The limits of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryLimits {
    pub(crate) retries: u32,
    pub(crate) wait: Option<Duration>,
    pub(crate) backoff: RetryPolicy,
    pub(crate) response_timeout: Duration,
    /// Whether the call only needs to know whether it gets the lock, and not when it might.
    pub(crate) try_only: bool,
}

/// The decision of a call when the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryDecision {
    /// The call waits.
    Stay,
    /// The retries are used up.
    GiveUp,
}

impl RetryState {
    /// Creates the state of a call that starts at `started`. `seed` spreads the delays of calls
    /// that start together.
    pub(crate) fn new(started: BootInstant, limits: RetryLimits, seed: u32) -> Self {
        let RetryLimits { retries, wait, backoff, response_timeout, try_only } = limits;
        // An infinite `wait` is a limit too: only a call without `wait` has none.
        let limit = wait.map_or(BootInstant::NEVER, |wait| started.plus(wait).min(BootInstant::LAST));
        let tries = response_timeout.saturating_mul(retries.saturating_add(1));
        let over_at = if wait.is_none() { started.plus(tries) } else { limit };
        Self {
            started,
            limit,
            over_at,
            retries,
            retries_used: 0,
            next_try: BootInstant::NEVER,
            policy: backoff,
            response_timeout,
            draw: seed,
            try_only,
            has_tried_again: false,
        }
    }

    /// Returns the state of a nested call, which waits for a sibling of its own call chain: for its
    /// `wait`, or for a lease.
    pub(crate) fn of_sibling(mut self, lease: Duration) -> Self {
        self.retries = 0;
        if self.limit == BootInstant::NEVER {
            self.limit = self.started.plus(lease);
        }
        self.over_at = self.limit;
        self
    }

    /// Returns when the call started.
    pub(crate) fn started(&self) -> BootInstant {
        self.started
    }

    /// Returns the number of tries.
    pub(crate) fn attempts(&self) -> u32 {
        self.retries_used.saturating_add(1)
    }

    /// Returns `true` if the first reply decides the call.
    pub(crate) fn is_single_try(&self) -> bool {
        self.retries == 0 && self.limit == BootInstant::NEVER
    }

    /// Returns `true` if the call needs only the first reply, without details.
    pub(crate) fn is_try_only(&self) -> bool {
        self.try_only && self.is_single_try()
    }

    /// Returns `true` if the call continues to wait when the lock is held at `now`.
    pub(crate) fn may_keep_waiting(&self, now: BootInstant) -> bool {
        let used_up =
            self.retries > 0 && self.next_try == BootInstant::NEVER && self.retries_used >= self.retries;
        !self.is_single_try() && now < self.limit && !used_up
    }

    /// Records that the lock is held or unavailable, and returns whether to continue.
    pub(crate) fn on_contended(&mut self, now: BootInstant) -> RetryDecision {
        if !self.may_keep_waiting(now) {
            return RetryDecision::GiveUp;
        }
        if self.next_try == BootInstant::NEVER && self.retries > 0 {
            let draw = self.draw();
            let delay = self.policy.delay(self.retries_used, draw);
            self.next_try = now.plus(delay);
            if self.limit == BootInstant::NEVER {
                self.over_at = self.over_at.plus(delay);
            }
        }
        RetryDecision::Stay
    }

    /// Returns `true` if the call retries at once after the connection was lost with its command in
    /// flight. It does so once, and uses up no retry.
    pub(crate) fn try_again(&mut self, now: BootInstant) -> bool {
        !self.is_over(now) && !std::mem::replace(&mut self.has_tried_again, true)
    }

    /// Passes each timer to `set`.
    pub(crate) fn timers(&self, set: &mut impl FnMut(KeyTimer, BootInstant)) {
        set(KeyTimer::Retry, self.next_try);
        set(KeyTimer::WaitTimeout, self.over_at);
    }

    /// Returns when the next try or the end of the wait is due.
    pub(crate) fn due(&self) -> BootInstant {
        self.next_try.min(self.over_at)
    }

    /// Returns `true` if the wait has ended.
    pub(crate) fn is_over(&self, now: BootInstant) -> bool {
        now >= self.over_at
    }

    /// Extends the end of a call without a reply by 50 ms, so that `wait = "0s"` still makes one
    /// try.
    pub(crate) fn await_first_reply(&mut self, now: BootInstant) {
        let latest = self.limit.plus(GRACE);
        if self.limit != BootInstant::NEVER && self.is_over(now) && now < latest {
            self.over_at = latest;
        }
    }

    /// Defers the next try to `time` if it is due earlier.
    pub(crate) fn not_before(&mut self, time: BootInstant) {
        if self.next_try != BootInstant::NEVER {
            self.next_try = self.next_try.max(time);
        }
    }

    /// Returns `true` if the call still waits at `time`.
    pub(crate) fn lasts_beyond(&self, time: BootInstant) -> bool {
        !self.is_single_try() && time < self.limit
    }

    /// Uses up a retry that is due, and returns `true` if there was one.
    pub(crate) fn consume_retry(&mut self, now: BootInstant) -> bool {
        let due = now >= self.next_try;
        if due {
            if self.limit == BootInstant::NEVER {
                // A process that was stopped meanwhile still has the time for its remaining tries.
                let left = self.retries.saturating_sub(self.retries_used);
                let shifted = self.over_at.plus(now.since(self.next_try));
                let needed = now.plus(self.response_timeout.saturating_mul(left));
                self.over_at = self.over_at.max(shifted.min(needed));
            }
            self.next_try = BootInstant::NEVER;
            self.retries_used += 1;
        }
        due
    }

    /// Returns when the next scheduled try is due, or `None` without a schedule.
    pub(crate) fn next_try(&self) -> Option<BootInstant> {
        (self.retries > 0).then_some(self.next_try)
    }

    /// Returns the next evenly distributed number (the steps of splitmix, Steele et al. 2014, with
    /// the finalizer of `MurmurHash3`). Jitter needs no better source.
    fn draw(&mut self) -> u32 {
        self.draw = self.draw.wrapping_add(0x9e37_79b9);
        let mut z = self.draw;
        z = (z ^ (z >> 16)).wrapping_mul(0x85eb_ca6b);
        z = (z ^ (z >> 13)).wrapping_mul(0xc2b2_ae35);
        z ^ (z >> 16)
    }
}

/// How long after the limit of a call the first reply may arrive. Well within the 100 ms of promise
/// P3.
const GRACE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests;
