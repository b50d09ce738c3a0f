//! P2: release and renewal affect only the lock of their own token; a lost lock is never recreated.

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::resp::Reply;
use dlock_tests::world::FOREIGN;
use dlock_tests::{RedisServer, overrun, within};

use super::{LEASE, LONG, SLACK, manager_of};

/// Connects a manager without tracking, so that only a renewal notices changes to its key.
async fn untracked(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url_with("?tracking=off")).await.expect("the server takes managers")
}

#[tokio::test]
async fn a_renewal_detects_a_deleted_key_and_does_not_recreate_it() {
    let server = RedisServer::start();
    let manager = untracked(&server).await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");

    server.call(&["DEL", "dlock:order:7"]);
    let (_, late) = overrun(LEASE / 3, within(LONG, "the loss", held.lost())).await;
    tokio::time::sleep(LEASE).await;

    assert!(late < SLACK, "{late:?}");
    assert_eq!(server.call(&["EXISTS", "dlock:order:7"]), Reply::Integer(0));
    drop(held);
}

#[tokio::test]
async fn a_renewal_detects_a_stolen_key_and_keeps_it_unchanged() {
    let server = RedisServer::start();
    let manager = untracked(&server).await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");

    server.call(&["SET", "dlock:order:7", FOREIGN, "PX", "60000"]);
    let (_, late) = overrun(LEASE / 3, within(LONG, "the loss", held.lost())).await;
    drop(held);
    // This uses the same connection, so every command that the drop sends has been executed after
    // it.
    manager.lock("order:8").acquire().await.expect("free").release().await.expect("held");

    assert!(late < SLACK, "{late:?}");
    assert_eq!(server.call(&["GET", "dlock:order:7"]), Reply::Text(FOREIGN.to_owned()));
    let ttl = server.call(&["PTTL", "dlock:order:7"]).integer();
    assert!(ttl.is_some_and(|ttl| ttl > 50_000), "{ttl:?}");
}

#[tokio::test]
async fn a_foreign_lock_is_polled_and_never_modified() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    server.call(&["SET", "dlock:order:7", FOREIGN, "PX", "60000"]);
    let lock = manager.lock("order:7").lease(LONG).wait(LONG);

    let refused = lock.clone().wait(Duration::from_millis(300)).acquire().await;
    let untouched = server.call(&["GET", "dlock:order:7"]);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    server.call(&["DEL", "dlock:order:7"]);
    let granted = within(Duration::from_secs(5), "the lock", waiter).await.expect("no panic");

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    assert_eq!(untouched, Reply::Text(FOREIGN.to_owned()));
    assert!(granted.is_ok(), "{granted:?}");
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let held = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");

    server.call(&["SCRIPT", "FLUSH"]);
    let released = held.release().await;

    assert!(released.is_ok(), "{released:?}");
    assert_eq!(server.call(&["EXISTS", "dlock:order:7"]), Reply::Integer(0));
}

#[tokio::test]
async fn a_manager_outlives_a_restart_of_its_server() {
    let mut server = RedisServer::start();
    let manager = manager_of(&server).await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");

    server.kill();
    server.restart();
    within(LEASE * 3, "the loss", held.lost()).await;
    let again = manager.lock("order:7").lease(LONG).wait(Duration::from_secs(5)).acquire().await;

    assert!(again.is_ok(), "{again:?}");
}
