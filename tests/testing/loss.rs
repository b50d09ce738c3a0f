//! Losses on demand.

use std::sync::Arc;
use std::time::Duration;

use dlock_runtime::LossCause;
use dlock_runtime::testing::TestLocks;
use tokio::time::Instant;

use crate::{KEY, LONG, all_others_wait, assert_lost, order, order_to_the_end, patient_order};

#[tokio::test(start_paused = true)]
async fn a_loss_stops_the_body_at_once() {
    let (locks, begun) = (TestLocks::new(), Instant::now());
    let body = Arc::new(());
    let seen = Arc::clone(&body);
    let lock = locks.manager().lock(KEY);
    let call = tokio::spawn(async move {
        lock.run(async move |_guard| {
            std::future::pending::<()>().await;
            drop(seen);
        })
        .await
    });
    all_others_wait().await;

    let lost = locks.lose(KEY);
    let outcome = call.await.expect("no panic");

    assert!(lost);
    assert_lost(&outcome, LossCause::NotOwner);
    assert_eq!(Arc::strong_count(&body), 1, "the body still exists");
    assert!(begun.elapsed() < Duration::from_millis(10), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_guard_reports_a_loss_at_once() {
    let locks = TestLocks::new();
    let ours = locks.manager().lock("ours").acquire().await.expect("it is free");
    let theirs = locks.hold("theirs").await;

    let lost = (locks.lose("ours"), locks.lose("theirs"));

    assert_eq!(lost, (true, true));
    assert_lost(&ours.check(), LossCause::NotOwner);
    assert_lost(&theirs.check(), LossCause::NotOwner);
}

#[tokio::test(start_paused = true)]
async fn a_free_lock_cannot_be_lost() {
    let locks = TestLocks::new();
    let before = locks.lose(KEY);
    locks.run(order(7, Duration::ZERO)).await.expect("it is free");
    let after = locks.lose(KEY);
    let guard = locks.manager().lock(KEY).renew(false).acquire().await.expect("it is free");
    tokio::time::sleep(LONG).await;
    let expired = locks.lose(KEY);
    drop(guard);

    assert_eq!((before, after, expired), (false, false, false));
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_is_granted_to_its_waiters() {
    let locks = TestLocks::new();
    let holder = tokio::spawn(locks.run(order(7, LONG)));
    all_others_wait().await;
    let begun = Instant::now();
    let waiter = tokio::spawn(locks.run(patient_order(7)));
    let other = locks.another_manager();
    let waits_elsewhere = tokio::spawn(dlock_runtime::with_manager(other, patient_order(7)));
    all_others_wait().await;

    locks.lose(KEY);
    let (held, ours, theirs) = (holder.await, waiter.await, waits_elsewhere.await);

    assert_lost(&held.expect("no panic"), LossCause::NotOwner);
    assert!(ours.expect("no panic").is_ok());
    assert!(theirs.expect("no panic").is_ok());
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_loss_leaves_a_body_that_finishes_alone() {
    let locks = TestLocks::new();
    let call = tokio::spawn(locks.run(order_to_the_end(7, LONG)));
    all_others_wait().await;

    let lost = locks.lose(KEY);
    let beside = locks.run(order(7, Duration::ZERO)).await;
    let outcome = call.await.expect("no panic");

    assert!(lost);
    assert!(beside.is_ok(), "{beside:?}");
    assert_eq!(outcome.ok(), Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_lost_during_an_outage_too() {
    let locks = TestLocks::new();
    let guard = locks.manager().lock(KEY).acquire().await.expect("it is free");

    let _outage = locks.outage();
    locks.lose(KEY);

    assert_lost(&guard.check(), LossCause::NotOwner);
}

#[tokio::test(start_paused = true)]
async fn lock_kept_for_its_min_hold_can_be_lost() {
    let locks = TestLocks::new();
    let job = locks.manager().lock("job").min_hold(Duration::from_secs(60));
    job.run(async |_guard| ()).await.expect("it is free");
    assert!(locks.is_held("job"));

    assert!(locks.lose("job"));

    assert!(!locks.is_held("job"));
    assert!(job.run(async |_guard| ()).await.is_ok());
}
