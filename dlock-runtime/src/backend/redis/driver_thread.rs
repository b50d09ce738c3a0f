//! The thread that a driver runs on.
//!
//! On its own thread, the driver renews leases while the application's threads are busy, and after
//! the runtime that created the manager has ended. A driver that panics is restarted, because a
//! lock manager that hangs is worse.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::redis::driver::Driver;
use crate::protocol::command::{Failure, FailureKind};
use crate::telemetry;

/// Receives the outcome of the first attempt to connect.
pub(super) type First = oneshot::Sender<std::result::Result<(), Failure>>;

/// Returns the receiver of the first attempt to connect. If the start is `lazy`, it has received
/// success, and the attempt is one of any number.
fn awaited(first: First, lazy: bool) -> Option<First> {
    if lazy {
        let _ = first.send(Ok(()));
        return None;
    }
    Some(first)
}

/// Starts a driver on its own thread. If the start is `lazy`, it does not depend on a connection.
///
/// # Errors
///
/// Fails if the thread cannot be created.
pub(super) fn on_a_thread(driver: Arc<Driver>, first: First, lazy: bool) -> std::result::Result<(), Failure> {
    let thread = std::thread::Builder::new().name("dlock-io".to_owned()).spawn(move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let text = format!("the i/o thread has no runtime: {error}");
                let _ = first.send(Err(Failure::new(FailureKind::Passing, text)));
                return;
            }
        };
        driver.shared.runtimes.set_own(runtime.handle().clone());
        let mut first = awaited(first, lazy);
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

/// Starts a driver on the current runtime, which simulates a host.
#[cfg(test)]
pub(super) fn on_the_runtime(driver: Arc<Driver>, first: First, lazy: bool) {
    let runtime = tokio::runtime::Handle::current();
    driver.shared.runtimes.set_own(runtime.clone());
    runtime.spawn(async move {
        let mut first = awaited(first, lazy);
        while let Err(error) = Arc::clone(&driver).run(first.take()).await {
            if error.is_cancelled() {
                return; // the host has crashed
            }
            telemetry::actor_failed(&error);
            tokio::time::sleep(RESTART_DELAY).await;
        }
    });
}

/// Prevents a busy loop if the driver fails immediately each time.
const RESTART_DELAY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lazy_start_succeeds_before_the_first_attempt() {
        for is_lazy in [true, false] {
            let (first, mut connected) = oneshot::channel();

            let awaited = awaited(first, is_lazy);

            assert_eq!(awaited.is_none(), is_lazy);
            assert_eq!(matches!(connected.try_recv(), Ok(Ok(()))), is_lazy);
        }
    }
}
