//! The test kit: every guarantee of its documentation.
//!
//! See also: `contract` for behavior that the in-memory backend shares with servers, and `memory`
//! for its clock.

mod contention;
mod fleet;
mod loss;
mod manager_choice;
mod observations;
mod outage;
mod threads;

use std::time::Duration;

use dlock_runtime::{Error, LossCause, distributed_lock};

const KEY: &str = "order:7";

/// Longer than any hold without renewal.
const LONG: Duration = Duration::from_secs(60);

#[distributed_lock(key = "order:<user>")]
async fn order(user: u64, takes: Duration) -> Result<u64, Error> {
    tokio::time::sleep(takes).await;
    Ok(user)
}

#[distributed_lock(key = "order:<user>", wait = "10m")]
async fn patient_order(user: u64) -> Result<u64, Error> {
    Ok(user)
}

#[distributed_lock(key = "order:<user>", on_contended = skip)]
async fn order_or_skip(user: u64) -> Option<u64> {
    Some(user)
}

#[distributed_lock(key = "order:<user>", on_contended = fallback(order_elsewhere))]
async fn order_or_fall_back(user: u64) -> Result<u64, Error> {
    Ok(user)
}

async fn order_elsewhere(user: u64) -> Result<u64, Error> {
    std::future::ready(Ok(user + 1_000)).await
}

#[distributed_lock(key = "order:<user>", on_lost = finish)]
async fn order_to_the_end(user: u64, takes: Duration) -> Result<u64, Error> {
    tokio::time::sleep(takes).await;
    Ok(user)
}

#[distributed_lock(key = "order:<user>", wait = "10m")]
async fn nested_order(user: u64) -> Result<u64, Error> {
    patient_order(user).await
}

/// Lets every other task run until it is pending: a paused clock advances only then.
async fn all_others_wait() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[track_caller]
fn assert_lost<T: std::fmt::Debug>(outcome: &Result<T, Error>, by: LossCause) {
    assert!(matches!(outcome, Err(Error::Lost { cause, .. }) if *cause == by), "{outcome:?}");
}
