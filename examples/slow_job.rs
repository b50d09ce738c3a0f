// cargo run -p dlock-examples --example slow_job
//! A job that takes five times as long as its lease. The watchdog renews the lease while the body
//! runs, so no other caller acquires the lock. If the process crashed, the lock would be free when
//! the lease expires.

use std::time::Duration;

use dlock_runtime::{Error, LockManager, distributed_lock};

/// Works for 1.5 s under a lease of 300 ms, and prints every 250 ms how long the hold is still
/// valid.
#[distributed_lock(key = "slow-job", lease = "300ms", guard = lock)]
async fn slow_job() -> Result<Vec<Duration>, Error> {
    let mut seen = Vec::new();
    for step in 1..=6 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let remaining = lock.remaining();
        println!("  after {} ms: {} ms of the lease remain", step * 250, remaining.as_millis());
        seen.push(remaining);
    }
    Ok(seen)
}

/// Another caller, which tries to acquire the lock until the job has ended.
async fn rival(locks: &LockManager) -> Result<u32, Error> {
    let mut tries = 0;
    loop {
        if let Some(guard) = locks.lock("slow-job").try_acquire().await? {
            guard.release().await?;
            return Ok(tries);
        }
        tries += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = dlock_runtime::init(&dlock_examples::url()).await?;

    println!("a job of 1500 ms under a lease of 300 ms:");
    let job = tokio::spawn(slow_job());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let turned_away = rival(&locks).await?;
    let seen = job.await.expect("the job does not panic")?;

    assert!(seen.iter().all(|remaining| !remaining.is_zero()), "the hold was valid at every check");
    assert!(turned_away >= 5, "a rival was turned away while the job ran");
    println!(
        "the job has ended under its lock; a rival was turned away {turned_away} times meanwhile, then got in"
    );
    Ok(())
}
