//! Wakes the driver at a deadline, and other tasks with [`sleep_until`].
//!
//! For the driver on Linux, this is a kernel timer on the clock that measures leases
//! (`timerfd_create(2)`). Deadlines that passed during a suspend are handled right after the
//! resume. A runtime's timer fires 1 to 2 ms late; the kernel timer does not. In simulations, on
//! other systems, and if the kernel offers no timer, the runtime's timers are used.

use std::time::Duration;

use crate::clock::boot_time;
use crate::protocol::deadline::BootInstant;

/// The timer of a driver.
#[derive(Debug)]
pub(super) struct BootTimer {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    timer: Option<kernel::KernelTimer>,
}

impl BootTimer {
    /// Creates a timer that is not set.
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

    /// Sleeps until `due`, or for a shorter time. Can be dropped at any time; the next sleep may
    /// have another deadline.
    pub(super) async fn until(&mut self, due: BootInstant) {
        if due == BootInstant::NEVER {
            return std::future::pending().await;
        }
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(timer) = &mut self.timer
            && timer.until(due).await.is_ok()
        {
            return;
        }
        tokio::time::sleep(due.since(boot_time()).min(LONGEST_SLEEP)).await;
    }
}

/// Sleeps until `due` on timers of the runtime: each kernel timer would need a file descriptor.
///
/// These do not count suspended time, so it checks the time after each quarter of the sleep. More
/// checks would cost more than the renewals that wait here.
pub(super) async fn sleep_until(due: BootInstant) {
    let longest = (due.since(boot_time()) / 4).max(LONGEST_SLEEP);
    loop {
        let now = boot_time();
        if now >= due {
            return;
        }
        tokio::time::sleep(due.since(now).min(longest)).await;
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

/// The longest sleep on a runtime timer while a deadline is pending.
///
/// Runtime timers do not count suspended time. After a resume, a loss is reported within this time,
/// and the body is not polled before. A shorter time costs too much: on a virtual machine, a
/// wake-up from idle costs more than a renewal.
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

    /// A kernel timer on the boot clock. The runtime polls and reads it like a pipe.
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

        /// Returns at `due`, or immediately if it has passed.
        pub(super) async fn until(&mut self, due: BootInstant) -> io::Result<()> {
            self.set(due)?;
            loop {
                self.fd.readable().await?;
                match self.fd.try_read(&mut [0; 8]) {
                    // The earlier setting fired before it was replaced.
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

    fn after(millis: u64) -> BootInstant {
        boot_time().plus(Duration::from_millis(millis))
    }

    #[tokio::test]
    async fn timer_fires_at_its_deadline_after_earlier_settings() {
        let mut timer = BootTimer::new();
        let never = after(3_600_000);
        for millis in [0, 1, 5, 20] {
            assert!(timer.until(never).now_or_never().is_none());
            let early = after(1);
            assert!(timer.until(early).now_or_never().is_none());
            tokio::time::sleep(Duration::from_millis(3)).await; // it fires while it is not polled

            let due = after(millis);
            timer.until(due).await;

            assert!(boot_time() >= due, "{millis} ms");
        }
        assert!(timer.until(after(3_600_000)).now_or_never().is_none());
        assert!(timer.until(BootInstant::NEVER).now_or_never().is_none());
    }

    /// Returns how late the timer fires: the best median of 20 tries, because other processes use
    /// the processor.
    #[cfg(target_os = "linux")]
    async fn late(timer: &mut BootTimer) -> Duration {
        let mut best = Duration::MAX;
        for _ in 0..20 {
            let mut late = Vec::new();
            for number in 0..11 {
                let due = boot_time().plus(Duration::from_micros(2_000 + 137 * number));
                while boot_time() < due {
                    timer.until(due).await;
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
    async fn kernel_timer_is_more_precise_than_the_runtime_timer() {
        let (kernel, runtime) =
            (late(&mut BootTimer::new()).await, late(&mut BootTimer { timer: None }).await);

        assert!(kernel < Duration::from_micros(400) && kernel < runtime, "{kernel:?}, {runtime:?}");
    }

    #[tokio::test]
    async fn runtime_timer_is_used_without_a_kernel_timer() {
        let mut timer = BootTimer {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            timer: None,
        };
        let due = after(5);

        timer.until(due).await;

        assert!(boot_time() >= due);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_kernel_timer_ignores_a_deadline_that_was_replaced() {
        let mut timer = BootTimer::new().timer.expect("this kernel has the timer");
        assert!(timer.until(after(1)).now_or_never().is_none());
        tokio::time::sleep(Duration::from_millis(3)).await; // it fires while it is not polled

        let due = after(20);

        assert!(timer.until(due).await.is_ok() && boot_time() >= due);
    }
}
