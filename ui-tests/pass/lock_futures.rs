//! The futures of a lock own what they need, and a lock in a variable is used again.

use dlock_runtime::{Error, LockGuard, LockManager};

/// The error of an application.
#[derive(Debug)]
struct AppError(String);

impl From<Error> for AppError {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

impl From<std::num::ParseIntError> for AppError {
    fn from(error: std::num::ParseIntError) -> Self {
        Self(error.to_string())
    }
}

/// A future in a variable outlives the lock that it was created from.
async fn stored(locks: &LockManager) -> Result<(), Error> {
    let acquires = locks.lock("a").acquire();
    let tries = locks.lock("b").try_acquire();
    let runs = locks.lock("c").run(async |_| 7);
    acquires.await?.release().await?;
    assert!(tries.await?.is_some());
    assert_eq!(runs.await?, 7);
    Ok(())
}

/// Each future can be spawned.
async fn spawned(locks: &LockManager) -> Result<(), Error> {
    let acquired: LockGuard =
        tokio::spawn(locks.lock("a").acquire()).await.expect("the task does not panic")?;
    let tried = tokio::spawn(locks.lock("a").try_acquire()).await.expect("the task does not panic")?;
    assert!(tried.is_none());
    acquired.release().await?;
    let ran = tokio::spawn(locks.lock("a").run(async |guard| guard.key().to_string()));
    assert_eq!(ran.await.expect("the task does not panic")?, "a");
    let body = async |_: &LockGuard| -> Result<u8, Error> { Ok(7) };
    assert_eq!(tokio::spawn(locks.lock("a").try_run(body)).await.expect("the task does not panic")?, 7);
    Ok(())
}

/// A lock is used again, by reference.
async fn reused(locks: &LockManager) -> Result<(), Error> {
    let lock = locks.lock("a");
    for _ in 0..2 {
        lock.acquire().await?.release().await?;
        let same = &lock;
        assert!(same.try_acquire().await?.is_some());
        lock.run(async |_| ()).await?;
    }
    Ok(())
}

/// `?` in the body converts to the error of the function.
async fn parsed(locks: &LockManager, text: &str) -> Result<u64, AppError> {
    locks
        .lock("a")
        .try_run(async |guard| {
            let number: u64 = text.parse()?;
            guard.check()?;
            Ok(number)
        })
        .await
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let locks = LockManager::connect("memory://").await.expect("no server is needed");
    stored(&locks).await.expect("the locks are free");
    spawned(&locks).await.expect("the lock is free");
    reused(&locks).await.expect("the lock is free");
    assert_eq!(parsed(&locks, "7").await.expect("it is a number"), 7);
    let AppError(refused) = parsed(&locks, "x").await.expect_err("it is no number");
    assert!(refused.contains("invalid digit"), "{refused}");
}
