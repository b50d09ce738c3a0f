//! The terms of a hold: its lease and its bounds.

use std::time::Duration;

use crate::protocol::deadline::BootInstant;

/// The terms of one acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldTerms {
    lease: Duration,
    max_hold: Option<Duration>,
    /// Zero if there is no minimum.
    min_hold: Duration,
    /// Whether `min_hold` applies only if the work succeeds.
    needs_success: bool,
    renew: bool,
}

impl HoldTerms {
    /// Returns terms without bounds that the watchdog renews. The key lives for `lease` if it is
    /// not renewed.
    pub(crate) const fn of_lease(lease: Duration) -> Self {
        Self { lease, max_hold: None, min_hold: Duration::ZERO, needs_success: false, renew: true }
    }

    /// Sets whether the watchdog renews the hold.
    pub(crate) const fn renew(self, renew: bool) -> Self {
        Self { renew, ..self }
    }

    /// Sets the time after which the acquisition ends, even if it is renewed.
    pub(crate) const fn max_hold(self, max_hold: Option<Duration>) -> Self {
        Self { max_hold, ..self }
    }

    /// Sets the time before which no other acquisition gets the lock, even if this one has ended.
    pub(crate) const fn min_hold(self, min_hold: Option<Duration>) -> Self {
        let min_hold = if let Some(min_hold) = min_hold { min_hold } else { Duration::ZERO };
        Self { min_hold, ..self }
    }

    /// Sets whether `min_hold` applies only if the work succeeds.
    pub(crate) const fn min_hold_on_success(self, needs_success: bool) -> Self {
        Self { needs_success, ..self }
    }

    pub(crate) const fn lease(&self) -> Duration {
        self.lease
    }

    pub(super) const fn is_renewed(&self) -> bool {
        self.renew
    }

    pub(super) const fn needs_success(&self) -> bool {
        self.needs_success
    }

    /// Returns `true` if `max_hold` or `min_hold` is set.
    pub(super) fn has_bounds(&self) -> bool {
        self.max_hold.is_some() || !self.min_hold.is_zero()
    }

    /// Returns when an acquisition that begins at `since` ends.
    pub(super) fn ends(&self, since: BootInstant) -> BootInstant {
        self.max_hold.map_or(BootInstant::NEVER, |max_hold| since.plus(max_hold))
    }

    /// Returns until when the lock of an acquisition that begins at `since` is kept from others.
    pub(super) fn kept_until(&self, since: BootInstant) -> BootInstant {
        if self.min_hold.is_zero() { BootInstant::START } else { since.plus(self.min_hold) }
    }
}

#[cfg(test)]
mod tests;
