//! A lock is released in one process while another waits for it: how long until the waiter's body runs.
//!
//! Both times are read from the boot clock. This process holds and releases; the worker waits.

use std::time::Duration;

use dlock_runtime::{LockManager, distributed_lock};

use crate::Failure;
use crate::report::{Goal, percentile};
use crate::scenarios::Bench;
use crate::usage::{boot_nanos, millis};
use crate::worker::{Orders, Worker, say};

const KEY: &str = "wake-up";

#[distributed_lock(key = "wake-up", lease = "30s", wait = "30s", manager = locks)]
async fn woken(locks: &LockManager) -> Result<u64, dlock_runtime::Error> {
    Ok(boot_nanos())
}

pub(crate) async fn measure(mut bench: Bench<'_>) -> Result<(), Failure> {
    let locks = LockManager::connect(&bench.server.url()).await?;
    let mut worker = Worker::start(bench.name, &[&bench.server.url()])?;
    worker.line().await?;
    let times = if bench.short { 100 } else { 300 };
    let (mut medians, mut slowest) = (Vec::new(), Vec::new());
    for round in 0..=bench.rounds {
        let mut waits = Vec::with_capacity(times);
        for _ in 0..if round == 0 { 20 } else { times } {
            let guard = locks.lock(KEY).wait(Duration::from_secs(30)).acquire().await?;
            worker.tell("wait").await?;
            // Long enough to be queued, short enough to stay warm.
            tokio::time::sleep(Duration::from_millis(4)).await;
            let released = boot_nanos();
            guard.release().await?;
            let entered: u64 = worker.line().await?.parse()?;
            if entered < released {
                return Err("the waiter was inside before the release".into());
            }
            waits.push(millis(entered - released));
        }
        if round > 0 {
            waits.sort_by(f64::total_cmp);
            medians.push(percentile(&waits, 50));
            slowest.push(percentile(&waits, 99));
        }
    }
    worker.end().await?;
    bench.add("release to body in another process, p50", "ms", medians, None);
    bench.add("release to body in another process, p99", "ms", slowest, Some(Goal::AtMost(5.0)));
    Ok(())
}

/// The process that waits: each time it is told to, it says when it was inside.
pub(crate) async fn work(url: &str) -> Result<(), Failure> {
    let locks = LockManager::connect(url).await?;
    let mut orders = Orders::new();
    say("ready");
    while orders.next().await?.is_some() {
        say(&woken(&locks).await?.to_string());
    }
    Ok(())
}
