//! Foreign values that are much longer than a lock's: the server is not blocked, and the holder
//! learns of its loss.

use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager};
use dlock_tests::resp::Reply;
use dlock_tests::world::name;
use dlock_tests::{RedisServer, within};

use super::{LONG, connect};

const KEY: &str = "order:7";
/// The longest time that one script may block the server, in microseconds.
const LONGEST_SCRIPT: i64 = 50_000;

/// Returns the scripts that took longer than [`LONGEST_SCRIPT`], with their durations.
fn slow_scripts(server: &RedisServer) -> Vec<(i64, String)> {
    let Reply::List(entries) = server.call(&["SLOWLOG", "GET", "-1"]) else { panic!("the log is a list") };
    let scripts = entries.into_iter().filter_map(|entry| {
        let Reply::List(fields) = entry else { return None };
        let (took, words) = (fields.get(2)?.integer()?, fields.get(3)?.texts());
        words.first()?.to_lowercase().starts_with("eval").then(|| (took, words.join(" ")))
    });
    scripts.collect()
}

/// Asserts that `call` runs no long script, in the best of three attempts, after thousands of
/// tokens were appended to the held lock.
async fn assert_quick(call: impl AsyncFn(&LockManager, &RedisServer, LockGuard)) {
    let server = RedisServer::start();
    server.call(&["CONFIG", "SET", "slowlog-log-slower-than", &LONGEST_SCRIPT.to_string()]);
    let manager = connect(&server.url()).await.expect("the server accepts connections");
    for tokens in [10_000, 100_000] {
        let mut slow = Vec::new();
        for _ in 0..3 {
            server.call(&["DEL", &name(KEY)]);
            server.call(&["SLOWLOG", "RESET"]);
            let guard = manager.lock(KEY).lease(LONG).acquire().await.expect("the lock is free");
            let token = server.call(&["GET", &name(KEY)]).text().expect("it is held").to_owned();
            let dead = format!("{}{}", &token[..8], "0".repeat(token.len() - 8));
            server.call(&["APPEND", &name(KEY), &dead.repeat(tokens)]);

            within(LONG, "the call", call(&manager, &server, guard)).await;

            slow = slow_scripts(&server);
            if slow.is_empty() {
                break;
            }
        }
        assert!(slow.is_empty(), "{tokens} tokens: {slow:?}");
    }
}

#[tokio::test]
async fn appended_value_release_is_fast_and_reports_the_loss() {
    assert_quick(async |_, server, guard| {
        let released = guard.release().await;

        assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
        assert_eq!(server.call(&["EXISTS", &name(KEY)]), Reply::Integer(1), "a foreign value is not deleted");
    })
    .await;
}

#[tokio::test]
async fn appended_value_extension_is_fast_and_reports_the_loss() {
    assert_quick(async |_, _, guard| {
        let extended = guard.extend(LONG * 2).await;
        assert!(matches!(extended, Err(Error::Lost { .. })), "{extended:?}");
    })
    .await;
}

#[tokio::test]
async fn appended_value_fencing_token_fails_fast() {
    assert_quick(async |_, _, guard| {
        let fence = guard.fencing_token().await;
        assert!(matches!(fence, Err(Error::Lost { .. })), "{fence:?}");
    })
    .await;
}

#[tokio::test]
async fn a_long_value_is_inspected_and_force_released_at_once() {
    assert_quick(async |manager, server, guard| {
        let seen = manager.inspect(KEY).await.expect("the server replies").expect("the key exists");
        let taken = manager.force_release(KEY).await;
        drop(guard);

        assert!(seen.is_foreign() && seen.waiters() == 0, "{seen:?}");
        assert!(matches!(taken, Ok(true)), "{taken:?}");
        while server.call(&["EXISTS", &name(KEY)]) != Reply::Integer(0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_waiter_behind_a_long_value_comes_and_leaves_at_once() {
    assert_quick(async |_, server, guard| {
        let other = connect(&server.url()).await.expect("the server accepts connections");
        let lock = other.lock(KEY).lease(LONG).wait(Duration::from_millis(200));
        let waited = lock.acquire().await;

        assert!(matches!(waited, Err(Error::Contended { .. })), "{waited:?}");
        drop(guard);
    })
    .await;
}

#[tokio::test]
async fn a_waiter_whose_value_was_appended_to_leaves_at_once() {
    assert_quick(async |_, server, guard| {
        server.call(&["DEL", &name(KEY)]);
        drop(guard);
        let (first, second) = (connect(&server.url()).await, connect(&server.url()).await);
        let (first, second) = (first.expect("a manager"), second.expect("a manager"));
        let held = first.lock(KEY).lease(LONG).acquire().await.expect("the lock is free");
        let lock = second.lock(KEY).lease(LONG).wait(LONG);
        let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
        while server.call(&["STRLEN", &name(KEY)]) == Reply::Integer(32) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server.call(&["APPEND", &name(KEY), &"x".repeat(3_200_000)]);

        waiter.abort();
        let _ = waiter.await;
        second.shutdown(Duration::from_millis(100)).await;
        drop(held);
    })
    .await;
}

#[tokio::test]
async fn a_nested_call_in_a_long_value_ends_at_once() {
    assert_quick(async |manager, server, guard| {
        server.call(&["DEL", &name(KEY)]);
        drop(guard);
        let (lock, nested) = (manager.lock(KEY).lease(LONG).wait(LONG), manager.lock(KEY));
        let ran = lock.run(async |_| {
            server.call(&["APPEND", &name(KEY), &"x".repeat(3_200_000)]);
            nested.run(async |_| ()).await.map(drop)
        });
        let _ = ran.await; // the loss may or may not be detected yet
    })
    .await;
}

#[tokio::test]
async fn huge_foreign_value_is_a_loss_and_is_not_downloaded() {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server accepts connections");
    let guard = manager.lock(KEY).lease(LONG).acquire().await.expect("the lock is free");
    let sent = || -> u64 {
        let stats = server.call(&["INFO", "stats"]);
        let mut lines = stats.text().expect("INFO answers text").lines();
        let sent = lines.find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        sent.expect("the server counts what it sends").trim().parse().expect("a number")
    };
    tokio::time::sleep(Duration::from_millis(150)).await; // a hold of this age is tracked
    let before = sent();

    let words = ["SETRANGE", &name(KEY), "536870911", "x"];
    let length = server.try_call(&words, LONG).expect("the server has that much memory");
    within(LONG, "the loss", guard.lost()).await;
    let released = guard.release().await;

    assert_eq!(length, Reply::Integer(512 << 20));
    assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
    assert!(sent() - before < 100_000, "{} bytes were sent", sent() - before);
}
