//! [`RetryPolicy`], the delays between the attempts of one call.

use std::time::Duration;

/// Delays that double from a first to a last, each drawn with full jitter.
///
/// The n-th delay is drawn uniformly between a floor and `first * 2^n`, which is limited to `last`.
/// Full jitter spreads contenders best; see Marc Brooker, "Exponential Backoff And Jitter" (AWS
/// Architecture Blog, 2015). The floor of a tenth, and of at least 1 ms, keeps a retry from
/// becoming a busy loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    first: Duration,
    last: Duration,
}

impl RetryPolicy {
    /// The default: from 100 ms to 2 s.
    pub const DEFAULT: Self = Self::exponential(Duration::from_millis(100), Duration::from_secs(2));

    /// Returns a policy whose delays double from `first` to `last`. A `last` below `first` counts
    /// as `first`.
    #[must_use]
    pub const fn exponential(first: Duration, last: Duration) -> Self {
        let last = if last.as_nanos() < first.as_nanos() { first } else { last };
        Self { first, last }
    }

    /// Returns the maximum delay before retry `n`, where 0 is the first retry.
    #[must_use]
    pub fn ceiling(&self, n: u32) -> Duration {
        let factor = 1_u32.checked_shl(n).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.last)
    }

    /// Returns the delay before retry `n` for a `draw` that is uniform over `u32`.
    pub(crate) fn delay(&self, n: u32, draw: u32) -> Duration {
        let ceiling = self.ceiling(n);
        let floor = (ceiling / 10).max(FLOOR).min(ceiling.max(FLOOR));
        let spread = ceiling.saturating_sub(floor);
        floor + spread.mul_f64(f64::from(draw) / (f64::from(u32::MAX) + 1.0))
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The minimum of all delays: a retry must not become a busy loop.
const FLOOR: Duration = Duration::from_millis(1);
