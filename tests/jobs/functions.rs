//! Functions with `#[scheduled]` that a runner calls, and what their attribute gives the body.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_runtime::scheduled::{Jobs, RunOutcome, Schedule, Tick};
use dlock_runtime::{Error, LockManager, scheduled};

use super::{SECOND, every, in_memory, run};

/// Values that the bodies have recorded.
type Seen<T> = Arc<Mutex<Vec<T>>>;

fn seen<T: Clone>(ticks: &Seen<T>) -> Vec<T> {
    ticks.lock().expect("no panic").clone()
}

#[scheduled(name = "report", every = "10s", catch_up = all(max = 10, window = "1h"), tick = tick)]
async fn report(ticks: Seen<Tick>) -> Result<Option<()>, Error> {
    ticks.lock().expect("no panic").push(tick);
    Ok(Some(()))
}

/// Runs the function in a runner for `time`, and returns its ticks.
async fn ticks_of_report(manager: &LockManager, time: Duration) -> Vec<Tick> {
    let ticks = Seen::default();
    let of_runner = Arc::clone(&ticks);
    let runner = Jobs::new(manager.clone()).add_scheduled(move || report(Arc::clone(&of_runner)));
    runner.run_until(tokio::time::sleep(time)).await.expect("it ends");
    seen(&ticks)
}

#[tokio::test(start_paused = true)]
async fn a_runner_runs_a_function_once_per_tick() {
    let manager = in_memory().await;

    let ticks = ticks_of_report(&manager, 95 * SECOND).await;

    assert!((9..=10).contains(&ticks.len()), "{ticks:?}");
    assert!(ticks.windows(2).all(|ticks| ticks[1].slot() - ticks[0].slot() == 10_000), "{ticks:?}");
    assert!(ticks.iter().all(|tick| tick.attempt() == 1), "{ticks:?}");
    let history = manager.job("report").history(50).await.expect("a store");
    assert_eq!(history.len(), ticks.len());
    assert!(history.iter().all(|run| run.outcome == RunOutcome::Succeeded), "{history:?}");
}

/// The name, the period, and the options are those of the attribute.
#[tokio::test(start_paused = true)]
async fn a_runner_catches_up_as_the_attribute_says() {
    let manager = in_memory().await;
    run(&manager, "report", &every(10 * SECOND)).await.expect("it runs");
    tokio::time::sleep(1_004 * SECOND).await;

    let ticks = ticks_of_report(&manager, 11 * SECOND).await;

    assert!((11..=12).contains(&ticks.len()), "10 missed ticks and the current ones: {ticks:?}");
    assert!(ticks.windows(2).all(|ticks| ticks[1].slot() - ticks[0].slot() == 10_000), "{ticks:?}");
}

/// A timer and a runner mean the same ticks.
#[tokio::test(start_paused = true)]
async fn a_tick_that_a_timer_has_run_does_not_run_in_a_runner() {
    let manager = in_memory().await;
    let (of_timer, of_runner) = (Seen::default(), Seen::default());
    let runner = {
        let of_runner = Arc::clone(&of_runner);
        Jobs::new(manager.clone()).add_scheduled(move || report(Arc::clone(&of_runner)))
    };
    let timer = dlock_runtime::with_manager(manager.clone(), async {
        for _ in 0..200 {
            report(Arc::clone(&of_timer)).await.expect("a store");
            tokio::time::sleep(SECOND).await;
        }
    });
    let (ended, ()) = tokio::join!(runner.run_until(tokio::time::sleep(200 * SECOND)), timer);

    ended.expect("it ends");
    let mut slots: Vec<_> = seen(&of_timer).iter().chain(&seen(&of_runner)).map(Tick::slot).collect();
    slots.sort_unstable();
    assert!(slots.len() >= 20 && slots.windows(2).all(|slots| slots[1] - slots[0] == 10_000), "{slots:?}");
}

#[scheduled(name = "fails", every = "1h", on_error = retry(2), tick = tick)]
async fn fails(attempts: Seen<u32>) -> Result<Option<()>, Error> {
    attempts.lock().expect("no panic").push(tick.attempt());
    Err(dlock_runtime::LockKey::new("").expect_err("an empty key is invalid").into())
}

#[tokio::test(start_paused = true)]
async fn a_runner_retries_a_function_as_its_attribute_says() {
    let (manager, attempts) = (in_memory().await, Seen::default());
    let of_runner = Arc::clone(&attempts);
    let runner = Jobs::new(manager).add_scheduled(move || fails(Arc::clone(&of_runner)));

    runner.run_until(tokio::time::sleep(3_700 * SECOND)).await.expect("it ends");

    let attempts = seen(&attempts);
    // A tick near the end may not have been repeated yet.
    let is_right = |tick: &[u32]| [1, 2, 3].starts_with(tick);
    assert!(attempts.len() >= 3 && attempts.chunks(3).all(is_right), "{attempts:?}");
}

#[scheduled(name = "checks", every = "1h", lease = "300ms", manager = locks, tick = tick, guard = lease)]
async fn checks(locks: LockManager) -> Result<Option<u32>, Error> {
    if tick.attempt() == 1 {
        std::thread::sleep(Duration::from_millis(400)); // nothing renews the lease meanwhile
    }
    lease.check()?;
    Ok(Some(tick.attempt()))
}

#[tokio::test]
async fn a_body_that_finds_its_lease_lost_runs_again() {
    let manager = in_memory().await;

    let lost = checks(manager.clone()).await;

    assert!(lost.is_err_and(|error| error.is_lost()));
    assert_eq!(checks(manager).await.expect("a store"), Some(2), "as after a crash");
}

/// A service whose job is a method.
#[derive(Clone)]
struct Service {
    locks: LockManager,
    runs: Seen<u64>,
}

impl Service {
    #[scheduled(name = "cleanup", every = "1s", manager = self.locks, tick = tick)]
    async fn clean_up<T: Clone + Send>(&self, _value: T) -> Result<Option<()>, Error> {
        self.runs.lock().expect("no panic").push(tick.slot());
        Ok(Some(()))
    }

    fn runner(&self, manager: &LockManager) -> Jobs {
        let this = self.clone();
        Jobs::new(manager.clone()).add_scheduled(move || {
            let this = this.clone();
            async move { this.clean_up("anything").await }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_method_runs_in_a_runner_of_its_manager_only() {
    let (manager, other) = (in_memory().await, in_memory().await);
    let service = Service { locks: manager.clone(), runs: Seen::default() };

    service.runner(&manager).run_until(tokio::time::sleep(4 * SECOND)).await.expect("it ends");
    assert!((3..=5).contains(&seen(&service.runs).len()), "{:?}", seen(&service.runs));

    let refused = service.runner(&other).run_until(std::future::pending()).await;
    let text = refused.expect_err("its timers would use another manager").to_string();
    assert!(text.contains("`cleanup` names another `manager`"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_start_of_a_runner_does_not_run_the_body() {
    let (manager, ticks) = (in_memory().await, Seen::default());
    let of_runner = Arc::clone(&ticks);

    let runner = Jobs::new(manager.clone()).add_scheduled(move || report(Arc::clone(&of_runner)));

    assert!(format!("{runner:?}").contains("report"), "{runner:?}");
    assert_eq!(seen(&ticks), []);
    assert_eq!(manager.job("report").status().await.expect("a store"), None, "it sends nothing");
}

#[scheduled(name = "import", slot = fire_at)]
async fn import(fire_at: std::time::SystemTime) -> Result<Option<()>, Error> {
    let _ = fire_at;
    Ok(Some(()))
}

#[tokio::test(start_paused = true)]
async fn a_runner_refuses_what_is_not_a_function_with_a_schedule() {
    let manager = in_memory().await;
    let refusal = async |runner: Jobs| {
        let refused = runner.run_until(std::future::pending()).await.expect_err("it is refused");
        assert!(matches!(refused, Error::Config { .. }), "{refused:?}");
        refused.to_string()
    };
    let jobs = || Jobs::new(manager.clone());

    let none = jobs().add_scheduled(|| async { Ok::<_, Error>(()) });
    assert!(refusal(none).await.contains("does not call a function with `#[scheduled]`"));
    let late = jobs().add_scheduled(|| async {
        tokio::time::sleep(SECOND).await;
        report(Seen::default()).await
    });
    assert!(refusal(late).await.contains("before its first await"));
    let slot = jobs().add_scheduled(|| import(std::time::SystemTime::UNIX_EPOCH));
    assert!(refusal(slot).await.contains("`import` has a `slot`, which callers choose"));
    let twice = jobs()
        .add_scheduled(|| report(Seen::default()))
        .add("report", every(SECOND), |_| async { Ok::<_, Error>(()) });
    assert!(refusal(twice).await.contains("two jobs of this runner have the name `report`"));
}

/// A run is for one call. A second one would skip the tick, which runs already.
#[tokio::test(start_paused = true)]
async fn a_second_call_under_one_run_is_refused() {
    let manager = in_memory().await;
    let locks = manager.clone();
    let runner = Jobs::new(manager.clone()).add_scheduled(move || {
        let locks = locks.clone();
        async move {
            guarded(locks.clone()).await?;
            guarded(locks).await
        }
    });

    runner.run_until(tokio::time::sleep(1_500 * SECOND / 1_000)).await.expect("it ends");

    let last = manager.job("guarded").last_run().await.expect("a store").expect("it ran");
    assert_eq!(last.outcome, RunOutcome::Failed);
    assert!(
        last.error.as_ref().is_some_and(|error| error.contains("`job:guarded` calls itself")),
        "{last:?}"
    );
}

#[scheduled(name = "guarded", every = "1s", guard = lease, max_hold = "1m", manager = locks)]
async fn guarded(locks: LockManager) -> Result<Option<dlock_runtime::scheduled::RunLease>, Error> {
    lease.check()?;
    assert!(lease.remaining() > SECOND && lease.remaining() <= 60 * SECOND, "{:?}", lease.remaining());
    Ok(Some(lease))
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_the_lease_of_its_run() {
    let manager = in_memory().await;
    let first = guarded(manager.clone()).await.expect("a store").expect("it runs");
    tokio::time::sleep(SECOND).await;
    let second = guarded(manager.clone()).await.expect("a store").expect("it runs");

    assert!(second.fencing_token() > first.fencing_token(), "{first:?} {second:?}");
    assert!(first.fencing_token().get() > 1_000_000_000_000_000, "microseconds: {first:?}");
    for ended in [first, second] {
        assert!(matches!(ended.check(), Err(Error::Lost { .. })), "the run has ended: {ended:?}");
        assert_eq!(ended.remaining(), Duration::ZERO);
    }
}

#[scheduled(name = "stopped", every = "1h", guard = lease, manager = locks)]
async fn stopped(locks: LockManager) -> Result<Option<bool>, Error> {
    // A newer tick, an operator, or another process has taken the run.
    locks.job("stopped").reset().await?;
    tokio::time::sleep(15 * SECOND).await;
    Ok(Some(lease.check().is_ok()))
}

#[tokio::test(start_paused = true)]
async fn a_lost_run_drops_its_body() {
    let manager = in_memory().await;

    let lost = stopped(manager).await;

    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
}

/// The start of a runner makes a job known, so that an operator can run it before its first tick.
#[tokio::test(start_paused = true)]
async fn a_job_without_ticks_can_be_requested_once_a_runner_has_it() {
    let manager = in_memory().await;
    let yearly = Schedule::cron("0 0 1 1 *").expect("valid");
    let job = manager.job("yearly");
    let unknown = job.run_now().await.expect_err("no runner has it");
    assert!(matches!(unknown, Error::UnknownJob { .. }), "{unknown:?}");
    assert!(unknown.to_string().contains("job `job:yearly` is unknown"), "{unknown}");
    assert_eq!((unknown.http_status(), unknown.grpc_code(), unknown.retry_after()), (404, 5, None));
    assert_eq!(unknown.client_message(), "there is no such job");
    let runner =
        Jobs::new(manager.clone()).add("yearly", yearly.lease(5 * SECOND), |_| async { Ok::<_, Error>(()) });
    let running = tokio::spawn(runner.run_until(std::future::pending()));
    tokio::time::sleep(SECOND).await;

    job.run_now().await.expect("a runner has it");
    tokio::time::sleep(6 * SECOND).await;

    let runs = job.history(9).await.expect("a store");
    assert!(matches!(&runs[..], [run] if run.is_requested), "{runs:?}");
    assert!(job.status().await.expect("a store").expect("it is known").schedule.contains("0 0 1 1 *"));
    running.abort();
}
