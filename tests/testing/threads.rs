//! The test kit with a running clock and on many threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dlock_runtime::testing::TestLocks;
use dlock_runtime::{Error, LossCause};
use dlock_tests::within;

use crate::{KEY, LONG, assert_lost, order};

/// Tasks of eight managers on several threads acquire one lock 20 times each, while `disturb` runs
/// repeatedly. Returns the maximum number of bodies that ran at once.
async fn disturbed(locks: &TestLocks, disturb: impl Fn()) -> u64 {
    let (inside, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let lock = locks.another_manager().lock(KEY).wait(LONG);
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        calls.spawn(async move {
            for _ in 0..20 {
                let body = async |_: &_| {
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                };
                let ended = lock.run(body).await;
                assert!(ended.as_ref().map_or_else(Error::is_lost, |()| true), "{ended:?}");
            }
        });
    }
    let all_ended = async {
        while !calls.is_empty() {
            disturb();
            tokio::task::yield_now().await;
            while let Some(ended) = calls.try_join_next() {
                ended.expect("no panic");
            }
        }
    };
    within(LONG, "all calls", all_ended).await;
    most.load(Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn outages_on_many_threads_keep_exclusion_and_progress() {
    let locks = TestLocks::with_url("memory://?handoff_budget=1ms&grant_lease=100ms");
    let outages = AtomicU64::new(0);

    let most = disturbed(&locks, || {
        let outage = locks.outage();
        std::thread::yield_now();
        outage.end();
        outages.fetch_add(1, Ordering::SeqCst);
    })
    .await;

    assert!(outages.into_inner() > 0);
    assert_eq!((most, locks.acquisitions(KEY)), (1, 160));
    assert_eq!((locks.is_held(KEY), locks.waiting(KEY)), (false, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn losses_on_many_threads_leave_no_waiter_behind() {
    let locks = TestLocks::with_url("memory://?handoff_budget=1ms&grant_lease=100ms");
    let losses = AtomicU64::new(0);

    disturbed(&locks, || {
        losses.fetch_add(u64::from(locks.lose(KEY)), Ordering::SeqCst);
    })
    .await;

    assert!(losses.into_inner() > 0);
    assert!(
        locks.acquisitions(KEY) >= 160,
        "a call whose lock is lost before its body starts acquires it again"
    );
    assert_eq!((locks.is_held(KEY), locks.waiting(KEY)), (false, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_on_another_thread_is_stopped_under_running_time() {
    let locks = TestLocks::new();
    let call = tokio::spawn(locks.run(order(7, 10 * LONG)));
    within(LONG, "the hold", async {
        while !locks.is_held(KEY) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let lost = locks.lose(KEY);
    let outcome = within(LONG, "the end of the call", call).await.expect("no panic");

    assert!(lost);
    assert_lost(&outcome, LossCause::NotOwner);
}
