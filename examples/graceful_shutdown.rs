// cargo run -p dlock-examples --example graceful_shutdown
//! A worker that stops on Ctrl-C or SIGTERM: holders may finish, waiters get an error immediately,
//! and no lock stays held until its lease expires.
//!
//! A timer stops it after 1 s, so no key press is needed.

use std::time::{Duration, Instant};

use dlock_runtime::{Error, LockManager, distributed_lock};
use tokio::time::sleep;

/// A job that may be incomplete when the process stops.
#[distributed_lock(key = "job:<id>", lease = "60s", wait = "30s")]
async fn job(id: u32, takes: Duration) -> Result<(), Error> {
    println!("  job {id} has its lock");
    sleep(takes).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let url = dlock_examples::shared_url("graceful_shutdown");
    dlock_runtime::init(&url).await?;

    println!("one job ends soon, one would take an hour, one waits for it:");
    let short = tokio::spawn(job(1, Duration::from_millis(1500)));
    let endless = tokio::spawn(job(2, Duration::from_secs(3600)));
    sleep(Duration::from_millis(200)).await;
    let waiting = tokio::spawn(job(2, Duration::ZERO));

    println!("{}: shutting down, holders have two seconds to finish", told_to_stop().await?);
    let begun = Instant::now();
    dlock_runtime::manager()?.shutdown(Duration::from_secs(2)).await;
    println!("shut down after {} ms", begun.elapsed().as_millis());

    let (short, endless, waiting) = (short.await?, endless.await?, waiting.await?);
    println!("the job that could end in time: {short:?}");
    println!("the job that could not: {}", text(&endless));
    println!("the job that waited: {}", text(&waiting));
    assert!(short.is_ok(), "a job that can finish before the deadline does");
    assert!(matches!(endless, Err(Error::Lost { .. })), "a job that cannot is stopped");
    assert!(matches!(waiting, Err(Error::Shutdown { .. })), "a waiting job gets an error");
    assert!(matches!(job(3, Duration::ZERO).await, Err(Error::Shutdown { .. })), "new calls are rejected");

    let next = LockManager::connect(&url).await?;
    let guard = next.lock("job:2").try_acquire().await?.ok_or("the lock is held until its lease expires")?;
    guard.release().await?;
    println!("the next process gets the lock at once, though its lease was a minute");
    Ok(())
}

/// Waits for Ctrl-C, SIGTERM, or 1 s, and returns which it was.
async fn told_to_stop() -> std::io::Result<&'static str> {
    #[cfg(unix)]
    let terminated = async {
        let mut signals = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        signals.recv().await;
        Ok("SIGTERM")
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending();
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed.map(|()| "Ctrl-C"),
        told = terminated => told,
        () = sleep(Duration::from_secs(1)) => Ok("a second has passed"),
    }
}

fn text(result: &Result<(), Error>) -> String {
    result.as_ref().map_or_else(ToString::to_string, |()| "done".to_owned())
}
