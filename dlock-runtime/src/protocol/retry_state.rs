//! How long a call goes on asking: its `retry` and its `wait`, and what is left of them.
//!
//! ```text
//!  neither   one try
//!  retry N   N further tries, each after a delay of the policy; the call ends with the answer to the last
//!  wait d    until d has passed
//!  both      whichever ends first
//! ```
//!
//! Being told of a release meanwhile uses up no retry. A server that is slow, or does not answer, cannot prolong a call either: without
//! `wait`, its limit is a response timeout for each try, and the delays between them. A try may ask twice and take longer; then the
//! others have less.
//!
//! Not here: what is done at a try (`acquire`), the delays (`RetryPolicy`).

use std::time::Duration;

use crate::protocol::deadline::{BootInstant, Span};
use crate::retry::RetryPolicy;

/// What is left of one call's patience.
#[derive(Clone, Debug)]
pub(crate) struct RetryState {
    started: BootInstant,
    limit: BootInstant,
    /// When the call is ended even if no answer comes: at its limit, or a little later while a first answer may be on its way. Without
    /// `wait`, when its tries have had their time; each delay moves it.
    over_at: BootInstant,
    retries: u32,
    retries_used: u32,
    next_try: BootInstant,
    policy: RetryPolicy,
    /// How long each try may take.
    response_timeout: Span,
    draw: u32,
    try_only: bool,
    /// Whether it has tried again after a lost connection.
    has_tried_again: bool,
}

/// What a call asks of its patience.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryLimits {
    pub(crate) retries: u32,
    pub(crate) wait: Option<Duration>,
    pub(crate) backoff: RetryPolicy,
    pub(crate) response_timeout: Duration,
    /// Whether the call only asks whether it gets the lock, and not when it might.
    pub(crate) try_only: bool,
}

/// What a call does when it is told that the lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryDecision {
    /// It goes on waiting.
    Stay,
    /// Its tries are used up.
    GiveUp,
}

impl RetryState {
    /// The patience of a call that starts at `started`. `seed` spreads the delays of calls that start together.
    pub(crate) fn new(started: BootInstant, limits: RetryLimits, seed: u32) -> Self {
        let RetryLimits { retries, wait, backoff, response_timeout, try_only } = limits;
        // A wait without end still is one: only a call without `wait` has no limit.
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
            response_timeout: Span::of(response_timeout),
            draw: seed,
            try_only,
            has_tried_again: false,
        }
    }

    /// The patience of a nested call, which waits for a sibling of its own call chain: its `wait`, or else a lease.
    pub(crate) fn of_sibling(mut self, lease: Duration) -> Self {
        self.retries = 0;
        if self.limit == BootInstant::NEVER {
            self.limit = self.started.plus(lease);
        }
        self.over_at = self.limit;
        self
    }

    /// When the call began.
    pub(crate) fn started(&self) -> BootInstant {
        self.started
    }

    /// How often the lock was asked for on behalf of the call.
    pub(crate) fn attempts(&self) -> u32 {
        self.retries_used.saturating_add(1)
    }

    /// Returns whether the call takes the first answer for its last.
    pub(crate) fn is_once(&self) -> bool {
        self.retries == 0 && self.limit == BootInstant::NEVER
    }

    /// Returns whether the call has no use for more than the first answer.
    pub(crate) fn is_try_only(&self) -> bool {
        self.try_only && self.is_once()
    }

    /// Returns whether the call would go on if it were told now that the lock is taken.
    pub(crate) fn may_keep_waiting(&self, now: BootInstant) -> bool {
        let used_up =
            self.retries > 0 && self.next_try == BootInstant::NEVER && self.retries_used >= self.retries;
        !self.is_once() && now < self.limit && !used_up
    }

    /// Notes that the lock is taken, or could not be asked for, and returns whether to go on.
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

    /// Returns `true` if the call tries again at once, after the connection was lost with its command under way. It does so once, and
    /// uses up no retry.
    pub(crate) fn try_again(&mut self, now: BootInstant) -> bool {
        !self.is_over(now) && !std::mem::replace(&mut self.has_tried_again, true)
    }

    /// Returns when something is due next: the next try or the end of the wait.
    pub(crate) fn due(&self) -> BootInstant {
        self.next_try.min(self.over_at)
    }

    /// Returns whether the wait has ended.
    pub(crate) fn is_over(&self, now: BootInstant) -> bool {
        now >= self.over_at
    }

    /// Lets a call that has heard nothing yet wait a little longer; `wait = "0s"` still is one try.
    pub(crate) fn await_first_answer(&mut self, now: BootInstant) {
        let latest = self.limit.plus(GRACE);
        if self.limit != BootInstant::NEVER && self.is_over(now) && now < latest {
            self.over_at = latest;
        }
    }

    /// Puts a next try that is due before `time` off until then.
    pub(crate) fn not_before(&mut self, time: BootInstant) {
        if self.next_try != BootInstant::NEVER {
            self.next_try = self.next_try.max(time);
        }
    }

    /// Returns whether the call still waits at `time`.
    pub(crate) fn lasts_beyond(&self, time: BootInstant) -> bool {
        !self.is_once() && time < self.limit
    }

    /// Uses up the retry that is due by now, if one is; the try is then to be made.
    pub(crate) fn consume_retry(&mut self, now: BootInstant) -> bool {
        let due = now >= self.next_try;
        if due {
            if self.limit == BootInstant::NEVER {
                // A process that was stopped meanwhile still has the time for what is left of its tries.
                let left = self.retries.saturating_sub(self.retries_used);
                let had = self.over_at.plus(now.since(self.next_try));
                let needs = now.plus(self.response_timeout.get().saturating_mul(left));
                self.over_at = self.over_at.max(had.min(needs));
            }
            self.next_try = BootInstant::NEVER;
            self.retries_used += 1;
        }
        due
    }

    /// Returns when the next scheduled try is, where there is a schedule.
    pub(crate) fn next_try(&self) -> Option<BootInstant> {
        (self.retries > 0).then_some(self.next_try)
    }

    /// The next of a row of evenly spread numbers (steps of splitmix, Steele et al. 2014, mixed as at the end of `MurmurHash3`):
    /// jitter needs no more.
    fn draw(&mut self) -> u32 {
        self.draw = self.draw.wrapping_add(0x9e37_79b9);
        let mut z = self.draw;
        z = (z ^ (z >> 16)).wrapping_mul(0x85eb_ca6b);
        z = (z ^ (z >> 13)).wrapping_mul(0xc2b2_ae35);
        z ^ (z >> 16)
    }
}

/// How long the first answer may come after a call's limit; well within the 100 ms that the promise P3 allows.
const GRACE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests;
