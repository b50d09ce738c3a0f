//! What tasks do to locks: they panic, race, are cut short, come in crowds, ask from inside a waker and run on every kind of runtime.
//!
//! Each file is named by what the tasks do. Beside these stand `tests/cancel` (dropped at every await), `tests/promises/runtimes`
//! (runtimes that end) and `tests/contract` (panics, nesting and crosswise keys in every backend).

mod completed;
mod crosswise;
mod crowd;
mod cut_short;
mod forgotten;
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
/// What a release and a wake-up may take on a busy machine, far below every lease that is not meant to end.
const PROMPT: Duration = Duration::from_millis(500);

async fn manager_of(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).await.expect("the server takes managers")
}

/// Returns when `count` contenders of other processes stand behind the holder of `key`.
async fn until_waiting(server: &RedisServer, key: &str, count: usize) {
    let come = async {
        while ids_in(server.call(&["GET", &name(key)]).text().unwrap_or_default()) <= count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(LONG, &format!("{count} waiting for {key}"), come).await;
}

/// Asserts that within `limit` no key is left on the server but fencing counters: nobody holds, nobody waits.
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
        assert!(!matches!(ttl, Reply::Integer(..=0)), "{counter} has no end: {ttl:?}");
    }
}
