//! [`Tick`], what the body of a job receives.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::scheduled::run_lease::RunLease;

/// One tick of a job that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tick {
    pub(super) slot: u64,
    pub(super) attempt: u32,
    pub(super) missed: u64,
    pub(super) is_requested: bool,
    pub(super) lease: RunLease,
}

impl Tick {
    /// Returns when the tick was due. For a requested run, returns when it was requested.
    #[must_use]
    pub fn due(&self) -> SystemTime {
        from_millis(self.slot)
    }

    /// Returns the due time in milliseconds since the Unix epoch: the identity of the tick.
    ///
    /// Use it as an idempotency key of what the body does.
    #[must_use]
    pub fn slot(&self) -> u64 {
        self.slot
    }

    /// Returns the number of the attempt: 1, or more after a failure or a crash.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns how many ticks before this one no process started on time, since the last one that
    /// started on time. Those that [`CatchUp`](super::CatchUp) has run meanwhile count too. In the
    /// run of a missed tick, it is 0. At most 100,000.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Returns `true` if an operator requested the run.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.is_requested
    }

    /// Returns the lease of the run. A body without awaits checks it, and writes carry its fencing
    /// token.
    #[must_use]
    pub fn lease(&self) -> &RunLease {
        &self.lease
    }
}

/// Returns the milliseconds since the Unix epoch, or `None` before it.
pub(super) fn to_millis(time: SystemTime) -> Option<u64> {
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

pub(super) fn from_millis(millis: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis)).unwrap_or(UNIX_EPOCH)
}
