//! Redisson and dlock behind the same sentinels: they exclude each other and wake each other.

use dlock_tests::{Moment, Redisson, SentinelFleet};

use crate::{LONG, OPTIONS, SOON, WATCHDOG};

#[tokio::test]
async fn each_keeps_the_other_out_and_wakes_it_behind_sentinels() {
    let fleet = SentinelFleet::start().await;
    let Some(mut java) = Redisson::connect(&fleet.url_with(""), WATCHDOG).await else { return };
    let ours = crate::manager(&fleet.url_with(OPTIONS)).await;
    let guard = ours.lock("k").acquire().await.expect("free");
    java.does("t1", "trylock k 50 1000", "refused").await;
    java.tell("t1", "trylock k 20000 0");
    crate::until_subscribed(std::slice::from_ref(fleet.master()), "k").await;

    let released = Moment::now();
    guard.release().await.expect("held");
    let late = java.says("t1", "acquired").await.at.since(released);
    assert!(late < SOON, "{late:?}");
    let refused = ours.lock("k").try_acquire().await.expect("the server replies");
    assert!(refused.is_none(), "{refused:?}");
    let waits = tokio::spawn({
        let lock = ours.lock("k").wait(LONG);
        async move { lock.acquire().await.map(|_guard| Moment::now()) }
    });
    crate::until_subscribed(std::slice::from_ref(fleet.master()), "k").await;
    java.tell("t1", "unlock k");

    let acquired = waits.await.expect("it does not panic").expect("it becomes free");
    let late = acquired.since(java.says("t1", "released").await.at);
    assert!(late < SOON, "{late:?}");
}
