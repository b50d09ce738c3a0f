//! What a call asks of its hold: for how long the server is to keep it, and within what.
//!
//! Not here: how long the call waits for it (`patience`), and the bounds of each value (`options`).

use std::time::Duration;

use crate::protocol::deadline::{BootInstant, Span};

/// The terms of one turn at a lock. In few words, since they are moved with the call until its turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldTerms {
    lease: Span,
    /// The longest where it has no end of its own.
    max_hold: Span,
    /// None where nobody is kept out; to be kept for no time is that.
    min_hold: Span,
    renew: bool,
}

impl HoldTerms {
    /// Those of a turn that the watchdog renews, and that has no bounds. The server keeps its key for `lease` when nobody renews it.
    pub(crate) const fn of_lease(lease: Duration) -> Self {
        Self { lease: Span::of(lease), max_hold: Span::LONGEST, min_hold: Span::ZERO, renew: true }
    }

    /// Whether the watchdog renews it.
    pub(crate) const fn renew(self, renew: bool) -> Self {
        Self { renew, ..self }
    }

    /// The turn is over after this, whoever would renew it.
    pub(crate) const fn max_hold(self, max_hold: Option<Duration>) -> Self {
        let max_hold = if let Some(max_hold) = max_hold { Span::of(max_hold) } else { Span::LONGEST };
        Self { max_hold, ..self }
    }

    /// Nobody else gets the lock before this has passed, though the turn may be over.
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

    /// Returns whether a turn has an end of its own, or a time that it is kept for.
    pub(super) fn has_bounds(&self) -> bool {
        self.max_hold < Span::LONGEST || self.min_hold > Span::ZERO
    }

    /// When a turn that begins at `since` is over.
    pub(super) fn ends(&self, since: BootInstant) -> BootInstant {
        since.plus(self.max_hold.get())
    }

    /// AtomicDeadline when the lock of a turn that begins at `since` is kept from others.
    pub(super) fn kept_until(&self, since: BootInstant) -> BootInstant {
        if self.min_hold == Span::ZERO { BootInstant::START } else { since.plus(self.min_hold.get()) }
    }
}

#[cfg(test)]
mod tests;
