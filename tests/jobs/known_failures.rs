//! Failures that other schedulers have had. `docs::proof` lists them with their tests.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_runtime::Error;
use dlock_runtime::scheduled::{CatchUp, Jobs, Overlap, Schedule, Tick};
use dlock_runtime::testing::TestLocks;

use super::runner::ticks_of;
use super::{SECOND, every, in_memory, run};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// Returns the slots of ticks, in seconds.
fn seconds(ticks: &[Tick]) -> Vec<u64> {
    ticks.iter().map(|tick| tick.slot() / 1_000).collect()
}

#[track_caller]
fn assert_each_once(slots: &[u64], period: Duration) {
    assert!(slots.windows(2).all(|slots| slots[1] - slots[0] == period.as_secs()), "{slots:?}");
}

#[tokio::test(start_paused = true)]
async fn over_a_hundred_missed_ticks_do_not_stop_a_job() {
    let all = CatchUp::all(10, HOUR);
    for (down, counted) in [(101, 100), (10_000, 9_999), (150_000, 100_000)] {
        for catch_up in [CatchUp::None, CatchUp::Latest, all] {
            let (manager, schedule) = (in_memory().await, every(SECOND).catch_up(catch_up));
            assert!(run(&manager, "report", &schedule).await.is_some());
            tokio::time::sleep(SECOND * down).await;

            let ticks = ticks_of(&manager, schedule, SECOND * 5).await;

            let most = ticks.iter().map(Tick::missed).max().unwrap_or_default();
            assert!(most.abs_diff(counted) <= 1, "{most} missed of {down}");
            let current = ticks.iter().skip_while(|tick| tick.missed() == 0).count();
            assert!((4..=6).contains(&current), "{catch_up:?} after {down}: {ticks:?}");
            assert_each_once(&seconds(&ticks), SECOND);
        }
    }
}

/// After an hour, the clock of the replica steps back by an hour, and its timer fires for each
/// instant of that hour again.
#[tokio::test(start_paused = true)]
async fn a_timer_whose_clock_steps_back_starts_no_tick_again() {
    let (locks, minutely) = (TestLocks::new(), every(MINUTE));
    let replica = &locks.fleet(1)[0];
    let (mut fired, mut slots) = (BTreeSet::new(), Vec::new());
    for call in 0..120 {
        if call == 60 {
            replica.set_clock_behind(HOUR);
        }
        fired.insert(replica.sleep_until_tick(&minutely).await);
        slots.extend(run(&replica.manager(), "report", &minutely).await.map(|tick| tick.slot() / 1_000));
    }

    assert!((60..=61).contains(&fired.len()), "the timer fired twice for each: {}", fired.len());
    assert_eq!(slots.len(), 120);
    assert_each_once(&slots, MINUTE);
    // A process whose clock is behind from its start.
    let late = &locks.fleet(1)[0];
    late.set_clock_behind(HOUR);
    assert_eq!(run(&late.manager(), "report", &minutely).await, None);
}

/// Every deployment lasts for 50 minutes, and the next one starts 10 minutes later. A period that
/// is counted from the start of a process would never pass.
#[tokio::test(start_paused = true)]
async fn a_period_longer_than_the_uptime_is_kept() {
    let locks = TestLocks::new();
    let schedule = every(6 * HOUR).catch_up(CatchUp::Latest).lease(HOUR);
    let mut ticks = Vec::new();
    for _ in 0..4 * 24 {
        let deployment = locks.another_manager();
        ticks.extend(ticks_of(&deployment, schedule.clone(), 50 * MINUTE).await);
        tokio::time::sleep(10 * MINUTE).await;
    }

    let slots = seconds(&ticks);
    assert!((15..=16).contains(&slots.len()), "{slots:?}");
    assert_each_once(&slots, 6 * HOUR);
}

/// Two replicas for 19 days, which are restarted every 5 and every 7 hours.
#[tokio::test(start_paused = true)]
async fn a_daily_job_runs_each_day_across_restarts() {
    let locks = TestLocks::new();
    let daily = || Schedule::cron("0 2 * * *").expect("valid").lease(HOUR);
    let restarted_every = async |uptime: Duration| {
        let (mut ticks, mut left) = (Vec::new(), 19 * DAY);
        while left > Duration::ZERO {
            let up = uptime.min(left);
            ticks.extend(ticks_of(&locks.another_manager(), daily(), up).await);
            left -= up;
        }
        ticks
    };

    let (some, others) = tokio::join!(restarted_every(5 * HOUR), restarted_every(7 * HOUR));

    let slots: Vec<_> =
        seconds(&some).into_iter().chain(seconds(&others)).collect::<BTreeSet<_>>().into_iter().collect();
    assert_eq!((slots.len(), some.len() + others.len()), (19, 19));
    assert_each_once(&slots, DAY);
}

/// Three replicas start at once, and 50 ticks were missed.
#[tokio::test(start_paused = true)]
async fn missed_ticks_run_one_after_the_other() {
    let locks = TestLocks::new();
    let ten = Duration::from_secs(10);
    let schedule = every(ten).catch_up(CatchUp::all(20, HOUR)).overlap(Overlap::QueueOne);
    assert!(run(&locks.manager(), "report", &schedule).await.is_some());
    tokio::time::sleep(50 * ten + SECOND * 4).await;
    let runs = Arc::new(Mutex::new((0_u32, 0_u32, Vec::new()))); // active, the most of them, slots
    let of_bodies = Arc::clone(&runs);
    let body = move |tick: Tick| {
        let runs = Arc::clone(&of_bodies);
        async move {
            {
                let (active, most, slots) = &mut *runs.lock().expect("no panic");
                *active += 1;
                *most = (*most).max(*active);
                slots.push(tick.slot() / 1_000);
            }
            tokio::time::sleep(SECOND).await;
            runs.lock().expect("no panic").0 -= 1;
            Ok::<_, Error>(())
        }
    };

    let runners = (0..3).map(|_| {
        let runner = Jobs::new(locks.another_manager()).add("report", schedule.clone(), body.clone());
        runner.run_until(tokio::time::sleep(10 * ten))
    });
    for ended in futures_util::future::join_all(runners).await {
        ended.expect("it ends");
    }

    let (_, most, slots) = &*runs.lock().expect("no panic");
    assert_eq!(*most, 1, "{slots:?}");
    assert!((29..=31).contains(&slots.len()), "20 missed ones, and those of 100 s: {slots:?}");
    assert_each_once(slots, ten);
}
