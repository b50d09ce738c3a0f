//! Timers and clocks that differ, and clocks that step.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use dlock_runtime::scheduled::{Jobs, Schedule};
use dlock_runtime::testing::TestLocks;
use dlock_runtime::{Error, LockManager};
use dlock_tests::{RedisServer, WallClock, Worker};

use super::{SECOND, every, permitted, redis, run, ticks_of_a_run, until_before, until_next};

const WORKER: &str = env!("CARGO_BIN_EXE_lock-worker");

/// The jobs whose ticks are counted together, so that the test ends sooner.
const JOBS: u64 = 5;

/// Eight processes whose clocks differ by up to half a period call jobs with a body of 1 ms at each
/// second. A lock that is tried at the same times is acquired several times per tick.
#[tokio::test]
async fn processes_with_different_clocks_start_each_tick_once() {
    let clock = match WallClock::new() {
        Ok(clock) => clock,
        Err(reason) => return println!("SKIPPED: clocks that differ: {reason}"),
    };
    let (server, ticks) = (redis(), ticks_of_a_run(100) / JOBS);
    let mut workers = Vec::new();
    for number in 0..8 {
        let own = clock.another();
        own.step_to_nanos((number - 4) * 60_000_000); // up to 240 ms
        workers.push((Worker::spawn_by(&own, WORKER, &[server.url()]).await, own));
    }
    until_next(SECOND).await;
    for (worker, _) in &mut workers {
        worker.send(&format!("timer report {JOBS} {ticks}"));
    }

    let (mut starts, mut locked) = (BTreeMap::<u64, BTreeMap<u64, u32>>::new(), 0);
    for (worker, _) in &mut workers {
        for (name, detail) in worker.events_until("stopped", "report").await {
            match &*name {
                "started" => {
                    let (job, slot) = detail.split_once(' ').expect("a job and a slot");
                    let of_job = starts.entry(job.parse().expect("a number")).or_default();
                    *of_job.entry(slot.parse().expect("a slot")).or_default() += 1;
                }
                "locked" => locked += 1,
                other => panic!("{other} {detail}"),
            }
        }
    }

    let started: usize = starts.values().map(BTreeMap::len).sum();
    println!("jobs: {started} ticks started once each; the lock was acquired {locked} times");
    assert_eq!(starts.len() as u64, JOBS);
    for starts in starts.values() {
        let slots: Vec<_> = starts.keys().copied().collect();
        assert!(starts.values().all(|starts| *starts == 1), "{starts:?}");
        assert!(slots.windows(2).all(|slots| slots[1] - slots[0] == 1_000), "a tick is missing: {slots:?}");
        assert!((ticks..=ticks + 2).contains(&(slots.len() as u64)), "{} slots", slots.len());
    }
    let all = JOBS * ticks;
    assert!(locked > all + all / 2, "a lock alone is acquired {locked} times in {all} ticks");
}

/// A daily job, called every minute for three days, and in each hour by a process that has just
/// been restarted, at another minute.
#[tokio::test(start_paused = true)]
async fn daily_ticks_start_in_time_and_once() {
    let locks = TestLocks::new();
    let (manager, daily) = (locks.manager(), Schedule::cron("0 2 * * *").expect("valid"));
    let started = tokio::time::Instant::now();
    let epoch = SystemTime::now();
    let mut slots = Vec::new();
    for minute in 0..3 * 24 * 60 {
        if let Some(tick) = run(&manager, "report", &daily).await {
            let now = epoch + started.elapsed();
            let early = tick.due().duration_since(now).unwrap_or_default();
            assert!(early <= Duration::from_secs(11), "it started {early:?} early");
            if minute > 0 {
                let late = now.duration_since(tick.due()).unwrap_or_default();
                assert!(late <= Duration::from_secs(61), "it started {late:?} late");
            }
            slots.push(tick.slot());
        }
        if minute % 60 == minute / 60 * 37 % 60 {
            let restarted = locks.another_manager();
            assert_eq!(run(&restarted, "report", &daily).await, None, "at minute {minute}");
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
    }

    assert_eq!(slots.len(), 4, "the late first one, and one per day");
    assert!(slots.windows(2).all(|slots| slots[1] - slots[0] == 86_400_000), "{slots:?}");
}

#[tokio::test]
async fn no_slot_runs_again_after_the_servers_clock_stepped_back() {
    let clock = match WallClock::new() {
        Ok(clock) => clock,
        Err(reason) => return println!("SKIPPED: a server whose clock steps: {reason}"),
    };
    let server = permitted(RedisServer::builder().wall_clock(&clock).start());
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let schedule = every(SECOND);
    let mut last = 0;
    for _ in 0..3 {
        let tick = run(&manager, "report", &schedule).await;
        last = tick.map_or(last, |tick| tick.slot());
        until_next(SECOND).await;
    }
    assert!(last > 0, "it ran");

    clock.step_to(-3_600);
    for _ in 0..3 {
        assert_eq!(run(&manager, "report", &schedule).await, None, "every slot of that hour has passed");
        until_next(SECOND).await;
    }

    clock.step_to(0);
    until_next(SECOND).await;
    let tick = run(&manager, "report", &schedule).await.expect("it continues");
    assert!(tick.slot() > last);
}

/// The first call of a process whose clock is an hour ahead runs the tick of the server's clock.
#[tokio::test]
async fn the_servers_clock_decides_about_the_tick() {
    let clock = match WallClock::new() {
        Ok(clock) => clock,
        Err(reason) => return println!("SKIPPED: a server whose clock is behind: {reason}"),
    };
    clock.step_to(-3_600);
    let server = permitted(RedisServer::builder().wall_clock(&clock).start());
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");

    let tick = manager.job("report").run(&every(SECOND), async |tick| Ok::<_, Error>(tick)).await;

    let due = tick.expect("the server").expect("it runs").due();
    let behind = SystemTime::now().duration_since(due).expect("it is in the past");
    assert!(behind > Duration::from_secs(3_590), "{behind:?}");
}

/// The clock of a replica is an hour ahead, or behind, until the first reply of the server.
#[tokio::test(start_paused = true)]
async fn a_runner_with_another_clock_runs_its_ticks_and_requests() {
    for is_ahead in [true, false] {
        let locks = TestLocks::new();
        until_before(&locks, 60 * SECOND, 30 * SECOND).await;
        let replica = &locks.fleet(1)[0];
        if is_ahead {
            replica.set_clock_ahead(3_600 * SECOND);
        } else {
            replica.set_clock_behind(3_600 * SECOND);
        }
        let (job, minutely) = (locks.manager().job("report"), every(60 * SECOND).lease(5 * SECOND));
        let runner = Jobs::new(replica.manager()).add("report", minutely, |_| async { Ok::<_, Error>(()) });
        let running = tokio::spawn(runner.run_until(std::future::pending()));
        tokio::time::sleep(SECOND).await;

        job.run_now().await.expect("a runner has it");
        tokio::time::sleep(6 * SECOND).await;
        let runs = job.history(9).await.expect("a store");
        assert!(runs.iter().any(|run| run.is_requested), "within a lease: {runs:?}");
        tokio::time::sleep(180 * SECOND).await;
        let runs = job.history(9).await.expect("a store");
        assert!((4..=5).contains(&runs.len()), "{runs:?}");
        running.abort();
    }
}

/// At each time, one tick is the current one, by the server's clock, which the first reply tells.
#[tokio::test(start_paused = true)]
async fn a_first_call_runs_the_tick_of_the_servers_clock() {
    // The call is 20 s or 5 s before a tick, which may start 10 s early.
    for (before, is_next) in [(20, false), (5, true)] {
        for is_ahead in [true, false] {
            let locks = TestLocks::new();
            let replica = &locks.fleet(1)[0];
            until_before(&locks, 60 * SECOND, before * SECOND).await;
            let next = replica.now() + before * SECOND;
            if is_ahead {
                replica.set_clock_ahead(15 * SECOND);
            } else {
                replica.set_clock_behind(15 * SECOND);
            }

            let tick = run(&replica.manager(), "report", &every(60 * SECOND)).await.expect("it runs");

            let expected = if is_next { next } else { next - 60 * SECOND };
            assert_eq!(tick.due(), expected, "{before} s before, ahead: {is_ahead}");
        }
    }
}
