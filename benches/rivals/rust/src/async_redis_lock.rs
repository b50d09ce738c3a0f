//! The contender async-redis-lock.
//!
//! It polls every 100 ms, its default, and has one connection for all tasks. A task renews each
//! lock, here every third of the lease, as with its defaults. Each release is awaited, by
//! `release`. It reports a loss by a flag, which the user must poll: here, every millisecond. It
//! has no Redlock.

use std::time::Duration;

use async_redis_lock::{Lock, Locker, Options};
use dlock_bench_peer::{Cannot, Library, Result};

use crate::connection::client;

#[derive(Clone)]
pub(crate) struct AsyncRedisLock(Locker);

impl AsyncRedisLock {
    pub(crate) async fn connect(servers: &[String]) -> Result<Self> {
        let [server] = servers else { return Err(Cannot::because("it has no Redlock")) };
        let locker = Self(Locker::from_client(client(server)?).await?);
        locker.under("ready", async {}).await?;
        Ok(locker)
    }
}

impl Library for AsyncRedisLock {
    type Guard = Lock;

    async fn lock(&self, key: &str, wait: Duration, lease: Duration) -> Result<Lock> {
        let options = Options::new().ttl(lease).extend(lease / 3).timeout(Some(wait));
        Ok(self.0.acquire_with_options(&options, key).await?)
    }

    async fn unlock(&self, lock: Lock) -> Result<()> {
        Ok(lock.release().await?)
    }

    async fn told(&self, lock: &mut Lock) -> Result<()> {
        while !lock.is_lost() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}
