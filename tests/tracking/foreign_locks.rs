//! Foreign locks, whose holder announces no release, are not polled repeatedly.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::world::{FOREIGN, name};
use dlock_tests::{Moment, RedisServer, within};

use crate::{AT_ONCE, LONG, armed, until_armed};

const KEY: &str = "order:7";

#[tokio::test]
async fn foreign_release_wakes_a_waiter_at_once() {
    let server = RedisServer::start();
    let manager =
        LockManager::connect(&server.url_with("?poll_interval=10s")).await.expect("the server is up");
    for _ in 0..3 {
        server.call(&["SET", &name(KEY), FOREIGN, "NX", "PX", "60000"]);
        let lock = manager.lock(KEY).wait(LONG);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until_armed(&server, 1).await;

        let since = Moment::now();
        server.call(&["DEL", &name(KEY)]);
        let guard = within(LONG, "the lock", waiting).await.expect("no panic").expect("it is free");
        assert!(since.elapsed() < AT_ONCE, "{:?}", since.elapsed());
        guard.release().await.expect("it was held");
        until_armed(&server, 0).await;
    }
}

#[tokio::test]
async fn successive_foreign_locks_are_all_tracked() {
    let server = RedisServer::start();
    let manager =
        LockManager::connect(&server.url_with("?poll_interval=10s")).await.expect("the server is up");
    server.call(&["SET", &name(KEY), FOREIGN, "NX", "PX", "60000"]);
    let lock = manager.lock(KEY).wait(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until_armed(&server, 1).await;
    for number in 0..5 {
        server.call(&["SET", &name(KEY), &format!("stranger-{number}"), "PX", "60000"]);
        tokio::time::sleep(Duration::from_millis(20)).await;
        until_armed(&server, 1).await;
    }

    let since = Moment::now();
    server.call(&["DEL", &name(KEY)]);
    let guard = within(LONG, "the lock", waiting).await.expect("no panic");

    assert!(guard.is_ok() && since.elapsed() < AT_ONCE, "{guard:?} after {:?}", since.elapsed());
}

#[tokio::test]
async fn expired_foreign_lock_is_acquired_at_its_expiry() {
    let server = RedisServer::start();
    let manager =
        LockManager::connect(&server.url_with("?poll_interval=10s")).await.expect("the server is up");
    server.call(&["SET", &name(KEY), FOREIGN, "NX", "PX", "500"]);

    let since = Moment::now();
    let guard = within(LONG, "the lock", manager.lock(KEY).wait(LONG).acquire()).await;

    assert!(guard.is_ok() && since.elapsed() < Duration::from_millis(500) + AT_ONCE, "{guard:?}");
}

#[tokio::test]
async fn waiter_for_a_dlock_holder_tracks_nothing() {
    let server = RedisServer::start();
    let holder = LockManager::connect(&server.url()).await.expect("the server is up");
    let waiter = LockManager::connect(&server.url()).await.expect("the server is up");
    let held = holder.lock(KEY).acquire().await.expect("the lock is free");
    let lock = waiter.lock(KEY).wait(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until_armed(&server, 1).await;

    drop(held);
    let guard = within(LONG, "the lock", waiting).await.expect("no panic").expect("the lock is granted");
    assert_eq!(armed(&server), 0);
    drop(guard);
}
