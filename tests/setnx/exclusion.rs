//! A waiter acquires the lock soon after the other client's release, and not before.

use std::time::{Duration, Instant};

use dlock_runtime::Error;
use dlock_tests::resp::Reply;
use dlock_tests::{Client, until};

use crate::{KEY, LIMIT, LONG, LONG_MS, NAME, Place, with_every_client};

with_every_client![
    we_acquire_soon_after_a_foreign_release,
    foreign_client_acquires_soon_after_our_release,
    we_acquire_when_a_foreign_lease_expires,
];

async fn we_acquire_soon_after_a_foreign_release(mut place: Place) {
    assert_eq!(place.theirs.ask(&format!("lock {NAME} {LONG_MS}")).await, "locked");
    let foreign = place.value();
    let lock = place.ours.lock(KEY).wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    place.until_commands(3).await;
    let while_we_wait = place.value();

    assert_eq!(place.theirs.ask("unlock").await, "unlocked");
    let unlocked = Instant::now();
    let granted = waiter.await.expect("the waiter does not panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!(unlocked.elapsed() < SOON, "{:?}", unlocked.elapsed());
    assert!(foreign != Reply::Nil && foreign == while_we_wait, "a foreign value is unchanged");
}

async fn foreign_client_acquires_soon_after_our_release(mut place: Place) {
    let lease = Duration::from_secs(1);
    let held = place.ours.lock(KEY).lease(lease).acquire().await.expect("the lock is free");
    assert_eq!(place.theirs.ask(&format!("try {NAME} {LONG_MS}")).await, "taken");
    let renewals = || place.server.command_count("pexpire");
    let before = renewals();
    place.theirs.send(&format!("lock {NAME} {LONG_MS}"));
    until("renewals for longer than a lease", async || renewals() >= before + 4).await;
    assert!(held.check().is_ok(), "it is renewed, and not acquired by the other client");

    held.release().await.expect("it was held");
    let released = Instant::now();
    let answer = place.theirs.answer(LIMIT).await;

    assert_eq!(answer, "locked");
    assert!(released.elapsed() < SOON, "{:?}", released.elapsed());
    let now = place.ours.lock(KEY).try_acquire().await.expect("the server replies");
    assert!(now.is_none(), "it is held by the other client");
}

async fn we_acquire_when_a_foreign_lease_expires(mut place: Place) {
    let asked = Instant::now();
    assert_eq!(place.theirs.ask(&format!("lock {NAME} 400")).await, "locked");
    let locked = Instant::now();

    let granted = place.ours.lock(KEY).wait(LONG).acquire().await;

    assert!(granted.is_ok(), "{granted:?}");
    let waited = locked.elapsed();
    assert!(asked.elapsed() >= Duration::from_millis(400), "before the end of its lease");
    assert!(waited < Duration::from_millis(400) + SOON, "{waited:?}");
}

#[tokio::test]
async fn foreign_lock_without_expiry_is_polled_within_the_wait() {
    // Of these clients, only redis-py creates locks without an expiry.
    let Some(mut place) = Place::with(Client::RedisPy).await else { return };
    assert_eq!(place.theirs.ask(&format!("lock {NAME} 0")).await, "locked");
    let (foreign, commands, began) = (place.value(), place.server.command_total(), Instant::now());

    let refused = place.ours.lock(KEY).wait(Duration::from_secs(1)).acquire().await;
    let (took, commands) = (began.elapsed(), place.server.command_total() - commands);
    let lock = place.ours.lock(KEY).wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    place.until_commands(3).await;
    assert_eq!(place.value(), foreign);
    assert_eq!(place.theirs.ask("unlock").await, "unlocked");

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    assert!((1_000..1_500).contains(&took.as_millis()), "{took:?}");
    assert!((10..100).contains(&commands), "it is polled, and not in a busy loop: {commands}");
    assert!(waiter.await.expect("the waiter does not panic").is_ok());
}

/// All clients poll every 50 to 300 ms. The rest is slack for a busy machine.
const SOON: Duration = Duration::from_millis(1_500);
