//! The rules of a record, over memory and over Redis.

use std::time::{Duration, SystemTime};

use dlock_runtime::scheduled::{FailedRun, Overlap, RunOutcome, Schedule, Tick};
use dlock_runtime::{Error, LockManager, LossCause};
use dlock_tests::resp::Reply;
use dlock_tests::{Proxy, RedisServer, until};
use tokio::sync::Notify;

use super::{LONG_PERIOD, SECOND, every, in_memory, redis, run};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Two managers of one store, over memory and over Redis.
async fn on_each_store(test: impl AsyncFn(LockManager, LockManager)) {
    let memory = in_memory().await;
    test(memory.clone(), memory).await;
    let server = redis();
    let connect = async || LockManager::connect(&server.url()).await.expect("the server takes managers");
    test(connect().await, connect().await).await;
}

/// A slot that started early keeps its start through a reset, although it is ahead.
#[tokio::test]
async fn a_reset_keeps_a_slot_that_started_early() {
    on_each_store(async |a, b| {
        let slot = SystemTime::now() + Duration::from_secs(5);
        let run = async |manager: &LockManager| {
            manager
                .job("import")
                .run_slot(slot, &rare(), async |_| Ok::<_, Error>(()))
                .await
                .expect("a store")
        };

        assert_eq!(run(&a).await, Some(()));
        b.job("import").reset().await.expect("a store");
        assert_eq!(run(&b).await, None);
    })
    .await;
}

/// Returns a schedule whose tick does not end soon.
fn rare() -> Schedule {
    every(LONG_PERIOD)
}

#[tokio::test]
async fn one_call_of_a_tick_runs_it() {
    on_each_store(async |a, b| {
        let first = run(&a, "report", &rare()).await.expect("it runs");

        assert_eq!((first.attempt(), first.missed(), first.is_requested()), (1, 0, false));
        assert!(first.due() <= SystemTime::now() + Duration::from_secs(10));
        assert_eq!(run(&a, "report", &rare()).await, None);
        assert_eq!(run(&b, "report", &rare()).await, None);
        assert!(run(&b, "another report", &rare()).await.is_some());
    })
    .await;
}

#[tokio::test]
async fn calls_at_once_run_a_tick_once() {
    on_each_store(async |a, b| {
        let (schedule, calls) = (rare(), 0..20);
        let each = calls.map(|call| run(if call % 2 == 0 { &a } else { &b }, "report", &schedule));

        let ran = futures_util::future::join_all(each).await.into_iter().flatten().count();

        assert_eq!(ran, 1);
    })
    .await;
}

#[tokio::test]
async fn a_failed_tick_runs_again_as_often_as_allowed() {
    on_each_store(async |a, b| {
        let schedule = rare().on_error(FailedRun::Retry(2));
        let fail = async |manager: &LockManager| {
            let body = async |_| Err::<(), _>(Error::from(invalid()));
            manager.job("report").run(&schedule, body).await
        };

        assert!(fail(&a).await.is_err());
        assert!(fail(&b).await.is_err());
        assert_eq!(run(&a, "report", &schedule).await.map(|tick| tick.attempt()), Some(3));
        assert_eq!(run(&b, "report", &schedule).await, None);

        let outcomes: Vec<_> =
            a.job("report").history(10).await.expect("a store").iter().map(|run| run.outcome).collect();
        assert_eq!(outcomes, [RunOutcome::Succeeded, RunOutcome::Failed, RunOutcome::Failed]);
    })
    .await;
}

/// Returns an error for bodies that fail.
pub(super) fn invalid() -> dlock_runtime::InvalidKey {
    dlock_runtime::LockKey::new("").expect_err("an empty key is invalid")
}

#[tokio::test]
async fn the_last_error_is_kept_up_to_512_bytes() {
    on_each_store(async |a, b| {
        let body = async |_| Err::<(), Text>(Text("€|é".repeat(200)));
        assert!(a.job("report").run(&rare(), body).await.is_err());

        let last = b.job("report").last_run().await.expect("a store").expect("it ran");

        let error = last.error.expect("it failed");
        assert_eq!((error.len(), &error[..6]), (510, "€|é"), "whole characters");
        assert_eq!((last.node, last.outcome), (a.id(), RunOutcome::Failed));
    })
    .await;
}

#[derive(Debug)]
pub(super) struct Text(pub(super) String);

impl From<Error> for Text {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[tokio::test]
async fn a_dropped_call_has_failed() {
    on_each_store(async |a, b| {
        let job = a.job("report");
        let schedule = rare();
        let entered = Notify::new();
        let body = async |_| -> Result<(), Error> {
            entered.notify_one();
            std::future::pending().await
        };

        tokio::select! {
            _ = job.run(&schedule, body) => panic!("its body is pending"),
            () = entered.notified() => {}
        }

        until("the end is reported", async || b.job("report").last_run().await.expect("a store").is_some())
            .await;
        let last = b.job("report").last_run().await.expect("a store").expect("it ran");
        let dropped = Some("the call was dropped before its end");
        assert_eq!((last.outcome, last.error.as_deref()), (RunOutcome::Failed, dropped));
    })
    .await;
}

#[tokio::test]
async fn slots_of_a_caller_only_increase() {
    on_each_store(async |a, _| {
        let run = async |seconds: u64| {
            let slot = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            a.job("import").run_slot(slot, &rare(), async |tick| Ok::<_, Error>(tick.slot())).await
        };

        assert_eq!(run(100).await.expect("a store"), Some(100_000));
        assert_eq!(run(100).await.expect("a store"), None);
        assert_eq!(run(99).await.expect("a store"), None);
        assert_eq!(run(101).await.expect("a store"), Some(101_000));
    })
    .await;
}

#[tokio::test]
async fn a_tick_costs_one_round_trip_elsewhere_and_two_here() {
    let server = redis();
    let connect = async || LockManager::connect(&server.url()).await.expect("the server takes managers");
    let (a, b) = (connect().await, connect().await);
    let scripts = || server.command_count("eval") + server.command_count("evalsha");
    assert!(run(&a, "warm up", &rare()).await.is_some() && run(&b, "warm up", &rare()).await.is_none());

    let before = scripts();
    assert!(run(&a, "report", &rare()).await.is_some());
    let here = scripts() - before;
    assert!(run(&b, "report", &rare()).await.is_none());
    let elsewhere = scripts() - before - here;

    assert_eq!((here, elsewhere), (2, 1));
}

/// A full server rejects new runs. It neither ends a run nor rejects its result.
#[tokio::test]
async fn a_full_server_does_not_end_a_run() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let (job, schedule) = (manager.job("report"), rare().lease(SECOND));

    let ran = job.run(&schedule, async |_| {
        server.call(&["CONFIG", "SET", "maxmemory", "1"]);
        tokio::time::sleep(3 * SECOND).await;
        Ok::<_, Error>(7)
    });
    assert_eq!(ran.await.expect("it keeps its lease"), Some(7));

    let outcomes: Vec<_> = job.history(9).await.expect("a store").iter().map(|run| run.outcome).collect();
    assert_eq!(outcomes, [RunOutcome::Succeeded]);
    let new = manager.job("new").run(&schedule, async |_| Ok::<_, Error>(())).await;
    assert!(matches!(new, Err(Error::Unavailable { .. })), "{new:?}");
}

/// Slots of a caller are not instants of a schedule.
#[tokio::test]
async fn slots_of_a_caller_miss_none() {
    on_each_store(async |a, _| {
        let now = SystemTime::now();
        let run = async |ahead: Duration| {
            let body = async |tick: Tick| Ok::<_, Error>(tick.missed());
            a.job("import").run_slot(now + ahead, &every(SECOND), body).await.expect("a store")
        };

        assert_eq!(run(Duration::ZERO).await, Some(0));
        assert_eq!(run(SECOND * 60).await, Some(0));

        assert_eq!(a.job("import").status().await.expect("a store").expect("it is known").missed, 0);
    })
    .await;
}

/// The script of Redis has the same rule for its clock as memory.
#[tokio::test]
async fn ticks_before_a_schedule_was_seen_are_not_missed() {
    on_each_store(async |a, b| {
        let missed = async || run(&b, "report", &every(SECOND)).await.map(|tick| tick.missed());
        assert!(run(&a, "report", &rare()).await.is_some());
        tokio::time::sleep(3 * SECOND).await;

        assert_eq!(missed().await, Some(0), "its first call");
        tokio::time::sleep(3 * SECOND).await;

        let later = missed().await.expect("it is due");
        assert!((1..=3).contains(&later), "{later}");
    })
    .await;
}

/// Two callers compute the slot of one event some milliseconds apart.
#[tokio::test]
async fn slots_within_the_min_hold_of_a_run_do_not_start() {
    on_each_store(async |a, b| {
        let (long, short) = (rare().min_hold(60 * SECOND), rare().min_hold(HOLD));
        let now = SystemTime::now();
        let run = async |manager: &LockManager, millis: u64, schedule: &Schedule| {
            let slot = now + Duration::from_millis(millis);
            let body = async |tick: Tick| Ok::<_, Error>(tick.attempt());
            manager.job("import").run_slot(slot, schedule, body).await.expect("a store")
        };

        assert_eq!(run(&a, 0, &long).await, Some(1));
        assert_eq!(run(&b, 3, &long).await, None, "the same event");
        tokio::time::sleep(HOLD).await;
        assert_eq!(run(&b, 3, &short).await, None, "it was skipped");
        assert_eq!(run(&b, 700, &short).await, Some(1));

        assert_eq!(run(&a, 703, &short.clone().overlap(Overlap::QueueOne)).await, Some(1));
        let runs = a.job("import").history(2).await.expect("a store");
        let apart = runs[0].started.duration_since(runs[1].started).expect("they are in order");
        assert!(apart >= HOLD, "{apart:?}");
        assert_eq!(run(&b, 704, &rare()).await, Some(1), "a schedule without a `min_hold`");
        assert_eq!(a.job("import").status().await.expect("a store").expect("it is known").skips, 1);
    })
    .await;
}

const HOLD: Duration = Duration::from_millis(600);

#[tokio::test]
async fn a_failed_tick_may_run_again_within_its_min_hold() {
    on_each_store(async |a, _| {
        let schedule = rare().min_hold(60 * SECOND).on_error(FailedRun::Retry(1));
        let failed = a.job("report").run(&schedule, async |_| Err::<(), _>(Error::from(invalid()))).await;

        assert!(failed.is_err());
        assert_eq!(run(&a, "report", &schedule).await.map(|tick| tick.attempt()), Some(2));
    })
    .await;
}

#[tokio::test]
async fn an_unknown_job_cannot_be_requested() {
    on_each_store(async |a, b| {
        let job = a.job("report");
        assert!(matches!(job.run_now().await, Err(Error::UnknownJob { .. })));
        assert_eq!(job.status().await.expect("a store"), None, "it creates no record");

        assert!(run(&b, "report", &rare()).await.is_some());
        job.run_now().await.expect("it is known");
        assert!(job.status().await.expect("a store").expect("it is known").is_requested);
    })
    .await;
}

/// Returns the key of the only record, which is the only hash.
pub(super) fn record_of(server: &RedisServer) -> String {
    let Reply::List(keys) = server.call(&["KEYS", "*##job"]) else { panic!("a list of keys") };
    let [Reply::Text(record)] = &keys[..] else { panic!("one record: {keys:?}") };
    record.clone()
}

/// Returns the rest of the life of the only record.
fn life_of_record(server: &RedisServer) -> Duration {
    let Reply::Integer(millis) = server.call(&["PTTL", &record_of(server)]) else { panic!("a time to live") };
    Duration::from_millis(u64::try_from(millis).expect("it expires"))
}

#[tokio::test]
async fn commands_of_operators_never_shorten_the_life_of_a_record() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let (job, monthly) = (manager.job("report"), Schedule::cron("0 0 1 * *").expect("valid"));
    assert!(run(&manager, "report", &monthly).await.is_some());
    let three_periods = life_of_record(&server);
    assert!(three_periods > 80 * DAY, "{three_periods:?}");

    job.run_now().await.expect("it is known");
    job.resume().await.expect("a store");
    assert!(life_of_record(&server) > 80 * DAY, "after a request");
    job.pause().await.expect("a store");
    assert!(life_of_record(&server) > 399 * DAY, "longer than any period");
    job.resume().await.expect("a store");
    job.reset().await.expect("a store");
    assert!(life_of_record(&server) > 399 * DAY, "it is not shortened");
}

/// A crash is recorded by hand, as if the lease of the run had expired.
#[tokio::test]
async fn the_script_gives_up_a_tick_that_crashes_again() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let attempt = async || {
        let ran = run(&manager, "report", &rare()).await.map(|tick| tick.attempt());
        server.call(&["HSET", &record_of(&server), "t", "L"]);
        ran
    };

    assert_eq!([attempt().await, attempt().await, attempt().await], [Some(1), Some(2), None]);
}

#[tokio::test]
async fn a_body_whose_lease_expires_is_lost_and_runs_again() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let (job, schedule) = (manager.job("report"), rare().lease(Duration::from_millis(300)));
    let silent = async |_| -> Result<(), Error> {
        server.pause();
        std::future::pending().await
    };

    let (lost, ()) = tokio::join!(job.run(&schedule, silent), async {
        tokio::time::sleep(SECOND).await;
        server.resume();
    });

    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    assert_eq!(run(&manager, "report", &schedule).await.map(|tick| tick.attempt()), Some(2));
    let outcomes: Vec<_> = job.history(9).await.expect("a store").iter().map(|run| run.outcome).collect();
    assert_eq!(outcomes, [RunOutcome::Succeeded, RunOutcome::Lost]);
}

/// The body has succeeded, and the call is dropped before it can report that.
#[tokio::test]
async fn a_call_that_is_dropped_after_its_body_has_succeeded() {
    let server = redis();
    let proxy = Proxy::in_front_of(&server);
    let (a, b) = (
        LockManager::connect(&proxy.url()).await.expect("the server takes managers"),
        LockManager::connect(&server.url()).await.expect("the server takes managers"),
    );
    let (job, schedule) = (a.job("report"), rare().on_error(FailedRun::Retry(3)));
    run(&a, "warm up", &rare()).await.expect("it runs"); // it sends the text of the script
    let reported = proxy.on_request(b"finish");
    let body = async |_| {
        proxy.drop_next_requests(1);
        Ok::<_, Error>(())
    };

    tokio::select! {
        _ = job.run(&schedule, body) => panic!("there is no reply"),
        _ = reported => {}
    }

    until("the end is reported", async || b.job("report").last_run().await.expect("a store").is_some()).await;
    let last = b.job("report").last_run().await.expect("a store").expect("it ended");
    assert_eq!((last.outcome, last.error), (RunOutcome::Succeeded, None));
}

#[tokio::test]
async fn the_record_of_a_frequent_job_lives_for_a_week() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");

    assert!(run(&manager, "report", &every(SECOND)).await.is_some());

    let life = life_of_record(&server);
    assert!(life <= 7 * DAY && life.abs_diff(7 * DAY) < 60 * SECOND, "{life:?}");
}

/// Before any reply, a manager assumes that the server's clock is that of its machine.
#[tokio::test]
async fn the_first_call_of_a_manager_costs_no_more() {
    let server = redis();
    let connect = async || LockManager::connect(&server.url()).await.expect("the server takes managers");
    assert!(run(&connect().await, "warm up", &rare()).await.is_some());
    let (manager, scripts) =
        (connect().await, || server.command_count("eval") + server.command_count("evalsha"));
    let before = scripts();

    assert!(run(&manager, "report", &rare()).await.is_some());

    assert_eq!(scripts() - before, 2);
}

#[tokio::test]
async fn a_run_that_a_newer_slot_replaces_is_cancelled() {
    on_each_store(async |a, b| {
        let schedule = rare().overlap(Overlap::CancelPrevious).lease(3 * SECOND);
        let (now, entered) = (SystemTime::now(), Notify::new());
        let (job, other) = (a.job("import"), b.job("import"));
        let long = job.run_slot(now, &schedule, async |_| {
            entered.notify_one();
            std::future::pending::<Result<(), Error>>().await
        });
        let newer = async {
            entered.notified().await;
            other.run_slot(now + SECOND, &schedule, async |_| Ok::<_, Error>(())).await
        };

        let (replaced, ran) = tokio::join!(long, newer);

        assert!(matches!(replaced, Err(Error::Lost { cause: LossCause::Cancelled, .. })), "{replaced:?}");
        assert_eq!(ran.expect("a store"), Some(()));
        let outcomes: Vec<_> =
            other.history(9).await.expect("a store").iter().map(|run| run.outcome).collect();
        assert_eq!(outcomes, [RunOutcome::Succeeded, RunOutcome::Cancelled]);
    })
    .await;
}

/// Its call was dropped, as by a deployment.
#[tokio::test]
async fn a_waiting_slot_that_no_call_asks_for_is_replaced() {
    let server = redis();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let (job, schedule) = (manager.job("import"), rare().overlap(Overlap::QueueOne));
    let (first, entered, end) = (SystemTime::now(), Notify::new(), Notify::new());
    let run = async |number: u32| {
        let slot = first + number * SECOND;
        job.run_slot(slot, &schedule, async |_| Ok::<_, Error>(())).await.expect("a store")
    };
    let long = job.run_slot(first, &schedule, async |_| {
        entered.notify_one();
        end.notified().await;
        Ok::<_, Error>(())
    });
    let later = async {
        entered.notified().await;
        assert!(tokio::time::timeout(SECOND / 2, run(1)).await.is_err(), "it waits");
        assert_eq!(run(2).await, None, "another one waits");
        tokio::time::sleep(5 * SECOND).await;
        let ends = async {
            tokio::time::sleep(SECOND / 2).await;
            end.notify_one();
        };
        assert_eq!(tokio::join!(run(3), ends).0, Some(()), "it waits instead");
        assert_eq!(run(1).await, None, "it was skipped");
    };

    let (ran, ()) = tokio::join!(long, later);

    assert_eq!(ran.expect("a store"), Some(()));
}

/// The newest slot has another schedule, which does not wait.
#[tokio::test]
async fn a_waiting_slot_that_a_newer_one_passes_counts_once() {
    on_each_store(async |a, b| {
        let queued = rare().overlap(Overlap::QueueOne);
        let (first, entered, end) = (SystemTime::now(), Notify::new(), Notify::new());
        let run = async |manager: &LockManager, number: u32, schedule: &Schedule| {
            let slot = first + number * SECOND;
            let body = async |_| Ok::<_, Error>(());
            manager.job("import").run_slot(slot, schedule, body).await.expect("a store")
        };
        let job = a.job("import");
        let long = job.run_slot(first, &queued, async |_| {
            entered.notify_one();
            end.notified().await;
            Ok::<_, Error>(())
        });
        let later = async {
            entered.notified().await;
            assert!(tokio::time::timeout(SECOND / 2, run(&b, 1, &queued)).await.is_err(), "it waits");
            assert_eq!(run(&b, 2, &queued).await, None, "another one waits");
            end.notify_one();
        };
        let (ran, ()) = tokio::join!(long, later);
        assert_eq!(ran.expect("a store"), Some(()));

        assert_eq!(run(&b, 3, &rare()).await, Some(()));

        assert_eq!(run(&b, 1, &queued).await, None, "it has lost its place");
        assert_eq!(job.status().await.expect("a store").expect("it is known").skips, 2);
    })
    .await;
}

/// The reply is missing, so the call does not know that the tick is its own.
#[tokio::test]
async fn a_call_that_is_dropped_before_its_body_gives_the_tick_back() {
    let server = redis();
    let proxy = Proxy::in_front_of(&server);
    let (a, b) = (
        LockManager::connect(&proxy.url()).await.expect("the server takes managers"),
        LockManager::connect(&server.url()).await.expect("the server takes managers"),
    );
    run(&a, "warm up", &rare()).await.expect("it runs"); // it sends the text of the script
    proxy.hold_replies();
    let (begun, job, schedule) = (proxy.on_request(b"begin"), a.job("report"), rare());

    tokio::select! {
        _ = job.run(&schedule, async |_| Ok::<_, Error>(())) => panic!("there is no reply"),
        _ = begun => {}
    }

    let status = async || b.job("report").status().await.expect("a store");
    until("it is given back", async || status().await.is_some_and(|status| status.runs == 0)).await;
    assert_eq!(run(&b, "report", &schedule).await.map(|tick| tick.attempt()), Some(1));
    assert_eq!(status().await.expect("it is known").runs, 1);
}
