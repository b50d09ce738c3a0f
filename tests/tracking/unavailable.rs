//! If tracking is forbidden or disabled, renewals and polling replace it.

use std::time::Duration;

use dlock_runtime::{LockManager, LossCause};
use dlock_tests::world::{FOREIGN, name};
use dlock_tests::{Moment, RedisServer, within};

use crate::{LONG, armed};

const KEY: &str = "order:7";

/// A renewal detects a theft, and polling detects a foreign release.
async fn assert_works_without(server: &RedisServer, manager: &LockManager) {
    // The renewal is due after a quarter to a third of the lease. Each process has a different
    // offset.
    let lease = Duration::from_secs(6);
    let begun = Moment::now();
    let guard = manager.lock(KEY).lease(lease).acquire().await.expect("the lock is free");
    tokio::time::sleep(Duration::from_millis(300)).await; // it is checked once after 100 ms
    let since = Moment::now();
    server.call(&["SET", &name(KEY), FOREIGN, "PX", "60000"]);
    let cause = within(LONG, "the loss", guard.lost()).await;
    let (held, took) = (begun.elapsed(), since.elapsed());
    assert!(cause == LossCause::NotOwner && held > lease / 5 && took < lease / 2, "{cause:?} after {took:?}");
    drop(guard);

    let lock = manager.lock(KEY).wait(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.call(&["DEL", &name(KEY)]);
    let taken = within(Duration::from_secs(1), "the lock", waiting).await.expect("no panic");
    assert!(taken.is_ok(), "{taken:?}");
    assert_eq!(armed(server), 0);
}

#[tokio::test]
async fn user_without_tracking_permission_loses_only_tracking() {
    if RedisServer::start().redis_version() < 7 {
        println!("SKIPPED: Redis before 7 has no ACL rule that removes one subcommand");
        return;
    }
    let server = RedisServer::builder().line("user default on nopass ~* &* +@all -client|tracking").start();
    let manager = LockManager::connect(&server.url()).await.expect("the server accepts connections");

    assert_works_without(&server, &manager).await;
}

#[tokio::test]
async fn tracking_that_is_off_is_off() {
    let server = RedisServer::start();
    let manager = LockManager::connect(&server.url_with("?tracking=off")).await.expect("the server is up");

    assert_works_without(&server, &manager).await;
}
