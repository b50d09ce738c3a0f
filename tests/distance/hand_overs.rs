//! Processes take turns on keys, many keys at once, and no turn is lost.
//!
//! `DLOCK_HAND_OVERS` says how many turns each test of [`turns`] has; 150 unless given.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, Lock, LockManager};
use dlock_tests::dice::Dice;
use dlock_tests::within;
use futures_util::future::join_all;

use super::{Far, LONG, millis};

/// How processes take turns.
struct HandOvers {
    round_trip: Duration,
    /// Behind the URL of each manager.
    options: &'static str,
    /// How many processes want each key.
    processes: usize,
    /// How many tasks of each process do.
    tasks: usize,
    keys: usize,
    turns: usize,
    lock: fn(Lock) -> Lock,
}

/// Turns of 400 to 600 ms at the default options, of two processes.
fn turns(round_trip: u64) -> HandOvers {
    let turns = std::env::var("DLOCK_HAND_OVERS").map_or(150, |turns| turns.parse().expect("a number"));
    let keys = if turns > 150 { 100 } else { 75 };
    let lock = |lock: Lock| lock.lease(Duration::from_secs(10)).wait(LONG);
    HandOvers { round_trip: millis(round_trip), options: "", processes: 2, tasks: 1, keys, turns, lock }
}

/// A few turns of 400 to 600 ms.
fn few(round_trip: u64) -> HandOvers {
    HandOvers { keys: 20, turns: 40, ..turns(round_trip) }
}

/// Has the turns taken, and returns the errors.
async fn take(what: &HandOvers) -> Vec<Error> {
    let far = Far::start_near();
    let url = far.proxy.url_with(what.options);
    let managers: Vec<_> = join_all((0..what.processes).map(|_| LockManager::connect(&url))).await;
    far.proxy.round_trip(what.round_trip);
    let left = Arc::new(AtomicUsize::new(what.turns));
    let tasks = managers.iter().enumerate().flat_map(|(process, manager)| {
        let manager = manager.as_ref().expect("the server takes managers");
        let left = &left;
        (0..what.tasks * what.keys).map(move |task| {
            let dice = Dice::new((process * 10_000 + task) as u64);
            let lock = (what.lock)(manager.lock(format!("order:{}", task % what.keys)));
            of_one(lock, Arc::clone(left), dice)
        })
    });
    let errors = within(LONG, "all turns", join_all(tasks)).await;
    errors.into_iter().flatten().collect()
}

/// One task takes turns while some are left.
async fn of_one(lock: Lock, left: Arc<AtomicUsize>, mut dice: Dice) -> Vec<Error> {
    let mut errors = Vec::new();
    let one_less = |left: usize| left.checked_sub(1);
    while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
        // The length of the turn is what is tested: it places the hand-over anywhere between two rechecks of the next waiter.
        let turn = dice.millis(400, 600);
        errors.extend(lock.run(async |_guard| tokio::time::sleep(turn).await).await.err());
    }
    errors
}

async fn assert_none_is_lost(what: &HandOvers) {
    let errors = take(what).await;
    let (lost, failed): (Vec<_>, Vec<_>) = errors.into_iter().partition(Error::is_lost);
    assert!(lost.is_empty(), "{} of {} turns: {:?}", lost.len(), what.turns, lost.first());
    // A round trip that a busy machine makes longer than a response timeout fails its call. Most do not.
    assert!(failed.len() < what.turns / 4, "{} of {} turns: {:?}", failed.len(), what.turns, failed.first());
}

#[tokio::test]
async fn no_turn_is_lost_at_100_ms() {
    assert_none_is_lost(&turns(100)).await;
}

#[tokio::test]
async fn no_turn_is_lost_at_300_ms() {
    assert_none_is_lost(&turns(300)).await;
}

#[tokio::test]
async fn no_turn_is_lost_at_480_ms() {
    // A busy machine makes more than the default `response_timeout` of some of 480 ms. The grant lease is the default.
    assert_none_is_lost(&HandOvers { options: "?response_timeout=1s", ..turns(480) }).await;
}

#[tokio::test]
async fn no_turn_is_lost_with_a_short_grant_lease() {
    assert_none_is_lost(&HandOvers { options: "?grant_lease=500ms", ..few(200) }).await;
}

/// The server hands the lock over for less time than the message takes: the next waiter asks and queues up again.
#[tokio::test]
async fn no_turn_is_lost_if_grants_end_before_they_arrive() {
    assert_none_is_lost(&HandOvers { options: "?grant_lease=100ms", ..few(300) }).await;
}

#[tokio::test]
async fn no_turn_is_lost_with_leases_of_three_round_trips() {
    let lock = |lock: Lock| lock.lease(millis(900)).wait(LONG);
    assert_none_is_lost(&HandOvers { lock, ..few(300) }).await;
}

#[tokio::test]
async fn no_turn_is_lost_without_renewal_or_with_bounds() {
    let locks = [
        (|lock| lock.lease(Duration::from_secs(5)).renew(false).wait(LONG)) as fn(Lock) -> Lock,
        |lock| lock.max_hold(Duration::from_secs(5)).wait(LONG),
        |lock| lock.min_hold(millis(300)).wait(LONG),
    ];
    let all = locks.map(|lock| async move { assert_none_is_lost(&HandOvers { lock, ..few(350) }).await });
    join_all(all).await;
}

#[tokio::test]
async fn no_turn_is_lost_between_processes_of_several_tasks() {
    assert_none_is_lost(&HandOvers { tasks: 3, turns: 80, ..few(300) }).await;
}

#[tokio::test]
async fn no_turn_is_lost_on_the_runtime_of_the_caller() {
    assert_none_is_lost(&HandOvers { options: "?io=runtime", ..few(300) }).await;
}

#[tokio::test]
async fn no_turn_is_lost_while_turns_are_left_to_foreign_clients() {
    assert_none_is_lost(&HandOvers { options: "?yield_to_foreign=on", ..few(300) }).await;
}
