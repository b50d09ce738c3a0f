//! The runner: missed ticks, panics, and its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock_runtime::scheduled::{CatchUp, FailedRun, JobRun, Jobs, Overlap, RunOutcome, Schedule, Tick};
use dlock_runtime::testing::{Replica, TestLocks};
use dlock_runtime::{Error, LockManager};
use dlock_tests::{until, within};
use futures_util::FutureExt;
use tokio::sync::{Notify, oneshot};

use super::rules::invalid;
use super::{LONG, LONG_PERIOD, SECOND, every, in_memory, redis, run, until_before, until_next};

/// Runs a job that records its ticks, for `time`.
pub(super) async fn ticks_of(manager: &LockManager, schedule: Schedule, time: Duration) -> Vec<Tick> {
    let ticks = Arc::new(Mutex::new(Vec::new()));
    let of_body = Arc::clone(&ticks);
    let runner = Jobs::new(manager.clone()).add("report", schedule, move |tick| {
        of_body.lock().expect("no panic").push(tick);
        async { Ok::<_, Error>(()) }
    });
    runner.run_until(tokio::time::sleep(time)).await.expect("it ends");
    ticks.lock().expect("no panic").clone()
}

/// The service is down for 100 ticks of 10 s.
#[tokio::test(start_paused = true)]
async fn missed_ticks_run_as_the_schedule_says() {
    let ten = Duration::from_secs(10);
    let all = CatchUp::all(10, Duration::from_secs(3_600));
    for (catch_up, expected) in [(CatchUp::None, 0), (CatchUp::Latest, 1), (all, 10)] {
        let manager = in_memory().await;
        until_next(ten).await; // so that the runner starts 4 s after a tick, and ends before the second
        let schedule = every(ten).catch_up(catch_up);
        let last = run(&manager, "report", &schedule).await.expect("it runs").slot();
        tokio::time::sleep(Duration::from_secs(1_004)).await;

        let ticks = ticks_of(&manager, schedule, ten + Duration::from_secs(1)).await;

        let slots: Vec<_> = ticks.iter().map(Tick::slot).collect();
        let (caught_up, current): (Vec<Tick>, Vec<Tick>) =
            ticks.iter().cloned().partition(|tick| tick.missed() == 0);
        assert_eq!((caught_up.len(), current.len()), (expected, 1), "{catch_up:?}: {ticks:?}");
        assert!(slots.windows(2).all(|slots| slots[1] - slots[0] == 10_000), "{catch_up:?}: {slots:?}");
        let missed = (current[0].slot() - last) / 10_000 - 1;
        assert!((99..=101).contains(&missed), "{missed}");
        assert_eq!(current[0].missed(), missed, "{catch_up:?}");
        let status = manager.job("report").status().await.expect("a store").expect("it is known");
        assert_eq!(status.missed, missed, "{catch_up:?}");
    }
}

/// Returns the manager of a process whose clock is that of the store.
fn replica(locks: &TestLocks) -> LockManager {
    locks.fleet(1)[0].manager()
}

/// Minutes that were due by the new schedule only, before it was deployed at half past.
#[tokio::test(start_paused = true)]
async fn ticks_before_a_schedule_was_deployed_are_not_missed() {
    let (hour, minute) = (Duration::from_secs(3_600), Duration::from_secs(60));
    for catch_up in [CatchUp::None, CatchUp::Latest, CatchUp::all(30, hour)] {
        let locks = TestLocks::new();
        until_before(&locks, hour, SECOND).await;
        let hourly = run(&locks.manager(), "report", &every(hour)).await.expect("it runs").slot();
        tokio::time::sleep(30 * minute + 21 * SECOND).await;
        let minutely = every(minute).catch_up(catch_up);

        let ticks = ticks_of(&replica(&locks), minutely.clone(), 2 * minute).await;

        let minutes = |ticks: &[Tick]| -> Vec<_> {
            ticks.iter().map(|tick| ((tick.slot() - hourly) / 60_000, tick.missed())).collect()
        };
        assert_eq!(minutes(&ticks), [(31, 0), (32, 0)], "{catch_up:?}");
        // Later ones are missed, and run as the schedule says.
        tokio::time::sleep(2 * minute).await;
        let ticks = ticks_of(&replica(&locks), minutely, minute).await;
        let expected = match catch_up {
            CatchUp::None => &[(35, 2)][..],
            CatchUp::Latest => &[(34, 0), (35, 2)],
            _ => &[(33, 0), (34, 0), (35, 2)],
        };
        assert_eq!(minutes(&ticks), expected, "{catch_up:?}");
    }
}

/// It ran at 02:00, and is deployed with 04:00 at 10:00.
#[tokio::test(start_paused = true)]
async fn a_daily_job_that_moves_does_not_run_again_that_day() {
    let (locks, hour) = (TestLocks::new(), Duration::from_secs(3_600));
    let daily = |expression| Schedule::cron(expression).expect("valid").catch_up(CatchUp::Latest);
    until_before(&locks, 24 * hour, Duration::ZERO).await;
    tokio::time::sleep(2 * hour).await;
    let first = run(&locks.manager(), "report", &daily("0 2 * * *")).await.expect("it runs").slot();
    tokio::time::sleep(8 * hour).await;

    let ticks = ticks_of(&replica(&locks), daily("0 4 * * *"), 24 * hour).await;

    let hours: Vec<_> = ticks.iter().map(|tick| ((tick.slot() - first) / 3_600_000, tick.missed())).collect();
    assert_eq!(hours, [(26, 0)]);
}

/// The old process runs every second minute for 20 minutes, and the new one each minute from half
/// past the ninth on.
#[tokio::test(start_paused = true)]
async fn a_rolling_deployment_of_a_schedule_runs_each_tick_once() {
    let (locks, minute) = (TestLocks::new(), Duration::from_secs(60));
    until_before(&locks, 10 * minute, 30 * SECOND).await;
    let schedule = |period| every(period).catch_up(CatchUp::all(100, 60 * minute));
    let (old, new) = (replica(&locks), replica(&locks));
    let deployed = async {
        tokio::time::sleep(10 * minute).await;
        ticks_of(&new, schedule(minute), 30 * minute).await
    };

    let (old, new) = tokio::join!(ticks_of(&old, schedule(2 * minute), 20 * minute), deployed);

    let mut ticks = [old, new].concat();
    ticks.sort_by_key(Tick::slot);
    let minutes: Vec<_> =
        ticks.iter().map(|tick| ((tick.slot() - ticks[0].slot()) / 60_000, tick.missed())).collect();
    let expected: Vec<_> = [0, 2, 4, 6, 8].into_iter().chain(10..40).map(|minute| (minute, 0)).collect();
    assert_eq!(minutes, expected);
}

/// No process has run for 40 minutes. The old one, whose bodies take a minute, reads which ticks
/// are missed, and then the new one starts.
#[tokio::test(start_paused = true)]
async fn no_missed_tick_of_the_old_schedule_starts_after_a_deployment() {
    let (locks, minute) = (TestLocks::new(), Duration::from_secs(60));
    let schedule = |period| every(period).catch_up(CatchUp::all(100, 60 * minute));
    until_before(&locks, 2 * minute, SECOND).await;
    let (old, new) = (replica(&locks), replica(&locks));
    assert!(run(&old, "report", &schedule(2 * minute)).await.is_some());
    tokio::time::sleep(40 * minute + 30 * SECOND).await;
    let slots = Arc::new(Mutex::new(Vec::new()));
    let of_body = Arc::clone(&slots);
    let runner = Jobs::new(old).add("report", schedule(2 * minute), move |tick| {
        of_body.lock().expect("no panic").push(tick.slot());
        async move {
            tokio::time::sleep(minute).await;
            Ok::<_, Error>(())
        }
    });
    let running = tokio::spawn(runner.run_until(std::future::pending()));
    tokio::time::sleep(20 * SECOND).await;
    let deployed = locks.fleet(1)[0].now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let deployed = u64::try_from(deployed).expect("a time of this era");

    let ticks = ticks_of(&new, schedule(minute), 20 * minute).await;

    running.abort();
    let old = slots.lock().expect("no panic").clone();
    let missed = old.iter().filter(|slot| **slot < deployed).count();
    assert_eq!(missed, 1, "the one that ran: {old:?}, deployed at {deployed}");
    let mut all: Vec<_> = ticks.iter().map(Tick::slot).chain(old.into_iter().skip(1)).collect();
    all.sort_unstable();
    assert!(all[0] < deployed + 60_000 && all.len() >= 10, "{all:?}");
}

/// The ticks of a schedule are awaited from the next millisecond on, so the start runs this one.
#[tokio::test(start_paused = true)]
async fn a_runner_that_starts_in_the_millisecond_of_a_tick_runs_it() {
    let ten = Duration::from_secs(10);
    let manager = in_memory().await;
    until_next(ten).await; // so that the first run is not early
    let schedule = every(ten).catch_up(CatchUp::Latest);
    let last = run(&manager, "report", &schedule).await.expect("it runs").slot();
    let started = manager.job("report").last_run().await.expect("a store").expect("it ran").started;
    let since_tick = started.duration_since(UNIX_EPOCH + Duration::from_millis(last)).expect("it was due");
    tokio::time::sleep(ten.saturating_sub(since_tick)).await;

    let ticks = ticks_of(&manager, schedule, SECOND).await;

    assert_eq!(ticks.iter().map(Tick::slot).collect::<Vec<_>>(), [last + 10_000]);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_body_fails_its_run_only() {
    let manager = in_memory().await;
    let runner = Jobs::new(manager.clone()).add("report", every(SECOND), |tick| async move {
        assert!(tick.slot() % 2_000 == 0, "this panic is part of the test");
        Ok::<_, Error>(())
    });

    runner.run_until(tokio::time::sleep(Duration::from_millis(6_500))).await.expect("it ends");

    let history = manager.job("report").history(10).await.expect("a store");
    assert!(history.len() >= 6, "{history:?}");
    let failed: Vec<_> = history.iter().filter(|run| run.outcome == RunOutcome::Failed).collect();
    assert!(failed.len().abs_diff(history.len() - failed.len()) <= 1, "every second run: {history:?}");
    let panicked = Some("the body panicked: this panic is part of the test");
    assert!(failed.iter().all(|run| run.error.as_deref() == panicked));
}

#[tokio::test(start_paused = true)]
async fn a_failed_tick_is_retried_by_the_runner() {
    let manager = in_memory().await;
    let schedule = every(Duration::from_secs(3_600)).on_error(FailedRun::Retry(2));
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let of_body = Arc::clone(&attempts);
    let runner = Jobs::new(manager.clone()).add("report", schedule, move |tick: Tick| {
        of_body.lock().expect("no panic").push(tick.attempt());
        async { Err::<(), _>("out of paper") }
    });

    runner.run_until(tokio::time::sleep(Duration::from_secs(3_700))).await.expect("it ends");

    // One tick or two are due, by the time of day.
    let attempts = attempts.lock().expect("no panic").clone();
    assert!(!attempts.is_empty() && attempts.chunks(3).all(|tick| tick == [1, 2, 3]), "{attempts:?}");
    let last = manager.job("report").last_run().await.expect("a store").expect("it ran");
    assert_eq!(last.error.as_deref(), Some("out of paper"));
}

/// Another client overwrites the record of one job while the body of another one runs.
#[tokio::test]
async fn a_job_that_fails_for_good_ends_the_others_as_a_shutdown_does() {
    let server = Arc::new(redis());
    let manager = LockManager::connect(&server.url()).await.expect("it runs");
    let every = Schedule::every(Duration::from_secs(1)).expect("a valid period");
    let (of_body, is_overwritten) = (Arc::clone(&server), Once::new());
    let overwrite = move || drop(of_body.call(&["SET", "dlock:job:broken##job", "x"]));
    let body = Arc::new(move || is_overwritten.call_once(&overwrite));
    let runner = Jobs::new(manager.clone());
    let runner = runner.add("broken", every.clone(), async |_| Ok::<_, Error>(()));
    let runner = runner.add("whole", every, move |_| {
        let body = Arc::clone(&body);
        async move {
            body();
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok::<_, Error>(())
        }
    });

    let ended = within(LONG, "the runner", runner.run_until(std::future::pending())).await;

    assert!(matches!(ended, Err(Error::WrongKind { .. })), "{ended:?}");
    let last = manager.job("whole").last_run().await.expect("a store").expect("it ran");
    assert_eq!(last.outcome, RunOutcome::Succeeded);
}

/// Its own ticks, which are due while its body runs, fail.
#[tokio::test]
async fn a_job_that_fails_for_good_lets_its_own_body_end() {
    let server = Arc::new(redis());
    let manager = LockManager::connect(&server.url()).await.expect("it runs");
    let (of_body, has_ended) = (Arc::clone(&server), Arc::new(AtomicBool::new(false)));
    let ends = Arc::clone(&has_ended);
    let runner = Jobs::new(manager).add("broken", every(SECOND), move |_| {
        let (server, ends) = (Arc::clone(&of_body), Arc::clone(&ends));
        async move {
            server.call(&["SET", "dlock:job:broken##job", "x"]);
            tokio::time::sleep(Duration::from_secs(3)).await;
            ends.store(true, Ordering::SeqCst);
            Ok::<_, Error>(())
        }
    });

    let ended = within(LONG, "the runner", runner.run_until(std::future::pending())).await;

    assert!(matches!(ended, Err(Error::WrongKind { .. })), "{ended:?}");
    assert!(has_ended.load(Ordering::SeqCst));
}

/// A tick that is due in the grace period starts no run, and ends none.
#[tokio::test(start_paused = true)]
async fn a_shutdown_gives_the_bodies_of_a_runner_its_grace_period() {
    let connect = async || LockManager::connect("memory://graceful").await.expect("no server is needed");
    let observer = connect().await;
    for (grace, outcome) in [(60, RunOutcome::Succeeded), (20, RunOutcome::Failed)] {
        let began = Arc::new(Notify::new());
        let begins = Arc::clone(&began);
        let manager = connect().await;
        let runner = Jobs::new(manager.clone()).grace(Duration::ZERO);
        let runner = runner.add("report", every(10 * SECOND), move |_| {
            begins.notify_one();
            async {
                tokio::time::sleep(Duration::from_secs(25)).await;
                Ok::<_, Error>(())
            }
        });
        let running = tokio::spawn(runner.run_until(std::future::pending()));
        within(LONG, "the body", began.notified()).await;

        manager.shutdown(Duration::from_secs(grace)).await;

        let ended = within(LONG, "the end of the runner", running).await.expect("no panic");
        assert!(matches!(ended, Err(Error::Shutdown { .. })), "{ended:?}");
        let last = observer.job("report").last_run().await.expect("a store").expect("it ran");
        assert_eq!(last.outcome, outcome, "{grace} s");
    }
}

/// Then the manager does not end the bodies, and the end of the runner does.
#[tokio::test(start_paused = true)]
async fn a_runner_ends_although_the_shutdown_of_its_manager_was_dropped() {
    let (manager, began) = (in_memory().await, Arc::new(Notify::new()));
    let (begins, (stop, is_stopped)) = (Arc::clone(&began), oneshot::channel::<()>());
    let runner = Jobs::new(manager.clone()).grace(5 * SECOND);
    let runner = runner.add("report", every(10 * SECOND), move |_| {
        begins.notify_one();
        std::future::pending::<Result<(), Error>>()
    });
    let running = tokio::spawn(runner.run_until(async { drop(is_stopped.await) }));
    within(LONG, "the body", began.notified()).await;

    assert!(manager.shutdown(LONG).now_or_never().is_none()); // and drops it
    tokio::time::sleep(20 * SECOND).await; // a tick has found that the manager is shut down
    assert!(!running.is_finished());
    drop(stop);

    let ended = within(6 * SECOND, "the end of the runner", running).await.expect("no panic");
    assert!(matches!(ended, Err(Error::Shutdown { .. })), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_ends_after_a_shutdown_although_a_body_blocks_its_thread() {
    let builder = LockManager::builder("memory://").response_timeout(Duration::from_millis(200));
    let manager = builder.connect().await.expect("no server is needed");
    let (began, (unblock, blocked)) = (Arc::new(Notify::new()), mpsc::channel::<()>());
    let (begins, blocked) = (Arc::clone(&began), Arc::new(Mutex::new(blocked)));
    let runner = Jobs::new(manager.clone()).add("report", every(SECOND), move |_| {
        let (begins, blocked) = (Arc::clone(&begins), Arc::clone(&blocked));
        async move {
            begins.notify_one();
            // The other tasks of its thread move to another one.
            let _ = tokio::task::block_in_place(|| blocked.lock().expect("no panic").recv());
            Ok::<_, Error>(())
        }
    });
    let running = tokio::spawn(runner.run_until(std::future::pending()));
    within(LONG, "the body", began.notified()).await;

    manager.shutdown(Duration::ZERO).await;

    let ended = within(LONG, "the end of the runner", running).await.expect("no panic");
    assert!(matches!(ended, Err(Error::Shutdown { .. })), "{ended:?}");
    drop(unblock);
}

/// The same lease as `guard` of the attribute binds.
#[tokio::test(start_paused = true)]
async fn a_body_without_the_attribute_has_the_lease_of_its_run() {
    let (manager, every) = (in_memory().await, Schedule::every(Duration::from_secs(60)).expect("valid"));
    let mut fences = Vec::new();
    for _ in 0..2 {
        let body = async |tick: Tick| {
            tick.lease().check()?;
            Ok::<_, Error>(tick)
        };
        let tick = manager.job("report").run(&every, body).await.expect("a store").expect("it runs");
        assert!(tick.lease().check().is_err(), "the run has ended");
        fences.push(tick.lease().fencing_token());
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    assert!(fences[0] < fences[1], "{fences:?}");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_runner_waits_for_its_bodies() {
    let manager = in_memory().await;
    let runner = Jobs::new(manager.clone()).add("report", every(SECOND), |_| async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok::<_, Error>(())
    });

    let ended = runner.run_until(tokio::time::sleep(Duration::from_millis(1_500)));
    within(LONG, "the end", ended).await.expect("it ends");

    let last = manager.job("report").last_run().await.expect("a store").expect("it ran");
    assert_eq!(
        (last.outcome, last.took >= Duration::from_secs(20)),
        (RunOutcome::Succeeded, true),
        "{last:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn bodies_are_dropped_after_the_grace_period() {
    let manager = in_memory().await;
    let runner = Jobs::new(manager.clone())
        .grace(SECOND)
        .add("report", every(SECOND), |_| async { std::future::pending::<Result<(), Error>>().await });

    runner.run_until(tokio::time::sleep(Duration::from_millis(1_500))).await.expect("it ends");
    tokio::time::sleep(SECOND).await;

    let last = manager.job("report").last_run().await.expect("a store").expect("it ended");
    assert_eq!(last.outcome, RunOutcome::Failed);
}

/// All replicas of a fleet delay a tick by the same time, which is at most the spread.
#[tokio::test(start_paused = true)]
async fn a_spread_delays_ticks_and_loses_none() {
    let manager = in_memory().await;
    let schedule = every(Duration::from_secs(10)).spread(Duration::from_secs(5));

    let ticks = ticks_of(&manager, schedule, Duration::from_secs(100)).await;

    assert!((9..=11).contains(&ticks.len()), "{ticks:?}");
    let delays: Vec<_> = manager
        .job("report")
        .history(50)
        .await
        .expect("a store")
        .iter()
        .map(|run| run.started.duration_since(run.slot).unwrap_or_default())
        .collect();
    assert!(delays.iter().all(|delay| *delay < Duration::from_millis(5_100)), "{delays:?}");
    assert!(delays.iter().any(|delay| *delay > Duration::from_millis(500)), "{delays:?}");
}

/// Some ticks are due before a restart, and their delays end after it. Each replica learns the
/// server's clock from its first reply.
#[tokio::test(start_paused = true)]
async fn a_tick_keeps_its_delay_across_a_restart() {
    let (hour, minute) = (Duration::from_secs(3_600), Duration::from_secs(60));
    for catch_up in [CatchUp::None, CatchUp::Latest] {
        for (ahead, behind) in [(0, 0), (5, 0), (0, 5)] {
            let locks = TestLocks::new();
            let first = locks.fleet(1)[0].manager();
            until_before(&locks, hour, SECOND).await;
            let schedule = every(hour).spread(hour / 2).catch_up(catch_up);
            let mut ticks = Vec::new();
            for _ in 0..60 {
                let replica = &locks.fleet(1)[0];
                if behind > 0 {
                    replica.set_clock_behind(behind * minute);
                } else {
                    replica.set_clock_ahead(ahead * minute);
                }
                ticks.extend(ticks_of(&replica.manager(), schedule.clone(), 7 * minute).await);
            }

            let what = format!("{catch_up:?}, {ahead} ahead, {behind} behind");
            let slots: Vec<_> = ticks.iter().map(Tick::slot).collect();
            assert_eq!((slots.len(), slots[6] - slots[0]), (7, 6 * 3_600_000), "{what}: {slots:?}");
            assert!(ticks.iter().all(|tick| tick.missed() == 0), "{what}: {ticks:?}");
            let history = first.job("report").history(50).await.expect("a store");
            let late = |run: &JobRun| run.started.duration_since(run.slot).unwrap_or_default();
            assert!(history.iter().filter(|run| late(run) > 7 * minute).count() > 2, "{what}: {history:?}");
        }
    }
}

/// Neither does one from before a change of the schedule.
#[tokio::test(start_paused = true)]
async fn a_delayed_tick_from_before_the_job_was_seen_does_not_run() {
    let hour = Duration::from_secs(3_600);
    for replaces in [false, true] {
        let locks = TestLocks::new();
        let manager = locks.fleet(1)[0].manager();
        until_before(&locks, hour, Duration::from_millis(1)).await;
        if replaces {
            run(&manager, "report", &every(2 * hour)).await.expect("it runs");
        }
        tokio::time::sleep(SECOND).await;

        let ticks = ticks_of(&manager, every(hour).spread(hour / 2), hour * 9 / 10).await;

        assert_eq!(ticks, [], "replaces another schedule: {replaces}");
    }
}

/// The bodies of the missed ticks take so long that four more ticks become due.
#[tokio::test(start_paused = true)]
async fn ticks_that_become_due_during_the_catch_up_run_too() {
    let manager = in_memory().await;
    let schedule = every(Duration::from_secs(10))
        .catch_up(CatchUp::all(10, Duration::from_secs(3_600)))
        .overlap(Overlap::QueueOne);
    run(&manager, "report", &schedule).await.expect("it runs");
    tokio::time::sleep(Duration::from_secs(104)).await;
    let runner = Jobs::new(manager.clone()).add("report", schedule, async |_| {
        tokio::time::sleep(Duration::from_secs(4)).await;
        Ok::<_, Error>(())
    });

    runner.run_until(tokio::time::sleep(Duration::from_secs(200))).await.expect("it ends");

    let history = manager.job("report").history(50).await.expect("a store");
    let slots: Vec<_> = history.iter().map(|run| run.slot).collect();
    assert!(slots.len() > 25, "{slots:?}");
    assert!(slots.windows(2).all(|slots| slots[0] - Duration::from_secs(10) == slots[1]), "{slots:?}");
}

/// The nights of a job are longer than the window, and some distances shorter than the spread.
#[tokio::test(start_paused = true)]
async fn a_cron_job_with_uneven_distances_keeps_running() {
    let manager = in_memory().await;
    let hour = Duration::from_secs(3_600);
    let by_day = Schedule::cron("0 9-17 * * *").expect("valid");

    let ticks = ticks_of(&manager, by_day.catch_up(CatchUp::all(10, hour)).spread(hour), 48 * hour).await;

    assert!((17..=19).contains(&ticks.len()), "{ticks:?}");
    let history = manager.job("report").history(50).await.expect("a store");
    let late = |run: &dlock_runtime::scheduled::JobRun| run.started.duration_since(run.slot);
    assert!(history.iter().all(|run| late(run).is_ok_and(|late| late <= hour)), "{history:?}");
}

#[tokio::test(start_paused = true)]
async fn no_retry_begins_after_the_manager_is_shut_down() {
    let connect = async || LockManager::connect("memory://retries").await.expect("no server is needed");
    let (a, b) = (connect().await, connect().await);
    let schedule = every(Duration::from_secs(3_600)).on_error(FailedRun::Retry(3));
    let began = Arc::new(Notify::new());
    let begins = Arc::clone(&began);
    let runner = Jobs::new(a.clone()).add("report", schedule, move |_| {
        begins.notify_one();
        async { Err::<(), _>("out of paper") }
    });
    let running = tokio::spawn(runner.run_until(std::future::pending()));
    let runs = async || b.job("report").status().await.expect("a store").map_or(0, |status| status.runs);
    began.notified().await;
    until("the failure is recorded", async || runs().await == 1).await;

    a.shutdown(Duration::ZERO).await;

    let ended = within(LONG, "the end of the runner", running).await.expect("no panic");
    assert!(matches!(ended, Err(Error::Shutdown { .. })), "{ended:?}");
    assert_eq!(runs().await, 1);
}

/// A tick waits for the active run of another process.
#[tokio::test(start_paused = true)]
async fn no_run_begins_after_the_end_of_the_runner() {
    let manager = in_memory().await;
    let (other, schedule) = (manager.job("report"), every(SECOND).overlap(Overlap::QueueOne));
    let long = other.run(&schedule, async |_| {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Ok::<_, Error>(())
    });
    let (ran, ticks) = tokio::join!(long, ticks_of(&manager, schedule.clone(), Duration::from_millis(3_500)));

    assert!(ran.expect("a store").is_some());
    assert_eq!(ticks, []);
    let status = manager.job("report").status().await.expect("a store").expect("it is known");
    assert_eq!((status.runs, status.running), (1, None));
}

/// The runner starts while the server is away: what is left from before runs all the same.
#[tokio::test]
async fn a_runner_starts_again_until_the_server_replies() {
    let server = redis();
    let connect = async || {
        let config = LockManager::builder(&server.url()).response_timeout(Duration::from_millis(200));
        config.connect().await.expect("the server takes managers")
    };
    let (a, b) = (connect().await, connect().await);
    let schedule = every(Duration::from_secs(86_400)).lease(Duration::from_secs(3_600));
    b.job("report").pause().await.expect("a store"); // an unknown job cannot be requested
    b.job("report").run_now().await.expect("it is known");
    server.pause();
    let runner = Jobs::new(a).add("report", schedule, async |_| Ok::<_, Error>(()));
    let running = tokio::spawn(runner.run_until(std::future::pending()));

    tokio::time::sleep(2 * SECOND).await;
    server.resume();

    until("the requested run", async || b.job("report").last_run().await.is_ok_and(|run| run.is_some()))
        .await;
    running.abort();
}

/// The outage begins 10 s before the tick, and lasts for 20 s.
#[tokio::test(start_paused = true)]
async fn a_tick_that_is_due_in_an_outage_runs_after_it() {
    let (locks, hour) = (TestLocks::new(), Duration::from_secs(3_600));
    let (manager, body) = (locks.manager(), |_| async { Ok::<_, Error>(()) });
    until_before(&locks, hour, 20 * SECOND).await;
    let runner = Jobs::new(manager.clone()).add("report", every(hour), body);
    let running = tokio::spawn(runner.run_until(std::future::pending()));

    tokio::time::sleep(10 * SECOND).await;
    let outage = locks.outage();
    tokio::time::sleep(20 * SECOND).await;
    outage.end();
    tokio::time::sleep(2 * SECOND).await;

    let last = manager.job("report").last_run().await.expect("a store").expect("it ran");
    let late = last.started.duration_since(last.slot).expect("it was due");
    assert!((10 * SECOND..12 * SECOND).contains(&late), "{late:?}");
    running.abort();
}

/// Makes a job known, lets three of its hourly ticks pass, and runs it for a minute. Returns the
/// hours before the last slot, and the seconds after the start, of each run.
async fn runs_of_three_missed<B, F>(locks: &TestLocks, schedule: Schedule, body: B) -> Vec<(u64, u64)>
where
    B: Fn(Tick) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let (manager, hour) = (locks.manager(), Duration::from_secs(3_600));
    until_before(locks, hour, hour / 2).await;
    assert!(run(&manager, "report", &schedule).await.is_some());
    tokio::time::sleep(3 * hour).await;
    let start = locks.fleet(1)[0].now();

    let runner = Jobs::new(manager.clone()).add("report", schedule, body);
    runner.run_until(tokio::time::sleep(60 * SECOND)).await.expect("it ends");

    let history = manager.job("report").history(50).await.expect("a store");
    let runs = history.iter().rev().skip(1).map(|run| {
        let hours = history[0].slot.duration_since(run.slot).expect("it is older").as_secs() / 3_600;
        (hours, run.started.duration_since(start).expect("it is later").as_secs())
    });
    runs.collect()
}

/// The outage lasts for 2 s, from the body of the first missed tick on.
#[tokio::test(start_paused = true)]
async fn missed_ticks_run_after_an_outage_between_them() {
    let locks = TestLocks::new();
    let of_body = locks.clone();
    let schedule = every(Duration::from_secs(3_600)).catch_up(CatchUp::all(10, LONG_PERIOD));
    let is_first = Arc::new(Once::new());

    let runs = runs_of_three_missed(&locks, schedule, move |_| {
        let (locks, is_first) = (of_body.clone(), Arc::clone(&is_first));
        async move {
            is_first.call_once(|| {
                tokio::spawn(async move {
                    let outage = locks.outage();
                    tokio::time::sleep(2 * SECOND).await;
                    outage.end();
                });
            });
            tokio::time::sleep(SECOND).await;
            Ok(())
        }
    });

    let runs = runs.await;
    assert_eq!(runs.iter().map(|(hours, _)| *hours).collect::<Vec<_>>(), [2, 1, 0], "{runs:?}");
}

#[tokio::test(start_paused = true)]
async fn a_missed_tick_that_fails_is_retried_before_newer_ones() {
    let schedule = every(Duration::from_secs(3_600)).catch_up(CatchUp::all(10, LONG_PERIOD));
    for (retries, expected) in [
        (FailedRun::Retry(3), vec![(2, 0), (2, 1), (1, 1), (1, 2), (0, 2), (0, 3)]),
        (FailedRun::Done, vec![(2, 0), (1, 0), (0, 0)]),
    ] {
        let (locks, schedule) = (TestLocks::new(), schedule.clone().on_error(retries));
        let runs = runs_of_three_missed(&locks, schedule, |tick| async move {
            if tick.attempt() == 1 { Err(Error::from(invalid())) } else { Ok(()) }
        });
        assert_eq!(runs.await, expected, "{retries:?}");
    }
}

/// The runners of a fleet wait for a missed tick of each other, until it has had its retries.
#[tokio::test(start_paused = true)]
async fn a_fleet_retries_a_missed_tick_before_newer_ones() {
    for (ticks, slots_run) in [(2, 2), (3, 3)] {
        let (locks, minute) = (TestLocks::new(), 60 * SECOND);
        let schedule = every(minute).catch_up(CatchUp::all(10, LONG_PERIOD)).on_error(FailedRun::Retry(3));
        let fleet = locks.fleet(3);
        until_before(&locks, minute, SECOND).await;
        assert!(run(&fleet[0].manager(), "report", &schedule).await.is_some());
        let outage = locks.outage();
        let running: Vec<_> = fleet
            .iter()
            .map(|replica| {
                let runner =
                    Jobs::new(replica.manager()).add("report", schedule.clone(), |tick: Tick| async move {
                        tokio::time::sleep(SECOND / 2).await;
                        if tick.attempt() < 4 { Err(Error::from(invalid())) } else { Ok(()) }
                    });
                tokio::spawn(runner.run_until(std::future::pending()))
            })
            .collect();
        tokio::time::sleep(ticks * minute + SECOND / 2).await;
        outage.end();

        tokio::time::sleep(minute / 2).await;

        let history = fleet[0].manager().job("report").history(50).await.expect("a store");
        let outcomes: Vec<_> = history.iter().rev().skip(1).map(|run| run.outcome).collect();
        let slots: Vec<_> = history.iter().rev().map(|run| run.slot).collect();
        let of_slot = [RunOutcome::Failed, RunOutcome::Failed, RunOutcome::Failed, RunOutcome::Succeeded];
        assert_eq!(outcomes, of_slot.repeat(slots_run), "{slots:?}");
        assert!(slots.is_sorted(), "{slots:?}");
        for running in running {
            running.abort();
        }
    }
}

/// Its process is frozen for longer than the lease.
#[tokio::test(start_paused = true)]
async fn a_missed_tick_that_loses_its_lease_runs_again_first() {
    let locks = TestLocks::new();
    let schedule = every(Duration::from_secs(3_600)).catch_up(CatchUp::all(10, LONG_PERIOD));
    let schedule = schedule.lease(10 * SECOND);

    let runs = runs_of_three_missed(&locks, schedule, |tick| async move {
        if tick.attempt() == 1 {
            tokio::time::advance(11 * SECOND).await;
            tokio::task::yield_now().await;
        }
        Ok(())
    });

    let runs = runs.await;
    assert_eq!(runs.iter().map(|(hours, _)| *hours).collect::<Vec<_>>(), [2, 2, 1, 1, 0, 0], "{runs:?}");
}

/// The runner runs the tick of an hour ago from ten minutes before the next one to ten after it.
#[tokio::test(start_paused = true)]
async fn a_timer_skips_no_tick_while_a_runner_runs_a_missed_one() {
    let (locks, minute) = (TestLocks::new(), 60 * SECOND);
    let schedule = every(60 * minute).catch_up(CatchUp::Latest);
    until_before(&locks, 60 * minute, 10 * minute).await;
    let (manager, timer) = (replica(&locks), replica(&locks));
    assert!(run(&manager, "report", &schedule).await.is_some());
    tokio::time::sleep(120 * minute).await;
    let runner = Jobs::new(manager.clone()).add("report", schedule.clone(), move |_| async move {
        tokio::time::sleep(20 * minute).await;
        Ok::<_, Error>(())
    });
    let running = tokio::spawn(runner.run_until(std::future::pending()));
    tokio::time::sleep(10 * minute + SECOND).await;

    assert_eq!(run(&timer, "report", &schedule).await, None);

    tokio::time::sleep(31 * minute).await;
    let history = manager.job("report").history(9).await.expect("a store");
    let hours = |slot: SystemTime| history[0].slot.duration_since(slot).expect("older").as_secs() / 3_600;
    assert_eq!(history.iter().map(|run| hours(run.slot)).collect::<Vec<_>>(), [0, 1, 3]);
    assert!(history.iter().all(|run| run.outcome == RunOutcome::Succeeded), "{history:?}");
    let status = manager.job("report").status().await.expect("a store").expect("it is known");
    assert_eq!(status.skips, 0);
    running.abort();
}

/// Another replica runs a missed tick for an hour.
#[tokio::test(start_paused = true)]
async fn a_runner_that_waits_for_a_missed_tick_ends_in_time() {
    let (locks, hour) = (TestLocks::new(), Duration::from_secs(3_600));
    let schedule = every(hour).catch_up(CatchUp::Latest);
    until_before(&locks, hour, hour / 2).await;
    assert!(run(&locks.manager(), "report", &schedule).await.is_some());
    tokio::time::sleep(hour).await;
    let [first, second] = [locks.manager(), locks.another_manager()].map(|manager| {
        Jobs::new(manager).add("report", schedule.clone(), move |_| async move {
            tokio::time::sleep(hour).await;
            Ok::<_, Error>(())
        })
    });
    let running = tokio::spawn(first.run_until(std::future::pending()));
    tokio::time::sleep(SECOND).await;
    let began = tokio::time::Instant::now();

    second.run_until(tokio::time::sleep(10 * SECOND)).await.expect("it ends");

    assert!(began.elapsed() < 11 * SECOND, "{:?}", began.elapsed());
    running.abort();
}

/// Returns the slots that ran within 42 s of a tick, in seconds after it, in a fleet of two. The
/// store is unavailable from 9 s to `until` ms after the tick, and the job is paused from 24.3 s to
/// 24.6 s after it, if it `pauses`.
async fn slots_after_outage(catch_up: CatchUp, body: Duration, until: u64, pauses: bool) -> Vec<u64> {
    let (locks, ten) = (TestLocks::new(), Duration::from_secs(10));
    let fleet = locks.fleet(2);
    until_before(&locks, ten, SECOND).await;
    let first = fleet[0].now() + SECOND;
    let reach = async |at: u64| {
        let left = (first + Duration::from_millis(at)).duration_since(fleet[0].now());
        tokio::time::sleep(left.expect("a later time")).await;
    };
    let of_replica = |replica: &Replica| {
        let body = move |_| async move {
            tokio::time::sleep(body).await;
            Ok::<_, Error>(())
        };
        let runner = Jobs::new(replica.manager()).add("report", every(ten).catch_up(catch_up), body);
        tokio::spawn(runner.run_until(std::future::pending()))
    };
    let running: Vec<_> = fleet.iter().map(of_replica).collect();

    reach(9_000).await;
    let outage = locks.outage();
    reach(until).await;
    outage.end();
    let manager = fleet[0].manager();
    let job = manager.job("report");
    if pauses {
        reach(24_300).await;
        job.pause().await.expect("a store");
        reach(24_600).await;
        job.resume().await.expect("a store");
    }
    reach(42_000).await;

    let history = job.history(9).await.expect("a store");
    for running in running {
        running.abort();
    }
    let after = |slot: SystemTime| (slot + SECOND / 2).duration_since(first).expect("a later slot").as_secs();
    history.iter().rev().map(|run| after(run.slot)).collect()
}

/// The outage ends after the second of its ticks. One runner runs the first then. In the second
/// case, that tick leaves the window while it runs.
#[tokio::test(start_paused = true)]
async fn a_tick_is_not_skipped_for_a_missed_one_that_runs_elsewhere() {
    let of_window = CatchUp::all(10, 12 * SECOND);
    for (catch_up, until) in [(CatchUp::Latest, 22_500), (of_window, 20_500)] {
        let slots = slots_after_outage(catch_up, 3 * SECOND, until, false).await;
        assert!(slots.starts_with(&[0, 10, 20, 30]), "{catch_up:?}: {slots:?}");
    }
}

/// The tick at 20 s, which is the latest missed one at 30 s, does not run after the pause.
#[tokio::test(start_paused = true)]
async fn a_tick_waits_for_a_missed_one_that_runs_after_a_pause() {
    let slots = slots_after_outage(CatchUp::Latest, Duration::from_millis(8_500), 22_500, true).await;
    assert_eq!(slots, [0, 10, 30]);
}

/// A runner asks for what is left once, and then once per lease.
#[tokio::test]
async fn the_start_of_a_runner_costs_one_round_trip() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let schedule = every(LONG_PERIOD).lease(LONG);
    assert!(run(&manager, "report", &schedule).await.is_some());
    let scripts = || server.command_count("eval") + server.command_count("evalsha");
    let before = scripts();

    let runner = Jobs::new(manager).add("report", schedule, |_| async { Ok::<_, Error>(()) });
    let has_asked = async {
        until("the request of the runner", async || scripts() > before).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    };
    runner.run_until(has_asked).await.expect("it ends");

    assert_eq!(scripts() - before, 1);
}

/// The lease is so long that no check of the runner repeats the tick earlier.
#[tokio::test(start_paused = true)]
async fn the_runner_pauses_for_a_second_before_a_retry() {
    let (locks, hour) = (TestLocks::new(), Duration::from_secs(3_600));
    let schedule = every(hour).lease(2 * hour).on_error(FailedRun::Retry(3));
    until_before(&locks, hour, SECOND).await;
    let manager = locks.fleet(1)[0].manager(); // with the clock of the store
    let runner = Jobs::new(manager.clone()).add("report", schedule, |_| async { Err::<(), _>("no paper") });

    runner.run_until(tokio::time::sleep(60 * SECOND)).await.expect("it ends");

    let runs = manager.job("report").history(9).await.expect("a store");
    let late: Vec<_> = runs.iter().map(|run| run.started.duration_since(run.slot)).collect();
    let late: Vec<_> = late.into_iter().map(|late| late.expect("it was due").as_secs()).collect();
    assert_eq!(late, [3, 2, 1, 0], "seconds, the latest first");
}
