//! What is no lock under a lock's name: seen for what it is, left as it is, and not asked about for ever.

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
    let manager = connect(&server.url()).await.expect("the server takes managers");
    let lock = manager.lock("order:7").lease(LONG);

    let waited = within(LONG, "the wait", lock.clone().wait(Duration::from_secs(1)).acquire()).await;
    let once = lock.acquire().await;

    assert!(matches!(waited, Err(Error::WrongKind { .. })), "{waited:?}");
    // One try is one SET, which says no more than that something stands there.
    assert!(matches!(once, Err(Error::WrongKind { .. } | Error::Contended { .. })), "{once:?}");
    let list = server.call(&["LRANGE", "dlock:order:7", "0", "-1"]);
    assert_eq!(list.texts(), ["a", "b"]);
}

#[tokio::test]
async fn a_hold_that_became_a_list_is_lost() {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server takes managers");
    let guard = manager.lock("order:7").lease(Duration::from_millis(600)).acquire().await.expect("free");

    server.call(&["DEL", "dlock:order:7"]);
    server.call(&["RPUSH", "dlock:order:7", "a"]);
    within(Duration::from_secs(3), "the loss", guard.lost()).await;
    drop(guard);
    manager.lock("order:8").acquire().await.expect("free").release().await.expect("held");

    assert_eq!(server.call(&["LLEN", "dlock:order:7"]), Reply::Integer(1));
}

#[tokio::test]
async fn what_became_a_list_is_the_wrong_kind_to_whoever_asks_for_it() {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server takes managers");
    let keys = ["fenced", "extended", "released"];
    let [fenced, extended, released] = keys.map(|key| hold_a_list(&server, &manager, key));

    let asked = [
        fenced.await.fencing_token().await.map(drop),
        extended.await.extend(LONG).await,
        released.await.release().await,
        manager.force_release("released").await.map(drop),
    ];

    for answer in asked {
        assert!(matches!(answer, Err(Error::WrongKind { .. })), "{answer:?}");
    }
    for key in keys {
        assert_eq!(server.call(&["LLEN", &name(key)]), Reply::Integer(1), "{key}");
    }
}

#[tokio::test]
async fn a_list_is_not_asked_about_any_more_two_seconds_after_a_release() {
    assert_quiet_after(async |server, manager| hold_a_list(server, manager, "order:7").await.release().await)
        .await;
}

#[tokio::test]
async fn a_list_is_not_asked_about_any_more_two_seconds_after_a_guard_was_dropped() {
    assert_quiet_after(async |server, manager| {
        drop(hold_a_list(server, manager, "order:7").await);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_list_is_not_asked_about_any_more_two_seconds_after_a_wait() {
    assert_quiet_after(async |server, manager| {
        server.call(&["RPUSH", "dlock:order:7", "a"]);
        manager.lock("order:7").lease(LONG).wait(Duration::from_millis(200)).acquire().await.map(drop)
    })
    .await;
}

/// Holds `key`, and puts a list in the place of the lock.
async fn hold_a_list(server: &RedisServer, manager: &LockManager, key: &str) -> LockGuard {
    let guard = manager.lock(key).lease(LONG).acquire().await.expect("the lock is free");
    server.call(&["DEL", &name(key)]);
    server.call(&["RPUSH", &name(key), "a"]);
    guard
}

/// Asserts that no command but a connection's pings comes to the server for a second, from two seconds after `call` on.
async fn assert_quiet_after(call: impl AsyncFnOnce(&RedisServer, &LockManager) -> Result<()>) {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server takes managers");
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
async fn a_waiter_is_told_at_once_that_its_lock_became_a_list() {
    let server = RedisServer::start();
    let (ours, theirs) = (connect(&server.url()).await, connect(&server.url()).await);
    let (ours, theirs) =
        (ours.expect("the server takes managers"), theirs.expect("the server takes managers"));
    let _held = ours.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let lock = theirs.lock("order:7").lease(LONG).wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    while server.call(&["STRLEN", "dlock:order:7"]) != Reply::Integer(64) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    server.call(&["DEL", "dlock:order:7"]);
    server.call(&["LPUSH", "dlock:order:7", "x"]);
    let begun = Instant::now();
    let told = waiter.await.expect("the waiter does not panic");

    assert!(matches!(told, Err(Error::WrongKind { .. })), "{told:?}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}
