//! The contender distributed-lock-redis.
//!
//! It has one connection of fred's to each server, for all tasks. A task renews each lock, at once
//! and then every third of the lease, its default. Each release is awaited, by `release`. Several
//! servers are its Redlock.
//!
//! It does not wait: with or without its wait time, it refuses a held lock immediately, and its
//! documentation suggests no poll interval. So it polls every millisecond, like the floor. The
//! lease belongs to a provider, so there is one provider per lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use dlock_bench_peer::{LEASE, Library, Result};
use tokio::sync::Mutex;

const POLL: Duration = Duration::from_millis(1);

#[derive(Clone)]
pub(crate) struct Provider {
    urls: Arc<[String]>,
    usual: Arc<RedisLockProvider>,
    others: Arc<Mutex<HashMap<Duration, Arc<RedisLockProvider>>>>,
}

impl Provider {
    pub(crate) async fn connect(servers: Vec<String>) -> Result<Self> {
        let urls: Arc<[String]> = servers.iter().map(|server| format!("redis://{server}")).collect();
        let usual = Arc::new(provider(&urls, LEASE).await?);
        Ok(Self { urls, usual, others: Arc::default() })
    }

    async fn with(&self, lease: Duration) -> Result<Arc<RedisLockProvider>> {
        if lease == LEASE {
            return Ok(Arc::clone(&self.usual));
        }
        let mut others = self.others.lock().await;
        if !others.contains_key(&lease) {
            others.insert(lease, Arc::new(provider(&self.urls, lease).await?));
        }
        Ok(Arc::clone(&others[&lease]))
    }
}

async fn provider(urls: &[String], lease: Duration) -> Result<RedisLockProvider> {
    let provider = RedisLockProvider::builder().urls(urls).expiry(lease).extension_cadence(lease / 3);
    Ok(provider.min_validity(lease * 9 / 10).build().await?)
}

impl Library for Provider {
    type Guard = RedisLockHandle;

    async fn lock(&self, key: &str, wait: Duration, lease: Duration) -> Result<RedisLockHandle> {
        let lock = self.with(lease).await?.create_lock(key);
        let begun = Instant::now();
        loop {
            if let Some(handle) = lock.try_acquire().await? {
                return Ok(handle);
            }
            if begun.elapsed() >= wait {
                return Err("the wait is over".into());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn unlock(&self, handle: RedisLockHandle) -> Result<()> {
        Ok(handle.release().await?)
    }

    async fn told(&self, handle: &mut RedisLockHandle) -> Result<()> {
        let mut lost = handle.lost_token().clone();
        Ok(lost.wait_for(|lost| *lost).await.map(|_| ())?)
    }
}
