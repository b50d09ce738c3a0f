//! A release by one wakes who waits with the other: at once, and not because he looked again.

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
    crate::until_listened_to(from_ref(&server), "k").await;

    let released = Moment::now();
    guard.release().await.expect("ours");

    let late = java.says("t1", "acquired").await.at.since(released);
    assert!(late < SOON, "{late:?}");
}

#[tokio::test]
async fn a_release_of_java_wakes_us() {
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    java.does("t1", "lock k 0", "acquired").await;
    let waits = waiting(&ours, "k");
    crate::until_listened_to(from_ref(&server), "k").await;

    java.tell("t1", "unlock k");

    let acquired = waits.await.expect("it does not panic");
    let late = acquired.since(java.says("t1", "released").await.at);
    assert!(late < SOON, "{late:?}");
}

#[tokio::test]
async fn a_release_of_ours_wakes_another_of_ours_however_it_is_told() {
    let server = crate::server();
    let has_shards = server.call(&["PUBSUB", "SHARDNUMSUB"]) == Reply::List(Vec::new());
    let ways: &[_] = if has_shards { &["auto", "publish", "spublish", "both"] } else { &["auto", "publish"] };
    for publish in ways {
        let url = server.url_with(&format!("{OPTIONS}&publish={publish}"));
        let (one, other) = (crate::manager(&url).await, crate::manager(&url).await);
        let guard = one.lock(*publish).acquire().await.expect("free");
        let waits = waiting(&other, publish);
        crate::until_listened_to(from_ref(&server), publish).await;

        let released = Moment::now();
        guard.release().await.expect("ours");

        let late = waits.await.expect("it does not panic").since(released);
        assert!(late < SOON, "{publish}: {late:?}");
    }
}

#[tokio::test]
async fn every_thread_of_java_gets_its_turn_after_ours() {
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    let guard = ours.lock("k").acquire().await.expect("free");
    for thread in ["t1", "t2", "t3"] {
        java.tell(thread, "lock k 0");
    }
    crate::until_listened_to(from_ref(&server), "k").await;

    guard.release().await.expect("ours");

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
async fn java_is_told_that_a_lock_is_kept_for_a_shorter_time_than_it_was_told() {
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    let lock = ours.lock("k").lease(Duration::from_secs(30)).min_hold(Duration::from_secs(1));
    let guard = lock.acquire().await.expect("free");
    let taken = Moment::now();
    java.tell("t1", "trylock k 20000 0");
    crate::until_listened_to(from_ref(&server), "k").await;

    drop(guard);
    ours.shutdown(Duration::ZERO).await; // nobody is left to say so when the time has come
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

        within(Duration::from_secs(1), "our turn", waits).await.expect("it does not panic");
    }
}

/// Waits for a lock, notes when it is there, and lets go.
fn waiting(manager: &LockManager, key: &'static str) -> JoinHandle<Moment> {
    let lock = manager.lock(key).wait(LONG);
    tokio::spawn(async move {
        let guard = lock.acquire().await.expect("it comes free");
        let at = Moment::now();
        guard.release().await.expect("ours");
        at
    })
}
