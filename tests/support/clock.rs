//! The boot clock, which counts while the machine sleeps, and time limits for tests.

use std::ops::{Add, Sub};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A point in time on the boot clock, which all processes of a machine share.
///
/// It includes the time for which the machine is suspended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
pub struct Moment(Duration);

impl Moment {
    /// Returns the current time.
    ///
    /// # Panics
    ///
    /// Panics if the clock is negative.
    #[must_use]
    pub fn now() -> Self {
        let now = clock_gettime(BOOT_CLOCK);
        let seconds = u64::try_from(now.tv_sec).expect("a boot clock starts at zero");
        let nanos = u32::try_from(now.tv_nsec).expect("a clock's nanoseconds are below a second");
        Self(Duration::new(seconds, nanos))
    }

    /// Returns the time that is `nanos` nanoseconds after the boot.
    ///
    /// [`nanos`](Self::nanos) is the inverse, also in another process.
    #[must_use]
    pub fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }

    /// Returns the number of nanoseconds after the boot.
    #[must_use]
    pub fn nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the time that has passed since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time that has passed since this moment.
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

/// Awaits `call`, and returns its output, and how long it took beyond `limit` on tokio's clock.
///
/// The time beyond the limit is counted from a timer, because a stall of this machine delays both.
pub async fn overrun<T>(limit: Duration, call: impl Future<Output = T>) -> (T, Duration) {
    let mut call = std::pin::pin!(call);
    tokio::select! {
        biased;
        output = &mut call => return (output, Duration::ZERO),
        () = tokio::time::sleep(limit) => {}
    }
    let due = tokio::time::Instant::now();
    (call.await, due.elapsed())
}

/// Waits until `condition` returns `true`, for a state that no event announces. Checks it every
/// millisecond of tokio's clock.
///
/// # Panics
///
/// Panics if that takes longer than 60 s.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let met = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(Duration::from_secs(60), what, met).await;
}

/// Runs `work` on a new thread for at most `limit` of real time, and returns its output.
///
/// This limits code that may block its thread forever, which a timer of its runtime cannot detect.
///
/// # Panics
///
/// Panics with `what` in the message if the limit passes; the thread then continues until the
/// process ends. Propagates a panic of `work`.
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
    // The channel carries no message: the sender is dropped when the work ends or panics.
    let is_late = has_ended.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
    assert!(!is_late, "{what}: not within {limit:?}");
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT_CLOCK: ClockId = ClockId::Boottime;
/// The monotonic clock of Apple's systems includes sleep.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT_CLOCK: ClockId = ClockId::Monotonic;

/// Awaits `future` for at most `limit` on tokio's clock, and returns its output.
///
/// # Panics
///
/// Panics with `what` in the message if the limit passes.
pub async fn within<F: Future>(limit: Duration, what: &str, future: F) -> F::Output {
    let output = tokio::time::timeout(limit, future).await.ok();
    output.unwrap_or_else(|| panic!("{what}: not within {limit:?}"))
}
