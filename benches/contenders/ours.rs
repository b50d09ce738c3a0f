//! dlock: annotated functions for locks of one body, and guards for longer holds.

use std::time::{Duration, Instant};

use dlock_bench_peer::{Called, Library, Result, WAIT};
use dlock_runtime::{LockGuard, LockManager, distributed_lock};

/// A manager.
#[derive(Clone, Debug)]
pub(crate) struct Ours(pub(super) LockManager);

impl Ours {
    pub(crate) async fn connect(url: String) -> Result<Self> {
        Ok(Self(LockManager::connect(&url).await?))
    }
}

/// The body is empty, so that only the lock is measured.
#[distributed_lock(key = "bench:<id>", manager = locks)]
async fn pair(locks: &LockManager, id: u64) -> Result<(), dlock_runtime::Error> {
    Ok(())
}

#[distributed_lock(key = "key:<key|raw>", wait = "60s", manager = locks)]
async fn under<T>(
    locks: &LockManager,
    key: &str,
    body: impl Future<Output = T>,
) -> Result<T, dlock_runtime::Error> {
    Ok(body.await)
}

#[distributed_lock(key = "nest", manager = locks)]
async fn outer(locks: &LockManager, times: u64) -> Result<Duration, dlock_runtime::Error> {
    let begun = Instant::now();
    for _ in 0..times {
        inner(locks).await?;
    }
    Ok(begun.elapsed())
}

#[distributed_lock(key = "nest", manager = locks)]
async fn inner(locks: &LockManager) -> Result<(), dlock_runtime::Error> {
    Ok(())
}

impl Library for Ours {
    type Guard = LockGuard;

    async fn lock(&self, key: &str, wait: Duration, lease: Duration) -> Result<LockGuard> {
        Ok(self.0.lock(format!("key:{key}")).wait(wait).lease(lease).acquire().await?)
    }

    async fn unlock(&self, guard: LockGuard) -> Result<()> {
        Ok(guard.release().await?)
    }

    async fn under<T: Send>(&self, key: &str, body: impl Future<Output = T> + Send) -> Result<T> {
        Ok(under(&self.0, key, body).await?)
    }

    async fn pair(&self, id: u64) -> Result<()> {
        Ok(pair(&self.0, id).await?)
    }

    async fn told(&self, guard: &mut LockGuard) -> Result<()> {
        guard.lost().await;
        Ok(())
    }

    async fn nest(&self, times: u64) -> Result<Duration> {
        Ok(outer(&self.0, times).await?)
    }

    async fn call(&self, key: &str, body: Duration) -> Result<Called> {
        let call = self.0.idempotent(format!("call:{key}")).wait(WAIT);
        let outcome = call
            .run(async move |_record| {
                if body > Duration::ZERO {
                    tokio::time::sleep(body).await;
                }
                Ok::<_, dlock_runtime::Error>("paid".to_owned())
            })
            .await?;
        Ok(if outcome.is_replayed() { Called::Replayed } else { Called::Ran })
    }
}
