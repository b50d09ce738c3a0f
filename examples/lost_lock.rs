// cargo run -p dlock-examples --example lost_lock
//! A lock that is lost while its body runs: the body is stopped, the caller gets an error, and the
//! fencing token rejects a late write.
//!
//! With `DLOCK_URL=redis://..`, the key is deleted while the lock is held, as by an operator or a
//! FLUSHALL. Otherwise, a fixed lease expires. In both cases, the body is not polled after its
//! current await.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, FencingToken, LockGuard, LockManager, distributed_lock};

/// Imports data under a lease that the watchdog renews, until its key is deleted.
#[distributed_lock(key = "import", lease = "600ms", manager = locks, guard = lock)]
async fn import(locks: &LockManager, redis: &str, went_on: &AtomicBool) -> Result<(), Error> {
    tokio::spawn(delete_soon(redis.to_owned(), lock.key().full_name().to_owned()));
    work(went_on).await;
    Ok(())
}

/// Imports data under a fixed lease, which is not renewed.
#[distributed_lock(key = "import", lease = "600ms", renew = false, manager = locks)]
async fn import_in_time(locks: &LockManager, went_on: &AtomicBool) -> Result<(), Error> {
    work(went_on).await;
    Ok(())
}

/// Works for 2 s. The code after the await must not run without the lock.
async fn work(went_on: &AtomicBool) {
    tokio::time::sleep(Duration::from_secs(2)).await;
    went_on.store(true, Ordering::SeqCst);
}

/// A store that keeps the highest token it has seen and rejects lower ones. In SQL:
/// `UPDATE .. WHERE fence <= $1`.
#[derive(Debug, Default)]
struct Store {
    fence: Option<FencingToken>,
    value: &'static str,
}

impl Store {
    fn write(&mut self, token: FencingToken, value: &'static str) -> Result<(), String> {
        match self.fence {
            Some(highest) if token < highest => Err(format!("{value}: {token} is older than {highest}")),
            _ => {
                self.fence = Some(token);
                self.value = value;
                Ok(())
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let url = dlock_examples::url();
    let locks = LockManager::connect(&url).await?;

    let went_on = AtomicBool::new(false);
    let imported = if url.starts_with("memory:") {
        println!("2 s of work under a fixed lease of 600 ms");
        import_in_time(&locks, &went_on).await
    } else {
        println!("2 s of work under a lease of 600 ms; its key is deleted after 300 ms");
        import(&locks, &url, &went_on).await
    };
    match &imported {
        Err(error @ Error::Lost { .. }) => println!("the caller gets: {error}"),
        other => return Err(format!("the loss was not detected: {other:?}").into()),
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!went_on.load(Ordering::SeqCst), "the body went on after its lock was lost");
    println!("the body did not go on");

    // A guard alone cannot stop the code that has it. The fencing token protects the resource.
    let mut store = Store::default();
    let paused = locks.lock("ledger").lease(Duration::from_millis(300)).renew(false).acquire().await?;
    let old = paused.fencing_token().await?;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let next: LockGuard = locks.lock("ledger").wait(Duration::from_secs(2)).acquire().await?;
    let new = next.fencing_token().await?;
    store.write(new, "the next holder's write")?;
    let stale = store.write(old, "the write of a holder that was paused");
    println!("the first holder slept through its lease; the next one has written with token {new}");
    match &stale {
        Err(refused) => println!("refused: {refused}"),
        Ok(()) => return Err("a stale write was accepted".into()),
    }
    assert_eq!(store.value, "the next holder's write");
    assert!(paused.check().is_err_and(|error| error.is_lost()), "the first guard reports the loss as well");
    next.release().await?;
    Ok(())
}

/// Deletes a key after 300 ms, as an operator might by mistake.
async fn delete_soon(url: String, name: String) -> redis::RedisResult<()> {
    tokio::time::sleep(Duration::from_millis(300)).await;
    // The options after the `?` are for the lock manager.
    let address = url.split('?').next().unwrap_or(&url);
    let mut connection = redis::Client::open(address)?.get_multiplexed_async_connection().await?;
    redis::cmd("DEL").arg(name).query_async(&mut connection).await
}
