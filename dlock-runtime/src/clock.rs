//! The clock that leases are measured with.
//!
//! On Linux and Android it is `CLOCK_BOOTTIME`, which counts the time that the machine is suspended; on Apple systems the monotonic
//! clock, which counts sleep there; elsewhere `std::time::Instant`. `Instant` alone would believe a dead lease after a laptop or a
//! VM has slept. The in-memory backend runs on tokio's clock, so that tests can pause it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime;

use crate::protocol::deadline::BootTime;
use crate::sync::lock;

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

/// Tokio's clock, counted from its making. It never goes back: a runtime whose own clock is behind (each paused runtime has one of
/// its own) goes on from the latest time that any of them has shown.
#[derive(Debug)]
pub(crate) struct TokioClock {
    start: tokio::time::Instant,
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    latest: u64,
    /// How far each runtime's clock is behind, for those that are; the oldest first.
    behind: VecDeque<(Option<runtime::Id>, u64)>,
}

impl TokioClock {
    pub(crate) fn new() -> Self {
        Self { start: tokio::time::Instant::now(), shown: Mutex::default() }
    }

    pub(crate) fn now(&self) -> BootTime {
        let here = runtime::Handle::try_current().ok().map(|handle| handle.id());
        let mut shown = lock(&self.shown);
        // Read under the lock: of two threads the later one never reads an earlier time.
        let own = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let at = shown.behind.iter().position(|(runtime, _)| *runtime == here);
        let behind = at.and_then(|at| shown.behind.get(at)).map_or(0, |(_, behind)| *behind);
        let time = own.saturating_add(behind);
        if time >= shown.latest {
            shown.latest = time;
        } else {
            let behind = shown.latest.saturating_sub(own);
            shown.behind.retain(|(runtime, _)| *runtime != here);
            if shown.behind.len() >= MOST_RUNTIMES {
                shown.behind.pop_front();
            }
            shown.behind.push_back((here, behind));
        }
        BootTime::from_nanos(shown.latest)
    }
}

/// A runtime beyond these starts from the latest time again.
const MOST_RUNTIMES: usize = 64;

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
