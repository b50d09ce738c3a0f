//! How often a call asks for memory: for its key and its turn, and for what is said of each path here. One more fails a test.
//!
//! Over `memory://`, on one thread, and after a first round: what is kept and used again is there by then. How many instructions the
//! same paths take is counted by the benchmark `instructions`.

use std::future::Future;

use dlock_runtime::{Error, LockManager, distributed_lock};
use tokio::task::yield_now;

/// How often it is done while it is counted.
const TURNS: u64 = 1_000;

#[distributed_lock(key = "order:<id>", lease = "30s", manager = locks)]
async fn free(locks: &LockManager, id: u64) -> Result<(), Error> {
    yield_now().await;
    Ok(())
}

#[distributed_lock(key = "order:<id>", lease = "30s", manager = locks)]
async fn around(locks: &LockManager, id: u64, turns: u64) -> Result<u64, Error> {
    // The first of them makes the scope of this body.
    at_once(locks, id).await?;
    let counted = count(async {
        for _ in 0..turns {
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
async fn in_turn(locks: &LockManager, id: u64) -> Result<(), Error> {
    yield_now().await; // the other asks for the lock while it is held
    Ok(())
}

/// Returns how often memory is asked for while `future` runs, which waits for nothing.
fn count(future: impl Future<Output = ()>) -> u64 {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    allocation_counter::measure(|| {
        assert!(future.as_mut().poll(&mut context).is_ready(), "it waits for something");
    })
    .count_total
}

/// Returns how often memory is asked for by each turn of what does so many.
fn each<F: Future<Output = ()>>(turns: impl Fn(LockManager, u64) -> F) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        // Turns of other managers do not come by time.
        let locks =
            LockManager::connect("memory://?handoff_budget=60s").await.expect("memory is always there");
        turns(locks.clone(), TURNS).await;
        let (mut future, mut total) = (std::pin::pin!(turns(locks, TURNS)), 0);
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
    f64::from(u32::try_from(total).expect("few")) / f64::from(u32::try_from(TURNS).expect("few"))
}

#[test]
fn a_call_that_need_not_wait_takes_memory_for_its_key_and_its_turn_its_place_and_its_answer() {
    let each = each(|locks, turns| async move {
        for _ in 0..turns {
            at_once(&locks, 7).await.expect("the lock is free");
        }
    });

    assert!((each - 4.0).abs() < 0.01, "{each}");
}

#[test]
fn a_body_that_waits_takes_the_memory_of_a_timer_beside() {
    let each = each(|locks, turns| async move {
        for _ in 0..turns {
            free(&locks, 7).await.expect("the lock is free");
        }
    });

    // `memory://` has no thread that keeps the time for a hold: the task that holds it does.
    assert!((each - 6.0).abs() < 0.01, "{each}");
}

#[test]
fn a_nested_call_takes_memory_for_its_key_and_its_turn() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let counted = runtime.block_on(async {
        let locks = LockManager::connect("memory://").await.expect("memory is always there");
        around(&locks, 7, TURNS).await.expect("the lock is free")
    });

    let each = ratio(counted);
    assert!((each - 2.0).abs() < 0.01, "{each}");
}

#[test]
fn a_hand_over_between_two_tasks_takes_memory_for_a_key_a_turn_a_place_and_two_timers() {
    let each = each(|locks, turns| async move {
        let side = || async {
            for _ in 0..turns / 2 {
                in_turn(&locks, 7).await.expect("its turn comes");
            }
        };
        tokio::join!(side(), side());
    });

    // A timer takes two, one for the task that waits and one for the one that holds. Over a server there is none.
    assert!((each - 7.0).abs() < 0.05, "{each}");
}
