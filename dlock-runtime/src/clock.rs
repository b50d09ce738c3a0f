//! The clock that leases are measured with.
//!
//! On Linux and Android it is `CLOCK_BOOTTIME`, which counts the time that the machine is suspended; on Apple systems the monotonic
//! clock, which counts sleep there; elsewhere `std::time::Instant`. `Instant` alone would believe a dead lease after a laptop or a
//! VM has slept. The in-memory backend runs on tokio's clock, so that tests can pause it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::protocol::deadline::BootTime;

/// A source of time.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The machine's, for real servers.
    Boot,
    /// Tokio's, for the in-memory backend.
    Tokio(Arc<TokioClock>),
}

impl Clock {
    pub(crate) fn now(&self) -> BootTime {
        match self {
            Self::Boot => boot_time(),
            Self::Tokio(clock) => clock.now(),
        }
    }
}

/// Tokio's clock, counted from its making; never goes back, even where several runtimes with paused clocks share it.
#[derive(Debug)]
pub(crate) struct TokioClock {
    start: tokio::time::Instant,
    latest: AtomicU64,
    /// While what came due in the past is being done, the time at which it did; else `u64::MAX`.
    pinned: AtomicU64,
}

impl TokioClock {
    pub(crate) fn new() -> Self {
        let start = tokio::time::Instant::now();
        Self { start, latest: AtomicU64::new(0), pinned: AtomicU64::new(u64::MAX) }
    }

    /// The time that it shows: tokio's, or the one that it is pinned to.
    pub(crate) fn now(&self) -> BootTime {
        let pinned = self.pinned.load(Ordering::Relaxed);
        if pinned == u64::MAX { self.real_now() } else { BootTime::from_nanos(pinned) }
    }

    /// Tokio's time, pinned or not.
    pub(crate) fn real_now(&self) -> BootTime {
        let nanos = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        BootTime::from_nanos(self.latest.fetch_max(nanos, Ordering::Relaxed).max(nanos))
    }

    /// Shows `time` until it is released by [`BootTime::NEVER`].
    pub(crate) fn pin(&self, time: BootTime) {
        self.pinned.store(time.nanos(), Ordering::Relaxed);
    }

    /// Returns the instant of tokio's clock at which it shows `time`.
    pub(crate) fn instant(&self, time: BootTime) -> tokio::time::Instant {
        let far = self.start + Duration::from_secs(60 * 60 * 24 * 365);
        self.start.checked_add(time.since(BootTime::START)).map_or(far, |at| at.min(far))
    }
}

/// Returns the time on the boot clock.
pub(crate) fn boot_time() -> BootTime {
    BootTime::from_nanos(u64::try_from(read().as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn read() -> Duration {
    system_clock(rustix::time::ClockId::Boottime)
}

#[cfg(target_vendor = "apple")]
fn read() -> Duration {
    system_clock(rustix::time::ClockId::Monotonic)
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn system_clock(id: rustix::time::ClockId) -> Duration {
    Duration::try_from(rustix::time::clock_gettime(id)).expect("these clocks start at zero and never go back")
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn read() -> Duration {
    static START: once_cell::sync::Lazy<std::time::Instant> =
        once_cell::sync::Lazy::new(std::time::Instant::now);
    START.elapsed()
}
