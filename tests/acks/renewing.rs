//! A renewal that no replica has prolongs nothing.

use std::time::Duration;

use dlock_runtime::LockGuard;
use dlock_tests::{Moment, within};

use crate::pair::{LONG, Pair};

const LEASE: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_millis(150);

/// Waits until a hold is lost, and returns when that was.
async fn lost(guard: &LockGuard) -> Moment {
    within(LONG, "the loss", guard.lost()).await;
    Moment::now()
}

#[tokio::test]
async fn with_a_frozen_replica_a_hold_ends_at_its_deadline() {
    let pair = Pair::start().await;
    let manager = pair.manager(1).await;
    let guard = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");
    tokio::time::sleep(LEASE / 2).await;
    assert!(guard.check().is_ok());

    pair.replica.pause();
    let frozen = Moment::now();
    let lost = lost(&guard).await;

    assert!(lost <= frozen + LEASE + SLACK, "believed for {:?}", lost.since(frozen));
}

#[tokio::test]
async fn a_replica_that_is_frozen_for_less_than_the_lease_loses_nothing() {
    let pair = Pair::start().await;
    let manager = pair.manager(1).await;
    let guard = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");

    pair.replica.pause();
    tokio::time::sleep(LEASE / 2).await;
    pair.replica.resume();
    tokio::time::sleep(LEASE * 2).await;

    assert!(guard.check().is_ok(), "{:?}", guard.check());
    assert!(guard.release().await.is_ok());
}

/// Nothing but an unconditional write can be acknowledged: the key lives for longer than is asked for.
#[tokio::test]
async fn an_extension_to_less_than_what_is_left_is_acknowledged_too() {
    let pair = Pair::start().await;
    let manager = pair.manager(1).await;
    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");

    // Once a second a replica tells how far it is, without being asked: it lacks nothing of what was written so far.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    pair.replica.pause();
    let extended = guard.extend(LEASE).await;

    let error = extended.expect_err("no replica has it");
    assert!(error.to_string().contains("only 0 of 1 replicas"), "{error}");
}
