//! Clocks: the one that all processes share, and the processor time of this one.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns nanoseconds of `CLOCK_MONOTONIC`.
#[must_use]
pub fn now() -> u64 {
    nanos(ClockId::Monotonic)
}

/// Returns the processor time of this process, user and kernel, in nanoseconds.
#[must_use]
pub fn cpu_nanos() -> u64 {
    nanos(ClockId::ProcessCPUTime)
}

fn nanos(clock: ClockId) -> u64 {
    let time = Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
