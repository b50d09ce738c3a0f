// cargo run -p dlock-examples --example scheduled_job
//! A job that three replicas of a service call at every tick: one runs it, and the others get
//! `None`, however short the run is and however late a timer fires.
//!
//! The record of the job has the last tick that started, so a tick never starts twice. The example
//! also shows the history of the job.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_runtime::scheduled::RunOutcome;
use dlock_runtime::{Error, LockManager, scheduled};

/// One replica of the service. Each has its own manager, as a separate process would.
struct Replica<'a> {
    name: &'static str,
    locks: LockManager,
    runs: &'a AtomicUsize,
}

impl Replica<'_> {
    /// Creates the report. `None`: another replica does it, or has done it.
    #[scheduled(name = "example-report", every = "1s", max_hold = "10m", tick = tick, manager = self.locks)]
    async fn report(&self) -> Result<Option<String>, Error> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(Some(format!("{} made the report of tick {}", self.name, tick.slot() / 1_000)))
    }

    /// Fires the timer of the replica, delayed by `late`.
    async fn tick(&self, late: Duration) -> Result<bool, Error> {
        tokio::time::sleep(late).await;
        let report = self.report().await?;
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
    let runs = AtomicUsize::new(0);
    let replica = async |name| {
        let locks = LockManager::connect(&url).await?;
        Ok::<_, Error>(Replica { name, locks, runs: &runs })
    };
    let (a, b, c) = (replica("replica a").await?, replica("replica b").await?, replica("replica c").await?);
    let job = a.locks.job("example-report");

    // A run takes 1 ms, and replica c is 300 ms late: a lock alone would let it run again.
    let (in_time, late) = (Duration::ZERO, Duration::from_millis(300));
    let mut timer = tokio::time::interval_at(next_second(), Duration::from_secs(1));
    for tick in 1..=3 {
        timer.tick().await;
        println!("tick {tick}:");
        let ran = tokio::try_join!(a.tick(in_time), b.tick(in_time), c.tick(late))?;

        let ran = [ran.0, ran.1, ran.2].into_iter().filter(|ran| *ran).count();
        assert_eq!(ran, 1, "one replica runs the job, the others skip it");
        assert_eq!(runs.load(Ordering::SeqCst), tick, "the job ran once more");
    }

    let history = job.history(3).await?;
    assert!(history.len() == 3 && history.iter().all(|run| run.outcome == RunOutcome::Succeeded));
    println!("three ticks, three replicas, three runs: {} in the history", history.len());
    Ok(())
}

/// Returns the start of the next second of the wall clock, so that no timer fires between ticks.
fn next_second() -> tokio::time::Instant {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    tokio::time::Instant::now() + Duration::from_millis(1_000 - u64::from(since_epoch.subsec_millis()))
}
