//! A value of another kind under a lock's name is reported, left unchanged, and not polled forever.

use std::time::{Duration, Instant};

use dlock_runtime::{Error, LockGuard, LockManager, Result};
use dlock_tests::resp::Reply;
use dlock_tests::world::name;
use dlock_tests::{RedisServer, within};

use super::{LONG, connect};

#[tokio::test]
async fn a_list_under_the_locks_name_is_the_wrong_kind_and_stays() {
    let server = RedisServer::start();
    server.call(&["RPUSH", "dlock:order:7", "a", "b"]);
    let manager = connect(&server.url()).await.expect("the server accepts connections");
    let lock = manager.lock("order:7").lease(LONG);

    let waited = within(LONG, "the wait", lock.clone().wait(Duration::from_secs(1)).acquire()).await;
    let once = lock.acquire().await;

    assert!(matches!(waited, Err(Error::WrongKind { .. })), "{waited:?}");
    // A single try is one `SET`, whose reply only shows that the key exists.
    assert!(matches!(once, Err(Error::WrongKind { .. } | Error::Contended { .. })), "{once:?}");
    let list = server.call(&["LRANGE", "dlock:order:7", "0", "-1"]);
    assert_eq!(list.texts(), ["a", "b"]);
}

#[tokio::test]
async fn a_hold_that_became_a_list_is_lost() {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server accepts connections");
    let guard = manager.lock("order:7").lease(Duration::from_millis(600)).acquire().await.expect("free");

    server.call(&["DEL", "dlock:order:7"]);
    server.call(&["RPUSH", "dlock:order:7", "a"]);
    within(Duration::from_secs(3), "the loss", guard.lost()).await;
    drop(guard);
    manager.lock("order:8").acquire().await.expect("free").release().await.expect("held");

    assert_eq!(server.call(&["LLEN", "dlock:order:7"]), Reply::Integer(1));
}

#[tokio::test]
async fn every_request_for_a_list_is_a_wrong_kind_error() {
    let server = RedisServer::start();
    // Otherwise, on a slow machine, the check of a hold can find the list before the request does.
    let url = format!("{}?tracking=off", server.url());
    let manager = connect(&url).await.expect("the server accepts connections");
    let keys = ["fenced", "extended", "released"];
    let [fenced, extended, released] = keys.map(|key| hold_a_list(&server, &manager, key));

    let replies = [
        fenced.await.fencing_token().await.map(drop),
        extended.await.extend(LONG).await,
        released.await.release().await,
        manager.force_release("released").await.map(drop),
    ];

    for answer in replies {
        assert!(matches!(answer, Err(Error::WrongKind { .. })), "{answer:?}");
    }
    for key in keys {
        assert_eq!(server.call(&["LLEN", &name(key)]), Reply::Integer(1), "{key}");
    }
}

#[tokio::test]
async fn list_is_not_queried_two_seconds_after_a_release() {
    assert_quiet_after(async |server, manager| hold_a_list(server, manager, "order:7").await.release().await)
        .await;
}

#[tokio::test]
async fn list_is_not_queried_two_seconds_after_a_drop() {
    assert_quiet_after(async |server, manager| {
        drop(hold_a_list(server, manager, "order:7").await);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn list_is_not_queried_two_seconds_after_a_wait() {
    assert_quiet_after(async |server, manager| {
        server.call(&["RPUSH", "dlock:order:7", "a"]);
        manager.lock("order:7").lease(LONG).wait(Duration::from_millis(200)).acquire().await.map(drop)
    })
    .await;
}

/// Acquires `key`, and replaces the lock's value with a list.
async fn hold_a_list(server: &RedisServer, manager: &LockManager, key: &str) -> LockGuard {
    let guard = manager.lock(key).lease(LONG).acquire().await.expect("the lock is free");
    server.call(&["DEL", &name(key)]);
    server.call(&["RPUSH", &name(key), "a"]);
    guard
}

/// Asserts that, from two seconds after `call`, the server receives only pings for one second.
async fn assert_quiet_after(call: impl AsyncFnOnce(&RedisServer, &LockManager) -> Result<()>) {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server accepts connections");
    let commands = || server.command_total() - server.command_count("ping");

    let outcome = within(LONG, "the call", call(&server, &manager)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = commands();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = commands();

    assert_eq!(after - before, 0, "commands in a second, after {outcome:?}");
    assert_eq!(server.call(&["LLEN", "dlock:order:7"]), Reply::Integer(1));
}

#[tokio::test]
async fn waiter_fails_in_time_if_its_lock_becomes_a_list() {
    let server = RedisServer::start();
    let (ours, theirs) = (connect(&server.url()).await, connect(&server.url()).await);
    let (ours, theirs) =
        (ours.expect("the server accepts connections"), theirs.expect("the server accepts connections"));
    let _held = ours.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let lock = theirs.lock("order:7").lease(LONG).wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    while server.call(&["STRLEN", "dlock:order:7"]) != Reply::Integer(64) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    server.call(&["DEL", "dlock:order:7"]);
    server.call(&["LPUSH", "dlock:order:7", "x"]);
    let begun = Instant::now();
    let reported = waiter.await.expect("the waiter does not panic");

    assert!(matches!(reported, Err(Error::WrongKind { .. })), "{reported:?}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}
