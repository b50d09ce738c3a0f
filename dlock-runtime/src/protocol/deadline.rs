//! Deadlines: the instant from which this process does not consider a hold valid.
//!
//! The deadline is earlier than the expiry of the key, by a margin for clocks that drift.
//!
//! ```text
//!  sent          granted by the server      deadline        key expires
//!   |------- lease - margin ------------------->|              |
//!                |------------------ lease ------------------->|
//! ```

use std::time::Duration;

/// A point on the boot clock, which also counts while the machine sleeps. Time is always passed in
/// as a value: this module reads no clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootInstant(u64);

impl BootInstant {
    /// No point in time. Later than all others.
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

    /// Returns the point `by` later, or [`NEVER`](Self::NEVER) if it is out of range.
    pub(crate) fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the time since `earlier`, or zero if that is not earlier.
    pub(crate) const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The instant from which a hold is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline(BootInstant);

impl Deadline {
    /// Returns the deadline of a lease of `lease` that was requested at `sent`.
    ///
    /// `sent` is taken **before the first byte leaves**. If the deadline counted from the reply
    /// instead, a reply that is later than the margin would leave two holders that both consider
    /// their hold valid. See the Redlock page, "Is the algorithm asynchronous?".
    ///
    /// A lease shorter than its own margin gives a deadline at `sent`, never one before it.
    pub(crate) fn of_lease(sent: BootInstant, lease: Duration) -> Self {
        Self(sent.plus(lease.saturating_sub(margin(lease))))
    }

    /// Returns the deadline as a point in time.
    pub(crate) const fn at(self) -> BootInstant {
        self.0
    }

    /// Returns `true` if the hold is valid at `now`. At the deadline itself it is not.
    pub(crate) fn holds_at(self, now: BootInstant) -> bool {
        now < self.0
    }

    /// Returns the later of two deadlines. A renewal never moves a deadline back, whatever the
    /// order of replies.
    pub(crate) fn or_later(self, renewed: Self) -> Self {
        self.max(renewed)
    }
}

/// Returns the time after which a key with this time to live has expired, on the clock of any
/// client.
pub(crate) fn time_to_expire(lease: Duration) -> Duration {
    lease.saturating_add(margin(lease))
}

/// Returns the margin: 1 % for clocks whose rates differ, and 2 ms for the server, which expires
/// keys by the millisecond.
fn margin(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

#[cfg(test)]
mod tests;
