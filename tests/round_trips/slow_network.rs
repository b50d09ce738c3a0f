//! The number of round trips of an operation, with a round-trip time of 120 ms.

use std::time::Duration;

use dlock_runtime::{Lock, LockManager};
use dlock_tests::Moment;
use futures_util::future::join_all;

use super::wire::{ROUND_TRIP, STEADY, Wire, assert_takes, time};
use super::{LONG, call, hold, release};

/// Returns a distant server and a manager.
async fn far_away() -> (Wire, LockManager) {
    let wire = Wire::start();
    let manager = wire.manager().await;
    wire.proxy.round_trip(ROUND_TRIP);
    (wire, manager)
}

#[tokio::test]
async fn an_uncontended_call_takes_two_round_trips() {
    let (_wire, manager) = far_away().await;

    assert_takes(2, "a call", async || time(call(&manager, "order:7")).await).await;
    let run = async || time(manager.lock("order:7").run(async |_guard| ())).await;
    assert_takes(2, "a body", run).await;
}

#[tokio::test]
async fn calls_of_64_tasks_take_the_round_trips_of_one() {
    let (_wire, manager) = far_away().await;
    let keys: Vec<_> = (0..64).map(|task| format!("order:{task}")).collect();

    let all = async || time(join_all(keys.iter().map(|key| call(&manager, key)))).await;
    assert_takes(2, "64 calls", all).await;
}

#[tokio::test]
async fn holds_of_64_tasks_take_the_round_trips_of_one() {
    let wire = Wire::start();
    let manager = wire.manager_with(&format!("{STEADY}&handoff_budget=10s")).await;
    wire.proxy.round_trip(ROUND_TRIP);

    let all = async || time(join_all((0..64).map(|_| call(&manager, "order:7")))).await;
    assert_takes(2, "64 holds", all).await;
}

#[tokio::test]
async fn short_uncontended_holds_do_not_wait_for_the_server() {
    let wire = Wire::start();
    let manager = wire.manager_with(&format!("{STEADY}&handoff_budget=20ms")).await;
    wire.proxy.round_trip(ROUND_TRIP);

    // Eighty holds of 5 ms: 20 times as long as a process may keep a contended lock.
    let longest_gap = async || {
        let holds = (0..80).map(|_| async {
            let held = hold(&manager, "order:7").await;
            let begun = Moment::now();
            tokio::time::sleep(Duration::from_millis(5)).await;
            let ended = Moment::now();
            drop(held);
            (begun, ended)
        });
        let mut holds = join_all(holds).await;
        holds.sort_by_key(|(begun, _)| *begun);
        let gaps = holds.windows(2).map(|two| two[1].0.since(two[0].1));
        gaps.max().expect("there are some")
    };
    assert_takes(0, "a hand-off to another task", longest_gap).await;
}

#[tokio::test]
async fn requests_inside_a_hold_take_at_most_one_round_trip() {
    let (_wire, manager) = far_away().await;
    let guard = hold(&manager, "order:7").await;

    let extend = async || time(async { guard.extend(LONG).await.expect("it is held") }).await;
    assert_takes(1, "a longer lease", extend).await;
    let inspect =
        async || time(async { manager.inspect("order:7").await.map(drop).expect("it replies") }).await;
    assert_takes(1, "an inspection", inspect).await;
    let ready = async || time(async { manager.ready().await.expect("it replies") }).await;
    assert_takes(1, "a readiness probe", ready).await;
    let fence = async || {
        let guard = hold(&manager, "order:8").await;
        let first = time(async { guard.fencing_token().await.map(drop).expect("it is held") }).await;
        release(guard).await;
        first
    };
    assert_takes(1, "a fencing token", fence).await;
    let inside = async || {
        let lock = manager.lock("order:9");
        let inside = lock.run(async |_guard| time(lock.run(async |_guard| ())).await);
        inside.await.expect("the lock is free")
    };
    assert_takes(0, "a call inside a hold", inside).await;
}

#[tokio::test]
async fn a_held_lock_is_rejected_after_one_or_two_round_trips() {
    let (wire, manager) = far_away().await;
    let holder = wire.manager().await;
    let _guard = hold(&holder, "order:7").await;

    let once =
        async || time(async { manager.lock("order:7").acquire().await.map(drop).expect_err("held") }).await;
    assert_takes(2, "to ask once", once).await;
    let tried = async || {
        time(async { assert!(manager.lock("order:7").try_acquire().await.is_ok_and(|got| got.is_none())) })
            .await
    };
    assert_takes(1, "to try", tried).await;
}

#[tokio::test]
async fn a_grant_to_another_process_takes_one_round_trip() {
    let (wire, manager) = far_away().await;
    let other = wire.manager().await;

    // Half of the round trip is for the release, and half for the message.
    assert_takes(1, "a hand-off", async || hand_off(&wire, [&manager, &other]).await).await;
}

#[tokio::test]
async fn all_tasks_of_a_granted_process_hold_after_one_round_trip() {
    let wire = Wire::start();
    let (holder, other) = (
        wire.manager().await,
        wire.manager_with("?tracking=off&grant_lease=4s&handoff_budget=10s&response_timeout=5s").await,
    );
    wire.proxy.round_trip(ROUND_TRIP);

    let all_holds = async || {
        let guard = hold(&holder, "order:7").await;
        let holds = (0..8).map(|_| async {
            let held = hold(&other, "order:7").await;
            let at = Moment::now();
            drop(held);
            at
        });
        let released = async {
            wire.until_waiting("order:7", 1).await;
            let at = Moment::now();
            release(guard).await;
            at
        };
        let (holds, released) = tokio::join!(join_all(holds), released);
        holds.into_iter().max().expect("there are some").since(released)
    };
    assert_takes(1, "eight holds", all_holds).await;
}

/// Returns the time from the release in one manager to the hold in another.
pub(crate) async fn hand_off(wire: &Wire, [holder, other]: [&LockManager; 2]) -> Duration {
    let guard = hold(holder, "order:7").await;
    let next = async {
        let held = hold(other, "order:7").await;
        let at = Moment::now();
        release(held).await;
        at
    };
    let released = async {
        wire.until_waiting("order:7", 1).await;
        let at = Moment::now();
        release(guard).await;
        at
    };
    let (held, released) = tokio::join!(next, released);
    held.since(released)
}

#[tokio::test]
async fn a_thousand_locks_are_renewed_within_two_round_trips() {
    let wire = Wire::start();
    let manager = wire.manager().await;
    let lease = Duration::from_secs(3);
    let keys: Vec<_> = (0..1_000).map(|lock| format!("order:{lock}")).collect();
    let locks: Vec<_> = keys.iter().map(|key| manager.lock(&**key).lease(lease)).collect();
    let held = join_all(locks.iter().map(Lock::acquire)).await;
    let trip = ROUND_TRIP * 4;
    wire.proxy.round_trip(trip);

    wire.proxy.note_requests();
    let renewed = async {
        loop {
            let noted = wire.proxy.noted();
            if noted.iter().filter(|sent| sent.name == "EVALSHA").count() >= held.len() {
                break noted;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let noted = dlock_tests::within(LONG, "a thousand renewals", renewed).await;

    assert!(held.iter().all(|guard| guard.as_ref().is_ok_and(|guard| guard.check().is_ok())));
    let (first, last) = (noted.first().expect("some"), noted.last().expect("some"));
    let spread = last.at.since(first.at);
    // Few renewals are in flight at once (`engine/pace`), but none waits longer than its lease
    // permits. Pipelines that wait for each other would take ten round trips, and commands that do
    // so a thousand.
    assert!(spread < trip * 2, "the last renewal left {spread:?} after the first");
}
