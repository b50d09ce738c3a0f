//! How long a call goes on asking: its `retry` and its `wait`, and what is left of them.
//!
//! ```text
//!  neither   one try
//!  retry N   N further tries, each after a delay of the policy; the call ends with the answer to the last
//!  wait d    until d has passed
//!  both      whichever ends first
//! ```
//!
//! Being told of a release meanwhile uses up no retry.
//!
//! Not here: what is done at a try (`acquire`), the delays (`RetryPolicy`).

use std::time::Duration;

use crate::protocol::deadline::BootTime;
use crate::retry::RetryPolicy;

/// What is left of one call's patience.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    started: BootTime,
    limit: BootTime,
    /// When the call is ended even if no answer comes: at its limit, or a little later while a first answer may be on its way.
    over_at: BootTime,
    retries: u32,
    retries_used: u32,
    next_try: BootTime,
    policy: RetryPolicy,
    draw: u32,
}

/// What a call does when it is told that the lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes on waiting.
    Stay,
    /// Its tries are used up.
    GiveUp,
}

impl Patience {
    /// The patience of a call that starts at `started`. `seed` spreads the delays of calls that start together.
    pub(crate) fn new(
        started: BootTime,
        retries: u32,
        wait: Option<Duration>,
        policy: RetryPolicy,
        seed: u32,
    ) -> Self {
        let limit = wait.map_or(BootTime::NEVER, |wait| started.plus(wait));
        Self {
            started,
            limit,
            over_at: limit,
            retries,
            retries_used: 0,
            next_try: BootTime::NEVER,
            policy,
            draw: seed,
        }
    }

    /// The patience of a nested call, which waits for a sibling of its own call chain: only `wait` ends it.
    pub(crate) fn of_sibling(mut self) -> Self {
        self.retries = 0;
        if self.limit == BootTime::NEVER {
            self.limit = BootTime::from_nanos(u64::MAX - 1);
            self.over_at = self.limit;
        }
        self
    }

    /// When the call began.
    pub(crate) fn started(&self) -> BootTime {
        self.started
    }

    /// How often the lock was asked for on behalf of the call.
    pub(crate) fn attempts(&self) -> u32 {
        self.retries_used.saturating_add(1)
    }

    /// Returns whether the call takes the first answer for its last.
    pub(crate) fn is_once(&self) -> bool {
        self.retries == 0 && self.limit == BootTime::NEVER
    }

    /// Returns whether the call would go on if it were told now that the lock is taken.
    pub(crate) fn stays(&self, now: BootTime) -> bool {
        let used_up =
            self.retries > 0 && self.next_try == BootTime::NEVER && self.retries_used >= self.retries;
        !self.is_once() && now < self.limit && !used_up
    }

    /// Notes that the lock is taken, or could not be asked for, and returns whether to go on.
    pub(crate) fn not_yet(&mut self, now: BootTime) -> Verdict {
        if !self.stays(now) {
            return Verdict::GiveUp;
        }
        if self.next_try == BootTime::NEVER && self.retries > 0 {
            let draw = self.draw();
            self.next_try = now.plus(self.policy.delay(self.retries_used, draw));
        }
        Verdict::Stay
    }

    /// Returns when something is due next: the next try or the end of the wait.
    pub(crate) fn due(&self) -> BootTime {
        self.next_try.min(self.over_at)
    }

    /// Returns whether the wait has ended.
    pub(crate) fn is_over(&self, now: BootTime) -> bool {
        now >= self.over_at
    }

    /// Lets a call that has heard nothing yet wait a little longer; `wait = "0s"` still is one try.
    pub(crate) fn await_first_answer(&mut self, now: BootTime) {
        let latest = self.limit.plus(GRACE);
        if self.is_over(now) && now < latest {
            self.over_at = latest;
        }
    }

    /// Uses up the retry that is due by now, if one is; the try is then to be made.
    pub(crate) fn take_try(&mut self, now: BootTime) -> bool {
        let due = now >= self.next_try;
        if due {
            self.next_try = BootTime::NEVER;
            self.retries_used += 1;
        }
        due
    }

    /// Returns when the next scheduled try is, where there is a schedule.
    pub(crate) fn next_try(&self) -> Option<BootTime> {
        (self.retries > 0).then_some(self.next_try)
    }

    /// The next of a row of evenly spread numbers (splitmix, Steele et al. 2014): jitter needs no more.
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
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy::exponential(Duration::from_millis(100), Duration::from_secs(2));

    fn at(ms: u64) -> BootTime {
        BootTime::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn neither_retry_nor_wait_means_one_try() {
        let mut once = Patience::new(at(0), 0, None, POLICY, 1);

        assert_eq!(once.not_yet(at(1)), Verdict::GiveUp);
        assert_eq!(once.attempts(), 1);
    }

    #[test]
    fn three_retries_are_three_further_tries() {
        let mut patience = Patience::new(at(0), 3, None, POLICY, 1);
        let mut now = at(1);
        let mut tries = 1;

        while patience.not_yet(now) == Verdict::Stay {
            now = patience.due();
            assert!(patience.take_try(now));
            tries += 1;
        }

        assert_eq!((tries, patience.attempts()), (4, 4));
    }

    #[test]
    fn a_wait_ends_at_its_limit_whatever_retries_are_left() {
        let mut patience = Patience::new(at(0), 1_000, Some(Duration::from_millis(50)), POLICY, 1);

        assert_eq!(patience.not_yet(at(49)), Verdict::Stay);
        assert!(patience.due() <= at(50));
        assert_eq!(patience.not_yet(at(50)), Verdict::GiveUp);
    }

    #[test]
    fn an_answer_that_comes_again_uses_up_nothing() {
        let mut patience = Patience::new(at(0), 1, None, POLICY, 1);
        assert_eq!(patience.not_yet(at(1)), Verdict::Stay);
        let due = patience.due();

        assert_eq!(patience.not_yet(at(2)), Verdict::Stay);

        assert_eq!((patience.due(), patience.attempts()), (due, 1));
    }

    #[test]
    fn a_wait_of_nothing_is_one_try() {
        let mut patience = Patience::new(at(5), 0, Some(Duration::ZERO), POLICY, 1);

        patience.await_first_answer(at(5));

        assert!(!patience.is_over(at(54)) && patience.is_over(at(55)));
        assert_eq!(patience.not_yet(at(6)), Verdict::GiveUp);
    }

    #[test]
    fn a_wait_without_end_does_not_overflow() {
        let mut patience = Patience::new(at(5), u32::MAX, Some(Duration::MAX), POLICY, 1);

        assert_eq!(patience.not_yet(at(6)), Verdict::Stay);
    }
}
