//! Redisson and dlock in a cluster: they exclude each other and wake each other by sharded
//! messages, as Redisson does in a cluster.

use dlock_runtime::Error;
use dlock_tests::{ClusterFleet, Moment, Redisson};

use crate::{LONG, OPTIONS, SOON, WATCHDOG};

#[tokio::test]
async fn each_keeps_the_other_out_and_wakes_it_in_a_cluster() {
    let fleet = ClusterFleet::start();
    let Some(mut java) = Redisson::connect(&fleet.url_with(""), WATCHDOG).await else { return };
    let ours = crate::manager(&fleet.url_with(OPTIONS)).await;
    // The keys are probably on different masters. One has a hash tag.
    for key in ["a", "b", "c", "{tag}:d"] {
        let guard = ours.lock(key).acquire().await.expect("free");
        java.does("t1", &format!("trylock {key} 50 1000"), "refused").await;
        java.tell("t1", &format!("trylock {key} 20000 0"));
        crate::until_subscribed(fleet.servers(), key).await;

        let released = Moment::now();
        guard.release().await.expect("held");
        let late = java.says("t1", "acquired").await.at.since(released);
        assert!(late < SOON, "{key}: {late:?}");
        let waits = tokio::spawn({
            let lock = ours.lock(key).wait(LONG);
            async move { lock.acquire().await.map(|_guard| Moment::now()) }
        });
        crate::until_subscribed(fleet.servers(), key).await;
        java.tell("t1", &format!("unlock {key}"));

        let acquired = waits.await.expect("it does not panic").expect("it becomes free");
        let late = acquired.since(java.says("t1", "released").await.at);
        assert!(late < SOON, "{key}: {late:?}");
    }
}

#[tokio::test]
async fn dlock_release_wakes_dlock_in_a_cluster_by_each_publish() {
    let fleet = ClusterFleet::start();
    for publish in ["auto", "publish", "spublish", "both"] {
        let url = fleet.url_with(&format!("{OPTIONS}&publish={publish}"));
        let (one, other) = (crate::manager(&url).await, crate::manager(&url).await);
        let guard = one.lock(publish).acquire().await.expect("free");
        let waits = tokio::spawn({
            let lock = other.lock(publish).wait(LONG);
            async move { lock.acquire().await.map(|_guard| Moment::now()) }
        });
        crate::until_subscribed(fleet.servers(), publish).await;

        let released = Moment::now();
        guard.release().await.expect("held");

        let late = waits.await.expect("it does not panic").expect("it becomes free").since(released);
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
        guard.release().await.expect("held");
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
