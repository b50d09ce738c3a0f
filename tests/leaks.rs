//! J7 for memory: a process does not grow with the number of calls that it has made.
//!
//! This is a separate program with one thread, so the figures contain no other allocations. The
//! suite `faults` checks for other leaks, but its processes are short-lived.

#![cfg(target_os = "linux")]

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::RedisServer;
use dlock_tests::resident::resident_bytes;
use futures_util::future::join_all;

/// Concurrent calls. Of four, one has its own key. The others share keys, and one of them waits for
/// at most 1 ms.
const AT_ONCE: usize = 64;

/// Rounds before the first measurement. Three times as many follow before the second.
const ROUNDS: usize = 50;

/// The bound of growth over the later rounds. Measured: about 50 KiB. Leaking one acquisition per
/// release would add 2 MiB.
const MOST: usize = 512 * 1024;

/// Runs calls that acquire, wait, fail, join a hold, or are dropped. Each 10th round also loses a
/// lock and cuts the connections.
async fn work(server: &RedisServer, locks: &LockManager, round: usize) {
    let call = |number: usize| async move {
        let own = number.is_multiple_of(4);
        let key = if own { format!("own:{round}:{number}") } else { format!("shared:{}", number / 16) };
        let limit = Duration::from_millis(if number % 4 == 1 { 1 } else { 5_000 });
        let lock = locks.lock(key).wait(limit);
        let done = lock.run(async |_| {
            let joined = lock.run(async |guard| guard.fencing_token().await).await;
            joined.and_then(|token| token)
        });
        if number % 16 == 2 {
            // The call is dropped at an arbitrary await point.
            return drop(tokio::time::timeout(Duration::from_millis(2), done).await);
        }
        match done.await {
            Ok(Ok(_)) | Err(Error::Contended { .. } | Error::Unavailable { .. }) => {}
            other => panic!("round {round}, call {number}: {other:?}"),
        }
    };
    join_all((0..AT_ONCE).map(call)).await;
    if !round.is_multiple_of(10) {
        return;
    }
    let lost = locks.lock("lost").acquire().await.expect("it is free");
    server.call(&["DEL", lost.key().full_name()]);
    assert!(lost.release().await.is_err(), "its key was deleted");
    server.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    // The waiting call retries on the next connection.
    drop(locks.lock("after").wait(Duration::from_secs(5)).acquire().await.expect("the server is up"));
}

#[tokio::test]
async fn memory_does_not_grow_with_the_number_of_calls() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.expect("it runs");
    for round in 0..ROUNDS {
        work(&server, &locks, round).await;
    }
    let before = resident_bytes();

    for round in ROUNDS..4 * ROUNDS {
        work(&server, &locks, round).await;
    }

    let grown = resident_bytes().saturating_sub(before);
    println!("{grown} bytes more after {} more calls", 3 * ROUNDS * AT_ONCE);
    assert!(grown <= MOST, "{grown} bytes more after {} more calls", 3 * ROUNDS * AT_ONCE);
}
