//! A release by one library wakes the waiters of the other at once, without polling.

use std::slice::from_ref;
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::resp::Reply;
use dlock_tests::{Moment, within};
use tokio::task::JoinHandle;

use crate::{Fleet, LONG, OPTIONS, SOON};

#[tokio::test]
async fn a_release_of_ours_wakes_java() {
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    let guard = ours.lock("k").acquire().await.expect("free");
    java.tell("t1", "trylock k 20000 0");
    crate::until_subscribed(from_ref(&server), "k").await;

    let released = Moment::now();
    guard.release().await.expect("held");

    let late = java.says("t1", "acquired").await.at.since(released);
    assert!(late < SOON, "{late:?}");
}

#[tokio::test]
async fn a_release_of_java_wakes_us() {
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    java.does("t1", "lock k 0", "acquired").await;
    let waits = waiting(&ours, "k");
    crate::until_subscribed(from_ref(&server), "k").await;

    java.tell("t1", "unlock k");

    let acquired = waits.await.expect("it does not panic");
    let late = acquired.since(java.says("t1", "released").await.at);
    assert!(late < SOON, "{late:?}");
}

#[tokio::test]
async fn dlock_release_wakes_dlock_by_each_publish() {
    let server = crate::server();
    let has_shards = server.call(&["PUBSUB", "SHARDNUMSUB"]) == Reply::List(Vec::new());
    let ways: &[_] = if has_shards { &["auto", "publish", "spublish", "both"] } else { &["auto", "publish"] };
    for publish in ways {
        let url = server.url_with(&format!("{OPTIONS}&publish={publish}"));
        let (one, other) = (crate::manager(&url).await, crate::manager(&url).await);
        let guard = one.lock(*publish).acquire().await.expect("free");
        let waits = waiting(&other, publish);
        crate::until_subscribed(from_ref(&server), publish).await;

        let released = Moment::now();
        guard.release().await.expect("held");

        let late = waits.await.expect("it does not panic").since(released);
        assert!(late < SOON, "{publish}: {late:?}");
    }
}

#[tokio::test]
async fn every_java_thread_acquires_after_our_release() {
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    let guard = ours.lock("k").acquire().await.expect("free");
    for thread in ["t1", "t2", "t3"] {
        java.tell(thread, "lock k 0");
    }
    crate::until_subscribed(from_ref(&server), "k").await;

    guard.release().await.expect("held");

    let mut left = vec!["t1", "t2", "t3"];
    while !left.is_empty() {
        let released = Moment::now();
        let event = java.first_of(&left).await;
        assert_eq!(event.name, "acquired");
        assert!(event.at.since(released) < Duration::from_secs(1), "{event:?}");
        java.does(&event.key, "unlock k", "released").await;
        left.retain(|thread| *thread != event.key);
    }
}

#[tokio::test]
async fn java_is_woken_when_the_remaining_lease_is_shortened() {
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    let lock = ours.lock("k").lease(Duration::from_secs(30)).min_hold(Duration::from_secs(1));
    let taken = Moment::now();
    let guard = lock.acquire().await.expect("free");
    java.tell("t1", "trylock k 20000 0");
    crate::until_subscribed(from_ref(&server), "k").await;

    drop(guard);
    ours.shutdown(Duration::ZERO).await; // no process is left to send a message at the end of the hold
    drop((lock, ours));

    let after = java.says("t1", "acquired").await.at.since(taken);
    assert!(after > Duration::from_millis(900) && after < Duration::from_millis(1_500), "{after:?}");
}

#[tokio::test]
async fn a_message_that_comes_while_we_subscribe_is_not_missed() {
    let Some(Fleet { ours, mut java, server: _server }) = Fleet::start().await else { return };
    for _ in 0..20 {
        java.does("t1", "lock k 0", "acquired").await;
        let waits = waiting(&ours, "k");

        java.does("t1", "unlock k", "released").await;

        within(Duration::from_secs(1), "our acquire", waits).await.expect("it does not panic");
    }
}

/// Waits for a lock, releases it, and returns the time of the acquire.
fn waiting(manager: &LockManager, key: &'static str) -> JoinHandle<Moment> {
    let lock = manager.lock(key).wait(LONG);
    tokio::spawn(async move {
        let guard = lock.acquire().await.expect("it becomes free");
        let at = Moment::now();
        guard.release().await.expect("held");
        at
    })
}
