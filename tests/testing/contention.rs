//! Contention on demand: locks that are held elsewhere.

use std::time::Duration;

use dlock_runtime::Error;
use dlock_runtime::testing::TestLocks;
use tokio::time::Instant;

use crate::{KEY, LONG, all_others_wait, order, order_or_fall_back, order_or_skip, patient_order};

#[tokio::test(start_paused = true)]
async fn lock_held_elsewhere_is_contended_until_its_release() {
    let locks = TestLocks::new();

    for by_drop in [false, true] {
        let elsewhere = locks.hold(KEY).await;
        tokio::time::sleep(LONG).await;
        let refused = locks.run(order(7, Duration::ZERO)).await;
        if by_drop {
            drop(elsewhere);
        } else {
            elsewhere.release().await.expect("it was held");
        }
        let placed = locks.run(order(7, Duration::ZERO)).await;

        assert!(refused.as_ref().is_err_and(Error::is_contended), "{refused:?}");
        assert!(placed.is_ok(), "{placed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_acquires_a_lock_held_elsewhere_at_its_release() {
    let (locks, begun) = (TestLocks::new(), Instant::now());
    let elsewhere = locks.hold(KEY).await;

    let call = tokio::spawn(locks.run(patient_order(7)));
    tokio::time::sleep(LONG).await;
    drop(elsewhere);
    let placed = call.await.expect("no panic");

    assert!(placed.is_ok(), "{placed:?}");
    assert_eq!(begun.elapsed(), LONG);
}

#[tokio::test(start_paused = true)]
async fn holding_a_held_lock_panics_with_location_and_key() {
    let locks = TestLocks::new();
    let _call = tokio::spawn(locks.run(order(7, LONG)));
    all_others_wait().await;

    let again = locks.clone();
    let line = line!() + 1;
    let held = tokio::spawn(async move { again.hold(KEY).await }).await;

    let panic = held.expect_err("it is held").into_panic();
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(
        text.contains(&format!("contention.rs:{line}:")) && text.contains("`order:7` is held already"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "invalid lock key")]
async fn a_key_that_is_not_valid_panics() {
    let _ = TestLocks::new().is_held("");
}

#[tokio::test(start_paused = true)]
async fn skip_applies_to_a_lock_held_elsewhere() {
    let locks = TestLocks::new();

    let elsewhere = locks.hold(KEY).await;
    let skipped = locks.run(order_or_skip(7)).await;
    drop(elsewhere);
    let made = locks.run(order_or_skip(7)).await;

    assert_eq!((skipped, made), (None, Some(7)));
    assert_eq!(locks.acquisitions(KEY), 1);
}

#[tokio::test(start_paused = true)]
async fn fallback_runs_under_contention_but_not_in_an_outage() {
    let locks = TestLocks::new();

    let elsewhere = locks.hold(KEY).await;
    let fallen_back = locks.run(order_or_fall_back(7)).await;
    drop(elsewhere);
    let outage = locks.outage();
    let failed = locks.run(order_or_fall_back(7)).await;
    outage.end();
    let placed = locks.run(order_or_fall_back(7)).await;

    assert_eq!((fallen_back.ok(), placed.ok()), (Some(1_007), Some(7)));
    assert!(failed.as_ref().is_err_and(Error::is_unavailable), "{failed:?}");
}
