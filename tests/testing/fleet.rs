//! Simulated fleets: processes with wall clocks of their own, which can crash.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_runtime::scheduled::{Jobs, RunOutcome, Schedule};
use dlock_runtime::testing::{Replica, TestLocks};
use dlock_runtime::{Error, distributed_lock, scheduled};
use tokio::time::Instant;

use crate::{KEY, order, patient_order};

const MINUTE: Duration = Duration::from_secs(60);

/// The slots of the runs, and how often each started.
type Starts = Arc<Mutex<BTreeMap<u64, u32>>>;

#[scheduled(name = "report", every = "1m", tick = tick)]
async fn report(starts: &Starts) -> Result<Option<()>, Error> {
    *starts.lock().expect("no panic").entry(tick.slot()).or_default() += 1;
    tokio::time::sleep(Duration::from_millis(1)).await;
    Ok(Some(()))
}

#[distributed_lock(key = "report", on_contended = skip)]
async fn locked_report(runs: &AtomicU64) -> Result<Option<()>, Error> {
    runs.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(1)).await;
    Ok(Some(()))
}

fn minutely() -> Schedule {
    Schedule::every(MINUTE).expect("a valid period")
}

#[tokio::test(start_paused = true)]
async fn replicas_with_different_clocks_start_each_tick_once() {
    let (locks, starts, locked) = (TestLocks::new(), Starts::default(), Arc::new(AtomicU64::new(0)));
    let fleet = locks.fleet(5);
    fleet[1].set_clock_ahead(Duration::from_secs(9));
    fleet[2].set_clock_ahead(Duration::from_millis(500));
    fleet[3].set_clock_behind(Duration::from_secs(4));
    fleet[4].set_clock_behind(Duration::from_secs(29));

    let timer = |replica: &Replica| {
        let (replica, starts, locked) = (replica.clone(), Arc::clone(&starts), Arc::clone(&locked));
        tokio::spawn(replica.clone().run(async move {
            for _ in 0..30 {
                replica.sleep_until_tick(&minutely()).await;
                report(&starts).await.expect("a store");
                locked_report(&locked).await.expect("a store");
            }
        }))
    };
    let timers: Vec<_> = fleet.iter().map(timer).collect();
    for timer in timers {
        assert_eq!(timer.await.expect("no panic"), Some(()));
    }

    let starts = starts.lock().expect("no panic").clone();
    assert!((30..=31).contains(&starts.len()), "{starts:?}");
    assert!(starts.values().all(|starts| *starts == 1), "{starts:?}");
    // The clocks do differ: a lock alone runs the body for each replica.
    assert_eq!(locked.load(Ordering::Relaxed), 150);
}

#[tokio::test(start_paused = true)]
async fn a_replicas_clock_differs_from_the_stores_as_it_is_set() {
    let locks = TestLocks::new();
    let fleet = locks.fleet(3);
    let hour = 60 * MINUTE;
    fleet[1].set_clock_ahead(hour);
    fleet[2].set_clock_behind(2 * hour);

    let now = fleet[0].now();
    assert_eq!((fleet[1].now(), fleet[2].now()), (now + hour, now - 2 * hour));
    tokio::time::sleep(hour).await;
    assert_eq!((fleet[0].now(), fleet[1].now()), (now + hour, now + 2 * hour));
    // The store's clock decides which tick is current, whatever a process assumes.
    let current = |replica: &Replica| {
        let manager = replica.manager();
        async move {
            let body = async |tick: dlock_runtime::scheduled::Tick| Ok::<_, Error>(tick.due());
            manager.job(&manager.id()).run(&minutely(), body).await.expect("a store").expect("it runs")
        }
    };
    for replica in &fleet {
        let (due, true_time) = (current(replica).await, now + hour);
        assert!(due + MINUTE > true_time && due <= true_time + Duration::from_secs(10), "{replica:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_in_the_body_ends_it_without_a_report() {
    let locks = TestLocks::new();
    let [dead, alive] = &locks.fleet(2)[..] else { panic!("two replicas") };
    let daily = Schedule::every(24 * 60 * MINUTE).expect("a valid period");
    let (job, schedule) = (dead.manager().job("report"), daily.lease(Duration::from_secs(10)));
    let continued = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&continued);
    let crashes = dead.clone();
    let call = dead.run(job.run(&schedule, async move |_| {
        crashes.crash();
        tokio::task::yield_now().await;
        seen.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Error>(())
    }));

    assert!(Box::pin(call).await.is_none());

    let status = alive.manager().job("report").status().await.expect("a store").expect("it is known");
    assert!(status.running.is_some(), "the store does not know of the crash: {status:?}");
    let runner = Jobs::new(alive.manager()).add("report", schedule.clone(), |_| async { Ok::<_, Error>(()) });
    alive
        .run(runner.run_until(tokio::time::sleep(Duration::from_secs(15))))
        .await
        .expect("no crash")
        .expect("it ends");
    let history = alive.manager().job("report").history(10).await.expect("a store");
    let of_tick: Vec<_> = history.iter().filter(|run| run.slot == history[history.len() - 1].slot).collect();
    assert_eq!(
        of_tick.iter().map(|run| run.outcome).collect::<Vec<_>>(),
        [RunOutcome::Succeeded, RunOutcome::Lost]
    );
    assert_eq!((&of_tick[1].node, &of_tick[0].node), (&dead.manager().id(), &alive.manager().id()));
    assert_eq!(continued.load(Ordering::SeqCst), 0, "the body continued");
}

#[tokio::test(start_paused = true)]
async fn a_crash_stops_a_runner_and_its_bodies() {
    let locks = TestLocks::new();
    let dead = locks.fleet(1).remove(0);
    let polls = Arc::new(AtomicU64::new(0));
    let of_body = Arc::clone(&polls);
    let runner = Jobs::new(dead.manager()).add("report", minutely(), move |_| {
        let polls = Arc::clone(&of_body);
        async move {
            loop {
                polls.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            #[allow(unreachable_code, reason = "it gives the body its type")]
            Ok::<(), Error>(())
        }
    });
    let running = tokio::spawn(dead.run(runner.run_until(std::future::pending())));
    tokio::time::sleep(2 * MINUTE).await;
    assert!(polls.load(Ordering::SeqCst) > 50, "it runs");

    dead.crash();
    let until_the_crash = polls.load(Ordering::SeqCst);
    tokio::time::sleep(2 * MINUTE).await;

    assert_eq!(polls.load(Ordering::SeqCst), until_the_crash);
    assert!(running.await.expect("no panic").is_none());
    let job = locks.manager().job("report");
    assert_eq!(job.history(9).await.expect("a store"), [], "its end was reported");
    assert_eq!(job.status().await.expect("a store").expect("it is known").runs, 1);
}

#[tokio::test(start_paused = true)]
async fn the_lock_of_a_crashed_replica_is_free_after_its_lease() {
    let locks = TestLocks::new();
    let [dead, alive] = &locks.fleet(2)[..] else { panic!("two replicas") };
    let holder = tokio::spawn(dead.run(order(7, 60 * MINUTE)));
    tokio::time::sleep(2 * MINUTE).await; // it is renewed

    let crashed = Instant::now();
    dead.crash();
    let next = alive.run(patient_order(7)).await.expect("no crash");

    assert!(next.is_ok(), "{next:?}");
    let waited = crashed.elapsed();
    assert!(waited > Duration::from_secs(19) && waited < Duration::from_secs(31), "{waited:?}");
    assert!(holder.await.expect("no panic").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_crashed_replica_neither_waits_nor_sends() {
    let locks = TestLocks::new();
    let [dead, alive] = &locks.fleet(2)[..] else { panic!("two replicas") };
    let elsewhere = locks.hold(KEY).await;
    let waiting = tokio::spawn(dead.run(patient_order(7)));
    tokio::time::sleep(MINUTE).await;
    assert_eq!(locks.waiting(KEY), 1);

    dead.crash();
    let outage = locks.outage();
    outage.end(); // its end reconnects all that are not crashed
    elsewhere.release().await.expect("a store");

    assert!(waiting.await.expect("no panic").is_none());
    assert!(
        alive.run(order(7, Duration::ZERO)).await.expect("no crash").is_ok(),
        "the lock was granted to it"
    );
    assert!(dead.run(order(7, Duration::ZERO)).await.is_none(), "nothing runs in it");
    assert!(dead.manager().lock(KEY).acquire().await.is_err());
    assert_eq!(locks.acquisitions(KEY), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_replica_runs_on() {
    let locks = TestLocks::new();
    let running = locks.fleet(1)[0].run(order(7, MINUTE));

    assert_eq!(running.await.expect("no crash").expect("it is free"), 7);
}
