// cargo run -p dlock-examples --example scheduled_job
//! A job that runs once per tick in a service of three replicas: two have the runner, and the timer
//! of the third is late and calls the same function.
//!
//! The record of the job has the last tick that started, so a tick never starts twice, however
//! short the run is and however late a timer fires. The example also shows the history of the job.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use dlock_runtime::scheduled::{Jobs, RunOutcome};
use dlock_runtime::{Error, LockManager, scheduled};
use tokio::time::Instant;

/// One replica of the service. Each has its own manager, as a separate process would.
#[derive(Clone)]
struct Replica {
    name: &'static str,
    locks: LockManager,
    runs: Arc<AtomicUsize>,
}

impl Replica {
    /// Creates the report. `None`: another replica does it, or has done it.
    #[scheduled(
        name = "example-report",
        every = "1s",
        on_error = retry(2),
        max_hold = "10m",
        tick = tick,
        guard = lease,
        manager = self.locks
    )]
    async fn report(&self) -> Result<Option<()>, Error> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
        lease.check()?; // before a step that must not be late
        println!("  {} made the report of tick {}", self.name, tick.slot() / 1_000);
        Ok(Some(()))
    }

    /// Runs the jobs of this replica until `end`.
    async fn run_jobs(self, end: Instant) -> Result<(), Error> {
        Jobs::new(self.locks.clone())
            .add_scheduled(move || {
                let this = self.clone();
                async move { this.report().await }
            })
            .run_until(tokio::time::sleep_until(end))
            .await
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = dlock_examples::shared_url("scheduled_job");
    let runs = Arc::new(AtomicUsize::new(0));
    let replica = async |name| {
        let locks = LockManager::connect(&url).await?;
        Ok::<_, Error>(Replica { name, locks, runs: Arc::clone(&runs) })
    };
    let (a, b, c) = (replica("replica a").await?, replica("replica b").await?, replica("replica c").await?);
    let job = a.locks.job("example-report");
    let runs_of_job = async || Ok::<_, Error>(job.status().await?.map_or(0, |status| status.runs));
    let before = runs_of_job().await?; // by earlier runs of this example

    // A run takes 1 ms, and the timer is 300 ms late: a lock alone would let it run again.
    let second = Duration::from_secs(1);
    let first = next_second();
    let end = first + second * 5 / 2;
    let timer = async {
        let mut timer = tokio::time::interval_at(first + Duration::from_millis(300), second);
        while timer.tick().await < end {
            match c.report().await? {
                Some(()) => println!("  {} was first, although it was late", c.name),
                None => println!("  {} skipped: another replica does it, or has done it", c.name),
            }
        }
        Ok::<_, Error>(())
    };
    tokio::try_join!(a.clone().run_jobs(end), b.clone().run_jobs(end), timer)?;

    let ours = usize::try_from(runs_of_job().await? - before).unwrap_or_default();
    let history = job.history(ours).await?;
    let ticks: BTreeSet<_> = history.iter().map(|run| run.slot).collect();
    let runs = runs.load(Ordering::SeqCst);
    assert!(history.iter().all(|run| run.outcome == RunOutcome::Succeeded), "{history:?}");
    assert!(runs >= 2 && runs == ours && runs == ticks.len(), "each tick ran once: {runs} runs, {history:?}");
    println!("{} ticks, three replicas, {runs} runs", ticks.len());
    Ok(())
}

/// Returns the start of the next second of the wall clock, so that no timer fires between ticks.
fn next_second() -> Instant {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Instant::now() + Duration::from_millis(1_000 - u64::from(since_epoch.subsec_millis()))
}
