//! The commands of processes that contend for a lock. Two managers are two processes for a server.

use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager, distributed_lock};
use dlock_tests::world::name;
use futures_util::future::join_all;
use tokio::task::JoinHandle;

use super::wire::{Cost, STEADY, Wire};
use super::{LONG, call, hold, release};

/// Returns a server, a manager that holds `order:7`, and one that waits for it.
async fn contended(options: &str) -> (Wire, [LockManager; 2], LockGuard, JoinHandle<LockGuard>) {
    let wire = Wire::start();
    let managers = [wire.manager_with(options).await, wire.manager_with(options).await];
    let guard = hold(&managers[0], "order:7").await;
    let waiter = wait(&wire, &managers[1]).await;
    (wire, managers, guard, waiter)
}

/// Makes a manager wait for `order:7`, as the only waiter.
async fn wait(wire: &Wire, manager: &LockManager) -> JoinHandle<LockGuard> {
    let waits = manager.clone();
    let waiter = tokio::spawn(async move { hold(&waits, "order:7").await });
    wire.until_waiting("order:7", 1).await;
    manager.ready().await.expect("the server replies"); // the waiter has its reply
    waiter
}

async fn granted(waiter: JoinHandle<LockGuard>) -> LockGuard {
    waiter.await.expect("the waiter does not panic")
}

#[tokio::test]
async fn enqueuing_is_two_commands() {
    let wire = Wire::start();
    let (holder, other) = (wire.manager().await, wire.manager().await);
    let _guard = hold(&holder, "order:7").await;

    let cost = wire.cost(async { wait(&wire, &other).await.abort() }).await;

    cost.is("1 EVALSHA, 1 SET", "1 append, 1 evalsha, 1 getrange, 1 pttl, 1 set");
}

#[tokio::test]
async fn enqueuing_is_one_command_after_observed_contention() {
    let (wire, [_, other], guard, waiter) = contended(STEADY).await;
    release(guard).await;
    release(granted(waiter).await).await;

    let alone = wire.cost(call(&other, "order:7")).await;
    let again = wire.cost(call(&other, "order:7")).await;

    // The enqueuing command acquires a free lock. After that, the lock is uncontended again.
    alone.is("2 EVALSHA", "1 del, 2 evalsha, 1 getrange, 1 pttl, 1 set");
    again.is("1 EVALSHA, 1 SET", "1 del, 1 evalsha, 1 getrange, 1 set");
}

#[tokio::test]
async fn a_waiter_checks_with_one_command_per_half_grant_lease() {
    let (wire, [_, other], _guard, waiter) = contended("?tracking=off&grant_lease=4s").await;

    let cost = wire
        .cost(async {
            let _ = wire.proxy.on_request(b"EVALSHA").await;
            other.ready().await.expect("the server replies"); // after it
        })
        .await;

    cost.is("1 EVALSHA", "1 evalsha, 1 getrange, 1 pttl");
    waiter.abort();
}

#[tokio::test]
async fn a_waiter_sends_a_bounded_number_of_requests_at_expiry() {
    let (wire, [_, other], _lost, waiter) = contended("?tracking=off&grant_lease=1s").await;

    let cost = wire
        .cost(async {
            wire.server.call(&["PEXPIRE", &name("order:7"), "600"]);
            release(granted(waiter).await).await;
            other.ready().await.expect("the server replies"); // after the release
        })
        .await;

    // The waiter checks its place after half of the grant lease and after the expiry, enqueues
    // under a fresh token, which acquires the lock, and releases it. A busy machine may delay one
    // check into another.
    let sent: Vec<_> = cost.sent.split(", ").filter_map(|part| part.split_once(' ')).collect();
    let count =
        |of| sent.iter().find(|(_, name)| *name == of).map_or(0, |(count, _)| count.parse().expect(of));
    let (scripts, tries): (u32, u32) = (count("EVALSHA"), count("SET"));
    assert!((3..=6).contains(&scripts) && tries == 0, "{cost:?}");
}

/// Checks the cost of short holds.
///
/// On a busy machine, a hold may last long enough to be confirmed. Therefore there are up to five
/// attempts.
async fn assert_costs(sent: &str, ran: Option<&str>, mut cost: impl AsyncFnMut() -> Cost) {
    for _ in 0..4 {
        let cost = cost().await;
        if cost.sent == sent && ran.is_none_or(|ran| cost.ran == ran) {
            return;
        }
    }
    let cost = cost().await;
    assert_eq!((&*cost.sent, ran.map(|_| &*cost.ran)), (sent, ran));
}

#[tokio::test]
async fn a_release_to_a_waiter_is_one_command_and_its_grant_none() {
    for options in [STEADY, &format!("{STEADY}&yield_to_foreign=on")] {
        assert_costs("1 EVALSHA", Some("1 evalsha, 1 getrange, 1 publish, 1 set"), async || {
            let (wire, [_, other], guard, waiter) = contended(options).await;
            wire.cost(async {
                release(guard).await;
                let held = granted(waiter).await;
                // After every command of the waiter.
                other.ready().await.expect("the server replies");
                std::mem::forget(held);
            })
            .await
        })
        .await;
    }
}

#[tokio::test]
async fn a_force_release_grants_with_one_command() {
    assert_costs("1 EVALSHA", Some("1 evalsha, 1 getrange, 1 publish, 1 set"), async || {
        let (wire, [operator, _], guard, waiter) = contended(STEADY).await;
        let cost = wire
            .cost(async {
                assert!(operator.force_release("order:7").await.expect("the server replies"));
                std::mem::forget(granted(waiter).await);
            })
            .await;
        std::mem::forget(guard);
        cost
    })
    .await;
}

#[tokio::test]
async fn a_long_body_has_its_grant_confirmed_with_one_command() {
    let (wire, _managers, guard, waiter) = contended(STEADY).await;

    let cost = wire
        .cost(async {
            release(guard).await;
            let held = granted(waiter).await;
            while held.remaining() < LONG * 3 / 4 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            std::mem::forget(held);
        })
        .await;

    cost.is("2 EVALSHA", "2 evalsha, 2 getrange, 1 pexpire, 1 pttl, 1 publish, 1 set");
}

#[tokio::test]
async fn a_grant_between_processes_that_reenqueue_is_two_commands() {
    // Each process enqueues and releases. The process that has not observed contention tries `SET`
    // first.
    assert_costs("20 EVALSHA, 1 SET", None, async || {
        let (wire, managers, mut guard, mut waiter) = contended(STEADY).await;
        wire.cost(async {
            for round in 0..10 {
                release(guard).await;
                guard = granted(waiter).await;
                waiter = wait(&wire, &managers[round % 2]).await;
            }
            waiter.abort();
            std::mem::forget(guard);
        })
        .await
    })
    .await;
}

/// Returns the cost of twelve holds.
///
/// One task of each of two processes holds the lock, while five more of each process wait.
async fn cost_of_twelve_holds(handoff_budget: &str) -> Cost {
    let (wire, managers, guard, waiter) =
        contended(&format!("{STEADY}&handoff_budget={handoff_budget}")).await;
    let more = managers.each_ref().map(|manager| join_all((0..5).map(|_| call(manager, "order:7"))));

    wire.cost(async {
        let first = async {
            release(guard).await;
            release(granted(waiter).await).await;
        };
        let [ours, theirs] = more;
        tokio::join!(biased; ours, theirs, first);
    })
    .await
}

#[tokio::test]
async fn a_grant_between_processes_with_more_waiters_is_one_command() {
    // Twelve holds change the process eleven times, and the last release grants nothing. After ten
    // of them, a task of the same process still waits.
    let ran = "1 del, 12 evalsha, 12 getrange, 10 pttl, 11 publish, 11 set";
    assert_costs("12 EVALSHA", Some(ran), async || cost_of_twelve_holds("0ms").await).await;
}

#[tokio::test]
async fn with_a_budget_the_lock_changes_processes_once() {
    // Two releases for twelve holds.
    assert_costs("2 EVALSHA", None, async || cost_of_twelve_holds("10s").await).await;
}

#[tokio::test]
async fn a_single_acquire_of_a_held_lock_is_two_commands() {
    let wire = Wire::start();
    let (holder, other) = (wire.manager().await, wire.manager().await);
    let _guard = hold(&holder, "order:7").await;

    let cost = wire
        .cost(async {
            let once = other.lock("order:7").acquire().await;
            assert!(matches!(once, Err(Error::Contended { remaining: Some(_), .. })), "{once:?}");
        })
        .await;

    // The second command returns how long the lock will be held.
    cost.is("1 EVALSHA, 1 SET", "1 evalsha, 1 getrange, 1 pttl, 1 set");
}

#[distributed_lock(key = "order:7", manager = locks, on_contended = skip)]
async fn place_order(locks: &LockManager) {
    panic!("the lock is held");
}

#[tokio::test]
async fn skipping_a_call_whose_lock_is_held_is_one_command() {
    let wire = Wire::start();
    let (holder, other) = (wire.manager().await, wire.manager().await);
    let _guard = hold(&holder, "order:7").await;

    let cost = wire.cost(place_order(&other)).await;

    cost.is("1 SET", "1 set");
}

#[tokio::test]
async fn a_try_acquire_of_a_held_lock_is_one_command() {
    let wire = Wire::start();
    let (holder, other) = (wire.manager().await, wire.manager().await);
    let _guard = hold(&holder, "order:7").await;

    let cost = wire
        .cost(async {
            let tried = other.lock("order:7").try_acquire().await.expect("the server replies");
            assert!(tried.is_none());
        })
        .await;

    cost.is("1 SET", "1 set");
}

#[tokio::test]
async fn a_call_dropped_while_waiting_withdraws_with_one_command() {
    let (wire, [_, other], _guard, waiter) = contended(STEADY).await;

    let cost = wire
        .cost(async {
            waiter.abort();
            drop(waiter.await);
            other.ready().await.expect("the server replies"); // after the withdrawal
        })
        .await;

    cost.is("1 EVALSHA", "1 evalsha, 1 getrange, 1 pttl, 1 set");
}
