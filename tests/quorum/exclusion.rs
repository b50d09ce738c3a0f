//! One holder at a time, whichever few servers are away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_runtime::{LockGuard, LockManager};
use dlock_tests::quorum::{Fate, LEASE};
use dlock_tests::{Moment, QuorumFleet, within};

const SOON: Duration = Duration::from_secs(10);

async fn hold(manager: &LockManager, key: &str) -> LockGuard {
    manager.lock(key).wait(SOON).acquire().await.expect("a majority is there and nobody holds")
}

async fn assert_taken(manager: &LockManager, key: &str, when: &str) {
    match manager.lock(key).acquire().await {
        Err(error) => assert!(error.is_contended() || error.is_unavailable(), "{when}: {error:?}"),
        Ok(_) => panic!("{when}: two hold {key}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_three_managers_hold_a_lock_one_at_a_time_and_all_get_it() {
    for servers in [3, 5] {
        let fleet = QuorumFleet::start(servers).await;
        let (inside, entered) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let manager = fleet.manager("").await;
            for _ in 0..4 {
                let (manager, inside, entered) = (manager.clone(), Arc::clone(&inside), Arc::clone(&entered));
                tasks.spawn(async move {
                    for _ in 0..5 {
                        let guard = hold(&manager, "hot").await;
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        entered.fetch_add(1, Ordering::SeqCst);
                        guard.release().await.expect("it was held");
                    }
                });
            }
        }

        let begun = Moment::now();
        within(Duration::from_secs(20), "all of them", async {
            while let Some(done) = tasks.join_next().await {
                done.expect("nobody met anybody");
            }
        })
        .await;

        println!("{servers} servers: 60 turns of three managers in {:?}", begun.elapsed());
        assert_eq!(entered.load(Ordering::SeqCst), 60);
        assert_eq!(fleet.holding("hot"), 0);
    }
}

/// What befalls any few servers changes nothing for who holds, nor for who comes next.
async fn a_hold_outlives(servers: usize, fate: Fate) {
    let mut fleet = QuorumFleet::start(servers).await;
    let (ours, theirs) = (fleet.manager("").await, fleet.manager("").await);
    for few in fleet.minorities() {
        let key = format!("{fate:?}:{few:?}");
        let held = hold(&ours, &key).await;

        fleet.befall(&few, fate);
        assert_taken(&theirs, &key, "at once").await;
        tokio::time::sleep(LEASE + LEASE / 4).await;
        assert_taken(&theirs, &key, "after a lease").await;
        assert!(held.check().is_ok(), "{key}: it was lost");
        held.release().await.expect("a majority confirms the release");

        let next = within(Duration::from_secs(1), &format!("{key}: the next"), hold(&theirs, &key)).await;
        next.release().await.expect("a majority confirms the release");
        fleet.heal(&few, fate);
        // The word of who was started again counts after a lease.
        tokio::time::sleep(if fate == Fate::Frozen { LEASE / 10 } else { LEASE + LEASE / 4 }).await;
        let gone = async {
            while fleet.holding(&key) > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within(SOON, &format!("{key}: nothing is left"), gone).await;
    }
}

#[tokio::test]
async fn a_hold_outlives_any_killed_minority_of_three() {
    a_hold_outlives(3, Fate::Killed).await;
}

#[tokio::test]
async fn a_hold_outlives_any_frozen_minority_of_three() {
    a_hold_outlives(3, Fate::Frozen).await;
}

#[tokio::test]
async fn a_hold_outlives_any_minority_of_three_that_comes_back_empty() {
    a_hold_outlives(3, Fate::Restarted).await;
}
