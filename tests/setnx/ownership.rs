//! No client releases, renews, or changes a lock of another library.

use std::time::Duration;

use dlock_runtime::{Error, LossCause};
use dlock_tests::Client;
use dlock_tests::resp::Reply;

use crate::{KEY, LONG, LONG_MS, NAME, Place, with_every_client};

with_every_client![
    late_foreign_unlock_and_extend_leave_our_lock_unchanged,
    our_late_release_leaves_a_foreign_lock_unchanged,
    our_renewal_of_a_foreign_lock_is_a_loss,
    foreign_holder_can_extend_while_we_wait,
];

async fn late_foreign_unlock_and_extend_leave_our_lock_unchanged(mut place: Place) {
    assert_eq!(place.theirs.ask(&format!("lock {NAME} 200")).await, "locked");
    let held = place.ours.lock(KEY).lease(LONG).wait(LONG).acquire().await.expect("their lease expires");
    let ours = place.value();

    let extend = place.theirs.ask("extend").await;
    let unlock = place.theirs.ask("unlock").await;

    assert!(extend.starts_with("failed"), "{extend}");
    // rslock does not report failures.
    assert!(place.theirs.client() == Client::Rslock || unlock.starts_with("failed"), "{unlock}");
    assert!(ours != Reply::Nil && place.value() == ours);
    assert!(held.fencing_token().await.is_ok(), "the server confirms our hold");
}

async fn our_late_release_leaves_a_foreign_lock_unchanged(mut place: Place) {
    let held = place.ours.lock(KEY).lease(LONG).acquire().await.expect("the lock is free");
    place.server.call(&["DEL", NAME]);
    assert_eq!(place.theirs.ask(&format!("lock {NAME} {LONG_MS}")).await, "locked");
    let theirs = place.value();

    let released = held.release().await;

    assert!(matches!(released, Err(Error::Lost { cause: LossCause::NotOwner, .. })), "{released:?}");
    assert!(theirs != Reply::Nil && place.value() == theirs);
    assert_eq!(place.theirs.ask("extend").await, "extended");
    assert_eq!(place.theirs.ask("unlock").await, "unlocked");
    assert_eq!(place.value(), Reply::Nil);
}

async fn our_renewal_of_a_foreign_lock_is_a_loss(mut place: Place) {
    let held =
        place.ours.lock(KEY).lease(Duration::from_millis(600)).acquire().await.expect("the lock is free");
    place.server.call(&["DEL", NAME]);
    assert_eq!(place.theirs.ask(&format!("lock {NAME} {LONG_MS}")).await, "locked");
    let theirs = place.value();

    let cause = dlock_tests::within(LONG, "the loss", held.lost()).await;

    assert_eq!(cause, LossCause::NotOwner);
    assert!(theirs != Reply::Nil && place.value() == theirs);
    assert_eq!(place.theirs.ask("unlock").await, "unlocked");
}

async fn foreign_holder_can_extend_while_we_wait(mut place: Place) {
    assert_eq!(place.theirs.ask(&format!("lock {NAME} 5000")).await, "locked");
    let lock = place.ours.lock(KEY).wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    place.until_commands(3).await;

    assert_eq!(place.theirs.ask("extend").await, "extended");
    place.until_commands(3).await;
    assert_eq!(place.theirs.ask("unlock").await, "unlocked");

    assert!(waiter.await.expect("the waiter does not panic").is_ok());
}
