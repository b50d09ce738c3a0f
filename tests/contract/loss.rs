//! A lost hold: the body stops, the guard tells, nobody else's hold is touched.

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
    a_guard_tells_of_its_loss,
    the_release_of_a_stolen_lock_leaves_the_thief_alone,
    a_dropped_guard_of_a_stolen_lock_leaves_the_thief_alone,
    a_second_loss_is_not_healed_by_waiting,
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

async fn a_guard_tells_of_its_loss(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");

    let started = Instant::now();
    world.delete("order:7").await;
    held.lost().await;

    assert!(started.elapsed() < LEASE, "{:?}", started.elapsed());
    assert!(matches!(held.check(), Err(Error::Lost { .. })), "{:?}", held.check());
}

async fn the_release_of_a_stolen_lock_leaves_the_thief_alone(world: World) {
    let manager = world.manager().await;
    let held = hold(&manager, "order:7").await;
    let _thief = world.steal("order:7").await;

    // Whether a release after a loss is an error is the guard's affair.
    let _ = held.release().await;

    assert!(is_held(&world, "order:7").await);
}

async fn a_dropped_guard_of_a_stolen_lock_leaves_the_thief_alone(world: World) {
    let manager = world.manager().await;
    let held = hold(&manager, "order:7").await;
    let _thief = world.steal("order:7").await;

    drop(held);
    // Whatever the drop sends goes before this, over the same connection.
    let _other = hold(&manager, "order:8").await;

    assert!(is_held(&world, "order:7").await);
}

async fn a_second_loss_is_not_healed_by_waiting(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");
    world.delete("order:7").await;
    held.lost().await;

    world.let_pass(LEASE * 2).await;

    assert!(matches!(held.check(), Err(Error::Lost { .. })), "{:?}", held.check());
    assert!(!is_held(&world, "order:7").await, "the watchdog took the lock again");
}
