//! Outages on demand.

use std::time::Duration;

use dlock_runtime::testing::TestLocks;
use dlock_runtime::{Error, LossCause};
use tokio::time::Instant;

use crate::{KEY, LONG, all_others_wait, assert_lost, order, patient_order};

#[tokio::test(start_paused = true)]
async fn in_an_outage_a_call_without_wait_fails_at_once() {
    let (locks, begun) = (TestLocks::new(), Instant::now());

    let outage = locks.outage();
    let failed = locks.run(order(7, Duration::ZERO)).await;
    let took = begun.elapsed();
    drop(outage);
    let placed = locks.run(order(7, Duration::ZERO)).await;

    assert!(failed.as_ref().is_err_and(Error::is_unavailable), "{failed:?}");
    assert_eq!(took, Duration::ZERO);
    assert!(placed.is_ok(), "{placed:?}");
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_a_call_with_wait_waits_for_its_end() {
    let locks = TestLocks::new();
    let outage = locks.outage();
    let begun = Instant::now();
    let call = tokio::spawn(locks.run(patient_order(7)));

    tokio::time::sleep(LONG).await;
    outage.end();
    let placed = call.await.expect("no panic");

    assert!(placed.is_ok(), "{placed:?}");
    assert_eq!(begun.elapsed(), LONG);
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_a_wait_ends_in_unavailable() {
    let locks = TestLocks::new();
    let lock = locks.manager().lock(KEY);
    let _outage = locks.outage();
    let begun = Instant::now();

    let waited = lock.clone().wait(LONG).acquire().await.err();
    let took = begun.elapsed();
    let retried = lock.retry(3).acquire().await.err();

    assert!(waited.as_ref().is_some_and(Error::is_unavailable), "{waited:?}");
    assert_eq!(took, LONG);
    assert!(retried.as_ref().is_some_and(Error::is_unavailable), "{retried:?}");
}

#[tokio::test(start_paused = true)]
async fn a_holder_outlives_an_outage_that_is_shorter_than_its_lease() {
    let locks = TestLocks::new();
    let call = tokio::spawn(locks.run(order(7, 10 * LONG)));
    tokio::time::sleep(LONG).await;

    let outage = locks.outage();
    tokio::time::sleep(Duration::from_secs(15)).await;
    outage.end();
    let outcome = call.await.expect("no panic");

    assert!(outcome.is_ok(), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn overdue_renewals_run_at_the_end_of_the_outage() {
    let locks = TestLocks::with_url("memory://?lease=30s");
    let guard = locks.manager().lock(KEY).acquire().await.expect("it is free");

    let outage = locks.outage();
    tokio::time::sleep(Duration::from_secs(25)).await;
    let before = guard.remaining();
    outage.end();

    assert!(before < Duration::from_secs(6), "{before:?}");
    assert!(guard.remaining() > Duration::from_secs(29), "{:?}", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn outage_longer_than_the_lease_loses_the_lock() {
    let locks = TestLocks::new();
    let call = tokio::spawn(locks.run(order(7, 10 * LONG)));
    all_others_wait().await;
    let (outage, begun) = (locks.outage(), Instant::now());

    let outcome = call.await.expect("no panic");
    let lost_after = begun.elapsed();
    tokio::time::sleep(LONG).await;
    let left = (locks.is_held(KEY), locks.lose(KEY));
    outage.end();
    let placed = locks.run(order(7, Duration::ZERO)).await;

    assert_lost(&outcome, LossCause::Expired);
    assert!((29..=30).contains(&lost_after.as_secs()), "{lost_after:?}");
    assert_eq!(left, (false, false));
    assert!(placed.is_ok(), "{placed:?}");
}

#[tokio::test(start_paused = true)]
async fn lock_released_in_an_outage_is_held_until_its_end() {
    let locks = TestLocks::new();
    let guard = locks.manager().lock(KEY).acquire().await.expect("it is free");
    let outage = locks.outage();

    let released = guard.release().await;
    let still = locks.is_held(KEY);
    outage.end();

    assert!(released.as_ref().is_err_and(Error::is_unavailable), "{released:?}");
    assert!(still);
    assert!(!locks.is_held(KEY));
}

#[tokio::test(start_paused = true)]
async fn lock_of_a_dropped_manager_is_free_after_the_outage() {
    let locks = TestLocks::new();
    let manager = locks.another_manager();
    let guard = manager.lock(KEY).acquire().await.expect("it is free");

    let outage = locks.outage();
    drop((guard, manager));
    outage.end();

    assert!(!locks.is_held(KEY));
}

#[tokio::test(start_paused = true)]
async fn min_hold_is_kept_through_an_outage() {
    let locks = TestLocks::new();
    let job = locks.manager().lock("job").min_hold(Duration::from_secs(60));
    let guard = job.acquire().await.expect("it is free");

    let outage = locks.outage();
    drop(guard);
    tokio::time::sleep(Duration::from_secs(20)).await;
    outage.end();
    tokio::time::sleep(Duration::from_secs(39)).await;

    assert!(locks.is_held("job"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!locks.is_held("job"));
}

#[tokio::test(start_paused = true)]
async fn an_outage_does_not_affect_locks_held_elsewhere() {
    let locks = TestLocks::new();
    let before = locks.hold("before").await;

    let _outage = locks.outage();
    let during = locks.hold("during").await;
    tokio::time::sleep(LONG).await;

    assert!(before.release().await.is_ok());
    assert!(during.release().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_cut_off_is_not_granted_the_lock() {
    let locks = TestLocks::new();
    let elsewhere = locks.hold(KEY).await;
    let call = tokio::spawn(locks.run(patient_order(7)));
    all_others_wait().await;

    let outage = locks.outage();
    elsewhere.release().await.expect("it was held");
    all_others_wait().await;
    let during = (locks.is_held(KEY), call.is_finished());
    outage.end();
    let placed = call.await.expect("no panic");

    assert_eq!(during, (false, false));
    assert!(placed.is_ok(), "{placed:?}");
}

#[tokio::test(start_paused = true)]
async fn of_two_outages_the_last_to_end_counts() {
    let locks = TestLocks::new();
    let (one, other) = (locks.outage(), locks.outage());

    one.end();
    let during = locks.run(order(7, Duration::ZERO)).await;
    other.end();
    let after = locks.run(order(7, Duration::ZERO)).await;

    assert!(during.as_ref().is_err_and(Error::is_unavailable), "{during:?}");
    assert!(after.is_ok(), "{after:?}");
}
