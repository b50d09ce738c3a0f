//! The clock that counts while the machine sleeps, and time limits for tests.
//!
//! Not here: paused time, which is tokio's.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the boot clock's time: one axis for all processes of this machine, on which no suspend is missing.
///
/// # Panics
///
/// Panics if the clock stands before the machine's boot.
#[must_use]
pub fn boot_now() -> Duration {
    let now = clock_gettime(BOOT_CLOCK);
    let seconds = u64::try_from(now.tv_sec).expect("a boot clock starts at zero");
    let nanos = u32::try_from(now.tv_nsec).expect("a clock's nanoseconds are below a second");
    Duration::new(seconds, nanos)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT_CLOCK: ClockId = ClockId::Boottime;
/// Apple's monotonic clock counts sleep.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT_CLOCK: ClockId = ClockId::Monotonic;

/// Awaits `future` for at most `limit`, by tokio's clock, and gives its output.
///
/// # Panics
///
/// Panics, naming `what`, when the limit passes: a test that hangs says where.
pub async fn within<F: Future>(limit: Duration, what: &str, future: F) -> F::Output {
    let output = tokio::time::timeout(limit, future).await.ok();
    output.unwrap_or_else(|| panic!("{what}: not within {limit:?}"))
}
