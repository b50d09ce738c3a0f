//! The contender rslock.
//!
//! It polls after 0 to 200 ms at random, its default, and has one connection for all tasks. Each
//! release is awaited. Several servers are its Redlock.
//!
//! `pair` and `under` acquire and release themselves. `using` renews 500 ms before the end, and
//! returns an error when that fails. `lock` holds locks for longer, so it spawns a task that stays
//! inside `using` until it is notified to leave.

use std::time::Duration;

use dlock_bench_peer::{LEASE, Library, Result, WAIT};
use rslock::{LockError, LockManager};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::connection::client;

#[derive(Clone)]
pub(crate) struct Rslock(LockManager);

impl Rslock {
    pub(crate) async fn connect(servers: &[String]) -> Result<Self> {
        let clients = servers.iter().map(|server| client(server)).collect::<Result<_>>()?;
        let locks = LockManager::from_clients(clients);
        locks.acquire("ready", LEASE).await?.release().await;
        Ok(Self(locks))
    }
}

/// A task inside `using`.
pub(crate) struct Inside {
    leave: oneshot::Sender<()>,
    done: JoinHandle<Result<(), LockError>>,
}

impl Library for Rslock {
    type Guard = Inside;

    async fn lock(&self, key: &str, wait: Duration, lease: Duration) -> Result<Inside> {
        let ((leave, left), (enter, entered)) = (oneshot::channel::<()>(), oneshot::channel());
        let (locks, key) = (self.0.clone(), key.to_owned());
        let done = tokio::spawn(async move {
            let body = async || {
                let _ = enter.send(());
                let _ = left.await;
            };
            locks.using(key.as_bytes(), lease, body).await
        });
        timeout(wait, entered).await??;
        Ok(Inside { leave, done })
    }

    async fn unlock(&self, guard: Inside) -> Result<()> {
        let _ = guard.leave.send(());
        Ok(guard.done.await??)
    }

    async fn under<T: Send>(&self, key: &str, body: impl Future<Output = T> + Send) -> Result<T> {
        let guard = timeout(WAIT, self.0.acquire(key, LEASE)).await??;
        let value = body.await;
        guard.release().await;
        Ok(value)
    }

    async fn told(&self, guard: &mut Inside) -> Result<()> {
        match (&mut guard.done).await? {
            Err(_) => Ok(()),
            Ok(()) => Err("the task ended by itself".into()),
        }
    }
}
