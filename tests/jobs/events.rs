//! The events of jobs, and when they are emitted.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use dlock_runtime::scheduled::{CrashedRun, FailedRun, Jobs, Overlap};
use dlock_runtime::testing::TestLocks;
use dlock_runtime::{Error, LockManager};
use dlock_tests::{RedisServer, WallClock};
use tracing::field::{Field, Visit};
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing::{Dispatch, Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::rules::{Text, invalid};
use super::{SECOND, every, in_memory, permitted, run, until_before};

const HOUR: Duration = Duration::from_secs(3_600);

/// A subscriber in addition to those of threads. If a process has only one, `tracing` disables an
/// event that a thread without a subscriber emits first, for all threads.
static OTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));

/// The events of this thread so far: their names, and their fields.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<(&'static str, Fields)>>>);

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Events {
    /// Records events on this thread while the returned guard exists.
    fn record() -> (Self, DefaultGuard) {
        LazyLock::force(&OTHER);
        let events = Self::default();
        let log = tracing_subscriber::registry().with(events.clone());
        (events, tracing::subscriber::set_default(log))
    }

    /// Returns the field `field` of each event `name`, and forgets all events.
    fn take(&self, name: &str, field: &str) -> Vec<String> {
        let events = std::mem::take(&mut *self.0.lock().expect("no panic"));
        events.into_iter().filter(|(of, _)| *of == name).map(|(_, fields)| fields.0[field].clone()).collect()
    }
}

impl<S: Subscriber> Layer<S> for Events {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = event.metadata().level().to_string();
        let mut fields = Fields(BTreeMap::from([("level", level)]));
        event.record(&mut fields);
        self.0.lock().expect("no panic").push((event.metadata().name(), fields));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_is_logged_with_its_outcome() {
    let (events, _log) = Events::record();
    let manager = in_memory().await;
    let (job, schedule) = (manager.job("report"), every(HOUR * 24 * 366));

    assert!(run(&manager, "report", &schedule).await.is_some());
    assert_eq!(events.take("dlock.job_finished", "job.outcome"), ["succeeded"]);
    assert!(run(&manager, "report", &schedule).await.is_none());
    assert_eq!(events.take("dlock.job_skipped", "lock.reason"), ["done"]);

    let fails = async |_| Err::<(), _>(Error::from(invalid()));
    assert!(manager.job("fails").run(&schedule, fails).await.is_err());
    assert_eq!(events.take("dlock.job_finished", "job.outcome"), ["failed"]);
    let fails_in_silence = async |_| Err::<(), _>(Text(String::new()));
    assert!(manager.job("silent").run(&schedule, fails_in_silence).await.is_err());
    assert_eq!(events.take("dlock.job_finished", "level"), ["WARN"]);
    job.pause().await.expect("a store");
    assert!(run(&manager, "report", &schedule).await.is_none());
    assert_eq!(events.take("dlock.job_skipped", "lock.reason"), ["paused"]);
}

#[tokio::test(start_paused = true)]
async fn missed_ticks_are_logged_by_the_next_one() {
    let (events, _log) = Events::record();
    let (manager, schedule) = (in_memory().await, every(HOUR));
    let missed = async |passed: u32| {
        tokio::time::sleep(HOUR * passed).await;
        assert!(run(&manager, "report", &schedule).await.is_some());
        events.take("dlock.job_missed", "missed")
    };

    assert_eq!(missed(0).await, [""; 0]);
    assert_eq!(missed(1).await, [""; 0]);
    assert_eq!(missed(5).await, ["4"]);
    assert_eq!(missed(1).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_request_with_another_schedule_is_logged() {
    let (events, _log) = Events::record();
    let manager = in_memory().await;
    let other = async |period: Duration| {
        tokio::time::sleep(HOUR).await;
        assert!(run(&manager, "report", &every(period)).await.is_some());
        events.take("dlock.schedule_mismatched", "other")
    };

    assert_eq!(other(SECOND).await, [""; 0], "no replica has run it");
    assert_eq!(other(SECOND).await, [""; 0]);
    assert_eq!(other(2 * SECOND).await, ["every 1000 ms"]);
    assert_eq!(other(2 * SECOND).await, [""; 0], "it is that of the last request");
}

/// The tick of the new schedule is older than that of the old one, so no call runs until the next.
#[tokio::test(start_paused = true)]
async fn a_changed_schedule_is_logged_once_unless_others_ask_with_the_old_one() {
    let (events, _log) = Events::record();
    let locks = TestLocks::new();
    until_before(&locks, 2 * HOUR, SECOND).await;
    tokio::time::sleep(HOUR).await;
    let (manager, old, new) = (locks.manager(), every(HOUR), every(2 * HOUR));
    let call = async |schedule| {
        let slot = run(&manager, "report", schedule).await.map(|tick| tick.slot());
        (slot, events.take("dlock.schedule_mismatched", "other").len())
    };
    assert!(matches!(call(&old).await, (Some(_), 0)));

    assert_eq!(call(&new).await, (None, 1));
    for _ in 0..50 {
        tokio::time::sleep(60 * SECOND).await;
        assert_eq!(call(&new).await, (None, 0), "no other process asks");
    }
    assert_eq!(call(&old).await, (None, 1));
    assert_eq!(call(&new).await, (None, 1));
    assert_eq!(call(&new).await, (None, 0));
    // Callers that choose slots have no schedule.
    let job = manager.job("report");
    let chosen = job.run_slot(UNIX_EPOCH + HOUR, &old, async |_| Ok::<_, Error>(())).await;
    assert_eq!(chosen.expect("a store"), None);
    assert_eq!(call(&new).await, (None, 0));
}

/// The old process has stopped. The start of the new one is its first call, and ticks follow.
#[tokio::test(start_paused = true)]
async fn a_runner_that_starts_with_another_schedule_logs_it_once() {
    let (events, _log) = Events::record();
    let locks = TestLocks::new();
    let others = async |period| {
        let manager = locks.fleet(1)[0].manager();
        let runner = Jobs::new(manager).add("report", every(period), |_| async { Ok::<_, Error>(()) });
        runner.run_until(tokio::time::sleep(5 * HOUR)).await.expect("it ends");
        events.take("dlock.schedule_mismatched", "other")
    };

    assert_eq!(others(HOUR).await, [""; 0], "no replica has run it");
    assert_eq!(others(HOUR).await, [""; 0]);
    assert_eq!(others(2 * HOUR).await, ["every 3600000 ms"]);
    assert_eq!(others(2 * HOUR).await, [""; 0], "it is that of the last request");
}

/// The call that waits asks five times per second.
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_logs_another_schedule_once() {
    let (events, _log) = Events::record();
    let locks = TestLocks::new();
    until_before(&locks, HOUR, SECOND).await;
    let (manager, old) = (locks.manager(), every(HOUR));
    let job = manager.job("report");
    let long = job.run(&old, async |_| {
        tokio::time::sleep(90 * SECOND).await;
        Ok::<_, Error>(())
    });
    let waits = async || {
        tokio::time::sleep(61 * SECOND).await;
        let tick = run(&manager, "report", &every(60 * SECOND).overlap(Overlap::QueueOne)).await;
        assert!(tick.is_some(), "it waits for the end of the other run");
    };
    let asks_in_between = async || {
        tokio::time::sleep(70 * SECOND).await;
        assert!(run(&manager, "report", &old).await.is_none());
    };

    let (ran, (), ()) = tokio::join!(long, waits(), asks_in_between());

    assert_eq!(ran.expect("a store"), Some(()));
    let others = events.take("dlock.schedule_mismatched", "other");
    assert_eq!(others, ["every 3600000 ms", "every 60000 ms"], "one for each call");
}

/// An operator resets the job while it runs.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_that_was_replaced_is_logged() {
    let (events, _log) = Events::record();
    let (manager, schedule) = (in_memory().await, every(SECOND));
    let job = manager.job("report");
    assert!(run(&manager, "report", &schedule).await.is_some());
    assert_eq!(events.take("dlock.job_end_ignored", "lock.key"), [""; 0]);
    tokio::time::sleep(SECOND).await;

    let ran = job.run(&schedule, async |_| job.reset().await).await;

    assert!(ran.expect("the body has succeeded").is_some());
    assert_eq!(events.take("dlock.job_end_ignored", "lock.key"), ["job:report"]);
}

/// A slot that is ahead makes the ticks before it late, however long the period is.
#[tokio::test(start_paused = true)]
async fn a_slot_ahead_that_makes_a_tick_late_is_logged() {
    let early = 10 * SECOND; // slots may start so early
    for (ahead, period, is_logged) in [
        (early, HOUR, false),
        (early + Duration::from_millis(1), HOUR, true),
        (HOUR, HOUR, true),
        (2 * HOUR, HOUR, true),
        (2 * HOUR, 24 * HOUR, true),
    ] {
        let (events, _log) = Events::record();
        let locks = TestLocks::new();
        let replica = &locks.fleet(1)[0];
        let job = replica.manager().job("report");
        let slot = replica.now() + ahead;
        let body = async |_| Ok::<_, Error>(());
        for _ in 0..2 {
            job.run_slot(slot, &every(SECOND), body).await.expect("a store");
        }
        assert_eq!(events.take("dlock.job_slot_ahead", "ahead_ms"), [""; 0], "callers choose such slots");

        assert_eq!(run(&replica.manager(), "report", &every(period)).await, None);

        let logged = events.take("dlock.job_slot_ahead", "ahead_ms");
        let expected = is_logged.then(|| ahead.as_millis().to_string());
        assert_eq!(logged, Vec::from_iter(expected), "{ahead:?} ahead");
    }
}

/// A slot that was skipped makes the ticks before it late, as one that started does.
#[tokio::test(start_paused = true)]
async fn a_skipped_slot_ahead_that_makes_a_tick_late_is_logged() {
    let (events, _log) = Events::record();
    let locks = TestLocks::new();
    let replica = &locks.fleet(1)[0];
    let (manager, ahead) = (replica.manager(), 9 * HOUR);
    let job = manager.job("report");
    assert!(run(&manager, "report", &every(HOUR)).await.is_some());
    job.pause().await.expect("a store");
    let skipped = job.run_slot(replica.now() + ahead, &every(SECOND), async |_| Ok::<_, Error>(())).await;
    assert_eq!(skipped.expect("a store"), None);
    job.resume().await.expect("a store");
    events.take("dlock.job_slot_ahead", "ahead_ms");
    tokio::time::sleep(HOUR).await;

    assert_eq!(run(&manager, "report", &every(HOUR)).await, None);

    assert_eq!(events.take("dlock.job_slot_ahead", "ahead_ms"), [(8 * HOUR).as_millis().to_string()]);
    job.reset().await.expect("a store");
    tokio::time::sleep(HOUR).await;
    assert!(run(&manager, "report", &every(HOUR)).await.is_some(), "it is cleared");
}

/// The clock of the server is ahead while an operator resumes the job: by many periods, and by a
/// part of one.
#[tokio::test]
async fn a_job_that_resumed_at_a_wrong_time_is_logged() {
    let clock = match WallClock::new() {
        Ok(clock) => clock,
        Err(reason) => return println!("SKIPPED: a server whose clock steps: {reason}"),
    };
    let (events, _log) = Events::record();
    let server = permitted(RedisServer::builder().wall_clock(&clock).start());
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    for (name, period, hours) in [("frequent", SECOND, 30 * 24_i64), ("daily", 24 * HOUR, 2)] {
        let job = manager.job(name);
        job.pause().await.expect("a store");
        clock.step_to(hours * 3_600);
        job.resume().await.expect("a store");
        clock.step_to(0);
        job.status().await.expect("a store"); // the reply has the time
        events.take("dlock.job_slot_ahead", "ahead_ms");

        assert_eq!(run(&manager, name, &every(period)).await, None, "{name}");

        let ahead = events.take("dlock.job_slot_ahead", "ahead_ms");
        let [ahead] = &ahead[..] else { panic!("one event for {name}: {ahead:?}") };
        let ahead: u64 = ahead.parse().expect("a number of milliseconds");
        assert!(ahead.abs_diff(hours.unsigned_abs() * 3_600_000) < 600_000, "{name}: {ahead}");
    }
}

/// One process takes its local time for UTC.
#[tokio::test(start_paused = true)]
async fn a_chosen_slot_that_is_late_for_one_far_ahead_is_logged() {
    let early = 10 * SECOND; // slots may start so early
    for (ahead, is_logged) in [(early, false), (early + Duration::from_millis(1), true), (9 * HOUR, true)] {
        let (events, _log) = Events::record();
        let locks = TestLocks::new();
        let replica = &locks.fleet(1)[0];
        let job = replica.manager().job("import");
        let call = async |slot| {
            let ran =
                job.run_slot(slot, &every(SECOND), async |_| Ok::<_, Error>(())).await.expect("a store");
            (ran, events.take("dlock.job_slot_ahead", "ahead_ms"))
        };
        let now = replica.now();
        assert_eq!(call(now + ahead).await, (Some(()), vec![]));
        assert_eq!(call(now + ahead).await, (None, vec![]), "it has run, and is not late");

        let (ran, logged) = call(now).await;

        let expected = is_logged.then(|| ahead.as_millis().to_string());
        assert_eq!((ran, logged), (None, Vec::from_iter(expected)), "{ahead:?} ahead");
        tokio::time::sleep(ahead).await;
        assert_eq!(call(replica.now() + SECOND).await, (Some(()), vec![]), "then, slots run again");
    }
}

/// Another replica runs the tick, which runs again neither after a failure nor after a crash.
#[tokio::test(start_paused = true)]
async fn a_runner_that_may_not_repeat_a_tick_asks_once() {
    let (events, _log) = Events::record();
    let locks = TestLocks::new();
    let (manager, schedule) = (locks.manager(), every(HOUR).lease(60 * SECOND).on_crash(CrashedRun::Skip));
    until_before(&locks, HOUR, 9 * SECOND).await;
    let (job, of_other) = (manager.job("report"), schedule.clone());
    let other = tokio::spawn(async move {
        let body = async |_| {
            tokio::time::sleep(20 * SECOND).await;
            Ok::<_, Error>(())
        };
        job.run(&of_other, body).await
    });
    tokio::time::sleep(SECOND).await;
    let runner = Jobs::new(manager).add("report", schedule, |_| async { Ok::<_, Error>(()) });

    runner.run_until(tokio::time::sleep(600 * SECOND)).await.expect("it ends");

    assert_eq!(events.take("dlock.job_skipped", "lock.reason"), ["running"]);
    assert_eq!(other.await.expect("no panic").expect("a store"), Some(()));
}

#[tokio::test(start_paused = true)]
async fn a_runner_does_not_ask_again_after_the_last_failure() {
    for (on_error, runs) in [(FailedRun::Done, 1), (FailedRun::Retry(1), 2)] {
        let (events, _log) = Events::record();
        let locks = TestLocks::new();
        let manager = locks.fleet(1)[0].manager(); // with the clock of the store
        until_before(&locks, HOUR, SECOND).await;
        let body = |_| async { Err::<(), _>("out of paper") };
        let runner = Jobs::new(manager.clone()).add("report", every(HOUR).on_error(on_error), body);

        runner.run_until(tokio::time::sleep(600 * SECOND)).await.expect("it ends");

        assert_eq!(events.take("dlock.job_skipped", "lock.reason"), [""; 0], "{on_error:?}");
        assert_eq!(manager.job("report").history(9).await.expect("a store").len(), runs, "{on_error:?}");
    }
}

/// A queue may keep messages for weeks.
#[tokio::test(start_paused = true)]
async fn a_slot_that_is_delivered_again_after_a_year_does_not_run() {
    let (events, _log) = Events::record();
    let locks = TestLocks::new();
    let fleet = locks.fleet(1);
    let run = async |slot| {
        let job = fleet[0].manager().job("import");
        job.run_slot(slot, &every(SECOND), async |_| Ok::<_, Error>(())).await.expect("a store")
    };
    let first = fleet[0].now();

    assert_eq!(run(first).await, Some(()));
    tokio::time::sleep(HOUR * 24 * 365).await;
    events.take("dlock.job_skipped", "lock.reason");
    assert_eq!(run(first).await, None);

    assert_eq!(events.take("dlock.job_skipped", "lock.reason"), ["done"]);
    assert_eq!(run(fleet[0].now()).await, Some(()), "a new slot");
}
