//! [`Timer`], for tasks of any executor: a timer of the current tokio runtime, or of one thread of
//! this process.
//!
//! Tasks that wait for locks in memory keep the time themselves. With the timers of their own
//! runtime, paused time works. Outside tokio, and on a runtime that was built without timers, the
//! thread's timers are used. A future may be polled by one runtime and then by another, and the
//! first may stand still or end, so the timer moves with it.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::catch_unwind;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use once_cell::sync::OnceCell;
use tokio::runtime::{Builder, Handle, Id};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::config::config;
use crate::error::Result;
use crate::fork::{InOneProcess, PerProcess};

/// A future that completes after a duration. Both kinds lock a mutex of a runtime when they are
/// dropped, so a forked process leaks it.
pub(crate) struct Timer(InOneProcess<Inner>);

enum Inner {
    /// A timer of a runtime.
    Tokio(Pin<Box<tokio::time::Sleep>>, Id),
    /// A timer of the thread.
    Thread(JoinHandle<()>),
    Elapsed,
}

impl Timer {
    /// Starts a timer. It never ends early.
    pub(crate) fn new(time: Duration) -> Self {
        Self(InOneProcess::new(Inner::new(time)))
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl Inner {
    fn new(time: Duration) -> Self {
        of_runtime(time).unwrap_or_else(|| of_thread(time))
    }
}

impl Future for Inner {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Self::Tokio(sleep, runtime) = &*self
            && current_runtime() != Some(*runtime)
        {
            let left = sleep.deadline().saturating_duration_since(Instant::now());
            *self = Self::new(left);
        }
        match &mut *self {
            Self::Tokio(sleep, _) => sleep.as_mut().poll(cx),
            Self::Thread(sleep) => Pin::new(sleep).poll(cx).map(drop),
            Self::Elapsed => Poll::Ready(()),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Self::Thread(sleep) = self {
            sleep.abort();
        }
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").finish_non_exhaustive()
    }
}

/// Spawns a task on the current runtime, or on the thread.
pub(crate) fn spawn(task: Pin<Box<dyn Future<Output = ()> + Send>>) {
    if let Ok(current) = Handle::try_current() {
        current.spawn(task);
    } else if let Ok(thread) = THREAD.get().get_or_try_init(start_thread) {
        thread.spawn(task);
    }
}

/// Checks that the current runtime has timers, if there is a runtime.
///
/// # Errors
///
/// [`Error::Config`](crate::Error::Config) if the runtime was built without timers.
pub(crate) fn check_runtime() -> Result<()> {
    if Handle::try_current().is_ok() && of_runtime(Duration::ZERO).is_none() {
        let problem =
            "the runtime that connects has no timers, which `memory://` needs: build it with `enable_time()`";
        return Err(config("runtime", problem));
    }
    Ok(())
}

/// Starts a timer of the current runtime. Returns `None` outside tokio, and if the runtime has no
/// timers.
///
/// tokio shows the latter only by a panic, which a panic hook of the host observes. So it is tried
/// once by each thread of such a runtime.
fn of_runtime(time: Duration) -> Option<Inner> {
    thread_local! {
        /// The last runtime without timers that this thread has run. If tokio gives its ID to a
        /// later runtime, that runtime is served by the timers of the thread `dlock-timer` too.
        static WITHOUT_TIMERS: Cell<Option<Id>> = const { Cell::new(None) };
    }
    let runtime = current_runtime()?;
    if WITHOUT_TIMERS.get() == Some(runtime) {
        return None;
    }
    let timer = catch_unwind(|| Box::pin(tokio::time::sleep(time))).ok();
    if timer.is_none() {
        WITHOUT_TIMERS.set(Some(runtime));
    }
    timer.map(|timer| Inner::Tokio(timer, runtime))
}

/// Returns the runtime of the current task; `None` outside of tokio.
pub(crate) fn current_runtime() -> Option<Id> {
    Handle::try_current().ok().map(|current| current.id())
}

fn of_thread(time: Duration) -> Inner {
    if let Ok(thread) = THREAD.get().get_or_try_init(start_thread) {
        return Inner::Thread(thread.spawn(async move { tokio::time::sleep(time).await }));
    }
    // The thread cannot be started. If the timer ended early, locks would end before their time.
    std::thread::sleep(time);
    Inner::Elapsed
}

/// The runtime of the thread, once it is needed.
static THREAD: PerProcess<OnceCell<Handle>> = PerProcess::new();

fn start_thread() -> std::io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_time().build()?;
    let handle = runtime.handle().clone();
    let thread = std::thread::Builder::new().name("dlock-timer".to_owned());
    thread.spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::error::Error;

    const SHORT: Duration = Duration::from_millis(20);

    fn runtime(has_timers: bool) -> tokio::runtime::Runtime {
        let mut builder = Builder::new_current_thread();
        if has_timers {
            builder.enable_time().start_paused(true);
        }
        builder.build().expect("a runtime can be made")
    }

    #[test]
    fn a_runtime_without_timers_is_refused() {
        let refused = runtime(false).block_on(async { check_runtime() });

        let Err(Error::Config { part, problem }) = refused else { panic!("{refused:?}") };
        assert!(&*part == "runtime" && problem.contains("enable_time()"), "{part}: {problem}");
        assert!(runtime(true).block_on(async { check_runtime() }).is_ok());
        assert!(check_runtime().is_ok(), "outside of tokio, the thread has timers");
    }

    /// Runs on a thread of its own: the timers of a thread depend on the runtimes that it has run.
    #[test]
    fn a_timer_never_ends_early() {
        for has_timers in [None, Some(false)] {
            let wait = move || {
                let start = Instant::now();
                let timer = async { Timer::new(SHORT).await };
                match has_timers {
                    Some(has_timers) => runtime(has_timers).block_on(timer),
                    None => tokio_free(timer),
                }
                start.elapsed()
            };

            let waited = std::thread::spawn(wait).join().expect("no panic");

            assert!(waited >= SHORT, "{has_timers:?}: {waited:?}");
        }
    }

    /// Runs a future outside of tokio.
    fn tokio_free(future: impl Future<Output = ()>) {
        struct Unpark(std::thread::Thread);
        impl std::task::Wake for Unpark {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
        let mut future = std::pin::pin!(future);
        while future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            std::thread::park();
        }
    }

    #[test]
    fn a_timer_of_a_paused_runtime_uses_its_clock() {
        runtime(true).block_on(async {
            let mut timer = Timer::new(Duration::from_secs(3_600));
            assert!((&mut timer).now_or_never().is_none());
            tokio::time::advance(Duration::from_secs(3_599)).await;
            assert!((&mut timer).now_or_never().is_none());
            tokio::time::advance(Duration::from_millis(1_002)).await;
            assert!((&mut timer).now_or_never().is_some());
        });
    }

    /// The first runtime stands still, or has ended.
    #[test]
    fn a_timer_moves_to_the_runtime_that_polls_it() {
        for has_ended in [false, true] {
            let first = runtime(true);
            let mut timer = {
                let _entered = first.enter();
                Timer::new(Duration::from_secs(3_600))
            };
            first.block_on(async { assert!((&mut timer).now_or_never().is_none()) });
            let first = (!has_ended).then_some(first);

            let second = runtime(true);
            let waits = async { tokio::time::timeout(Duration::from_secs(3_601), &mut timer).await };

            assert!(second.block_on(waits).is_ok(), "the first runtime has ended: {has_ended}");
            drop(first);
        }
    }

    #[test]
    fn a_task_runs_on_the_current_runtime_or_on_the_thread() {
        let spawn_and_wait = || {
            let (ran, has_run) = mpsc::channel();
            spawn(Box::pin(async move {
                let _ = ran.send(std::thread::current().name().map(str::to_owned));
            }));
            has_run
        };

        let on_thread = spawn_and_wait().recv_timeout(Duration::from_secs(60)).expect("it runs");
        let on_runtime = runtime(false).block_on(async {
            let has_run = spawn_and_wait();
            tokio::task::yield_now().await;
            has_run.try_recv().expect("it runs")
        });

        assert_eq!(on_thread.as_deref(), Some("dlock-timer"));
        assert_ne!(on_runtime.as_deref(), Some("dlock-timer"));
    }

    #[test]
    fn a_dropped_timer_leaves_nothing_on_the_thread() {
        let timer = of_thread(Duration::from_secs(24 * 60 * 60));
        let Inner::Thread(sleep) = &timer else { panic!("there is no runtime here") };
        let sleep = sleep.abort_handle();
        assert!(!sleep.is_finished());

        drop(timer);

        let start = Instant::now();
        while !sleep.is_finished() {
            assert!(start.elapsed() < Duration::from_secs(60), "it is kept");
            std::thread::yield_now();
        }
    }
}
