//! What wakes the driver when something is due.
//!
//! On Linux that is a timer of the kernel, on the clock that leases are measured by (`timerfd_create(2)`): what came due while the machine
//! was suspended is dealt with as soon as it is not, and what is due is not dealt with a millisecond or two later, as by the timers of a
//! runtime. Redirect, where the kernel gives no timer, and in simulations it is those.
//!
//! Not here: what is due, and when (`engine`).

use std::time::Duration;

use crate::clock::boot_time;
use crate::protocol::deadline::BootInstant;

/// The alarm of a driver.
#[derive(Debug)]
pub(super) struct BootTimer {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    timer: Option<kernel::KernelTimer>,
}

impl BootTimer {
    /// One that is not set.
    ///
    /// # Panics
    ///
    /// Panics on a runtime without i/o.
    pub(super) fn new() -> Self {
        Self {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            timer: if is_simulated() { None } else { kernel::KernelTimer::new().ok() },
        }
    }

    /// Sleeps until `due`, or for a shorter time. Dropping it is harmless: the next sleep may be until another time.
    pub(super) async fn until(&mut self, due: BootInstant) {
        self.ring(due, LONGEST_SLEEP).await;
    }

    /// The same for what may come later, by as long as the machine was suspended.
    pub(super) async fn until_about(&mut self, due: BootInstant) {
        self.ring(due, Duration::MAX).await;
    }

    async fn ring(&mut self, due: BootInstant, longest: Duration) {
        if due == BootInstant::NEVER {
            return std::future::pending().await;
        }
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(timer) = &mut self.timer
            && timer.until(due).await.is_ok()
        {
            return;
        }
        tokio::time::sleep(due.since(boot_time()).min(longest)).await;
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_simulated() -> bool {
    #[cfg(any(test, dlock_shuttle))]
    if crate::simulated::now().is_some() {
        return true;
    }
    false
}

/// The timers of a runtime do not count the time that the machine is suspended, so no sleep by them is longer while something is due:
/// after a resume a loss is told within this, and a body is not polled before. Shorter would be dear: a virtual machine that wakes up
/// from idling pays more than a renewal costs.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

#[cfg(any(target_os = "linux", target_os = "android"))]
mod kernel {
    use std::io;
    use std::time::Duration;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::net::unix::pipe;

    use crate::protocol::deadline::BootInstant;

    /// A timer of the kernel, on the boot clock.
    ///
    /// The runtime waits for it, and reads from it, as from a pipe.
    #[derive(Debug)]
    pub(super) struct KernelTimer {
        fd: pipe::Receiver,
        set_for: BootInstant,
    }

    impl KernelTimer {
        pub(super) fn new() -> io::Result<Self> {
            let fd =
                timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
            Ok(Self { fd: pipe::Receiver::from_owned_fd_unchecked(fd)?, set_for: BootInstant::NEVER })
        }

        /// Returns at `due`; at once where that is past.
        pub(super) async fn until(&mut self, due: BootInstant) -> io::Result<()> {
            self.set(due)?;
            loop {
                self.fd.readable().await?;
                match self.fd.try_read(&mut [0; 8]) {
                    // It was what it had been set for before that was due.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => {
                        self.set_for = BootInstant::NEVER;
                        return read.map(drop);
                    }
                }
            }
        }

        fn set(&mut self, due: BootInstant) -> io::Result<()> {
            if due == self.set_for {
                return Ok(());
            }
            // Zero would turn it off.
            let time = Timespec::try_from(Duration::from_nanos(due.nanos().max(1)));
            let it_value = time.map_err(|_| io::ErrorKind::InvalidInput)?;
            let once = Itimerspec { it_interval: Timespec::default(), it_value };
            timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &once)?;
            self.set_for = due;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn soon(millis: u64) -> BootInstant {
        boot_time().plus(Duration::from_millis(millis))
    }

    #[tokio::test]
    async fn it_rings_when_it_is_due_and_not_before_whatever_it_was_set_for_before() {
        let mut alarm = BootTimer::new();
        let never = soon(3_600_000);
        for millis in [0, 1, 5, 20] {
            assert!(alarm.until(never).now_or_never().is_none());
            let early = soon(1);
            assert!(alarm.until(early).now_or_never().is_none());
            tokio::time::sleep(Duration::from_millis(3)).await; // nobody asks for it, and it rings

            let due = soon(millis);
            alarm.until(due).await;

            assert!(boot_time() >= due, "{millis} ms");
        }
        assert!(alarm.until(soon(3_600_000)).now_or_never().is_none());
        assert!(alarm.until(BootInstant::NEVER).now_or_never().is_none());
    }

    /// How late it rings mostly, by the best of some tries: others may want the processor.
    #[cfg(target_os = "linux")]
    async fn late(alarm: &mut BootTimer) -> Duration {
        let mut best = Duration::MAX;
        for _ in 0..20 {
            let mut late = Vec::new();
            for number in 0..11 {
                let due = boot_time().plus(Duration::from_micros(2_000 + 137 * number));
                while boot_time() < due {
                    alarm.until(due).await;
                }
                late.push(boot_time().since(due));
            }
            late.sort_unstable();
            best = best.min(late[5]);
        }
        best
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn it_rings_without_the_delay_of_timers_of_a_runtime() {
        let (ours, of_runtime) =
            (late(&mut BootTimer::new()).await, late(&mut BootTimer { timer: None }).await);

        assert!(ours < Duration::from_micros(400) && ours < of_runtime, "{ours:?}, {of_runtime:?}");
    }

    #[tokio::test]
    async fn where_there_is_no_timer_it_rings_a_little_later() {
        let mut alarm = BootTimer {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            timer: None,
        };
        let due = soon(5);

        alarm.until(due).await;

        assert!(boot_time() >= due);
    }
}
