//! Operations for operators: pause, resume, run now, reset, and read the history.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_runtime::Error;
use dlock_runtime::scheduled::{Jobs, RunOutcome};
use dlock_runtime::testing::TestLocks;
use dlock_tests::within;

use super::runner::ticks_of;
use super::{LONG, SECOND, every, in_memory, run, until_before};

#[tokio::test(start_paused = true)]
async fn a_paused_job_skips_its_ticks() {
    let manager = in_memory().await;
    let (job, schedule) = (manager.job("report"), every(SECOND));
    assert!(run(&manager, "report", &schedule).await.is_some());

    job.pause().await.expect("a store");
    tokio::time::sleep(SECOND).await;
    assert_eq!(run(&manager, "report", &schedule).await, None);
    assert!(job.status().await.expect("a store").expect("it is known").is_paused);
    job.resume().await.expect("a store");
    tokio::time::sleep(SECOND).await;

    let next = run(&manager, "report", &schedule).await.expect("it runs again");
    assert_eq!(next.missed(), 0, "a skipped tick is not missed");
    assert_eq!(job.status().await.expect("a store").expect("it is known").skips, 1);
}

#[tokio::test(start_paused = true)]
async fn a_runner_carries_out_a_request_within_a_lease() {
    let manager = in_memory().await;
    let requested = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&requested);
    let schedule = every(Duration::from_secs(24 * 60 * 60)).lease(Duration::from_secs(5));
    let runner = Jobs::new(manager.clone()).add("report", schedule, move |tick| {
        let seen = Arc::clone(&seen);
        async move {
            if tick.is_requested() {
                seen.fetch_add(1, Ordering::SeqCst);
            }
            Ok::<_, Error>(())
        }
    });
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(runner.run_until(async { drop(stopped.await) }));

    tokio::time::sleep(SECOND).await;
    let before = manager.job("report").status().await.expect("a store");
    manager.job("report").run_now().await.expect("a store");
    tokio::time::sleep(Duration::from_secs(6)).await;

    assert_eq!(requested.load(Ordering::SeqCst), 1);
    let status = manager.job("report").status().await.expect("a store").expect("it is known");
    assert_eq!((status.slot, status.missed), (before.and_then(|before| before.slot), 0));
    assert!(!status.is_requested);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(requested.load(Ordering::SeqCst), 1, "once");
    drop(stop);
    within(LONG, "the end of the runner", running).await.expect("no panic").expect("it ends");
}

#[tokio::test(start_paused = true)]
async fn a_reset_job_runs_its_next_tick() {
    let manager = in_memory().await;
    let schedule = every(SECOND);
    assert!(run(&manager, "report", &schedule).await.is_some());

    manager.job("report").reset().await.expect("a store");

    assert_eq!(run(&manager, "report", &schedule).await, None, "ticks until now do not run");
    tokio::time::sleep(SECOND).await;
    assert!(run(&manager, "report", &schedule).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_history_has_the_last_fifty_runs() {
    let manager = in_memory().await;
    for _ in 0..60 {
        assert!(run(&manager, "report", &every(SECOND)).await.is_some());
        tokio::time::sleep(SECOND).await;
    }

    let history = manager.job("report").history(100).await.expect("a store");
    let status = manager.job("report").status().await.expect("a store").expect("it is known");

    assert_eq!((history.len(), status.runs), (50, 60));
    assert!(history.windows(2).all(|runs| runs[0].slot > runs[1].slot), "the latest first");
    assert!(history.iter().all(|run| run.outcome == RunOutcome::Succeeded && run.node == manager.id()));
    assert_eq!(manager.job("report").history(3).await.expect("a store").len(), 3);
    assert_eq!(manager.job("unknown").history(3).await.expect("a store"), []);
}

/// The ticks of a job whose period is shorter than its lease do not delay a request.
#[tokio::test(start_paused = true)]
async fn a_request_is_carried_out_between_frequent_ticks() {
    let manager = in_memory().await;
    let schedule = every(SECOND).lease(Duration::from_secs(5));
    let runner = Jobs::new(manager.clone()).add("report", schedule, |_| async { Ok::<_, Error>(()) });
    let running = tokio::spawn(runner.run_until(std::future::pending()));
    tokio::time::sleep(3 * SECOND).await;

    manager.job("report").run_now().await.expect("a store");
    tokio::time::sleep(Duration::from_secs(6)).await;

    let status = manager.job("report").status().await.expect("a store").expect("it is known");
    assert!(!status.is_requested);
    assert!(manager.job("report").history(20).await.expect("a store").iter().any(|run| run.is_requested));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn the_status_shows_the_active_run() {
    let manager = in_memory().await;
    let (job, schedule) = (manager.job("report"), every(SECOND).lease(LONG));
    job.pause().await.expect("a store");
    let before = job.status().await.expect("a store").expect("it is known");
    assert_eq!((before.slot, before.running), (None, None), "no tick has started");
    job.resume().await.expect("a store");
    tokio::time::sleep(SECOND).await;

    let shown = job.run(&schedule, async |tick| Ok::<_, Error>((tick, job.status().await?)));
    let (tick, shown) = shown.await.expect("a store").expect("it runs");
    let after = job.status().await.expect("a store").expect("it is known");

    let shown = shown.expect("it is known");
    let running = shown.running.expect("it runs");
    assert_eq!((running.node, running.remaining, running.slot), (manager.id(), LONG, tick.due()));
    assert_eq!((shown.slot, shown.runs, shown.succeeded), (Some(tick.due()), 1, None));
    assert!(after.succeeded >= before.known && after.succeeded.is_some(), "{after:?}");
    assert_eq!((after.running, after.slot), (None, Some(tick.due())));
}

#[tokio::test(start_paused = true)]
async fn a_requested_run_counts_no_missed_ticks() {
    let (locks, hour) = (TestLocks::new(), Duration::from_secs(3_600));
    let manager = locks.manager();
    until_before(&locks, hour, hour / 2).await;
    assert!(run(&manager, "report", &every(hour)).await.is_some());
    tokio::time::sleep(10 * hour).await;
    manager.job("report").run_now().await.expect("it is known");

    let ticks = ticks_of(&manager, every(hour), SECOND).await;

    let shown: Vec<_> = ticks.iter().map(|tick| (tick.is_requested(), tick.missed())).collect();
    assert_eq!(shown, [(true, 0)]);
    assert_eq!(manager.job("report").status().await.expect("a store").expect("it is known").missed, 0);
}
