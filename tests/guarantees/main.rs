//! The guarantees of a lock over a real Redis under faults of servers, networks, and processes.
//!
//! Times are measured on the boot clock. Slack for a busy machine is a named constant.

mod background;
mod connection;
mod deadline;
mod key;
mod limits;
mod messages;
mod name_lookup;
mod namespaces;
mod orphans;
mod own_lock;
mod processes;
mod reconnecting;
mod runtimes;
mod validity;
mod wall_clock;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::resp::Reply;
use dlock_tests::world::{ids_in, name};
use dlock_tests::{Moment, RedisServer, within};

const LONG: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(1);
/// How long a lease of 1 s is considered valid: it ends 1 % and 2 ms early.
const VALID_FOR: Duration = Duration::from_millis(988);
/// The longest acceptable delay until a loss is reported.
const REPORTED_WITHIN: Duration = Duration::from_millis(50);
/// The longest acceptable scheduling delay on a busy machine.
const SLACK: Duration = Duration::from_millis(100);

const WORKER: &str = env!("CARGO_BIN_EXE_lock-worker");

async fn manager_of(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).await.expect("the server takes managers")
}

/// Waits until `count` contenders of other processes are queued behind the holder of `key`.
async fn until_waiting(server: &RedisServer, key: &str, count: usize) {
    let come = async {
        while ids_in(server.call(&["GET", &name(key)]).text().unwrap_or_default()) <= count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(Duration::from_secs(10), &format!("{count} waiting for {key}"), come).await;
}

/// Waits until `key` does not exist.
async fn until_free(server: &RedisServer, key: &str, limit: Duration) {
    let freed = async {
        while server.call(&["EXISTS", &name(key)]) != Reply::Integer(0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(limit, &format!("{key} is free"), freed).await;
}

/// Returns the TTL of `key`, or zero if the key does not exist.
///
/// # Panics
///
/// Panics if the key has no TTL.
fn time_to_live(server: &RedisServer, key: &str) -> Duration {
    match server.call(&["PTTL", &name(key)]).integer() {
        Some(-2) => Duration::ZERO,
        ttl => Duration::from_millis(ttl.and_then(|ttl| u64::try_from(ttl).ok()).expect("the key has a TTL")),
    }
}

/// A body that records the boot clock at every poll and never ends.
async fn tick(last_poll: &AtomicU64) {
    loop {
        last_poll.store(Moment::now().nanos(), Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
