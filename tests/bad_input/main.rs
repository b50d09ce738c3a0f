//! Any server reply and any caller input leads to one typed error in bounded time.

mod access;
mod counters;
mod long_values;
mod reasons;
mod replies;
mod requests;
mod wrong_kind;

use std::time::Duration;

use dlock_runtime::{LockManager, Result};
use dlock_tests::{overrun, within};

const LONG: Duration = Duration::from_secs(30);
/// The response timeout of one try.
const ONE_TRY: Duration = Duration::from_millis(500);
/// The tolerance of P3 beyond a limit.
const SLACK: Duration = Duration::from_millis(100);
/// The time limit of connecting.
const CONNECT: Duration = Duration::from_secs(10);

async fn connect(url: &str) -> Result<LockManager> {
    within(CONNECT, &format!("connecting to {url}"), LockManager::connect(url)).await
}

/// Acquires with one try and asserts that the outcome comes in time.
async fn acquire_once(manager: &LockManager, what: &str) -> Result<()> {
    let (outcome, late) = overrun(ONE_TRY, manager.lock("order:7").lease(LONG).acquire()).await;
    assert!(late < SLACK, "{what}: {late:?}");
    outcome.map(drop)
}
