//! The process that holds a lock is killed: when does a waiter in another process have it?
//!
//! Nobody can tell the waiter before the lease is over. How long it takes beyond what was left of the lease is ours.

use std::time::Duration;

use dlock_runtime::LockManager;

use crate::Failure;
use crate::report::Goal;
use crate::scenarios::Bench;
use crate::usage::{boot_nanos, float, millis, nanos};
use crate::worker::{Orders, Worker, say};

const LEASE: Duration = Duration::from_secs(1);

pub(crate) async fn measure(mut bench: Bench<'_>) -> Result<(), Failure> {
    let locks = LockManager::connect(&bench.server.url()).await?;
    let mut server = bench.server.connect().await?;
    let (mut beyond_lease, mut beyond_rest) = (Vec::new(), Vec::new());
    for round in 0..if bench.short { 3 } else { 20 } {
        let key = format!("killed:{round}");
        let mut worker = Worker::start(bench.name, &[&bench.server.url(), &key])?;
        worker.line().await?;
        let lock = locks.lock(&*key).lease(LEASE).wait(Duration::from_secs(20));
        let waiter = tokio::spawn(async move {
            let guard = lock.acquire().await?;
            let had = boot_nanos();
            guard.release().await?;
            Ok::<_, dlock_runtime::Error>(had)
        });
        // Each time at another point between two renewals.
        tokio::time::sleep(Duration::from_millis(400 + 37 * round)).await;
        let killed = boot_nanos();
        worker.kill().await?;
        let left: i64 = redis::cmd("PTTL").arg(format!("dlock:{key}")).query_async(&mut server).await?;
        let gone = boot_nanos() + nanos(Duration::from_millis(u64::try_from(left).unwrap_or_default()));
        let had = waiter.await??;
        beyond_lease.push(millis(had.saturating_sub(killed)) - millis(nanos(LEASE)));
        beyond_rest.push((float(had) - float(gone)) / 1e6);
    }
    // The goal is one for every round, not for the median.
    let worst = beyond_lease.iter().copied().fold(f64::MIN, f64::max);
    bench.add("waited beyond the whole lease", "ms", beyond_lease, None);
    bench.add("waited beyond the whole lease, worst", "ms", vec![worst], Some(Goal::AtMost(250.0)));
    bench.add("waited beyond what was left of the lease", "ms", beyond_rest, None);
    Ok(())
}

/// The process that is killed: holds the lock of `key` for as long as it lives.
pub(crate) async fn work(url: &str, key: &str) -> Result<(), Failure> {
    let locks = LockManager::connect(url).await?;
    let guard = locks.lock(key).lease(LEASE).acquire().await?;
    say("held");
    while Orders::new().next().await?.is_some() {}
    Ok(guard.release().await?)
}
