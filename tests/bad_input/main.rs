//! Any server reply and any caller input leads to one typed error in bounded time.

mod access;
mod counters;
mod long_values;
mod reasons;
mod replies;
mod requests;
mod wrong_kind;

use std::time::{Duration, Instant};

use dlock_runtime::{LockManager, Result};
use dlock_tests::within;

const LONG: Duration = Duration::from_secs(30);
/// The response timeout of one try, and the tolerance of P3 beyond a limit.
const ONE_TRY: Duration = Duration::from_millis(500 + 100);
/// The time limit of connecting.
const CONNECT: Duration = Duration::from_secs(10);

async fn connect(url: &str) -> Result<LockManager> {
    within(CONNECT, &format!("connecting to {url}"), LockManager::connect(url)).await
}

/// Acquires with one try and asserts that the outcome comes in time.
async fn acquire_once(manager: &LockManager, what: &str) -> Result<()> {
    let started = Instant::now();
    let outcome = manager.lock("order:7").lease(LONG).acquire().await.map(drop);
    assert!(started.elapsed() < ONE_TRY, "{what}: {:?}", started.elapsed());
    outcome
}
