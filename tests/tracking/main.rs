//! Key tracking: foreign changes of a lock are detected at once, whatever its lease. Without
//! tracking, everything else still works.
//!
//! The long form measures the time to detect a loss. `DLOCK_LOSSES` sets the number of losses:
//!
//! ```text
//! DLOCK_LOSSES=1000 cargo test -p dlock-tests --test tracking soon -- --nocapture
//! ```

mod detection_time;
mod foreign_locks;
mod stolen_locks;
mod unavailable;

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{RedisServer, within};

/// Far above the measured times, and far below the time to any renewal of [`LEASE`].
const AT_ONCE: Duration = Duration::from_millis(250);
const LEASE: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(20);

async fn manager_of(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).await.expect("the server accepts connections")
}

/// Returns the number of keys that the server tracks.
fn armed(server: &RedisServer) -> usize {
    let stats = server.call(&["INFO", "stats"]);
    let mut lines = stats.text().unwrap_or_default().lines();
    let count = lines.find_map(|line| line.strip_prefix("tracking_total_keys:"));
    count.and_then(|count| count.parse().ok()).expect("the server counts what it tracks")
}

/// Waits until the server tracks `count` keys.
async fn until_armed(server: &RedisServer, count: usize) {
    until(|| armed(server) == count).await;
}

/// Waits until a condition is true.
async fn until(is: impl Fn() -> bool) {
    let comes = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(LONG, "the condition", comes).await;
}
