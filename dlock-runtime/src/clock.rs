//! [`Clock`], which measures leases.
//!
//! On Linux and Android it is `CLOCK_BOOTTIME`, which includes the time that the machine is
//! suspended; on Apple systems the monotonic clock, which includes sleep there; elsewhere
//! `std::time::Instant`. On Linux, `Instant` alone would consider an expired lease valid after a
//! laptop or a VM was suspended. The in-memory backend uses tokio's clock, so that tests can pause
//! it.

use std::collections::VecDeque;
#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime;

use crate::fork::ForkDetector;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

/// Returns a duration in whole milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A source of time.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The machine's clock, for real servers.
    Boot,
    /// Tokio's clock, for the in-memory backend.
    Tokio(Arc<TokioClock>),
    /// A clock that a simulation sets.
    #[cfg(test)]
    Set(Arc<SetClock>),
}

impl Clock {
    pub(crate) fn now(&self) -> BootInstant {
        match self {
            Self::Boot => boot_time(),
            Self::Tokio(clock) => clock.now(),
            #[cfg(test)]
            Self::Set(clock) => clock.now(),
        }
    }

    /// Locks the mutex of tokio's clock, as a read on another thread does.
    #[cfg(test)]
    pub(crate) fn lock(&self) -> Option<impl Sized + '_> {
        if let Self::Tokio(clock) = self { Some(lock(&clock.shown)) } else { None }
    }

    /// Treats the current process as forked from now on.
    #[cfg(test)]
    pub(crate) fn simulate_fork(&self) {
        if let Self::Tokio(clock) = self {
            clock.fork.simulate_fork();
        }
    }
}

/// A clock that stops until it is set. It can jump between two reads, as for a process that is
/// stopped.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct SetClock {
    now: AtomicU64,
    /// The time of the last read.
    shown: AtomicU64,
    looks: AtomicU64,
    /// The read at which it jumps, and by how much.
    jump: (AtomicU64, AtomicU64),
}

#[cfg(test)]
impl SetClock {
    fn now(&self) -> BootInstant {
        let look = self.looks.fetch_add(1, Ordering::Relaxed);
        if look == self.jump.0.load(Ordering::Relaxed) && look > 0 {
            self.now.fetch_add(self.jump.1.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let now = self.now.load(Ordering::Relaxed);
        self.shown.store(now, Ordering::Relaxed);
        BootInstant::from_nanos(now)
    }

    /// Returns the time without counting as a read.
    pub(crate) fn peek(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, nanos: u64) {
        self.now.fetch_max(nanos, Ordering::Relaxed);
    }

    /// Returns the time and the number of the last read.
    pub(crate) fn shown(&self) -> (u64, u64) {
        (self.shown.load(Ordering::Relaxed), self.looks.load(Ordering::Relaxed))
    }

    /// Jumps by `nanos` at the read after the next `looks` reads.
    pub(crate) fn jump(&self, looks: u64, nanos: u64) {
        self.jump.0.store(self.looks.load(Ordering::Relaxed) + looks, Ordering::Relaxed);
        self.jump.1.store(nanos, Ordering::Relaxed);
    }
}

/// Tokio's clock, counted from the creation of this value. It never goes back.
///
/// Each paused runtime has a separate clock. If a runtime's clock is behind, it continues from the
/// latest time that any of them has returned.
///
/// In a forked process it shows the start, and no mutex is locked: a thread of the parent may have
/// held it at the `fork`. At the start, nothing in the store is due, so its mutexes stay unlocked
/// too.
#[derive(Debug)]
pub(crate) struct TokioClock {
    start: tokio::time::Instant,
    shown: Mutex<Shown>,
    fork: ForkDetector,
}

#[derive(Debug, Default)]
struct Shown {
    latest: u64,
    /// How far the clocks of runtimes are behind, for those that are; the oldest first.
    behind: VecDeque<(Option<runtime::Id>, u64)>,
}

impl TokioClock {
    pub(crate) fn new() -> Self {
        Self { start: tokio::time::Instant::now(), shown: Mutex::default(), fork: ForkDetector::new() }
    }

    pub(crate) fn now(&self) -> BootInstant {
        if self.fork.is_forked() {
            return BootInstant::START;
        }
        let mut shown = lock(&self.shown);
        // Read under the mutex: the second of two threads never reads an earlier time.
        let own = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if shown.behind.is_empty() && own >= shown.latest {
            shown.latest = own; // the common case, for the clock of any runtime
            return BootInstant::from_nanos(own);
        }
        let here = runtime::Handle::try_current().ok().map(|handle| handle.id());
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
        BootInstant::from_nanos(shown.latest)
    }
}

/// The maximum number of runtimes that are behind. One beyond it starts from the latest time again.
const MOST_RUNTIMES: usize = 64;

/// Returns the time on the boot clock.
pub(crate) fn boot_time() -> BootInstant {
    #[cfg(any(test, dlock_shuttle))]
    if let Some(now) = crate::simulated::now() {
        return now;
    }
    BootInstant::from_nanos(u64::try_from(read().as_nanos()).unwrap_or(u64::MAX))
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

#[cfg(test)]
mod paused_tests {
    use super::*;

    /// Runs `what` on a runtime whose paused clock is `passed` after its start.
    fn after<T>(passed: Duration, what: impl FnOnce() -> T) -> T {
        let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime can be made").block_on(async {
            tokio::time::advance(passed).await;
            what()
        })
    }

    #[test]
    fn time_does_not_go_back_on_a_runtime_whose_clock_is_behind() {
        let clock = after(Duration::ZERO, TokioClock::new);

        let first = after(Duration::from_secs(100), || clock.now());
        let second = after(Duration::from_secs(10), || clock.now());
        let third = after(Duration::from_secs(200), || clock.now());

        assert!(first.nanos() >= 100_000_000_000, "{first:?}");
        assert!(first <= second && second < third, "{first:?} {second:?} {third:?}");
    }

    /// Returns a runtime with a paused clock.
    fn paused() -> runtime::Runtime {
        let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime can be made")
    }

    /// Lets `minutes` pass on the clock of `runtime`, and returns the time there, in whole minutes.
    fn minutes_after(runtime: &runtime::Runtime, minutes: u64, clock: &TokioClock) -> u64 {
        runtime.block_on(async {
            tokio::time::advance(Duration::from_secs(60 * minutes)).await;
            clock.now().nanos() / 60_000_000_000
        })
    }

    #[test]
    fn each_runtime_that_is_behind_counts_its_own_time() {
        let clock = after(Duration::ZERO, TokioClock::new);
        let (ahead, first, second) = (paused(), paused(), paused());

        assert_eq!(minutes_after(&ahead, 100, &clock), 100);
        assert_eq!(minutes_after(&first, 10, &clock), 100, "from the latest time on");
        assert_eq!(minutes_after(&second, 20, &clock), 100);
        assert_eq!(minutes_after(&first, 50, &clock), 150);
        assert_eq!(minutes_after(&second, 30, &clock), 150, "its own clock shows less");
        assert_eq!(minutes_after(&second, 5, &clock), 155);
        assert_eq!(minutes_after(&first, 3, &clock), 155);
        assert_eq!(minutes_after(&first, 3, &clock), 158);
        assert_eq!(minutes_after(&ahead, 70, &clock), 170, "it was never behind");
    }

    #[test]
    fn more_runtimes_than_the_limit_do_not_go_back() {
        let clock = after(Duration::ZERO, TokioClock::new);
        let (oldest, newest) = (paused(), paused());
        assert_eq!(minutes_after(&paused(), 100, &clock), 100);
        assert_eq!(minutes_after(&oldest, 10, &clock), 100);
        for _ in 0..MOST_RUNTIMES - 2 {
            assert_eq!(minutes_after(&paused(), 0, &clock), 100);
        }
        assert_eq!(minutes_after(&newest, 0, &clock), 100);
        assert_eq!(minutes_after(&oldest, 1, &clock), 101, "the limit is not exceeded");

        assert_eq!(minutes_after(&paused(), 0, &clock), 101);

        assert_eq!(lock(&clock.shown).behind.len(), MOST_RUNTIMES);
        assert_eq!(minutes_after(&oldest, 1, &clock), 101, "it starts from the latest time again");
        assert_eq!(minutes_after(&oldest, 1, &clock), 102);
    }

    #[test]
    fn milliseconds_are_whole_and_bounded() {
        assert_eq!(millis(Duration::from_micros(7_999)), 7);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::*;

    /// Set for a process that only prints the time.
    const SAYS: &str = "DLOCK_TEST_SAYS_THE_TIME";

    /// How long the machine of such a process was suspended.
    const SUSPENDED: Duration = Duration::from_secs(1_000_000);

    /// A process in a time namespace: on its boot clock alone, the machine was suspended for that
    /// long.
    #[test]
    fn the_time_that_the_machine_is_suspended_counts() {
        if std::env::var_os(SAYS).is_some() {
            return println!("it is {} now", boot_time().nanos());
        }
        let this = std::env::current_exe().expect("a test has a file");
        let seconds = SUSPENDED.as_secs().to_string();
        let said = Command::new("unshare")
            .args(["--user", "--map-root-user", "--time", "--boottime", &seconds, "--fork"])
            .arg(this)
            .args(["--exact", "clock::tests::the_time_that_the_machine_is_suspended_counts", "--nocapture"])
            .env(SAYS, "1")
            .output();
        let said = match said {
            Ok(said) if said.status.success() => String::from_utf8_lossy(&said.stdout).into_owned(),
            _ => return println!("SKIPPED: a clock that counts suspend: there are no time namespaces here"),
        };

        let nanos =
            said.split_once("it is ").and_then(|(_, rest)| rest.split_once(" now")).map(|(nanos, _)| nanos);
        let theirs = BootInstant::from_nanos(nanos.and_then(|nanos| nanos.parse().ok()).expect(&said));

        assert!(theirs.since(boot_time()) > SUSPENDED / 2, "{theirs:?}");
    }
}
