//! A tick that is due while the previous run is active.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_runtime::Error;
use dlock_runtime::scheduled::{Jobs, Overlap, Tick};
use dlock_runtime::testing::TestLocks;

use super::{SECOND, every, until_before};

/// Runs a job for `time`, whose body takes 2.5 periods, and returns the ticks that started and
/// those whose bodies ended.
async fn started_and_ended(overlap: Overlap, time: Duration) -> (Vec<u64>, Vec<u64>) {
    let locks = TestLocks::new();
    let manager = locks.fleet(1)[0].manager(); // with the clock of the store
    let seen = Arc::new(Mutex::new((Vec::new(), Vec::new())));
    let of_body = Arc::clone(&seen);
    let schedule = every(SECOND).overlap(overlap).lease(Duration::from_millis(300));
    let runner = Jobs::new(manager).grace(Duration::ZERO).add("slow", schedule, move |tick: Tick| {
        let seen = Arc::clone(&of_body);
        async move {
            seen.lock().expect("no panic").0.push(tick.slot() / 1_000);
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            seen.lock().expect("no panic").1.push(tick.slot() / 1_000);
            Ok::<_, Error>(())
        }
    });
    until_before(&locks, SECOND, Duration::from_millis(999)).await; // just after a tick
    runner.run_until(tokio::time::sleep(time)).await.expect("it ends");
    let seen = seen.lock().expect("no panic");
    let first = seen.0.first().copied().unwrap_or_default();
    let since = |ticks: &[u64]| ticks.iter().map(|tick| tick - first).collect::<Vec<_>>();
    (since(&seen.0), since(&seen.1))
}

#[tokio::test(start_paused = true)]
async fn skip_leaves_out_ticks_until_the_run_has_ended() {
    let (started, ended) = started_and_ended(Overlap::Skip, Duration::from_millis(5_800)).await;

    assert_eq!((&started[..], &ended[..]), (&[0, 3][..], &[0][..]));
}

#[tokio::test(start_paused = true)]
async fn queue_one_runs_the_first_tick_that_waits() {
    let (started, ended) = started_and_ended(Overlap::QueueOne, Duration::from_millis(6_500)).await;

    // Tick 1 waits for the end of tick 0, and 2 is skipped. Tick 3 waits for the end of tick 1.
    assert_eq!((&started[..], &ended[..]), (&[0, 1, 3][..], &[0, 1][..]));
}

#[tokio::test(start_paused = true)]
async fn cancel_previous_stops_the_run_for_the_newer_tick() {
    let (started, ended) = started_and_ended(Overlap::CancelPrevious, Duration::from_millis(3_800)).await;

    assert_eq!((&started[..], &ended[..]), (&[0, 1, 2][..], &[][..]));
}
