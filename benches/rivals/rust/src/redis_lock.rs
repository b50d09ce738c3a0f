//! The contender redis-lock, used by `lock_across`.
//!
//! It polls every 100 ms, its default, renews nothing, and reports no loss. Each release is
//! awaited. Several servers are its Redlock. The lease is that of the order, because its default is
//! 10 ms.
//!
//! Its client leaves `TCP_NODELAY` off unless a feature enables it. With the feature, 64 tasks
//! complete a third fewer pairs.
//!
//! It locks a mutex around each connection for the duration of a command. Therefore each task has a
//! separate mutex, with a handle of the one shared connection, so that commands of different tasks
//! do not wait for each other. The library accepts only `'static` futures, so other bodies run
//! outside of it, and are notified when to begin.

use std::sync::Arc;
use std::time::Duration;

use dlock_bench_peer::{Failure, LEASE, Library, Result, WAIT};
use redis_lock::{DEFAULT_RETRY_DELAY, LockAcrossOptions, lock_across};
use redis_of_redis_lock::Client;
use redis_of_redis_lock::aio::MultiplexedConnection;
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;

pub(crate) struct RedisLock {
    shared: Vec<MultiplexedConnection>,
    own: Vec<Arc<Mutex<MultiplexedConnection>>>,
}

impl RedisLock {
    pub(crate) async fn connect(servers: &[String]) -> Result<Self> {
        let mut shared = Vec::new();
        for server in servers {
            let client = Client::open(format!("redis://{server}"))?;
            shared.push(client.get_multiplexed_async_connection().await?);
        }
        let library = Self { shared, own: Vec::new() }.clone();
        library.across("ready", WAIT, LEASE, async {}).await?;
        Ok(library)
    }

    async fn across(
        &self,
        key: &str,
        wait: Duration,
        lease: Duration,
        body: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let options = LockAcrossOptions { ttl: lease, retry: DEFAULT_RETRY_DELAY, duration: wait };
        // The error of the library may contain a panic payload, which is not an error.
        lock_across(&self.own, key, body, options).await.map_err(|error| error.to_string().into())
    }
}

impl Clone for RedisLock {
    /// Returns a handle for another task.
    fn clone(&self) -> Self {
        let own = self.shared.iter().cloned().map(|connection| Arc::new(Mutex::new(connection))).collect();
        Self { shared: self.shared.clone(), own }
    }
}

/// A task that holds a lock.
pub(crate) struct Inside {
    leave: oneshot::Sender<()>,
    done: JoinHandle<Result<()>>,
}

impl Library for RedisLock {
    type Guard = Inside;

    async fn lock(&self, key: &str, wait: Duration, lease: Duration) -> Result<Inside> {
        let ((leave, left), (enter, entered)) = (oneshot::channel::<()>(), oneshot::channel());
        let (library, key) = (self.clone(), key.to_owned());
        let body = async move {
            let _ = enter.send(());
            let _ = left.await;
        };
        let done = tokio::spawn(async move { library.across(&key, wait, lease, body).await });
        match entered.await {
            Ok(()) => Ok(Inside { leave, done }),
            Err(_) => Err(done.await?.err().unwrap_or_else(|| "the body did not run".into())),
        }
    }

    async fn unlock(&self, guard: Inside) -> Result<()> {
        let _ = guard.leave.send(());
        guard.done.await?
    }

    async fn under<T: Send>(&self, key: &str, body: impl Future<Output = T> + Send) -> Result<T> {
        let ((leave, left), (enter, entered)) = (oneshot::channel::<()>(), oneshot::channel());
        let locked = self.across(key, WAIT, LEASE, async move {
            let _ = enter.send(());
            let _ = left.await;
        });
        let ran = async {
            entered.await?;
            let value = body.await;
            let _ = leave.send(());
            Ok::<_, Failure>(value)
        };
        let (locked, value) = tokio::join!(locked, ran);
        locked?;
        value
    }

    async fn pair(&self, id: u64) -> Result<()> {
        self.across(&format!("bench:{id}"), WAIT, LEASE, async {}).await
    }
}
