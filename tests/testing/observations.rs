//! Observations of a test: the acquisitions, holders, and waiters of a key.

use std::time::Duration;

use dlock_runtime::testing::TestLocks;

use crate::{KEY, all_others_wait, nested_order, order, patient_order};

#[tokio::test(start_paused = true)]
async fn bodies_and_guards_are_counted_and_nothing_else() {
    let locks = TestLocks::new();

    locks.run(nested_order(7)).await.expect("it is free");
    drop(locks.manager().lock(KEY).acquire().await);
    drop(locks.another_manager().lock(KEY).acquire().await);
    let elsewhere = locks.hold(KEY).await;
    let refused = locks.run(order(7, Duration::ZERO)).await;
    drop(elsewhere);
    let both = async { tokio::join!(patient_order(7), patient_order(7)) };
    let (one, other) = locks.run(both).await;

    assert!(refused.is_err() && one.is_ok() && other.is_ok());
    assert_eq!((locks.acquisitions(KEY), locks.acquisitions("order:8")), (5, 0));
}

#[tokio::test(start_paused = true)]
async fn holders_and_waiters_are_observable() {
    let locks = TestLocks::new();
    let mut seen = vec![(locks.is_held(KEY), locks.waiting(KEY))];
    let elsewhere = locks.hold(KEY).await;
    seen.push((locks.is_held(KEY), locks.waiting(KEY)));
    let calls = [(); 3].map(|()| tokio::spawn(locks.run(patient_order(7))));
    let other = tokio::spawn(dlock_runtime::with_manager(locks.another_manager(), patient_order(7)));
    all_others_wait().await;
    seen.push((locks.is_held(KEY), locks.waiting(KEY)));

    drop(elsewhere);
    for call in calls.into_iter().chain([other]) {
        call.await.expect("no panic").expect("it is released");
    }

    seen.push((locks.is_held(KEY), locks.waiting(KEY)));
    assert_eq!(seen, [(false, 0), (true, 0), (true, 4), (false, 0)]);
}
