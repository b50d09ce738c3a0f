//! Key tracking: what others do to a lock is told at once, whatever the lease; and without it all works as before.
//!
//! The long form measures how soon a loss is told, over as many losses as it is told:
//!
//! ```text
//! DLOCK_LOSSES=1000 cargo test -p dlock-tests --test tracking soon -- --nocapture
//! ```

mod losses;
mod refused;
mod soon;
mod strangers;

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{RedisServer, within};

/// Far above what is told, far below any renewal of [`LEASE`].
const AT_ONCE: Duration = Duration::from_millis(250);
const LEASE: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(20);

async fn manager_of(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).await.expect("the server takes managers")
}

/// Returns how many keys the server would tell of.
fn armed(server: &RedisServer) -> usize {
    let stats = server.call(&["INFO", "stats"]);
    let mut lines = stats.text().unwrap_or_default().lines();
    let count = lines.find_map(|line| line.strip_prefix("tracking_total_keys:"));
    count.and_then(|count| count.parse().ok()).expect("the server counts what it tracks")
}

/// Returns when the server would tell of `count` keys.
async fn until_armed(server: &RedisServer, count: usize) {
    until(|| armed(server) == count).await;
}

/// Waits until something holds.
async fn until(is: impl Fn() -> bool) {
    let comes = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(LONG, "what is waited for", comes).await;
}
