//! Fail-overs that lose a lock, as the guide on safety says that they can: each is seen to let a second holder in, and the fencing
//! token keeps the first one's late write out.

use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager, LossCause};
use dlock_tests::sentinel::End;
use dlock_tests::{SentinelFleet, WallClock, within};

/// Longer than a fail-over takes.
const LONG: Duration = Duration::from_secs(30);

async fn manager_of(fleet: &SentinelFleet, options: &str) -> LockManager {
    let manager = LockManager::connect(&fleet.url_with(options)).await;
    manager.expect("the sentinels name a master that takes managers")
}

/// Has a second process get the lock while the first believes in it, and shows that the first one's token is the lower one.
async fn assert_held_twice_and_fenced(fleet: &SentinelFleet, first: &LockGuard) {
    let stale = first.fencing_token().await.expect("it was asked for while it was held");
    let second = manager_of(fleet, "").await.lock("order:7").lease(LONG).wait(LONG / 2);
    let second = second.acquire().await.expect("the new master knows of no lock");

    assert!(first.check().is_ok(), "nobody was let in early: {:?}", first.check());
    let token = second.fencing_token().await.expect("it is held");
    assert!(token > stale, "a stale write would be accepted: {token} after {stale}");
}

/// The master answers before its replicas have what it granted.
#[tokio::test]
async fn a_lock_that_no_replica_heard_of_is_held_twice_after_the_fail_over_and_fenced() {
    let mut fleet = SentinelFleet::start().await;
    // One is not told of changes and does not ask; the other is as by default.
    let (blind, usual) = (manager_of(&fleet, "?tracking=off").await, manager_of(&fleet, "").await);
    let (unheard, told) = (blind.lock("order:7").lease(LONG).renew(false), usual.lock("told").lease(LONG));

    let granted = async {
        let unheard = unheard.acquire().await.expect("it is free");
        unheard.fencing_token().await.expect("it is held");
        (unheard, told.acquire().await.expect("it is free"))
    };
    let (unheard, told) = fleet.kill_before_replication(granted).await;
    let switch = fleet.switched().await;

    assert_held_twice_and_fenced(&fleet, &unheard).await;
    let cause = within(LONG / 6, "the loss", told.lost()).await;
    assert_eq!(cause, LossCause::NotOwner);
    assert!(switch.at.elapsed() < Duration::from_secs(2), "told {:?} after the switch", switch.at.elapsed());
}

/// A replica keeps when a lock ends, by the wall clock: that all of them have acknowledged it is no help.
#[tokio::test]
async fn a_lock_that_all_replicas_acknowledged_is_held_twice_where_their_clocks_are_ahead_and_fenced() {
    let clock = match WallClock::new() {
        Ok(clock) => clock,
        Err(reason) => return println!("SKIPPED: steps of a server's clock: {reason}"),
    };
    let mut fleet = SentinelFleet::start_with_replicas_by(&clock).await;
    clock.step_to(40);
    let manager = manager_of(&fleet, "?tracking=off&replica_acks=2").await;
    let lock = manager.lock("order:7").lease(LONG).renew(false);
    let first: Result<_, Error> = lock.acquire().await;
    let first = first.expect("all replicas acknowledge it");
    first.fencing_token().await.expect("it is held");

    fleet.break_master(End::Kill);
    fleet.switched().await;

    assert_held_twice_and_fenced(&fleet, &first).await;
}
