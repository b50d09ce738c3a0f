//! The number of allocations per call on each of the paths below. One more fails a test.
//!
//! The calls use `memory://` on one thread, after a first round that fills the caches. The
//! benchmark `instructions` counts instructions on the same paths.

use std::future::Future;

use dlock_runtime::{Error, LockManager, distributed_lock};
use tokio::task::yield_now;

/// The number of repetitions that are counted.
const ROUNDS: u64 = 1_000;

#[distributed_lock(key = "order:<id>", lease = "30s", manager = locks)]
async fn free(locks: &LockManager, id: u64) -> Result<(), Error> {
    yield_now().await;
    Ok(())
}

#[distributed_lock(key = "order:<id>", lease = "30s", manager = locks)]
async fn around(locks: &LockManager, id: u64, rounds: u64) -> Result<u64, Error> {
    // The first call creates the scope of this body.
    at_once(locks, id).await?;
    let counted = count(async {
        for _ in 0..rounds {
            at_once(locks, id).await.expect("it joins the hold");
        }
    });
    Ok(counted)
}

#[distributed_lock(key = "order:<id>", lease = "30s", manager = locks)]
async fn at_once(locks: &LockManager, id: u64) -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", lease = "30s", wait = "60s", manager = locks)]
async fn contended(locks: &LockManager, id: u64) -> Result<(), Error> {
    yield_now().await; // the other task requests the lock while it is held
    Ok(())
}

/// Counts the allocations while `future` runs. `future` must complete in its first poll.
fn count(future: impl Future<Output = ()>) -> u64 {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    allocation_counter::measure(|| {
        assert!(future.as_mut().poll(&mut context).is_ready(), "it did not complete in one poll");
    })
    .count_total
}

/// Returns the number of allocations for each repetition of `rounds`.
fn each<F: Future<Output = ()>>(rounds: impl Fn(LockManager, u64) -> F) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        // A long hand-off budget: the lock yields to no other manager during the measurement.
        let locks = LockManager::connect("memory://?handoff_budget=60s")
            .await
            .expect("the in-memory backend connects");
        rounds(locks.clone(), ROUNDS).await;
        let (mut future, mut total) = (std::pin::pin!(rounds(locks, ROUNDS)), 0);
        std::future::poll_fn(|cx| {
            let mut polled = std::task::Poll::Pending;
            total += allocation_counter::measure(|| polled = future.as_mut().poll(cx)).count_total;
            polled
        })
        .await;
        ratio(total)
    })
}

fn ratio(total: u64) -> f64 {
    f64::from(u32::try_from(total).expect("few")) / f64::from(u32::try_from(ROUNDS).expect("few"))
}

#[test]
fn uncontended_call_makes_five_allocations() {
    let each = each(|locks, rounds| async move {
        for _ in 0..rounds {
            at_once(&locks, 7).await.expect("the lock is free");
        }
    });

    assert!((each - 5.0).abs() < 0.01, "{each}");
}

#[test]
fn pending_body_makes_two_more_allocations() {
    let each = each(|locks, rounds| async move {
        for _ in 0..rounds {
            free(&locks, 7).await.expect("the lock is free");
        }
    });

    // `memory://` has no timer thread, so the task that holds the lock sets its own timer.
    assert!((each - 7.0).abs() < 0.01, "{each}");
}

#[test]
fn nested_call_makes_two_allocations() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let counted = runtime.block_on(async {
        let locks = LockManager::connect("memory://").await.expect("the in-memory backend connects");
        around(&locks, 7, ROUNDS).await.expect("the lock is free")
    });

    let each = ratio(counted);
    assert!((each - 2.0).abs() < 0.01, "{each}");
}

#[test]
fn hand_off_between_tasks_makes_seven_allocations() {
    let each = each(|locks, rounds| async move {
        let side = || async {
            for _ in 0..rounds / 2 {
                contended(&locks, 7).await.expect("the lock is granted");
            }
        };
        tokio::join!(side(), side());
    });

    // A timer takes two allocations: one for the waiting task and one for the holder. With a
    // server, there is none.
    assert!((each - 7.0).abs() < 0.05, "{each}");
}
