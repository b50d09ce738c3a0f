//! Runs in memory that end with their call or their runtime, after which no task runs.

use std::future::pending;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::{Builder, Runtime};

use crate::error::Error;
use crate::manager::LockManager;
use crate::scheduled::{RunOutcome, Schedule};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime can be made")
}

/// Runs a job whose body does not end.
async fn run(locks: LockManager) {
    let every_minute = Schedule::every(Duration::from_secs(60)).expect("a valid period");
    let body = async |_| {
        pending::<()>().await;
        Ok::<_, Error>(())
    };
    drop(locks.job("report").run(&every_minute, body).await);
}

/// Returns the outcome of the last run, without running any task.
fn outcome(locks: &LockManager) -> Option<RunOutcome> {
    let job = locks.job("report");
    let last = job.last_run().now_or_never().expect("memory replies at once").expect("it replies");
    last.map(|run| run.outcome)
}

#[test]
fn a_run_that_is_dropped_before_its_runtime_stands_still_has_failed() {
    let (runtime, locks) = (runtime(), LockManager::in_new_memory());

    let ran =
        runtime.block_on(async { tokio::time::timeout(Duration::from_millis(20), run(locks.clone())).await });

    assert!(ran.is_err());
    assert_eq!(outcome(&locks), Some(RunOutcome::Failed));
}

#[test]
fn a_run_that_is_dropped_with_its_runtime_has_failed() {
    let (runtime, locks) = (runtime(), LockManager::in_new_memory());
    runtime.spawn(run(locks.clone()));
    runtime.block_on(tokio::task::yield_now());

    drop(runtime);

    assert_eq!(outcome(&locks), Some(RunOutcome::Failed));
}
