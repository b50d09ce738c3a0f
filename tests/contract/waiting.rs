//! Waiters are woken, served in order, rejected when their limit is used up, and leave no trace.

use std::time::Duration;

use dlock_runtime::Error;
use dlock_tests::world::World;
use dlock_tests::{contract, overrun};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{LONG, PROMPT, hold, let_it_begin, wait_for};

contract![
    a_release_wakes_a_waiter_of_another_manager,
    a_dropped_guard_releases,
    tasks_of_one_manager_are_served_in_their_order,
    exhausted_retries_return_contended_with_attempts,
    an_acquire_without_retry_and_wait_tries_once,
    an_elapsed_wait_returns_contended,
    an_unlimited_wait_is_granted,
    a_dropped_waiter_leaves_no_trace;
    in_order: waiters_of_several_managers_are_served_in_their_order,
];

async fn a_release_wakes_a_waiter_of_another_manager(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let held = hold(&first, "order:7").await;
    let waiter = wait_for(&second, "order:7");
    world.until_waiting("order:7", 1).await;

    let started = Instant::now();
    held.release().await.expect("it was held");
    let granted = waiter.await.expect("the waiter does not panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}

async fn a_dropped_guard_releases(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let held = hold(&first, "order:7").await;
    let waiter = wait_for(&second, "order:7");
    world.until_waiting("order:7", 1).await;

    let started = Instant::now();
    drop(held);
    let granted = waiter.await.expect("the waiter does not panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}

async fn waiters_of_several_managers_are_served_in_their_order(world: World) {
    let first = world.manager().await;
    let held = hold(&first, "order:7").await;
    let (send, mut served) = mpsc::unbounded_channel();
    for number in 1..=4 {
        let lock = world.manager().await.lock("order:7").lease(LONG).wait(LONG);
        let send = send.clone();
        tokio::spawn(async move {
            let guard = lock.acquire().await.expect("the lock is granted");
            send.send(number).expect("the test listens");
            guard.release().await.expect("it was held");
        });
        world.until_waiting("order:7", number).await;
    }

    held.release().await.expect("it was held");
    let mut order = Vec::new();
    for _ in 1..=4 {
        order.push(served.recv().await.expect("every waiter is served"));
    }

    assert_eq!(order, [1, 2, 3, 4]);
}

async fn tasks_of_one_manager_are_served_in_their_order(world: World) {
    let manager = world.manager().await;
    let held = hold(&manager, "order:7").await;
    let (send, mut served) = mpsc::unbounded_channel();
    for number in 1..=4 {
        let lock = manager.lock("order:7").lease(LONG).wait(LONG);
        let send = send.clone();
        tokio::spawn(async move {
            let guard = lock.acquire().await.expect("the lock is granted");
            send.send(number).expect("the test listens");
            guard.release().await.expect("it was held");
        });
        let_it_begin().await;
    }

    held.release().await.expect("it was held");
    let mut order = Vec::new();
    for _ in 1..=4 {
        order.push(served.recv().await.expect("every task is served"));
    }

    assert_eq!(order, [1, 2, 3, 4]);
}

async fn exhausted_retries_return_contended_with_attempts(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let _held = hold(&first, "order:7").await;
    let (least, most) = (Duration::from_millis(5), Duration::from_millis(20));

    let refused = second.lock("order:7").lease(LONG).retry(3).backoff(least, most).acquire().await;

    match refused {
        Err(Error::Contended { attempts, key, .. }) => {
            assert_eq!(attempts, 4);
            assert_eq!(key.as_str(), "order:7");
        }
        other => panic!("{other:?}"),
    }
}

async fn an_acquire_without_retry_and_wait_tries_once(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let _held = hold(&first, "order:7").await;

    let started = Instant::now();
    let refused = second.lock("order:7").lease(LONG).acquire().await;

    assert!(matches!(refused, Err(Error::Contended { attempts: 1, .. })), "{refused:?}");
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}

async fn an_elapsed_wait_returns_contended(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let _held = hold(&first, "order:7").await;
    let wait = Duration::from_millis(400);

    let started = Instant::now();
    let refused = second.lock("order:7").lease(LONG).wait(wait).acquire();
    let (refused, late) = overrun(wait, refused).await;

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    assert!(started.elapsed() >= wait && late < Duration::from_millis(100), "{late:?}");
}

async fn an_unlimited_wait_is_granted(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let held = hold(&first, "order:7").await;
    let lock = second.lock("order:7").lease(LONG).wait(Duration::MAX);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    world.until_waiting("order:7", 1).await;

    held.release().await.expect("it was held");
    let granted = waiter.await.expect("the waiter does not panic");

    assert!(granted.is_ok(), "{granted:?}");
}

async fn a_dropped_waiter_leaves_no_trace(world: World) {
    let (first, second, third) = (world.manager().await, world.manager().await, world.manager().await);
    let held = hold(&first, "order:7").await;
    let dropped = wait_for(&second, "order:7");
    world.until_waiting("order:7", 1).await;

    dropped.abort();
    world.until_no_waiter("order:7").await;
    let waiter = wait_for(&third, "order:7");
    world.until_waiting("order:7", 1).await;
    let started = Instant::now();
    held.release().await.expect("it was held");
    let granted = waiter.await.expect("the waiter does not panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}
