//! Beside a Redisson in a cluster: each keeps the other out and wakes it, by messages of shards, which Redisson has there.

use dlock_runtime::Error;
use dlock_tests::{ClusterFleet, Moment, Redisson};

use crate::{LONG, OPTIONS, SOON, WATCHDOG};

#[tokio::test]
async fn each_keeps_the_other_out_and_wakes_it_in_a_cluster() {
    let fleet = ClusterFleet::start();
    let Some(mut java) = Redisson::connect(&fleet.url_with(""), WATCHDOG).await else { return };
    let ours = crate::manager(&fleet.url_with(OPTIONS)).await;
    // Each at another master, most likely; and with a hash tag of its own.
    for key in ["a", "b", "c", "{tag}:d"] {
        let guard = ours.lock(key).acquire().await.expect("free");
        java.does("t1", &format!("trylock {key} 50 1000"), "refused").await;
        java.tell("t1", &format!("trylock {key} 20000 0"));
        crate::until_listened_to(fleet.servers(), key).await;

        let released = Moment::now();
        guard.release().await.expect("ours");
        let late = java.says("t1", "acquired").await.at.since(released);
        assert!(late < SOON, "{key}: {late:?}");
        let waits = tokio::spawn({
            let lock = ours.lock(key).wait(LONG);
            async move { lock.acquire().await.map(|_guard| Moment::now()) }
        });
        crate::until_listened_to(fleet.servers(), key).await;
        java.tell("t1", &format!("unlock {key}"));

        let acquired = waits.await.expect("it does not panic").expect("it comes free");
        let late = acquired.since(java.says("t1", "released").await.at);
        assert!(late < SOON, "{key}: {late:?}");
    }
}

#[tokio::test]
async fn a_release_of_ours_wakes_another_of_ours_however_it_is_told_in_a_cluster() {
    let fleet = ClusterFleet::start();
    for publish in ["auto", "publish", "spublish", "both"] {
        let url = fleet.url_with(&format!("{OPTIONS}&publish={publish}"));
        let (one, other) = (crate::manager(&url).await, crate::manager(&url).await);
        let guard = one.lock(publish).acquire().await.expect("free");
        let waits = tokio::spawn({
            let lock = other.lock(publish).wait(LONG);
            async move { lock.acquire().await.map(|_guard| Moment::now()) }
        });
        crate::until_listened_to(fleet.servers(), publish).await;

        let released = Moment::now();
        guard.release().await.expect("ours");

        let late = waits.await.expect("it does not panic").expect("it comes free").since(released);
        assert!(late < SOON, "{publish}: {late:?}");
    }
}

#[tokio::test]
async fn tokens_rise_across_both_in_a_cluster() {
    let fleet = ClusterFleet::start();
    let Some(mut java) = Redisson::connect(&fleet.url_with(""), WATCHDOG).await else { return };
    let ours = crate::manager(&fleet.url_with(OPTIONS)).await;
    let mut tokens = Vec::new();

    for _ in 0..2 {
        tokens.push(java.does("t1", "fence k", "token").await.detail.parse::<u64>().expect("a number"));
        java.does("t1", "unlock k", "released").await;
        let guard = ours.lock("k").acquire().await.expect("free");
        tokens.push(guard.fencing_token().await.expect("held").get());
        guard.release().await.expect("ours");
    }

    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

#[tokio::test]
async fn a_name_whose_channel_is_in_another_slot_is_refused() {
    let fleet = ClusterFleet::start();
    let ours = crate::manager(&fleet.url_with(OPTIONS)).await;

    for key in ["a{}b", "a{b", "a}b"] {
        match ours.lock(key).acquire().await.map(drop) {
            Err(Error::InvalidKey { template, problem, .. }) => {
                assert!(&*template == key && problem.contains("slot"), "{template}: {problem}");
            }
            other => panic!("{key}: {other:?}"),
        }
    }
}
