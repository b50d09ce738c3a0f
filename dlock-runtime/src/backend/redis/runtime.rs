//! Where the driver runs: on a thread of its own, or on the runtime that connects for as long as that lives.
//!
//! ```text
//!  io=thread    a thread ------------------------------------------------------------> until it is not needed
//!  io=runtime   a task of the runtime that connects --the runtime ends, and it is needed--> a thread
//! ```
//!
//! On a thread leases are renewed while the application's threads are busy, and after the runtime that made the manager has ended.
//! A driver that panics is started again: a lock manager that hangs is worse.
//!
//! Not here: what it does (`driver`).

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

/// Told how the first attempt to connect ended.
pub(super) type First = oneshot::Sender<std::result::Result<(), Failure>>;

/// Starts a driver on a thread of its own.
///
/// # Errors
///
/// Fails if there can be no thread.
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
        // A task of its own: what runs inside `block_on` is woken by a system call even from its own thread.
        while let Err(error) =
            runtime.block_on(runtime.spawn(Arc::clone(&driver).run(first.take()))).and_then(|ended| ended)
        {
            telemetry::actor_failed(&error);
            std::thread::sleep(BEFORE_A_RESTART);
        }
    });
    let failed = |error| Failure::new(FailureKind::Passing, format!("no i/o thread: {error}"));
    thread.map(drop).map_err(failed)
}

/// Starts a driver on the runtime that this is called on.
///
/// # Errors
///
/// Fails if it is called on none.
pub(super) fn on_the_runtime(driver: Arc<Driver>, first: First) -> Result<()> {
    let runtime = Handle::try_current().map_err(|_| unfit("is no tokio runtime"))?;
    driver.shared.moves_to(Some(runtime.clone()));
    runtime.spawn(in_one_process(run(driver, first)));
    Ok(())
}

/// Says that the runtime that connects is not fit for `io=runtime`.
pub(super) fn unfit(how: &str) -> Error {
    let problem =
        format!("the runtime that connects {how}: build it with `enable_all()`, or leave `io=runtime` out");
    config("io", problem)
}

async fn run(driver: Arc<Driver>, first: First) {
    // Dropped last: what runs on a thread then finds nothing of ours at work here.
    let mut home = RuntimeHandle(Some(Arc::clone(&driver)));
    let mut first = Some(first);
    loop {
        let is_first = first.is_some();
        let running = Arc::clone(&driver).run(first.take());
        let ended = AssertUnwindSafe(running).catch_unwind().await;
        match ended {
            Ok(Ok(())) => break,
            // Its tasks are dropped, and so will this one be.
            Ok(Err(error)) if error.is_cancelled() => return,
            Ok(Err(error)) => telemetry::actor_failed(&error),
            Err(_) => telemetry::actor_failed(&"the driver panicked"),
        }
        // A runtime without timers, or without i/o, will not have them the next time; who connects is told by what is dropped.
        if is_first && driver.engine.strong_count() == 0 {
            break;
        }
        tokio::time::sleep(BEFORE_A_RESTART).await;
    }
    home.0 = None;
}

/// Where the driver was before its runtime ended: when this is dropped with it, it goes on on a thread.
struct RuntimeHandle(Option<Arc<Driver>>);

impl Drop for RuntimeHandle {
    fn drop(&mut self) {
        let Some(driver) = self.0.take() else { return };
        driver.shared.moves_to(None);
        #[cfg(test)]
        if crate::simulated::is_on() {
            return; // its machine has crashed
        }
        if driver.is_needed()
            && let Err(failure) = on_a_thread(driver, None)
        {
            telemetry::actor_failed(&failure.reason);
        }
    }
}

/// An actor that fails at once each time must not become a busy loop.
const BEFORE_A_RESTART: Duration = Duration::from_millis(100);
