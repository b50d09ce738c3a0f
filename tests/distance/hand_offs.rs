//! Processes hand off many keys at once over a slow network, and no hold is lost.
//!
//! `DLOCK_HAND_OFFS` sets the number of holds in each test of [`holds`] and [`holds_or`]. The
//! default of the former is 150.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, Lock, LockManager};
use dlock_tests::dice::Dice;
use dlock_tests::{Proxy, within};
use futures_util::future::join_all;

use super::{Far, LONG, millis};

/// A contention workload.
pub(super) struct HandOffs {
    round_trip: Duration,
    /// Options that are appended to the URL of each manager.
    options: &'static str,
    /// The number of processes that contend for each key.
    processes: usize,
    /// The number of tasks per process and key.
    tasks: usize,
    keys: usize,
    holds: usize,
    lock: fn(Lock) -> Lock,
}

/// Two processes with default options. Each hold takes 400 to 600 ms.
fn holds(round_trip: u64) -> HandOffs {
    holds_or(150, round_trip)
}

/// Like [`holds`], with another default for the number of holds.
fn holds_or(default: usize, round_trip: u64) -> HandOffs {
    let holds = std::env::var("DLOCK_HAND_OFFS").map_or(default, |holds| holds.parse().expect("a number"));
    let keys = (holds / 2).min(100);
    let lock = |lock: Lock| lock.lease(Duration::from_secs(10)).wait(LONG);
    HandOffs { round_trip: millis(round_trip), options: "", processes: 2, tasks: 1, keys, holds, lock }
}

/// Like [`holds`], with 40 holds on 20 keys.
pub(super) fn few(round_trip: u64) -> HandOffs {
    HandOffs { keys: 20, holds: 40, ..holds(round_trip) }
}

/// Runs the workload, and returns the errors.
async fn take(what: &HandOffs) -> Vec<Error> {
    let far = Far::start_near();
    take_at(what, &far.proxy.url_with(what.options), &[&far.proxy]).await
}

/// Like [`take`], at the servers of a URL, each behind one of these proxies.
async fn take_at(what: &HandOffs, url: &str, proxies: &[&Proxy]) -> Vec<Error> {
    let managers: Vec<_> = join_all((0..what.processes).map(|_| LockManager::connect(url))).await;
    for proxy in proxies {
        proxy.round_trip(what.round_trip);
    }
    let left = Arc::new(AtomicUsize::new(what.holds));
    let tasks = managers.iter().enumerate().flat_map(|(process, manager)| {
        let manager = manager.as_ref().expect("the server accepts connections");
        let left = &left;
        (0..what.tasks * what.keys).map(move |task| {
            let dice = Dice::new((process * 10_000 + task) as u64);
            let lock = (what.lock)(manager.lock(format!("order:{}", task % what.keys)));
            of_one(lock, Arc::clone(left), dice)
        })
    });
    let errors = within(LONG, "all holds", join_all(tasks)).await;
    errors.into_iter().flatten().collect()
}

/// Acquires the lock and holds it, until all holds are done.
async fn of_one(lock: Lock, left: Arc<AtomicUsize>, mut dice: Dice) -> Vec<Error> {
    let mut errors = Vec::new();
    let one_less = |left: usize| left.checked_sub(1);
    while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
        // The hold's random length puts the hand-off anywhere between two polls of the next waiter.
        let hold = dice.millis(400, 600);
        errors.extend(lock.run(async |_guard| tokio::time::sleep(hold).await).await.err());
    }
    errors
}

/// Checks that no hold is lost, and returns the other errors.
async fn take_without_loss(what: &HandOffs) -> Vec<Error> {
    without_losses(what, take(what).await)
}

fn without_losses(what: &HandOffs, errors: Vec<Error>) -> Vec<Error> {
    let (lost, failed): (Vec<_>, Vec<_>) = errors.into_iter().partition(Error::is_lost);
    assert!(lost.is_empty(), "{} of {} holds: {:?}", lost.len(), what.holds, lost.first());
    failed
}

async fn assert_none_is_lost(what: &HandOffs) {
    assert_most_succeed(what, &take_without_loss(what).await);
}

/// Like [`assert_none_is_lost`], at the servers of a URL, each behind one of these proxies.
pub(super) async fn assert_none_is_lost_at(what: &HandOffs, url: &str, proxies: &[&Proxy]) {
    assert_most_succeed(what, &without_losses(what, take_at(what, url, proxies).await));
}

fn assert_most_succeed(what: &HandOffs, failed: &[Error]) {
    // On a busy machine, a round trip may exceed the response timeout, which fails its call. Most
    // calls succeed.
    assert!(failed.len() < what.holds / 4, "{} of {} holds: {:?}", failed.len(), what.holds, failed.first());
}

#[tokio::test]
async fn no_hold_is_lost_at_100_ms() {
    assert_none_is_lost(&holds(100)).await;
}

#[tokio::test]
async fn no_hold_is_lost_at_300_ms() {
    assert_none_is_lost(&holds(300)).await;
}

#[tokio::test]
async fn no_hold_is_lost_at_480_ms() {
    // On a busy machine, some round trips of 480 ms exceed the default `response_timeout`. The
    // grant lease is the default.
    assert_none_is_lost(&HandOffs { options: "?response_timeout=1s", ..holds(480) }).await;
}

/// 20 ms below the default `response_timeout`. A busy machine exceeds it, so calls may fail, but no
/// hold is lost.
#[tokio::test]
async fn no_hold_is_lost_at_480_ms_with_default_options() {
    let what = holds_or(40, 480);

    let failed = take_without_loss(&what).await;

    assert!(failed.iter().all(Error::is_unavailable), "{failed:?}");
    assert!(failed.len() <= what.holds / 2, "{} of {} holds: {:?}", failed.len(), what.holds, failed.first());
}

#[tokio::test]
async fn no_hold_is_lost_with_a_short_grant_lease() {
    assert_none_is_lost(&HandOffs { options: "?grant_lease=500ms", ..few(200) }).await;
}

/// The grant lease is shorter than the message's delivery. The waiter queries the server and
/// enqueues again.
#[tokio::test]
async fn no_hold_is_lost_if_grants_expire_before_they_arrive() {
    assert_none_is_lost(&HandOffs { options: "?grant_lease=100ms", ..few(300) }).await;
}

#[tokio::test]
async fn no_hold_is_lost_with_leases_of_three_round_trips() {
    let lock = |lock: Lock| lock.lease(millis(900)).wait(LONG);
    assert_none_is_lost(&HandOffs { lock, ..few(300) }).await;
}

#[tokio::test]
async fn no_hold_is_lost_without_renewal_or_with_bounds() {
    let locks = [
        (|lock| lock.lease(Duration::from_secs(5)).renew(false).wait(LONG)) as fn(Lock) -> Lock,
        |lock| lock.max_hold(Duration::from_secs(5)).wait(LONG),
        |lock| lock.min_hold(millis(300)).wait(LONG),
    ];
    let all = locks.map(|lock| async move { assert_none_is_lost(&HandOffs { lock, ..few(350) }).await });
    join_all(all).await;
}

#[tokio::test]
async fn no_hold_is_lost_between_processes_of_several_tasks() {
    assert_none_is_lost(&HandOffs { tasks: 3, holds: 80, ..few(300) }).await;
}

#[tokio::test]
async fn no_hold_is_lost_with_yield_to_foreign() {
    assert_none_is_lost(&HandOffs { options: "?yield_to_foreign=on", ..few(300) }).await;
}
