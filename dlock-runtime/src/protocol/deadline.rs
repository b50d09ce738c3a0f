//! What a deadline is: the instant from which this process no longer believes that it holds a lock.
//!
//! It is not when the key expires: it comes earlier by the margin that drifting clocks could eat.
//!
//! ```text
//!  sent          granted by the server      deadline        key expires
//!   |------- lease - margin ------------------->|              |
//!                |------------------ lease ------------------->|
//! ```
//!
//! Not here: who renews and when (`renew`), what happens to the body when a deadline passes (`hold`).

use std::fmt;
use std::time::Duration;

/// A point on the boot clock, which goes on counting while the machine sleeps. Time comes in as a value; this room never asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootInstant(u64);

impl BootInstant {
    /// No point in time: later than all others.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    /// The last point that can be counted.
    pub(crate) const LAST: Self = Self(u64::MAX - 1);

    /// The point at which the clock started.
    pub(crate) const START: Self = Self(0);

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn nanos(self) -> u64 {
        self.0
    }

    /// Returns the point `by` later; one too far to count is [`NEVER`](Self::NEVER).
    pub(crate) fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the time since `earlier`; none when that is not earlier.
    pub(crate) const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A length of time in one word: one beyond 584 years counts as that.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(u64);

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl Span {
    /// None at all.
    pub(crate) const ZERO: Self = Self(0);

    /// The longest.
    pub(crate) const LONGEST: Self = Self(u64::MAX);

    pub(crate) const fn of(time: Duration) -> Self {
        let whole = time.as_secs().saturating_mul(1_000_000_000);
        Self(whole.saturating_add(time.subsec_nanos() as u64))
    }

    pub(crate) const fn get(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

/// The instant from which a hold must not be believed in any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline(BootInstant);

impl Deadline {
    /// Returns the deadline of a lease of `lease` that was asked for at `sent`.
    ///
    /// `sent` is taken **before the first byte leaves**. Counted from the reply instead, a reply that was late by more than the
    /// margin would leave two holders believing in the same key. See the Redlock page, "Is the algorithm asynchronous?".
    ///
    /// A lease shorter than its own margin gives a deadline that has already passed, never one before `sent`.
    pub(crate) fn of_lease(sent: BootInstant, lease: Duration) -> Self {
        Self(sent.plus(lease.saturating_sub(margin(lease))))
    }

    /// Returns the deadline as a point in time.
    pub(crate) const fn at(self) -> BootInstant {
        self.0
    }

    /// Returns whether the hold may still be believed at `now`. At the deadline itself it may not.
    pub(crate) fn holds_at(self, now: BootInstant) -> bool {
        now < self.0
    }

    /// Returns the later of two deadlines. A renewal moves a deadline forward and never back, whatever order replies come in.
    pub(crate) fn or_later(self, renewed: Self) -> Self {
        self.max(renewed)
    }
}

/// One per cent for clocks whose rates differ, and 2 ms for a server's own rounding (it expires keys by the millisecond).
fn margin(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

#[cfg(test)]
mod tests;
