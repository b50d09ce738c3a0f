//! Keys in Redisson's format from any writer. These tests need no Java.

use std::time::Duration;

use dlock_runtime::{Error, LossCause};
use dlock_tests::within;

use crate::{LONG, OPTIONS, manager, server};

/// An owner in Redisson's format.
const JAVA: &str = "2b130015-a627-4ad5-af85-0b847b19b029:1";

#[tokio::test]
async fn foreign_hold_without_expiry_is_waited_for_and_unchanged() {
    let server = server();
    let ours = manager(&server.url_with(OPTIONS)).await;
    server.call(&["HSET", KEY, JAVA, "7"]);

    let tried = ours.lock(KEY).try_acquire().await.expect("the server replies");
    let waited = ours.lock(KEY).wait(Duration::from_millis(50)).acquire().await;
    let seen = ours.inspect(KEY).await.expect("the server replies").expect("it is held");

    assert!(tried.is_none() && matches!(waited, Err(Error::Contended { .. })), "{waited:?}");
    assert_eq!((seen.holder(), seen.remaining(), seen.is_held_here()), (None, None, false));
    assert_eq!(server.call(&["HGET", KEY, JAVA]).text(), Some("7"));
    assert!(ours.force_release(KEY).await.expect("the server replies"));
    assert!(ours.lock(KEY).try_acquire().await.expect("the server replies").is_some());
}

#[tokio::test]
async fn a_lock_that_java_frees_by_force_is_lost_at_once() {
    let server = server();
    let ours = manager(&server.url_with(OPTIONS)).await;
    let guard = ours.lock(KEY).lease(LONG).acquire().await.expect("it is free");
    let tracked = async {
        while !server.call(&["CLIENT", "LIST"]).text().is_some_and(|list| list.contains("flags=t")) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(LONG, "the lock is tracked", tracked).await;

    // The commands of `forceUnlock`, and an acquire of the next client.
    server.call(&["DEL", KEY]);
    server.call(&["PUBLISH", &format!("redisson_lock__channel:{{{KEY}}}"), "0"]);
    server.call(&["HSET", KEY, JAVA, "1"]);
    let cause = within(LONG / 6, "the loss", guard.lost()).await;

    assert_eq!(cause, LossCause::NotOwner);
    assert!(guard.release().await.is_err_and(|error| error.is_lost()));
    assert_eq!(server.call(&["HGET", KEY, JAVA]).text(), Some("1"));
}

#[tokio::test]
async fn a_hold_is_extended_bounded_and_kept_as_in_our_own_layout() {
    let server = server();
    let ours = manager(&server.url_with(OPTIONS)).await;
    let left = || server.call(&["PTTL", KEY]).integer().unwrap_or_default();

    let guard = ours.lock(KEY).lease(Duration::from_secs(1)).acquire().await.expect("it is free");
    guard.extend(LONG).await.expect("it is held");
    assert!(left() > 1_000, "{}", left());
    guard.release().await.expect("it is held");

    let bounded = ours.lock(KEY).max_hold(Duration::from_millis(300)).acquire().await.expect("it is free");
    assert_eq!(within(LONG, "the end", bounded.lost()).await, LossCause::MaxHold);
    drop(bounded);

    let kept = ours.lock(KEY).min_hold(LONG).wait(LONG);
    kept.run(async |_| ()).await.expect("it is free soon");
    assert!((1..=21_000).contains(&left()), "{}", left());
    assert!(ours.lock(KEY).try_acquire().await.expect("the server replies").is_none());
}

const KEY: &str = "order:7";
