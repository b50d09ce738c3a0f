//! Who may touch a lock, and what a server without memory does.

use std::time::Duration;

use dlock_runtime::Error;
use dlock_tests::RedisServer;
use dlock_tests::resp::Reply;

use super::{LONG, ONE_TRY, acquire_once, connect};

#[tokio::test]
async fn a_missing_and_a_wrong_password_are_told_from_each_other_by_nobody_but_the_server() {
    let server = RedisServer::builder().password("sesame").start();
    let address = format!("127.0.0.1:{}", server.port());

    for url in [
        format!("redis://{address}"),
        format!("redis://:wrong@{address}"),
        format!("redis://nobody:wrong@{address}"),
    ] {
        let refused = connect(&url).await;
        assert!(
            matches!(refused, Err(Error::Unavailable { .. } | Error::Config { .. })),
            "{url}: {refused:?}"
        );
    }
    assert!(connect(&format!("redis://:sesame@{address}")).await.is_ok());
}

#[tokio::test]
async fn a_user_with_no_more_rights_than_the_locks_need_can_lock() {
    let server = RedisServer::builder()
        .line("user locker on >sesame ~dlock:* &* +@read +@write +@scripting +@pubsub +@connection +time")
        .start();
    let manager =
        connect(&format!("redis://locker:sesame@127.0.0.1:{}", server.port())).await.expect("allowed");

    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let released = guard.release().await;

    assert!(released.is_ok(), "{released:?}");
}

#[tokio::test]
async fn a_password_that_changes_under_a_running_manager_is_one_typed_error() {
    let server = RedisServer::builder().password("sesame").start();
    let manager = connect(&server.url()).await.expect("the password is right");
    server.call(&["CONFIG", "SET", "requirepass", "changed"]);
    // The one command that the old password still allows is what cuts the connection: none. A new one must log in anew.
    let mut admin = dlock_tests::resp::Client::connect(server.port(), ONE_TRY).expect("the server listens");
    admin.call(&["AUTH", "changed"]).expect("the new password is right");
    admin.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).expect("the server answers");

    let refused = manager.lock("order:7").lease(LONG).wait(Duration::from_secs(1)).acquire().await;

    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_server_without_memory_refuses_new_locks_and_keeps_those_it_has() {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server takes managers");
    let held = manager.lock("held").lease(Duration::from_millis(900)).acquire().await.expect("free");
    server.call(&["CONFIG", "SET", "maxmemory", "1"]);

    let refused = acquire_once(&manager, "out of memory").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let kept = held.check();
    let released = held.release().await;

    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(kept.is_ok(), "{kept:?}");
    assert!(released.is_ok(), "{released:?}");
    assert_eq!(server.call(&["EXISTS", "dlock:held"]), Reply::Integer(0));
}
