//! A key that is not an `RLock` is rejected and left unchanged.

use crate::{Fleet, OPTIONS};
use dlock_runtime::{Error, LockManager};

async fn assert_refused(ours: &LockManager, key: &'static str) {
    let wrong = |error: Error| match error {
        Error::WrongKind { found, .. } => found,
        other => panic!("{key}: {other:?}"),
    };
    for lock in [ours.lock(key), ours.lock(key).wait(crate::LONG)] {
        wrong(lock.acquire().await.map(drop).expect_err("no lock"));
    }
    wrong(ours.inspect(key).await.map(drop).expect_err("no lock"));
    wrong(ours.force_release(key).await.map(drop).expect_err("no lock"));
}

#[tokio::test]
async fn a_lock_for_readers_and_writers_is_refused() {
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    java.does("t1", "write k", "acquired").await;
    let before = server.call(&["HGETALL", "k"]).texts();

    assert_refused(&ours, "k").await;

    assert_eq!(server.call(&["HGETALL", "k"]).texts(), before);
}

#[tokio::test]
async fn native_locks_and_other_values_are_rejected() {
    let server = crate::server();
    let ours = crate::manager(&server.url_with(OPTIONS)).await;
    let native = crate::manager(&server.url_with("?namespace=")).await;
    let guard = native.lock("native").acquire().await.expect("free");
    server.call(&["RPUSH", "list", "x"]);

    assert_refused(&ours, "native").await;
    assert_refused(&ours, "list").await;

    guard.check().expect("still held");
    guard.release().await.expect("still held");
}

#[tokio::test]
async fn a_lock_of_this_layout_is_refused_by_the_native_one() {
    let server = crate::server();
    let ours = crate::manager(&server.url_with(OPTIONS)).await;
    let native = crate::manager(&server.url_with("?namespace=")).await;
    let _guard = ours.lock("k").acquire().await.expect("free");

    assert_refused(&native, "k").await;
}
