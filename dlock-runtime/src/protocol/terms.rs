//! What a call asks of its hold: for how long the server is to keep it, and within what.
//!
//! Not here: how long the call waits for it (`patience`), and the bounds of each value (`options`).

use std::time::Duration;

use crate::protocol::deadline::BootTime;

/// The terms of one turn at a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// How long the server keeps the key when nobody renews it.
    pub(crate) lease: Duration,
    /// Whether the watchdog renews it.
    pub(crate) renew: bool,
    /// The turn is over after this, whoever would renew it.
    pub(crate) max_hold: Option<Duration>,
    /// Nobody else gets the lock before this has passed, though the turn may be over.
    pub(crate) at_least: Option<Duration>,
}

impl Terms {
    /// Returns whether a turn has an end of its own, or a time that it is kept for.
    pub(super) fn has_bounds(&self) -> bool {
        self.max_hold.is_some() || self.at_least.is_some()
    }

    /// When a turn that begins at `since` is over.
    pub(super) fn ends(&self, since: BootTime) -> BootTime {
        self.max_hold.map_or(BootTime::NEVER, |max_hold| since.plus(max_hold))
    }

    /// Until when the lock of a turn that begins at `since` is kept from others.
    pub(super) fn kept_until(&self, since: BootTime) -> BootTime {
        self.at_least.map_or(BootTime::START, |at_least| since.plus(at_least))
    }
}
