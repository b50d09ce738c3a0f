//! Failovers that lose a lock, as the guide on safety describes. The second holder has a higher
//! fencing token, so a late write of the first holder is rejected.

use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager, LossCause};
use dlock_tests::sentinel::End;
use dlock_tests::{SentinelFleet, WallClock, within};

/// Longer than a failover takes.
const LONG: Duration = Duration::from_secs(30);

async fn manager_of(fleet: &SentinelFleet, options: &str) -> LockManager {
    let manager = LockManager::connect(&fleet.url_with(options)).await;
    manager.expect("the sentinels name a master that accepts connections")
}

/// Asserts that a second process acquires the lock while the first hold is valid, with a higher
/// fencing token.
async fn assert_held_twice_and_fenced(fleet: &SentinelFleet, first: &LockGuard) {
    let stale = first.fencing_token().await.expect("the token was fetched during the hold");
    let second = manager_of(fleet, "").await.lock("order:7").lease(LONG).wait(LONG / 2);
    let second = second.acquire().await.expect("the new master has no such key");

    assert!(first.check().is_ok(), "the first hold is still valid: {:?}", first.check());
    let token = second.fencing_token().await.expect("it is held");
    assert!(token > stale, "a stale write would be accepted: {token} after {stale}");
}

/// The master replies before its replicas have received the grant.
#[tokio::test]
async fn unreplicated_lock_is_held_twice_after_failover_but_fenced() {
    let mut fleet = SentinelFleet::start().await;
    // One manager does not track keys, and its hold is not renewed. The other has the defaults.
    let (blind, usual) = (manager_of(&fleet, "?tracking=off").await, manager_of(&fleet, "").await);
    let (untracked, tracked) =
        (blind.lock("order:7").lease(LONG).renew(false), usual.lock("tracked").lease(LONG));

    let granted = async {
        let untracked = untracked.acquire().await.expect("it is free");
        untracked.fencing_token().await.expect("it is held");
        (untracked, tracked.acquire().await.expect("it is free"))
    };
    let (untracked, tracked) = fleet.kill_before_replication(granted).await;
    let switch = fleet.switched().await;

    assert_held_twice_and_fenced(&fleet, &untracked).await;
    let cause = within(LONG / 6, "the loss", tracked.lost()).await;
    assert_eq!(cause, LossCause::NotOwner);
    assert!(switch.at.elapsed() < Duration::from_secs(2), "lost {:?} after the switch", switch.at.elapsed());
}

/// A replica stores the expiry as wall-clock time, so acknowledgements do not prevent this loss.
#[tokio::test]
async fn replica_clocks_ahead_allow_two_holders_but_fence_them() {
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
