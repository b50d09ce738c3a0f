//! A lock that a client of another library holds, who tells nobody of its release, need not be looked at again and again.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::world::{FOREIGN, name};
use dlock_tests::{Moment, RedisServer, within};

use crate::{AT_ONCE, LONG, armed, until_armed};

const KEY: &str = "order:7";

#[tokio::test]
async fn a_strangers_release_wakes_who_waits_at_once() {
    let server = RedisServer::start();
    let manager = LockManager::connect(&server.url_with("?poll_interval=10s")).await.expect("it is open");
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
async fn strangers_that_follow_each_other_are_all_told_of() {
    let server = RedisServer::start();
    let manager = LockManager::connect(&server.url_with("?poll_interval=10s")).await.expect("it is open");
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
async fn a_strangers_lock_that_runs_out_is_had_when_it_has() {
    let server = RedisServer::start();
    let manager = LockManager::connect(&server.url_with("?poll_interval=10s")).await.expect("it is open");
    server.call(&["SET", &name(KEY), FOREIGN, "NX", "PX", "500"]);

    let since = Moment::now();
    let guard = within(LONG, "the lock", manager.lock(KEY).wait(LONG).acquire()).await;

    assert!(guard.is_ok() && since.elapsed() < Duration::from_millis(500) + AT_ONCE, "{guard:?}");
}

#[tokio::test]
async fn who_waits_for_one_of_us_is_told_of_nothing() {
    let server = RedisServer::start();
    let holder = LockManager::connect(&server.url()).await.expect("it is open");
    let waiter = LockManager::connect(&server.url()).await.expect("it is open");
    let held = holder.lock(KEY).acquire().await.expect("the lock is free");
    let lock = waiter.lock(KEY).wait(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until_armed(&server, 1).await;

    drop(held);
    let guard = within(LONG, "the lock", waiting).await.expect("no panic").expect("its turn comes");
    assert_eq!(armed(&server), 0);
    drop(guard);
}
