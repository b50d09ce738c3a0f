//! The cost of each operation in commands, exactly, and in round trips, over a slow network.
//!
//! The performance guide has the table. Counts are the same on every machine, so an additional
//! command is found here before a clock would show it. The round-trip time is far longer than any
//! delay of a busy machine, so an operation with an additional round trip is always late.
//!
//! See also `benches` for the speed of operations with a server nearby.

mod contended;
mod deployments;
mod slow_network;
mod uncontended;
mod wire;

use std::time::Duration;

use dlock_runtime::{LockGuard, LockManager};

/// Longer than any wait of these tests, and between one and two grant leases, so that a task that
/// was granted the lock may hand it off.
const LONG: Duration = Duration::from_secs(90);

async fn hold(manager: &LockManager, key: &str) -> LockGuard {
    manager.lock(key).lease(LONG).wait(LONG).acquire().await.expect("the lock comes")
}

async fn release(guard: LockGuard) {
    guard.release().await.expect("it was held");
}

/// Acquires and releases the lock.
async fn call(manager: &LockManager, key: &str) {
    release(hold(manager, key).await).await;
}
