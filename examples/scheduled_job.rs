// cargo run -p dlock-examples --example scheduled_job
//! A job that three replicas of a service try to run at every tick: one runs it, and the others
//! skip it silently.
//!
//! The lock allows one run at a time, and `min_hold` keeps it held after a short run, so that a
//! replica whose timer fires late skips as well. It does not guarantee one run per tick: if that
//! matters, store the last tick that was done.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, LockManager, distributed_lock};

/// One replica of the service. Each has its own manager, as a separate process would.
struct Replica<'a> {
    name: &'static str,
    locks: LockManager,
    runs: &'a AtomicU32,
}

impl Replica<'_> {
    /// Creates the report. `None`: another replica does it.
    #[distributed_lock(
        key = "job:nightly-report",
        on_contended = skip,
        min_hold = "600ms",
        max_hold = "10m",
        manager = self.locks,
    )]
    async fn nightly_report(&self) -> Result<Option<String>, Error> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(Some(format!("{} made the report", self.name)))
    }

    /// Fires the timer of the replica, delayed by `late`.
    async fn tick(&self, late: Duration) -> Result<bool, Error> {
        tokio::time::sleep(late).await;
        let report = self.nightly_report().await?;
        match &report {
            Some(report) => println!("  {report}"),
            None => println!("  {} skipped: another replica does it, or has done it", self.name),
        }
        Ok(report.is_some())
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = dlock_examples::shared_url("scheduled_job");
    let runs = AtomicU32::new(0);
    let replica = async |name| {
        let locks = LockManager::connect(&url).await?;
        Ok::<_, Error>(Replica { name, locks, runs: &runs })
    };
    let (a, b, c) = (replica("replica a").await?, replica("replica b").await?, replica("replica c").await?);

    // The run of a tick takes 100 ms, and replica c is 300 ms late.
    let (in_time, late) = (Duration::ZERO, Duration::from_millis(300));
    let mut timer = tokio::time::interval(Duration::from_secs(1));
    for tick in 1..=3 {
        timer.tick().await;
        println!("tick {tick}:");
        let ran = tokio::try_join!(a.tick(in_time), b.tick(in_time), c.tick(late))?;

        let ran = [ran.0, ran.1, ran.2].into_iter().filter(|ran| *ran).count();
        assert_eq!(ran, 1, "one replica runs the job, the others skip it");
        assert_eq!(runs.load(Ordering::SeqCst), tick, "the job ran once more");
    }
    println!("three ticks, three replicas, three runs");
    Ok(())
}
