//! A lock that no replica has acknowledged starts no body.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::handoff::grant_channel;
use dlock_tests::world::{ids_in, name};
use dlock_tests::{Moment, within};

use crate::replica_pair::{LONG, Pair};

const LIMIT: Duration = Duration::from_millis(700);
const SLACK: Duration = Duration::from_millis(250);

#[track_caller]
fn assert_unacknowledged(refused: Result<dlock_runtime::LockGuard, dlock_runtime::Error>) {
    let error = refused.expect_err("no replica acknowledges");
    assert!(error.is_unavailable() && error.to_string().contains("only 0 of 1 replicas"), "{error}");
}

#[tokio::test]
async fn acknowledged_lock_is_held_and_exists_on_the_replica() {
    let pair = Pair::start().await;
    let manager = pair.patient().await;

    let guard = manager.lock("order:7").acquire().await.expect("the replica acknowledges");

    assert_eq!(pair.replica.call(&["EXISTS", &name("order:7")]).integer(), Some(1));
    assert!(guard.release().await.is_ok());
}

#[tokio::test]
async fn frozen_replica_fails_calls_in_time_and_leaves_no_key() {
    let pair = Pair::start().await;
    let manager = pair.manager(1).await;

    pair.replica.pause();
    let once = manager.lock("order:7").acquire().await;
    let since = Moment::now();
    let patient = manager.lock("order:8").wait(LIMIT).acquire().await;
    let took = since.elapsed();

    assert_unacknowledged(once);
    assert_unacknowledged(patient);
    assert!(took < LIMIT + SLACK, "{took:?}");
    pair.until(|pair| !pair.holds("order:7") && !pair.holds("order:8")).await;
}

#[tokio::test]
async fn waiting_call_acquires_when_the_replica_resumes() {
    let pair = Pair::start().await;
    let manager = pair.manager(1).await;

    pair.replica.pause();
    let lock = manager.lock("order:7").wait(LONG);
    let call = tokio::spawn(async move { lock.acquire().await });
    pair.until(|pair| pair.holds("order:7")).await;
    pair.replica.resume();

    let guard = within(LONG, "the lock", call).await.expect("no panic").expect("the replica is back");
    assert_eq!(pair.replica.call(&["EXISTS", &name("order:7")]).integer(), Some(1));
    drop(guard);
}

#[tokio::test]
async fn a_replica_that_comes_later_is_good_enough() {
    let pair = Pair::start().await;
    pair.replica.call(&["REPLICAOF", "NO", "ONE"]);
    pair.until(|pair| pair.master.call(&["WAIT", "1", "10"]).integer() == Some(0)).await;

    let manager = pair.manager(1).await;
    assert_unacknowledged(manager.lock("order:7").acquire().await);
    pair.replica.call(&["REPLICAOF", "127.0.0.1", &pair.master.port().to_string()]);

    let guard = manager.lock("order:7").wait(LONG).acquire().await;
    assert!(guard.is_ok(), "{guard:?}");
}

#[tokio::test]
async fn handed_off_lock_starts_after_the_replica_acknowledges() {
    let pair = Pair::start().await;
    let (holder, waiter) = (pair.patient().await, pair.manager(1).await);
    let held = holder.lock("order:7").acquire().await.expect("the lock is free");
    let lock = waiter.lock("order:7").wait(LONG);
    let call = tokio::spawn(async move { (lock.acquire().await, Moment::now()) });
    let ids = |pair: &Pair| pair.master.call(&["GET", &name("order:7")]).text().map_or(0, ids_in);
    pair.until(|pair| ids(pair) == 2).await;

    pair.replica.pause();
    held.release().await.expect("a release waits for no replica");
    pair.until(|pair| ids(pair) == 1).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    let resumed = Moment::now();
    pair.replica.resume();

    let (guard, entered) = within(LONG, "the lock", call).await.expect("no panic");
    assert!(guard.is_ok(), "{guard:?}");
    assert!(entered >= resumed, "the body started {:?} before the replica resumed", resumed.since(entered));
}

#[tokio::test]
async fn a_forged_grant_costs_the_waiter_only_time() {
    let pair = Pair::start().await;
    let (holder, waiter) = (pair.patient().await, pair.manager(1).await);
    let held = holder.lock("order:7").acquire().await.expect("the lock is free");
    let lock = waiter.lock("order:7").wait(LONG);
    let mut call = tokio::spawn(async move { lock.acquire().await });
    for _ in 0..3 {
        pair.until(|pair| pair.master.call(&["GET", &name("order:7")]).text().map_or(0, ids_in) == 2).await;
        let value = pair.master.call(&["GET", &name("order:7")]).text().expect("it is held").to_owned();
        let (_, waits) = value.split_at(value.len() / 2);
        let message = format!("{waits}1000|{}", name("order:7"));
        let received = pair.master.call(&["PUBLISH", &grant_channel(&pair.master, "dlock", waits), &message]);
        assert_eq!(received.integer(), Some(1), "the waiter receives it");
        let early = tokio::time::timeout(Duration::from_millis(150), &mut call).await;
        assert!(early.is_err(), "the waiter keeps waiting: {early:?}");
    }

    held.release().await.expect("it was held all the time");
    let second = within(LONG, "the lock", call).await.expect("no panic");
    assert!(second.is_ok_and(|guard| guard.check().is_ok()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reacquire_right_after_a_release_succeeds() {
    let pair = Pair::start().await;
    let manager = pair.patient().await;

    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..64 {
        let lock = manager.lock(format!("order:{number}"));
        tasks.spawn(async move {
            for round in 0..50 {
                let guard = lock.acquire().await;
                assert!(guard.is_ok(), "round {round}: {guard:?}");
            }
        });
    }

    within(LONG, "all rounds", tasks.join_all()).await;
}

#[tokio::test]
async fn calls_that_are_cancelled_leave_nothing() {
    let pair = Pair::start().await;
    let manager: LockManager = pair.manager(1).await;

    pair.replica.pause();
    for number in 0..50 {
        let lock = manager.lock(format!("order:{number}")).wait(LONG);
        let _ = tokio::time::timeout(Duration::from_millis(number), lock.acquire()).await;
    }
    pair.replica.resume();

    pair.until(|pair| pair.master.call(&["DBSIZE"]).integer() == Some(0)).await;
}
