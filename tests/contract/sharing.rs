//! With `yield_to_foreign=on` a lock that our family has had for long is left to others for a while.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::contract;
use dlock_tests::world::World;
use tokio::time::Instant;

use super::{PROMPT, hold, is_held, wait_for};

// Where locks stand as Redisson's, nobody who polls shares them.
contract![@ordered
    who_waits_elsewhere_leaves_a_lock_that_was_had_for_long_to_others,
    who_waits_in_the_same_process_leaves_it_to_others_too,
    who_comes_back_at_once_leaves_it_to_others_too,
    what_a_family_has_had_for_long_is_known_to_who_was_granted_it,
    by_default_a_lock_that_one_of_ours_waits_for_is_never_free,
];

async fn who_waits_elsewhere_leaves_a_lock_that_was_had_for_long_to_others(world: World) {
    let (first, second) = (sharing(&world).await, sharing(&world).await);
    let held = hold(&first, KEY).await;
    let waiter = wait_for(&second, KEY);
    world.until_waiting(KEY, 1).await;
    world.let_pass(LONG_HOLD).await;

    let released = Instant::now();
    held.release().await.expect("it was held");
    let free = !is_held(&world, KEY).await;
    let granted = waiter.await.expect("the waiter does not panic");

    assert!(free && granted.is_ok(), "free: {free}, {granted:?}");
    assert_away(released);
}

async fn who_waits_in_the_same_process_leaves_it_to_others_too(world: World) {
    let manager = sharing(&world).await;
    let held = hold(&manager, KEY).await;
    let waiter = wait_for(&manager, KEY);
    world.let_pass(LONG_HOLD).await;

    let released = Instant::now();
    held.release().await.expect("it was held");
    let free = !is_held(&world, KEY).await;
    let granted = waiter.await.expect("the waiter does not panic");

    assert!(free && granted.is_ok(), "free: {free}, {granted:?}");
    assert_away(released);
}

async fn who_comes_back_at_once_leaves_it_to_others_too(world: World) {
    let manager = sharing(&world).await;
    let held = hold(&manager, KEY).await;
    world.let_pass(LONG_HOLD).await;

    let released = Instant::now();
    held.release().await.expect("it was held");
    let tried = manager.lock(KEY).try_acquire().await.expect("the backend answers");
    tried.expect("one that will not wait asks at once").release().await.expect("it was held");
    let granted = wait_for(&manager, KEY).await.expect("the waiter does not panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert_away(released);
}

async fn what_a_family_has_had_for_long_is_known_to_who_was_granted_it(world: World) {
    let (first, second) = (sharing(&world).await, sharing(&world).await);
    let held = hold(&first, KEY).await;
    let waiter = wait_for(&second, KEY);
    world.until_waiting(KEY, 1).await;
    world.let_pass(LONG_HOLD * 2 / 3).await;
    held.release().await.expect("it was held");
    let held = waiter.await.expect("the waiter does not panic").expect("it is handed over");
    let waiter = wait_for(&first, KEY);
    world.until_waiting(KEY, 1).await;
    world.let_pass(LONG_HOLD * 2 / 3).await;

    held.release().await.expect("it was held");
    let free = !is_held(&world, KEY).await;

    assert!(free, "each has had it for less than 500 ms, and both together for longer");
    assert!(waiter.await.expect("the waiter does not panic").is_ok());
}

async fn by_default_a_lock_that_one_of_ours_waits_for_is_never_free(world: World) {
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
    // A waiter that nobody told that the lock was freed would find out after half of this.
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

/// Longer than a family has a lock without a break.
const LONG_HOLD: Duration = Duration::from_millis(550);
