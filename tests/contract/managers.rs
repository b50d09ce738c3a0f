//! Managers: shutdown, and the manager that an annotated function uses.

use std::pin::pin;
use std::time::Duration;

use dlock_runtime::{Error, LockManager, distributed_lock};
use dlock_tests::contract;
use dlock_tests::world::World;
use futures_util::FutureExt;

use super::{LONG, hold, let_it_begin, wait_for};

contract![
    a_shut_down_manager_refuses_new_work,
    shutting_down_releases_what_is_held,
    a_shutdown_ends_a_wait,
    a_shutdown_waits_for_a_task_with_a_handed_off_lock,
    an_annotated_function_uses_the_manager_it_runs_with,
];

async fn a_shut_down_manager_refuses_new_work(world: World) {
    let manager = world.manager().await;
    manager.shutdown(Duration::from_secs(1)).await;

    let acquired = manager.lock("order:7").lease(LONG).acquire().await;
    let ran = manager.lock("order:7").lease(LONG).wait(LONG).run(async |_guard| ()).await;

    assert!(matches!(acquired, Err(Error::Shutdown { .. })), "{acquired:?}");
    assert!(matches!(ran, Err(Error::Shutdown { .. })), "{ran:?}");
}

async fn shutting_down_releases_what_is_held(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let held = hold(&first, "order:7").await;
    let waiter = wait_for(&second, "order:7");
    world.until_waiting("order:7", 1).await;

    first.shutdown(Duration::from_millis(100)).await;
    let granted = waiter.await.expect("the waiter does not panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!(held.check().is_err());
}

async fn a_shutdown_ends_a_wait(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let _held = hold(&first, "order:7").await;
    let waiter = wait_for(&second, "order:7");
    world.until_waiting("order:7", 1).await;

    second.shutdown(Duration::from_millis(100)).await;
    let outcome = waiter.await.expect("the waiter does not panic");

    assert!(matches!(outcome, Err(Error::Shutdown { .. })), "{outcome:?}");
    world.until_no_waiter("order:7").await;
}

async fn a_shutdown_waits_for_a_task_with_a_handed_off_lock(world: World) {
    let manager = world.manager().await;
    let first = hold(&manager, "order:7").await;
    let waiter = wait_for(&manager, "order:7");
    let_it_begin().await;
    first.release().await.expect("it was held");
    let second = waiter.await.expect("the waiter does not panic").expect("it is handed off");

    let mut shutdown = pin!(manager.shutdown(LONG));
    assert_eq!((&mut shutdown).now_or_never(), None);
    assert!(second.check().is_ok(), "it may finish");
    drop(second);

    assert!(tokio::time::timeout(LONG / 2, shutdown).await.is_ok(), "no lock is held");
}

async fn an_annotated_function_uses_the_manager_it_runs_with(world: World) {
    #[distributed_lock(key = "isolated:<id>", lease = "30s")]
    async fn annotated(id: u64) -> Result<u64, Error> {
        tokio::task::yield_now().await;
        Ok(id * 2)
    }
    let elsewhere = LockManager::connect("memory://").await.expect("memory is always there");
    let here = world.manager().await;
    let _held = hold(&here, "isolated:7").await;

    let refused = dlock_runtime::with_manager(here, annotated(7)).await;
    let granted = dlock_runtime::with_manager(elsewhere, annotated(7)).await;

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    assert!(matches!(granted, Ok(14)), "{granted:?}");
}
