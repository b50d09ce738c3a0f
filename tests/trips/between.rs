//! What processes cost each other that want one lock, in commands: two managers are two processes to a server.

use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager, distributed_lock};
use dlock_tests::world::name;
use futures_util::future::join_all;
use tokio::task::JoinHandle;

use super::wire::{Cost, STEADY, Wire};
use super::{LONG, call, hold, release};

/// A server, a manager that holds `order:7`, and one that waits for it.
async fn contended(options: &str) -> (Wire, [LockManager; 2], LockGuard, JoinHandle<LockGuard>) {
    let wire = Wire::start();
    let managers = [wire.manager_with(options).await, wire.manager_with(options).await];
    let guard = hold(&managers[0], "order:7").await;
    let waiter = wait(&wire, &managers[1]).await;
    (wire, managers, guard, waiter)
}

/// Has a manager wait for `order:7`, as the only one that does.
async fn wait(wire: &Wire, manager: &LockManager) -> JoinHandle<LockGuard> {
    let waits = manager.clone();
    let waiter = tokio::spawn(async move { hold(&waits, "order:7").await });
    wire.until_waiting("order:7", 1).await;
    manager.ready().await.expect("the server answers"); // he has been told
    waiter
}

async fn granted(waiter: JoinHandle<LockGuard>) -> LockGuard {
    waiter.await.expect("the waiter does not panic")
}

#[tokio::test]
async fn to_stand_in_the_queue_is_two_commands() {
    let wire = Wire::start();
    let (holder, other) = (wire.manager().await, wire.manager().await);
    let _guard = hold(&holder, "order:7").await;

    let cost = wire.cost(async { wait(&wire, &other).await.abort() }).await;

    cost.is("1 EVALSHA, 1 SET", "1 append, 1 evalsha, 1 getrange, 1 pttl, 1 set");
}

#[tokio::test]
async fn to_stand_in_the_queue_is_one_command_once_others_were_seen_to_want_the_lock() {
    let (wire, [_, other], guard, waiter) = contended(STEADY).await;
    release(guard).await;
    release(granted(waiter).await).await;

    let alone = wire.cost(call(&other, "order:7")).await;
    let again = wire.cost(call(&other, "order:7")).await;

    // What queues up takes a free lock; then nobody else wants it any more.
    alone.is("2 EVALSHA", "1 del, 2 evalsha, 1 getrange, 1 pttl, 1 set");
    again.is("1 EVALSHA, 1 SET", "1 del, 1 evalsha, 1 getrange, 1 set");
}

#[tokio::test]
async fn who_waits_asks_again_by_one_command_each_half_of_the_grant_lease() {
    let (wire, [_, other], _guard, waiter) = contended("?tracking=off&grant_lease=4s").await;

    let cost = wire
        .cost(async {
            let _ = wire.proxy.on_request(b"EVALSHA").await;
            other.ready().await.expect("the server answers"); // behind it
        })
        .await;

    cost.is("1 EVALSHA", "1 evalsha, 1 getrange, 1 pttl");
    waiter.abort();
}

#[tokio::test]
async fn who_waits_for_a_lease_that_nobody_ends_asks_and_tries_a_few_times_when_it_may_be_over() {
    // On a machine that is busy what is asked a millisecond before may come too late, and be the last, so it is looked more than once.
    for _ in 0..4 {
        let (wire, [_, other], _lost, waiter) = contended("?tracking=off&grant_lease=1s").await;

        let cost = wire
            .cost(async {
                wire.server.call(&["PEXPIRE", &name("order:7"), "600"]);
                release(granted(waiter).await).await;
                other.ready().await.expect("the server answers"); // behind the release
            })
            .await;

        // It asks each half of the grant lease, and a millisecond before the end; then, for the millisecond in which that may be, some five
        // times, and tries as often. Where answers take long, as far from the server, it asks and tries once.
        let sent: Vec<_> = cost.sent.split(", ").filter_map(|part| part.split_once(' ')).collect();
        let count =
            |of| sent.iter().find(|(_, name)| *name == of).map_or(0, |(count, _)| count.parse().expect(of));
        let (asked_or_released, tried): (u32, u32) = (count("EVALSHA"), count("SET"));
        assert!(asked_or_released <= 2 + 1 + 8 + 1 && tried <= 8, "{cost:?}");
        if tried > 0 {
            return;
        }
    }
    panic!("it only asks");
}

/// Looks what turns cost that are short: on a machine that is busy one may last, and is confirmed, so it is looked more than once.
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
async fn a_release_to_who_waits_is_one_command_and_his_grant_none() {
    for options in [STEADY, &format!("{STEADY}&yield_to_foreign=on")] {
        assert_costs("1 EVALSHA", Some("1 evalsha, 1 getrange, 1 publish, 1 set"), async || {
            let (wire, [_, other], guard, waiter) = contended(options).await;
            wire.cost(async {
                release(guard).await;
                let held = granted(waiter).await;
                other.ready().await.expect("the server answers"); // behind whatever he has sent
                std::mem::forget(held);
            })
            .await
        })
        .await;
    }
}

#[tokio::test]
async fn on_the_runtime_of_its_body_a_grant_is_confirmed_at_once() {
    let (wire, [_, other], guard, waiter) = contended(&format!("{STEADY}&io=runtime")).await;

    let cost = wire
        .cost(async {
            release(guard).await;
            let held = granted(waiter).await;
            other.ready().await.expect("the server answers"); // behind the confirmation
            std::mem::forget(held);
        })
        .await;

    cost.is("2 EVALSHA", "2 evalsha, 2 getrange, 1 pexpire, 1 pttl, 1 publish, 1 set");
}

#[tokio::test]
async fn a_release_by_force_hands_over_by_one_command() {
    assert_costs("1 EVALSHA", Some("1 evalsha, 1 getrange, 1 publish, 1 set"), async || {
        let (wire, [operator, _], guard, waiter) = contended(STEADY).await;
        let cost = wire
            .cost(async {
                assert!(operator.force_release("order:7").await.expect("the server answers"));
                std::mem::forget(granted(waiter).await);
            })
            .await;
        std::mem::forget(guard);
        cost
    })
    .await;
}

#[tokio::test]
async fn a_body_that_lasts_has_its_grant_confirmed_by_one_command() {
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
async fn a_hand_over_between_processes_that_ask_anew_each_time_is_two_commands() {
    // Each queues up and lets go; the one that has not seen that others want the lock is told that it is taken before.
    assert_costs("20 EVALSHA, 1 SET", None, async || {
        let (wire, managers, mut guard, mut waiter) = contended(STEADY).await;
        wire.cost(async {
            for turn in 0..10 {
                release(guard).await;
                guard = granted(waiter).await;
                waiter = wait(&wire, &managers[turn % 2]).await;
            }
            waiter.abort();
            std::mem::forget(guard);
        })
        .await
    })
    .await;
}

/// Returns what twelve turns cost: one task of each of two processes has its turn, while five more in each wait.
async fn cost_of_twelve_turns(handoff_budget: &str) -> Cost {
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
async fn a_hand_over_between_processes_in_which_more_tasks_wait_is_one_command() {
    // Twelve turns change processes eleven times; the last release hands over to nobody. Ten leave a task behind that waits.
    let ran = "1 del, 12 evalsha, 12 getrange, 10 pttl, 11 publish, 11 set";
    assert_costs("12 EVALSHA", Some(ran), async || cost_of_twelve_turns("0ms").await).await;
}

#[tokio::test]
async fn with_a_hand_off_the_lock_changes_processes_once_for_all_tasks_that_wait() {
    // Two releases for twelve turns.
    assert_costs("2 EVALSHA", None, async || cost_of_twelve_turns("10s").await).await;
}

#[tokio::test]
async fn to_ask_once_for_a_lock_that_is_held_is_two_commands() {
    let wire = Wire::start();
    let (holder, other) = (wire.manager().await, wire.manager().await);
    let _guard = hold(&holder, "order:7").await;

    let cost = wire
        .cost(async {
            let once = other.lock("order:7").acquire().await;
            assert!(matches!(once, Err(Error::Contended { retry_after: Some(_), .. })), "{once:?}");
        })
        .await;

    // The second asks how long it will be held.
    cost.is("1 EVALSHA, 1 SET", "1 evalsha, 1 getrange, 1 pttl, 1 set");
}

#[distributed_lock(key = "order:7", manager = locks, on_contended = skip)]
async fn place_order(locks: &LockManager) {
    panic!("the lock is held");
}

#[tokio::test]
async fn to_skip_a_call_whose_lock_is_held_is_one_command() {
    let wire = Wire::start();
    let (holder, other) = (wire.manager().await, wire.manager().await);
    let _guard = hold(&holder, "order:7").await;

    let cost = wire.cost(place_order(&other)).await;

    cost.is("1 SET", "1 set");
}

#[tokio::test]
async fn to_try_for_a_lock_that_is_held_is_one_command() {
    let wire = Wire::start();
    let (holder, other) = (wire.manager().await, wire.manager().await);
    let _guard = hold(&holder, "order:7").await;

    let cost = wire
        .cost(async {
            let tried = other.lock("order:7").try_acquire().await.expect("the server answers");
            assert!(tried.is_none());
        })
        .await;

    cost.is("1 SET", "1 set");
}

#[tokio::test]
async fn a_call_that_is_dropped_while_it_waits_leaves_by_one_command() {
    let (wire, [_, other], _guard, waiter) = contended(STEADY).await;

    let cost = wire
        .cost(async {
            waiter.abort();
            drop(waiter.await);
            other.ready().await.expect("the server answers"); // behind the leave
        })
        .await;

    cost.is("1 EVALSHA", "1 evalsha, 1 getrange, 1 pttl, 1 set");
}
