//! Processes that are killed in the body.

use std::process::Command;
use std::time::Duration;

use dlock_runtime::Error;
use dlock_runtime::scheduled::{CatchUp, CrashedRun, FailedRun, Jobs, RunOutcome};
use dlock_runtime::testing::TestLocks;
use dlock_tests::{Moment, Worker};

use super::rules::invalid;
use super::{LONG_PERIOD, SECOND, every, redis, run, until_before};

const WORKER: &str = env!("CARGO_BIN_EXE_lock-worker");
const LEASE: Duration = Duration::from_secs(1);

/// Starts a run in a process and kills it, while another process has a runner, which leaves out the
/// jobs `off`. Returns the attempt that started, and that of the runner within three leases, with
/// its time since the kill.
async fn after_a_kill(on_crash: &str, off: &str) -> (String, Option<(String, Duration)>) {
    let server = redis();
    let mut dead = Worker::spawn(WORKER, &[server.url()]).await;
    let mut alive = Worker::spawn_as(Command::new(WORKER).arg(server.url()).env("DLOCK_JOBS_OFF", off)).await;
    dead.send(&format!("runner report {} {on_crash}", LEASE.as_millis()));
    let first = dead.event("started", "report").await.detail;
    alive.send(&format!("runner report {} {on_crash}", LEASE.as_millis()));
    // It has found that the tick is running.
    tokio::time::sleep(Duration::from_millis(200)).await;

    dead.kill();
    let killed = Moment::now();
    let second = tokio::time::timeout(3 * LEASE, alive.event("started", "report")).await;

    (first, second.ok().map(|event| (event.detail, event.at.since(killed))))
}

#[tokio::test]
async fn rerun_starts_a_killed_tick_again_within_its_lease() {
    let (first, second) = after_a_kill("rerun", "other").await;
    let (second, took) = second.expect("it starts again");

    let slot = first.split(' ').next().expect("a slot");
    assert_eq!(first, format!("{slot} 1"));
    assert_eq!(second, format!("{slot} 2"));
    assert!(took < LEASE + Duration::from_millis(250), "{took:?}");
}

#[tokio::test]
async fn skip_never_starts_a_killed_tick_again() {
    let (_, second) = after_a_kill("skip", "").await;

    assert!(second.is_none(), "{second:?}");
}

/// A process is frozen in a body for longer than its lease, and continues while another process
/// runs the tick again.
#[tokio::test]
async fn a_frozen_body_is_not_polled_after_its_successor_began() {
    let server = redis();
    let mut old = Worker::spawn(WORKER, &[server.url()]).await;
    let mut new = Worker::spawn(WORKER, &[server.url()]).await;
    old.send(&format!("runner report {} rerun", LEASE.as_millis()));
    let first = old.event("started", "report").await.detail;
    new.send(&format!("runner report {} rerun", LEASE.as_millis()));
    tokio::time::sleep(Duration::from_millis(200)).await;

    old.pause();
    let again = new.event("started", "report").await;
    old.resume();

    let slot = first.split(' ').next().expect("a slot");
    assert_eq!(again.detail, format!("{slot} 2"));
    let last_poll: u64 = old.event("dropped", "report").await.detail.parse().expect("a time");
    assert!(last_poll <= again.at.nanos(), "it was polled after its successor began");
}

#[tokio::test]
async fn a_runner_leaves_out_jobs_that_are_off() {
    let (_, second) = after_a_kill("rerun", "other, report").await;

    assert!(second.is_none(), "{second:?}");
}

/// A process crashes in the first of three missed ticks. Another one starts within its lease, or
/// has started before.
#[tokio::test(start_paused = true)]
async fn missed_ticks_after_a_crash_in_one_of_them_run() {
    for is_restart in [true, false] {
        let (locks, hour) = (TestLocks::new(), 3_600 * SECOND);
        let schedule = every(hour).lease(30 * SECOND).catch_up(CatchUp::all(10, 10 * hour));
        until_before(&locks, hour, hour / 2).await;
        let [crashes, runs] = <[_; 2]>::try_from(locks.fleet(2)).expect("there are two");
        let job = runs.manager().job("report");
        assert!(run(&runs.manager(), "report", &schedule).await.is_some());
        tokio::time::sleep(3 * hour).await;
        let hanging = Jobs::new(crashes.manager())
            .add("report", schedule.clone(), |_| std::future::pending::<Result<(), Error>>());
        tokio::spawn(crashes.run(hanging.run_until(std::future::pending())));
        tokio::time::sleep(SECOND).await;
        let runner = Jobs::new(runs.manager()).add("report", schedule, |_| async { Ok::<_, Error>(()) });
        if is_restart {
            crashes.crash();
            tokio::time::sleep(5 * SECOND).await;
        }
        let running = tokio::spawn(runner.run_until(std::future::pending()));
        tokio::time::sleep(5 * SECOND).await;
        crashes.crash();

        tokio::time::sleep(60 * SECOND).await;

        let mut history = job.history(9).await.expect("a store");
        history.retain(|run| run.outcome == RunOutcome::Succeeded);
        let ages =
            history.iter().rev().map(|run| history[0].slot.duration_since(run.slot).expect("it is newer"));
        assert_eq!(ages.collect::<Vec<_>>(), [3, 2, 1, 0].map(|hours| hours * hour), "restart: {is_restart}");
        running.abort();
    }
}

/// A runner finds at its tick that another replica runs it, with a lease of 60 s that began 9 s
/// before. It asks again when that lease ends. Its next check is 8 s later.
#[tokio::test(start_paused = true)]
async fn a_runner_follows_a_tick_of_another_replica() {
    let hour = 3_600 * SECOND;
    let once_more = every(hour).lease(60 * SECOND);
    let failed_once_more = once_more.clone().on_crash(CrashedRun::Skip).on_error(FailedRun::Retry(1));
    for (schedule, is_crash, outcome) in
        [(once_more, true, RunOutcome::Lost), (failed_once_more, false, RunOutcome::Failed)]
    {
        let locks = TestLocks::new();
        let fleet = locks.fleet(2);
        until_before(&locks, hour, 9 * SECOND).await;
        let (job, of_other) = (fleet[0].manager().job("report"), schedule.clone());
        tokio::spawn(fleet[0].run(async move {
            let fails_later = async |_| {
                tokio::time::sleep(10 * SECOND).await;
                Err::<(), _>(Error::from(invalid()))
            };
            job.run(&of_other, fails_later).await
        }));
        tokio::time::sleep(8 * SECOND).await;
        let (manager, body) = (fleet[1].manager(), |_| async { Ok::<_, Error>(()) });
        let runner = Jobs::new(manager.clone()).add("report", schedule, body);
        let running = tokio::spawn(runner.run_until(std::future::pending()));
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        if is_crash {
            fleet[0].crash();
        }

        tokio::time::sleep(60 * SECOND).await;

        let runs = manager.job("report").history(9).await.expect("a store");
        let outcomes: Vec<_> = runs.iter().map(|run| run.outcome).collect();
        assert_eq!(outcomes, [RunOutcome::Succeeded, outcome]);
        let late = runs[0].started.duration_since(runs[0].slot).expect("it starts after its tick");
        assert!((51 * SECOND..52 * SECOND).contains(&late), "{outcome:?}: {late:?}");
        running.abort();
    }
}

/// A runner that starts after the tick checks it again when the lease of its run would end.
#[tokio::test(start_paused = true)]
async fn a_runner_that_starts_later_repeats_a_crashed_tick_within_its_lease() {
    for (on_crash, attempts) in [(CrashedRun::Rerun, 2), (CrashedRun::Skip, 1)] {
        let locks = TestLocks::new();
        let fleet = locks.fleet(2);
        let schedule = every(LONG_PERIOD).lease(10 * SECOND).on_crash(on_crash);
        let (job, of_other) = (fleet[0].manager().job("report"), schedule.clone());
        tokio::spawn(fleet[0].run(async move {
            job.run(&of_other, async |_| std::future::pending::<Result<(), Error>>().await).await
        }));
        tokio::time::sleep(SECOND).await;
        let (manager, body) = (fleet[1].manager(), |_| async { Ok::<_, Error>(()) });
        let runner = Jobs::new(manager.clone()).add("report", schedule, body);
        let running = tokio::spawn(runner.run_until(std::future::pending()));
        tokio::time::sleep(8 * SECOND).await; // the lease is renewed, and ends between two checks

        fleet[0].crash();
        tokio::time::sleep(10 * SECOND + Duration::from_millis(250)).await;

        let status = manager.job("report").status().await.expect("a store").expect("it is known");
        assert_eq!(status.runs, attempts, "{on_crash:?}: {status:?}");
        running.abort();
    }
}
