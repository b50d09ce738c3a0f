//! The terms of a hold: its lease and its bounds.

use std::time::Duration;

use crate::protocol::deadline::{BootInstant, Span};

/// The terms of one acquisition. Small, since they move with the call until it is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldTerms {
    lease: Span,
    /// [`Span::LONGEST`] if there is no limit.
    max_hold: Span,
    /// [`Span::ZERO`] if there is no minimum.
    min_hold: Span,
    renew: bool,
}

impl HoldTerms {
    /// Returns terms without bounds that the watchdog renews. The key lives for `lease` if it is
    /// not renewed.
    pub(crate) const fn of_lease(lease: Duration) -> Self {
        Self { lease: Span::of(lease), max_hold: Span::LONGEST, min_hold: Span::ZERO, renew: true }
    }

    /// Sets whether the watchdog renews the hold.
    pub(crate) const fn renew(self, renew: bool) -> Self {
        Self { renew, ..self }
    }

    /// Sets the time after which the acquisition ends, even if it is renewed.
    pub(crate) const fn max_hold(self, max_hold: Option<Duration>) -> Self {
        let max_hold = if let Some(max_hold) = max_hold { Span::of(max_hold) } else { Span::LONGEST };
        Self { max_hold, ..self }
    }

    /// Sets the time before which no other acquisition gets the lock, even if this one has ended.
    pub(crate) const fn min_hold(self, min_hold: Option<Duration>) -> Self {
        let min_hold = if let Some(min_hold) = min_hold { Span::of(min_hold) } else { Span::ZERO };
        Self { min_hold, ..self }
    }

    pub(crate) const fn lease(&self) -> Duration {
        self.lease.get()
    }

    pub(super) const fn is_renewed(&self) -> bool {
        self.renew
    }

    /// Returns `true` if `max_hold` or `min_hold` is set.
    pub(super) fn has_bounds(&self) -> bool {
        self.max_hold < Span::LONGEST || self.min_hold > Span::ZERO
    }

    /// Returns when an acquisition that begins at `since` ends.
    pub(super) fn ends(&self, since: BootInstant) -> BootInstant {
        since.plus(self.max_hold.get())
    }

    /// Returns until when the lock of an acquisition that begins at `since` is kept from others.
    pub(super) fn kept_until(&self, since: BootInstant) -> BootInstant {
        if self.min_hold == Span::ZERO { BootInstant::START } else { since.plus(self.min_hold.get()) }
    }
}

#[cfg(test)]
mod tests;
