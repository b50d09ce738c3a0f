//! With `yield_to_foreign=on`, a lock that dlock processes have held for long is left free for a
//! while.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::contract;
use dlock_tests::world::World;
use tokio::time::Instant;

use super::{PROMPT, hold, is_held, is_held_for, wait_for};

// With `layout=redisson`, a lock is not yielded to clients that poll.
contract![@ordered
    a_waiter_of_another_process_yields_after_a_long_hold,
    a_waiter_of_the_same_process_yields_after_a_long_hold,
    an_immediate_reacquire_yields_after_a_long_hold,
    the_time_of_consecutive_holds_is_added_up,
    by_default_a_lock_with_a_waiter_is_never_free,
];

async fn a_waiter_of_another_process_yields_after_a_long_hold(world: World) {
    let (first, second) = (sharing(&world).await, sharing(&world).await);
    let outsider = world.manager().await;
    let held = hold(&first, KEY).await;
    let waiter = wait_for(&second, KEY);
    world.until_waiting(KEY, 1).await;
    world.let_pass(LONG_HOLD).await;

    let released = Instant::now();
    held.release().await.expect("it was held");
    let free = !is_held_for(&outsider, KEY).await;
    let granted = waiter.await.expect("the waiter does not panic");

    assert!(free && granted.is_ok(), "free: {free}, {granted:?}");
    assert_away(released);
}

async fn a_waiter_of_the_same_process_yields_after_a_long_hold(world: World) {
    let manager = sharing(&world).await;
    let outsider = world.manager().await;
    let held = hold(&manager, KEY).await;
    let waiter = wait_for(&manager, KEY);
    world.let_pass(LONG_HOLD).await;

    let released = Instant::now();
    held.release().await.expect("it was held");
    let free = !is_held_for(&outsider, KEY).await;
    let granted = waiter.await.expect("the waiter does not panic");

    assert!(free && granted.is_ok(), "free: {free}, {granted:?}");
    assert_away(released);
}

async fn an_immediate_reacquire_yields_after_a_long_hold(world: World) {
    let manager = sharing(&world).await;
    let held = hold(&manager, KEY).await;
    world.let_pass(LONG_HOLD).await;

    let released = Instant::now();
    held.release().await.expect("it was held");
    let tried = manager.lock(KEY).try_acquire().await.expect("the backend replies");
    tried.expect("a single try is not delayed").release().await.expect("it was held");
    let granted = wait_for(&manager, KEY).await.expect("the waiter does not panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert_away(released);
}

async fn the_time_of_consecutive_holds_is_added_up(world: World) {
    let (first, second) = (sharing(&world).await, sharing(&world).await);
    let outsider = world.manager().await;
    let held = hold(&first, KEY).await;
    let waiter = wait_for(&second, KEY);
    world.until_waiting(KEY, 1).await;
    // Far below 500 ms, so that a late release does not yield by itself.
    world.let_pass(Duration::from_millis(100)).await;
    held.release().await.expect("it was held");
    let held = waiter.await.expect("the waiter does not panic").expect("it is handed off");
    let waiter = wait_for(&first, KEY);
    world.until_waiting(KEY, 1).await;
    world.let_pass(Duration::from_millis(450)).await;

    held.release().await.expect("it was held");
    let free = !is_held_for(&outsider, KEY).await;

    assert!(free, "each held it for less than 500 ms, and both together for longer");
    assert!(waiter.await.expect("the waiter does not panic").is_ok());
}

async fn by_default_a_lock_with_a_waiter_is_never_free(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let held = hold(&first, KEY).await;
    let waiter = wait_for(&second, KEY);
    world.until_waiting(KEY, 1).await;
    world.let_pass(LONG_HOLD).await;

    held.release().await.expect("it was held");
    let free = !is_held(&world, KEY).await;

    assert!(!free);
    assert!(waiter.await.expect("the waiter does not panic").is_ok());
}

async fn sharing(world: &World) -> LockManager {
    // A waiter that misses the notification of the release finds out after half of `grant_lease`.
    let url = world.url_with("yield_to_foreign=on&grant_lease=10s");
    LockManager::connect(&url).await.expect("the world takes managers")
}

#[track_caller]
fn assert_away(released: Instant) {
    let away = released.elapsed();
    let (least, most) = (Duration::from_millis(95), Duration::from_millis(300) + PROMPT);
    assert!((least..most).contains(&away), "{away:?}");
}

const KEY: &str = "order:7";

/// Longer than dlock processes hold a lock without a gap before they yield it.
const LONG_HOLD: Duration = Duration::from_millis(550);
