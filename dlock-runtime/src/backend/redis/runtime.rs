//! The thread or runtime that the driver runs on.
//!
//! ```text
//!  io=thread    a thread ------------------------------------------------> until it is not needed
//!  io=runtime   a task of the connecting runtime --runtime ends, still needed--> a thread
//! ```
//!
//! On its own thread, the driver renews leases while the application's threads are busy, and after
//! the runtime that created the manager has ended. A driver that panics is restarted, because a
//! lock manager that hangs is worse.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::backend::redis::driver::Driver;
use crate::config::config;
use crate::error::{Error, Result};
use crate::fork::in_one_process;
use crate::protocol::command::{Failure, FailureKind};
use crate::telemetry;

/// Receives the outcome of the first attempt to connect.
pub(super) type First = oneshot::Sender<std::result::Result<(), Failure>>;

/// Starts a driver on its own thread.
///
/// # Errors
///
/// Fails if the thread cannot be created.
pub(super) fn on_a_thread(driver: Arc<Driver>, first: Option<First>) -> std::result::Result<(), Failure> {
    let thread = std::thread::Builder::new().name("dlock-io".to_owned()).spawn(move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let text = format!("the i/o thread has no runtime: {error}");
                match first {
                    Some(first) => drop(first.send(Err(Failure::new(FailureKind::Passing, text)))),
                    None => telemetry::actor_failed(&text),
                }
                return;
            }
        };
        driver.shared.moves_to(Some(runtime.handle().clone()));
        let mut first = first;
        // Runs as a spawned task: the future inside `block_on` is woken by a system call even from
        // its own thread.
        while let Err(error) =
            runtime.block_on(runtime.spawn(Arc::clone(&driver).run(first.take()))).and_then(|ended| ended)
        {
            telemetry::actor_failed(&error);
            std::thread::sleep(RESTART_DELAY);
        }
    });
    let failed = |error| Failure::new(FailureKind::Passing, format!("no i/o thread: {error}"));
    thread.map(drop).map_err(failed)
}

/// Starts a driver on the current runtime.
///
/// # Errors
///
/// Fails if there is no current runtime.
pub(super) fn on_the_runtime(driver: Arc<Driver>, first: First) -> Result<()> {
    let runtime = Handle::try_current().map_err(|_| unfit("is no tokio runtime"))?;
    driver.shared.moves_to(Some(runtime.clone()));
    runtime.spawn(in_one_process(run(driver, first)));
    Ok(())
}

/// Returns the error of a runtime that does not support `io=runtime`.
pub(super) fn unfit(how: &str) -> Error {
    let problem =
        format!("the runtime that connects {how}: build it with `enable_all()`, or leave `io=runtime` out");
    config("io", problem)
}

async fn run(driver: Arc<Driver>, first: First) {
    // Dropped last: a driver that continues on a thread then finds no task of this one running
    // here.
    let mut handle = RuntimeHandle(Some(Arc::clone(&driver)));
    let mut first = Some(first);
    loop {
        let is_first = first.is_some();
        let running = Arc::clone(&driver).run(first.take());
        let ended = AssertUnwindSafe(running).catch_unwind().await;
        match ended {
            Ok(Ok(())) => break,
            // The runtime ends: it has dropped the driver's tasks and will drop this one.
            Ok(Err(error)) if error.is_cancelled() => return,
            Ok(Err(error)) => telemetry::actor_failed(&error),
            Err(_) => telemetry::actor_failed(&"the driver panicked"),
        }
        // A runtime without timers or i/o will not gain them later. Dropping `first` reports the
        // failure to the connecting caller.
        if is_first && driver.engine.strong_count() == 0 {
            break;
        }
        tokio::time::sleep(RESTART_DELAY).await;
    }
    handle.0 = None;
}

/// The driver on a runtime. If the runtime ends and drops this, the driver continues on a thread.
struct RuntimeHandle(Option<Arc<Driver>>);

impl Drop for RuntimeHandle {
    fn drop(&mut self) {
        let Some(driver) = self.0.take() else { return };
        driver.shared.moves_to(None);
        #[cfg(test)]
        if crate::simulated::is_on() {
            return; // the simulated host has crashed
        }
        if driver.is_needed()
            && let Err(failure) = on_a_thread(driver, None)
        {
            telemetry::actor_failed(&failure.reason);
        }
    }
}

/// Prevents a busy loop if the driver fails immediately each time.
const RESTART_DELAY: Duration = Duration::from_millis(100);
