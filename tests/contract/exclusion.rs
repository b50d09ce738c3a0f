//! Mutual exclusion: a lock has at most one holder.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlock_runtime::Error;
use dlock_tests::contract;
use dlock_tests::world::World;

use super::{LONG, hold, is_held};

contract![
    two_managers_exclude_each_other,
    two_tasks_of_one_manager_exclude_each_other,
    different_keys_do_not_exclude_each_other,
    try_acquire_returns_none_while_the_lock_is_held,
    a_lock_can_be_acquired_repeatedly,
    many_contenders_never_overlap,
];

async fn two_managers_exclude_each_other(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let held = hold(&first, "order:7").await;

    let refused = second.lock("order:7").lease(LONG).acquire().await;
    held.release().await.expect("it was held");
    let granted = second.lock("order:7").lease(LONG).acquire().await;

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    assert!(granted.is_ok(), "{granted:?}");
}

async fn two_tasks_of_one_manager_exclude_each_other(world: World) {
    let manager = world.manager().await;
    let _held = hold(&manager, "order:7").await;

    let refused = manager.lock("order:7").lease(LONG).acquire().await;

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
}

async fn different_keys_do_not_exclude_each_other(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let _held = hold(&first, "order:7").await;

    let granted = second.lock("order:77").lease(LONG).acquire().await;

    assert!(granted.is_ok(), "{granted:?}");
}

async fn try_acquire_returns_none_while_the_lock_is_held(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let held = hold(&first, "order:7").await;

    let while_held = second.lock("order:7").try_acquire().await.expect("the backend replies");
    held.release().await.expect("it was held");
    let afterwards = second.lock("order:7").try_acquire().await.expect("the backend replies");

    assert!(while_held.is_none());
    assert!(afterwards.is_some());
}

async fn a_lock_can_be_acquired_repeatedly(world: World) {
    let manager = world.manager().await;

    for _ in 0..50 {
        hold(&manager, "order:7").await.release().await.expect("it was held");
    }

    assert!(!is_held(&world, "order:7").await);
}

async fn many_contenders_never_overlap(world: World) {
    let inside = Arc::new(AtomicUsize::new(0));
    let runs = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let manager = world.manager().await;
        for _ in 0..6 {
            let (lock, inside, runs) =
                (manager.lock("hot").lease(LONG).wait(LONG), Arc::clone(&inside), Arc::clone(&runs));
            tasks.push(tokio::spawn(async move {
                for _ in 0..5 {
                    let guard = lock.acquire().await.expect("the lock is granted");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.expect("it was held");
                    runs.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
    }

    for task in tasks {
        task.await.expect("no contender panics");
    }

    assert_eq!(runs.load(Ordering::SeqCst), 3 * 6 * 5);
}
