//! `Lock::run`: the value of the body, the ways in which it ends, and nested calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_runtime::Error;
use dlock_tests::world::World;
use dlock_tests::{contract, overrun, within};
use tokio::sync::{Barrier, oneshot};
use tokio::time::Instant;

use super::{LEASE, LONG, PROMPT, is_held};

contract![
    run_returns_the_value_of_its_body_and_releases,
    a_panicking_body_releases,
    a_cancelled_run_releases,
    a_nested_run_of_the_same_key_joins,
    siblings_in_one_hold_exclude_each_other,
    a_nested_call_without_wait_waits_for_its_sibling,
    a_nested_call_is_contended_if_its_sibling_does_not_end,
    a_spawned_task_does_not_inherit_the_hold,
    acquire_inside_run_on_the_same_key_is_reentrant,
    a_run_that_is_not_reentrant_does_not_join,
    two_keys_taken_crosswise_are_a_deadlock,
];

async fn run_returns_the_value_of_its_body_and_releases(world: World) {
    let manager = world.manager().await;

    let value = manager
        .lock("order:7")
        .lease(LONG)
        .run(async |guard| {
            guard.check().expect("it is held in the body");
            is_held(&world, "order:7").await
        })
        .await;

    assert!(matches!(value, Ok(true)), "{value:?}");
    assert!(!is_held(&world, "order:7").await);
}

async fn a_panicking_body_releases(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let lock = first.lock("order:7").lease(LONG);

    let call = tokio::spawn(async move { lock.run(async |_guard| panic!("the body's own panic")).await });
    let panicked = call.await;
    let started = Instant::now();
    let granted = second.lock("order:7").lease(LONG).wait(LONG).acquire().await;

    assert!(panicked.is_err_and(|error| error.is_panic()));
    assert!(granted.is_ok(), "{granted:?}");
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}

async fn a_cancelled_run_releases(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let lock = first.lock("order:7").lease(LONG);
    let (entered, has_entered) = oneshot::channel();
    let call = tokio::spawn(async move {
        lock.run(async |_guard| {
            let _ = entered.send(());
            std::future::pending::<()>().await;
        })
        .await
    });
    has_entered.await.expect("the body starts");

    let started = Instant::now();
    call.abort();
    let granted = second.lock("order:7").lease(LONG).wait(LONG).acquire().await;

    assert!(granted.is_ok(), "{granted:?}");
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}

async fn a_nested_run_of_the_same_key_joins(world: World) {
    let manager = world.manager().await;
    let lock = manager.lock("order:7").lease(LONG);

    let value = lock
        .run(async |_outer| {
            let inner = lock.run(async |inner| inner.check().map(|()| 7)).await;
            (inner, is_held(&world, "order:7").await)
        })
        .await;

    let (inner, held_after_the_inner) = value.expect("the lock is free");
    assert!(matches!(inner, Ok(Ok(7))), "{inner:?}");
    assert!(held_after_the_inner, "the inner call released the outer's lock");
    assert!(!is_held(&world, "order:7").await);
}

async fn siblings_in_one_hold_exclude_each_other(world: World) {
    let manager = world.manager().await;
    let lock = manager.lock("order:7").lease(LONG).wait(LONG);
    let inside = AtomicUsize::new(0);
    let sibling = async || {
        lock.run(async |_guard| {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two siblings at once");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
        })
        .await
    };

    let outcomes = lock.run(async |_guard| tokio::join!(sibling(), sibling(), sibling())).await;

    assert!(matches!(outcomes, Ok((Ok(()), Ok(()), Ok(())))), "{outcomes:?}");
}

async fn a_nested_call_without_wait_waits_for_its_sibling(world: World) {
    let manager = world.manager().await;
    let lock = manager.lock("order:7").lease(LONG);
    let sibling = async || lock.run(async |_guard| tokio::task::yield_now().await).await;

    let outcomes = lock.run(async |_guard| tokio::join!(sibling(), sibling())).await;

    assert!(matches!(outcomes, Ok((Ok(()), Ok(())))), "{outcomes:?}");
}

async fn a_nested_call_is_contended_if_its_sibling_does_not_end(world: World) {
    let manager = world.manager().await;
    let lock = manager.lock("order:7").lease(LEASE);
    let endless = async || lock.run(async |_guard| std::future::pending::<()>().await).await;
    let nested = async || lock.run(async |_guard| ()).await;

    let both = lock.run(async |_guard| {
        tokio::select! {
            biased;
            outcome = endless() => outcome,
            outcome = nested() => outcome,
        }
    });
    let (outcome, late) = overrun(LEASE, within(LONG, "the nested call", both)).await;

    assert!(matches!(outcome, Ok(Err(Error::Contended { .. }))), "{outcome:?}");
    assert!(late < Duration::from_millis(100), "{late:?}");
}

async fn a_spawned_task_does_not_inherit_the_hold(world: World) {
    let lock = world.manager().await.lock("order:7").lease(LONG);

    let outcome = lock
        .run(async |_guard| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.run(async |_guard| ()).await }).await
        })
        .await;

    let of_the_task = outcome.expect("the lock is free").expect("the task does not panic");
    assert!(matches!(of_the_task, Err(Error::Contended { .. })), "{of_the_task:?}");
}

async fn acquire_inside_run_on_the_same_key_is_reentrant(world: World) {
    let manager = world.manager().await;
    let lock = manager.lock("order:7").lease(LONG).wait(LONG);

    let outcome = lock.run(async |_guard| lock.acquire().await.map(drop)).await;

    let inner = outcome.expect("the lock is free");
    assert!(matches!(inner, Err(Error::Reentrant { .. })), "{inner:?}");
}

async fn a_run_that_is_not_reentrant_does_not_join(world: World) {
    let manager = world.manager().await;
    let lock = manager.lock("order:7").lease(LONG).reentrant(false);

    let nested = lock.run(async |_outer| lock.run(async |_inner| ()).await).await;

    assert!(matches!(nested, Ok(Err(Error::Reentrant { .. }))), "{nested:?}");
    assert!(!is_held(&world, "order:7").await);
}

async fn two_keys_taken_crosswise_are_a_deadlock(world: World) {
    const WAIT: Duration = Duration::from_secs(4);
    let manager = world.manager().await;
    let both_hold = Arc::new(Barrier::new(2));
    let chain = |outer: &'static str, inner: &'static str| {
        let (manager, both_hold) = (manager.clone(), Arc::clone(&both_hold));
        tokio::spawn(async move {
            let (outer, inner) =
                (manager.lock(outer).lease(LONG), manager.lock(inner).lease(LONG).wait(WAIT));
            let outcome = outer
                .run(async |_guard| {
                    both_hold.wait().await;
                    inner.run(async |_guard| ()).await
                })
                .await;
            outcome.expect("the outer lock is free")
        })
    };

    let started = Instant::now();
    let (left, right) = (chain("left", "right"), chain("right", "left"));
    let outcomes = [left.await.expect("no chain panics"), right.await.expect("no chain panics")];

    let deadlocks = outcomes.iter().filter(|outcome| matches!(outcome, Err(Error::Deadlock { .. }))).count();
    let successes = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert!(deadlocks >= 1 && deadlocks + successes == 2, "{outcomes:?}");
    assert!(started.elapsed() < WAIT / 2, "the deadlock was waited out: {:?}", started.elapsed());
}
