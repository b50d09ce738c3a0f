//! A renewal that no replica has acknowledged does not extend the hold.

use std::time::Duration;

use dlock_runtime::LockGuard;
use dlock_tests::{Moment, within};

use crate::replica_pair::{LONG, Pair};

const LEASE: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_millis(150);

/// Waits until a hold is lost, and returns the time of the loss.
async fn lost(guard: &LockGuard) -> Moment {
    within(LONG, "the loss", guard.lost()).await;
    Moment::now()
}

#[tokio::test]
async fn with_a_frozen_replica_a_hold_ends_at_its_deadline() {
    let pair = Pair::start().await;
    let manager = pair.manager(1).await;
    let guard = manager.lock("order:7").lease(LEASE).wait(LONG).acquire().await.expect("the lock is free");
    tokio::time::sleep(LEASE / 2).await;
    assert!(guard.check().is_ok());

    pair.replica.pause();
    let frozen = Moment::now();
    let lost = lost(&guard).await;

    assert!(lost <= frozen + LEASE + SLACK, "considered valid for {:?}", lost.since(frozen));
}

#[tokio::test]
async fn replica_frozen_for_less_than_the_lease_loses_no_lock() {
    let pair = Pair::start().await;
    let manager = pair.manager(1).await;
    let guard = manager.lock("order:7").lease(LEASE).wait(LONG).acquire().await.expect("the lock is free");

    pair.replica.pause();
    tokio::time::sleep(LEASE / 2).await;
    pair.replica.resume();
    tokio::time::sleep(LEASE * 2).await;

    assert!(guard.check().is_ok(), "{:?}", guard.check());
    assert!(guard.release().await.is_ok());
}

/// Only an unconditional write can be acknowledged: the key has a longer lease than the extension
/// requests.
#[tokio::test]
async fn extension_below_the_remaining_lease_is_acknowledged() {
    let pair = Pair::start().await;
    let manager = pair.manager(1).await;
    let guard = manager.lock("order:7").lease(LONG).wait(LONG).acquire().await.expect("the lock is free");

    // A replica reports its offset once per second without a request. Afterward, it lacks no
    // earlier write.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    pair.replica.pause();
    let extended = guard.extend(LEASE).await;

    let error = extended.expect_err("no replica acknowledges");
    assert!(error.to_string().contains("only 0 of 1 replicas"), "{error}");
}
