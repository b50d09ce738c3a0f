//! dlock with `release = background`: a call does not wait for the reply to its release.

use std::time::Duration;

use dlock_bench_peer::{Library, Result};
use dlock_runtime::{LockGuard, LockManager, distributed_lock};

use crate::contenders::ours::Ours;

/// A manager whose releases are not awaited.
#[derive(Clone, Debug)]
pub(crate) struct Background(Ours);

impl Background {
    /// Connects with a separate namespace.
    ///
    /// Locks that are not yet released at the end of a slice must not block the next contender.
    pub(crate) async fn connect(url: String) -> Result<Self> {
        let namespace = std::process::id();
        Ok(Self(Ours::connect(format!("{url}&namespace=of-{namespace}")).await?))
    }
}

#[distributed_lock(key = "bench:<id>", release = background, manager = locks)]
async fn pair(locks: &LockManager, id: u64) -> Result<(), dlock_runtime::Error> {
    Ok(())
}

#[distributed_lock(key = "key:<key|raw>", wait = "60s", release = background, manager = locks)]
async fn under<T>(
    locks: &LockManager,
    key: &str,
    body: impl Future<Output = T>,
) -> Result<T, dlock_runtime::Error> {
    Ok(body.await)
}

impl Library for Background {
    type Guard = LockGuard;

    async fn lock(&self, key: &str, wait: Duration, lease: Duration) -> Result<LockGuard> {
        self.0.lock(key, wait, lease).await
    }

    async fn unlock(&self, guard: LockGuard) -> Result<()> {
        drop(guard);
        Ok(())
    }

    async fn under<T: Send>(&self, key: &str, body: impl Future<Output = T> + Send) -> Result<T> {
        Ok(under(&self.0.0, key, body).await?)
    }

    async fn pair(&self, id: u64) -> Result<()> {
        Ok(pair(&self.0.0, id).await?)
    }

    async fn told(&self, guard: &mut LockGuard) -> Result<()> {
        self.0.told(guard).await
    }
}
