//! How long a lock is held: the lease, the watchdog, and extensions.

use std::time::Duration;

use dlock_runtime::Error;
use dlock_tests::contract;
use dlock_tests::world::World;
use tokio::time::Instant;

use super::{LEASE, LONG, is_held};

contract![
    the_lease_of_a_leaked_guard_ends,
    the_lease_of_a_guard_that_is_leaked_after_a_hand_off_ends,
    the_watchdog_keeps_a_lease_alive_for_five_leases,
    an_unused_guard_is_renewed,
    a_lease_that_is_not_renewed_is_lost_at_its_end,
    an_extended_lease_lasts_longer,
    an_extension_after_the_loss_is_refused,
    the_remaining_time_counts_down,
];

async fn the_lease_of_a_leaked_guard_ends(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let leaked = first.lock("order:7").lease(LEASE).renew(false).acquire().await.expect("the lock is free");
    std::mem::forget(leaked);

    let started = Instant::now();
    let granted = second.lock("order:7").lease(LONG).wait(LONG).acquire().await;
    let took = started.elapsed();

    assert!(granted.is_ok(), "{granted:?}");
    assert!(took < LEASE + Duration::from_millis(250), "{took:?}");
}

async fn the_lease_of_a_guard_that_is_leaked_after_a_hand_off_ends(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    for (key, lease, extension) in [("longer", LONG, None), ("extended", LEASE, Some(LONG))] {
        let held = first.lock(key).lease(lease).acquire().await.expect("the lock is free");
        if let Some(extension) = extension {
            held.extend(extension).await.expect("it is held");
        }

        let next = first.lock(key).lease(LEASE).renew(false).wait(LONG);
        let (next, released) = futures_util::future::join(next.acquire(), held.release()).await;
        std::mem::forget(next.expect("it was released"));
        let started = Instant::now();
        let granted = second.lock(key).lease(LONG).wait(LONG).acquire().await;
        let took = started.elapsed();

        assert!(released.is_ok() && granted.is_ok(), "{key}: {released:?} {granted:?}");
        assert!(took < LEASE + Duration::from_millis(250), "{key}: the key lived on for {took:?}");
    }
}

async fn the_watchdog_keeps_a_lease_alive_for_five_leases(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");

    for _ in 0..10 {
        world.let_pass(LEASE / 2).await;
        assert!(held.check().is_ok(), "{:?}", held.check());
        assert!(is_held(&world, "order:7").await);
    }

    held.release().await.expect("it was held");
    assert!(!is_held(&world, "order:7").await);
}

async fn an_unused_guard_is_renewed(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");

    world.let_pass(LEASE * 2).await;
    let checked = held.check();
    let released = held.release().await;

    assert!(checked.is_ok(), "{checked:?}");
    assert!(released.is_ok(), "{released:?}");
}

async fn a_lease_that_is_not_renewed_is_lost_at_its_end(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).renew(false).acquire().await.expect("the lock is free");
    assert!(held.check().is_ok(), "{:?}", held.check());

    world.let_pass(LEASE + Duration::from_millis(20)).await;

    assert!(matches!(held.check(), Err(Error::Lost { .. })), "{:?}", held.check());
    assert_eq!(held.remaining(), Duration::ZERO);
    assert!(!is_held(&world, "order:7").await);
}

async fn an_extended_lease_lasts_longer(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).renew(false).acquire().await.expect("the lock is free");

    held.extend(LEASE * 10).await.expect("it is held");
    world.let_pass(LEASE * 2).await;

    assert!(held.check().is_ok(), "{:?}", held.check());
    assert!(held.remaining() > LEASE * 6, "{:?}", held.remaining());
    assert!(is_held(&world, "order:7").await);
}

async fn an_extension_after_the_loss_is_refused(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).renew(false).acquire().await.expect("the lock is free");
    world.let_pass(LEASE + Duration::from_millis(20)).await;

    let extended = held.extend(LONG).await;

    assert!(matches!(extended, Err(Error::Lost { .. })), "{extended:?}");
    assert!(!is_held(&world, "order:7").await);
}

async fn the_remaining_time_counts_down(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LONG).renew(false).acquire().await.expect("the lock is free");

    let first = held.remaining();
    world.let_pass(LEASE).await;
    let second = held.remaining();

    assert!(first <= LONG && first + Duration::from_secs(2) > LONG, "{first:?}");
    assert!(second + LEASE <= first, "{first:?} -> {second:?}");
}
