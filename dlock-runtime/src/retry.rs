//! [`RetryPolicy`], the delays between the attempts of one call.

use std::time::Duration;

/// Delays that double from a first to a last, each with jitter.
///
/// The n-th delay is random, from half of its ceiling to all of it. The ceiling is `first * 2^n`,
/// so the first delay is between `first` and twice `first`, unless `last` is shorter: no delay
/// exceeds it. With the default, the first three delays add up to 700 ms at least and 1.4 s at
/// most.
///
/// The jitter spreads contenders, and half of each delay is fixed, so a number of retries covers at
/// least half of the time that it can cover at most ("equal jitter" in Marc Brooker, "Exponential
/// Backoff And Jitter", AWS Architecture Blog, 2015). No delay is below 1 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryPolicy {
    first: Duration,
    last: Duration,
}

impl RetryPolicy {
    /// The default: from 100 ms to 2 s.
    pub(crate) const DEFAULT: Self = Self::exponential(Duration::from_millis(100), Duration::from_secs(2));

    /// Returns a policy whose delays double from `first` to `last`. A `last` below `first` counts
    /// as `first`.
    pub(crate) const fn exponential(first: Duration, last: Duration) -> Self {
        let last = if last.as_nanos() < first.as_nanos() { first } else { last };
        Self { first, last }
    }

    /// Returns the maximum delay before retry `n`, where 0 is the first retry.
    pub(crate) fn ceiling(&self, n: u32) -> Duration {
        let factor = 1_u32.checked_shl(n.saturating_add(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.last)
    }

    /// Returns the delay before retry `n` for a `draw` that is uniform over `u32`.
    pub(crate) fn delay(&self, n: u32, draw: u32) -> Duration {
        let ceiling = self.ceiling(n);
        let floor = (ceiling / 2).max(FLOOR);
        let spread = ceiling.saturating_sub(floor);
        floor + spread.mul_f64(f64::from(draw) / (f64::from(u32::MAX) + 1.0))
    }
}

/// The minimum of all delays: a retry must not become a busy loop.
const FLOOR: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sums of the first `retries` delays of the default with the least and the
    /// greatest draws.
    fn bounds(policy: RetryPolicy, retries: u32) -> (Duration, Duration) {
        let sum = |draw| (0..retries).map(|n| policy.delay(n, draw)).sum();
        (sum(0), sum(u32::MAX))
    }

    #[test]
    fn three_default_retries_wait_700_ms_to_1400_ms() {
        let (least, most) = bounds(RetryPolicy::DEFAULT, 3);

        assert_eq!(least, Duration::from_millis(700));
        assert!(most > Duration::from_millis(1_399) && most <= Duration::from_millis(1_400), "{most:?}");
    }

    #[test]
    fn each_delay_is_between_half_and_all_of_its_ceiling() {
        for (n, ceiling) in
            [(0, 200), (1, 400), (2, 800), (3, 1_600), (4, 2_000), (31, 2_000), (u32::MAX, 2_000)]
        {
            let ceiling = Duration::from_millis(ceiling);
            assert_eq!(RetryPolicy::DEFAULT.ceiling(n), ceiling, "retry {n}");
            for draw in [0, 1, u32::MAX / 2, u32::MAX] {
                let delay = RetryPolicy::DEFAULT.delay(n, draw);
                assert!(delay >= ceiling / 2 && delay <= ceiling, "retry {n}, draw {draw}: {delay:?}");
            }
        }
    }

    #[test]
    fn no_delay_is_below_1_ms_nor_above_the_last() {
        let (short, long) = (Duration::from_micros(10), Duration::from_secs(1));

        assert_eq!(bounds(RetryPolicy::exponential(short, short), 1), (FLOOR, FLOOR));
        assert_eq!(bounds(RetryPolicy::exponential(Duration::ZERO, Duration::ZERO), 1), (FLOOR, FLOOR));
        assert!(bounds(RetryPolicy::exponential(long, short), 1).1 <= long, "`last` counts as `first`");
        assert!(
            RetryPolicy::exponential(Duration::MAX, Duration::MAX).delay(u32::MAX, u32::MAX) <= Duration::MAX
        );
    }
}
