//! A lock excludes the other library's clients, and only its holder can release it.

use dlock_runtime::Error;
use dlock_tests::resp::Reply;

use crate::{Fleet, LONG};

#[tokio::test]
async fn a_lock_of_ours_keeps_java_out() {
    let Some(Fleet { ours, mut java, server: _server }) = Fleet::start().await else { return };
    let guard = ours.lock("order:7").acquire().await.expect("free");

    java.does("t1", "trylock order:7 100 1000", "refused").await;
    guard.release().await.expect("held");

    java.does("t1", "trylock order:7 0 1000", "acquired").await;
}

#[tokio::test]
async fn a_lock_of_java_keeps_us_out() {
    let Some(Fleet { ours, mut java, server: _server }) = Fleet::start().await else { return };
    java.does("t1", "lock order:7 0", "acquired").await;

    let refused = ours.lock("order:7").try_acquire().await.expect("the server replies");
    assert!(refused.is_none(), "{refused:?}");
    java.does("t1", "unlock order:7", "released").await;

    assert!(ours.lock("order:7").try_acquire().await.expect("the server replies").is_some());
}

#[tokio::test]
async fn the_name_is_the_namespace_and_the_key() {
    let Some(Fleet { mut java, server, .. }) = Fleet::start().await else { return };
    let ours = crate::manager(&server.url_with("?layout=redisson&namespace=shop")).await;
    let _guard = ours.lock("order:7").acquire().await.expect("free");

    java.does("t1", "trylock order:7 0 1000", "acquired").await;
    java.does("t1", "trylock shop:order:7 0 1000", "refused").await;
}

#[tokio::test]
async fn neither_client_releases_a_lock_of_the_other() {
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    let guard = ours.lock("a").acquire().await.expect("free");
    java.does("t1", "lock b 0", "acquired").await;

    let refused = java.does("t1", "unlock a", "failed").await;
    assert!(refused.detail.starts_with("IllegalMonitorStateException"), "{refused:?}");
    // The latest case: the hold was lost, and Java has already acquired the lock.
    let lost = ours.lock("c").acquire().await.expect("free");
    server.call(&["DEL", "c"]);
    java.does("t2", "lock c 0", "acquired").await;
    let _ = lost.release().await;

    guard.check().expect("it is still held");
    for key in ["b", "c"] {
        let seen = ours.inspect(key).await.expect("the server replies").expect("held");
        assert!(seen.is_foreign() && !seen.is_held_here(), "{key}: {seen:?}");
    }
}

#[tokio::test]
async fn reentrant_java_hold_is_free_after_its_last_unlock() {
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    java.does("t1", "lock k 0", "acquired").await;
    java.does("t1", "lock k 0", "acquired").await;
    let waits = tokio::spawn({
        let ours = ours.clone();
        async move { ours.lock("k").wait(LONG).acquire().await.map(drop) }
    });

    java.does("t1", "unlock k", "released").await;
    assert_eq!(server.call(&["HVALS", "k"]).texts(), ["1"]);
    let seen = ours.inspect("k").await.expect("the server replies").expect("held");
    assert!(seen.is_foreign() && !waits.is_finished(), "{seen:?}");
    java.does("t1", "unlock k", "released").await;

    waits.await.expect("it does not panic").expect("free");
}

#[tokio::test]
async fn an_operator_can_inspect_and_force_release() {
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    let other = crate::manager(&server.url_with(crate::OPTIONS)).await;
    let guard = ours.lock("k").acquire().await.expect("free");
    java.tell("t1", "trylock k 20000 0");

    let seen = other.inspect("k").await.expect("the server replies").expect("held");
    assert_eq!(seen.holder(), Some(&*ours.id()));
    assert!(!seen.is_held_here() && seen.remaining().is_some_and(|left| left > LONG), "{seen:?}");
    assert!(other.force_release("k").await.expect("the server replies"));

    java.says("t1", "acquired").await;
    assert!(matches!(guard.fencing_token().await, Err(Error::Lost { .. })));
    assert!(other.force_release("k").await.expect("the server replies"));
    assert!(!other.force_release("k").await.expect("the server replies"));
    assert_eq!(server.call(&["EXISTS", "k"]), Reply::Integer(0));
}
