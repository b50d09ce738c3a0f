//! Task behavior around locks: panics, races, cancellation, crowds, requests from a waker, and
//! kinds of runtimes.
//!
//! See also: `tests/cancel` (drops at every await point), `tests/guarantees/runtimes` (runtimes
//! that end), and `tests/contract` (panics, nesting, and deadlocks with every backend).

mod cancellation;
mod completed;
mod deadlock;
mod many_waiters;
mod mem_forget;
mod panics;
mod race;
mod runtimes;
mod wakers;

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::resp::Reply;
use dlock_tests::world::{ids_in, name};
use dlock_tests::{RedisServer, within};

const KEY: &str = "order:7";
const LONG: Duration = Duration::from_secs(30);
/// The bound of a release and a wake-up on a busy machine, far below every lease that must not
/// expire.
const PROMPT: Duration = Duration::from_millis(500);

async fn manager_of(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).await.expect("the server accepts connections")
}

/// Waits until `count` processes are queued behind the holder of `key`.
async fn until_waiting(server: &RedisServer, key: &str, count: usize) {
    let come = async {
        while ids_in(server.call(&["GET", &name(key)]).text().unwrap_or_default()) <= count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(LONG, &format!("{count} waiting for {key}"), come).await;
}

/// Asserts that, within `limit`, only fencing counters are left on the server: no holder and no
/// waiter.
async fn assert_nothing_is_left(server: &RedisServer, limit: Duration) {
    let locks = || {
        let keys = server.call(&["KEYS", "*"]).texts();
        keys.into_iter().filter(|key| !key.ends_with("##token")).collect::<Vec<_>>()
    };
    let gone = async {
        while !locks().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let in_time = tokio::time::timeout(limit, gone).await;
    assert!(in_time.is_ok(), "left after {limit:?}: {:?}", locks());
    let counters = server.call(&["KEYS", "*"]).texts();
    for counter in counters {
        let ttl = server.call(&["PTTL", &counter]);
        assert!(!matches!(ttl, Reply::Integer(..=0)), "{counter} has no expiry: {ttl:?}");
    }
}
