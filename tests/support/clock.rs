//! The clock that counts while the machine sleeps, and time limits for tests.
//!
//! Not here: paused time, which is tokio's.

use std::ops::{Add, Sub};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A point on the boot clock: one axis for all processes of this machine, on which no suspend is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
pub struct Moment(Duration);

impl Moment {
    /// Returns the present.
    ///
    /// # Panics
    ///
    /// Panics if the clock stands before the machine's boot.
    #[must_use]
    pub fn now() -> Self {
        let now = clock_gettime(BOOT_CLOCK);
        let seconds = u64::try_from(now.tv_sec).expect("a boot clock starts at zero");
        let nanos = u32::try_from(now.tv_nsec).expect("a clock's nanoseconds are below a second");
        Self(Duration::new(seconds, nanos))
    }

    /// Returns the moment that is `nanos` nanoseconds after the boot, as [`nanos`](Self::nanos) gave them, maybe in another process.
    #[must_use]
    pub fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }

    /// Returns how many nanoseconds after the boot this is.
    #[must_use]
    pub fn nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns how long after `earlier` this is; nothing if it is before.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns how long ago this was.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}

impl From<u64> for Moment {
    fn from(nanos: u64) -> Self {
        Self::from_nanos(nanos)
    }
}

impl From<Moment> for u64 {
    fn from(moment: Moment) -> Self {
        moment.nanos()
    }
}

/// Runs `work` on a thread of its own for at most `limit`, by the machine's clock, and gives its output: for what may block its
/// thread for ever, which no timer of its runtime would see.
///
/// # Panics
///
/// Panics, naming `what`, when the limit passes, and then leaves the thread to the end of the process; panics as `work` does.
pub fn thread_within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (ends, has_ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let output = work();
        drop(ends);
        output
    });
    // Nothing is ever sent: the sender goes away with the end of the work, or with its panic.
    let is_late = has_ended.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
    assert!(!is_late, "{what}: not within {limit:?}");
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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
