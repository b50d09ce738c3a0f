//! A lost lock: the body stops, the guard reports the loss, and the new holder is not disturbed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dlock_runtime::Error;
use dlock_tests::contract;
use dlock_tests::world::World;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{LEASE, NotesDrop, hold, is_held};

contract![
    a_lost_lease_stops_the_body,
    a_guard_reports_its_loss,
    release_of_a_stolen_lock_keeps_its_new_holder,
    drop_of_a_stolen_lock_keeps_its_new_holder,
    a_lost_lock_is_not_reacquired_in_the_background,
];

async fn a_lost_lease_stops_the_body(world: World) {
    let lock = world.manager().await.lock("order:7").lease(LEASE);
    let stopped = Arc::new(AtomicBool::new(false));
    let in_body = Arc::clone(&stopped);
    let (entered, has_entered) = oneshot::channel();
    let call = tokio::spawn(async move {
        lock.run(async |_guard| {
            let _notes = NotesDrop(in_body);
            let _ = entered.send(());
            std::future::pending::<()>().await;
        })
        .await
    });
    has_entered.await.expect("the body starts");

    let started = Instant::now();
    world.delete("order:7").await;
    let outcome = call.await.expect("the call does not panic");
    let took = started.elapsed();

    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    assert!(stopped.load(Ordering::SeqCst), "the call returned before its body was gone");
    assert!(took < LEASE, "{took:?}");
}

async fn a_guard_reports_its_loss(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");

    let started = Instant::now();
    world.delete("order:7").await;
    held.lost().await;

    assert!(started.elapsed() < LEASE, "{:?}", started.elapsed());
    assert!(matches!(held.check(), Err(Error::Lost { .. })), "{:?}", held.check());
}

async fn release_of_a_stolen_lock_keeps_its_new_holder(world: World) {
    let manager = world.manager().await;
    let held = hold(&manager, "order:7").await;
    let _thief = world.steal("order:7").await;

    // This test is not about the result of a release after a loss.
    let _ = held.release().await;

    assert!(is_held(&world, "order:7").await);
}

async fn drop_of_a_stolen_lock_keeps_its_new_holder(world: World) {
    let manager = world.manager().await;
    let held = hold(&manager, "order:7").await;
    let _thief = world.steal("order:7").await;

    drop(held);
    // The release that the drop sends precedes this request on the same connection.
    let _other = hold(&manager, "order:8").await;

    assert!(is_held(&world, "order:7").await);
}

async fn a_lost_lock_is_not_reacquired_in_the_background(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");
    world.delete("order:7").await;
    held.lost().await;

    world.let_pass(LEASE * 2).await;

    assert!(matches!(held.check(), Err(Error::Lost { .. })), "{:?}", held.check());
    assert!(!is_held(&world, "order:7").await, "the watchdog reacquired the lock");
}
