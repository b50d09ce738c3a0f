//! What each operation costs: commands, exactly, and round trips, by a network that is slow. The guide on performance has the table.
//!
//! Counting is steady on any machine, so a command more is found here before a clock would show it. Trips are told by a network whose
//! round trip is far longer than what a busy machine takes for anything: an operation that takes one trip more is later each time.
//!
//! Not here: how fast an operation is where the server is near (`benches`).

mod alone;
mod between;
mod slow;
mod standing;
mod wire;

use std::time::Duration;

use dlock_runtime::{LockGuard, LockManager};

/// Longer than any wait of these tests, than a grant lease, and less than twice as long: a task that was granted the lock may hand it on.
const LONG: Duration = Duration::from_secs(90);

async fn hold(manager: &LockManager, key: &str) -> LockGuard {
    manager.lock(key).lease(LONG).wait(LONG).acquire().await.expect("the lock comes")
}

async fn release(guard: LockGuard) {
    guard.release().await.expect("it was held");
}

/// Takes the lock and lets go of it.
async fn call(manager: &LockManager, key: &str) {
    release(hold(manager, key).await).await;
}
