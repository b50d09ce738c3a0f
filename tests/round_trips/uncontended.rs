//! The commands of a process without contention.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::until;

use super::wire::Wire;
use super::{LONG, call, hold, release};

#[tokio::test]
async fn an_uncontended_call_sends_two_commands() {
    let wire = Wire::start();
    let manager = wire.manager().await;

    let cost = wire.cost(call(&manager, "order:7")).await;

    cost.is("1 EVALSHA, 1 SET", "1 del, 1 evalsha, 1 getrange, 1 set");
}

#[tokio::test]
async fn run_sends_no_additional_commands() {
    let wire = Wire::start();
    let manager = wire.manager().await;

    let cost = wire
        .cost(async {
            manager.lock("order:7").run(async |_guard| ()).await.expect("the lock is free");
        })
        .await;

    cost.is("1 EVALSHA, 1 SET", "1 del, 1 evalsha, 1 getrange, 1 set");
}

#[tokio::test]
async fn a_try_acquire_of_a_free_lock_is_one_command() {
    let wire = Wire::start();
    let manager = wire.manager().await;

    let cost = wire
        .cost(async {
            let tried = manager.lock("order:7").try_acquire().await.expect("the server replies");
            release(tried.expect("the lock is free")).await;
        })
        .await;

    cost.is("1 EVALSHA, 1 SET", "1 del, 1 evalsha, 1 getrange, 1 set");
}

#[tokio::test]
async fn a_call_inside_a_hold_sends_nothing() {
    let wire = Wire::start();
    let manager = wire.manager().await;

    let lock = manager.lock("order:7");
    let inside = lock.run(async |_guard| {
        wire.cost(async {
            for _ in 0..100 {
                lock.run(async |_guard| ()).await.expect("it joins");
            }
        })
        .await
    });

    inside.await.expect("the lock is free").is("", "");
}

#[tokio::test]
async fn tasks_of_one_process_hand_off_without_a_command() {
    let wire = Wire::start();
    let manager = wire.manager_with("?tracking=off&handoff_budget=10s").await;

    let cost = wire
        .cost(async {
            let tasks = (0..64).map(|_| call(&manager, "order:7"));
            futures_util::future::join_all(tasks).await;
        })
        .await;

    cost.is("1 EVALSHA, 1 SET", "1 del, 1 evalsha, 1 getrange, 1 set");
}

#[tokio::test]
async fn a_task_with_another_lease_renews_the_lock_or_yields_it() {
    let wire = Wire::start();
    let manager = wire.manager_with("?tracking=off&handoff_budget=10s").await;
    for (key, lease, commands, keyspace) in [
        ("longer", LONG * 2, "1 EVALSHA", "1 evalsha, 1 getrange, 1 pexpire, 1 pttl"),
        ("shorter", LONG / 2, "2 EVALSHA, 1 SET", "1 del, 2 evalsha, 2 getrange, 1 set"),
    ] {
        let held = hold(&manager, key).await;
        let next = manager.lock(key).lease(lease).wait(LONG);

        let mut granted = None;
        let cost = wire
            .cost(async { granted = Some(futures_util::future::join(next.acquire(), release(held)).await.0) })
            .await;

        cost.is(commands, keyspace);
        release(granted.expect("it was polled").expect("it was released")).await;
    }
}

#[tokio::test]
async fn each_handoff_budget_probes_waiters_with_one_command() {
    let wire = Wire::start();
    let manager = wire.manager_with("?tracking=off&handoff_budget=1s").await;
    let first = hold(&manager, "order:7").await;

    let cost = wire
        .cost(async {
            let others = futures_util::future::join_all((0..8).map(|_| call(&manager, "order:7")));
            let first = async {
                // More than half, with time for a busy machine.
                tokio::time::sleep(Duration::from_millis(550)).await;
                release(first).await;
            };
            tokio::join!(others, first);
        })
        .await;

    // The second command is the last release.
    cost.is("2 EVALSHA", "1 del, 2 evalsha, 3 getrange, 1 pttl");
}

#[tokio::test]
async fn a_fencing_token_is_one_command_the_first_time() {
    let wire = Wire::start();
    let manager = wire.manager().await;
    let guard = hold(&manager, "order:7").await;

    let first = wire.cost(async { guard.fencing_token().await.map(drop).expect("it is held") }).await;
    let second = wire.cost(async { guard.fencing_token().await.map(drop).expect("it is held") }).await;

    first.is("1 EVALSHA", "1 evalsha, 2 getrange, 1 pttl, 1 set, 1 time");
    second.is("", "");
}

#[tokio::test]
async fn an_extension_is_one_command() {
    let wire = Wire::start();
    let manager = wire.manager().await;
    let guard = hold(&manager, "order:7").await;

    let cost = wire.cost(async { guard.extend(LONG * 2).await.expect("it is held") }).await;

    cost.is("1 EVALSHA", "1 evalsha, 1 getrange, 1 pexpire, 1 pttl");
}

#[tokio::test]
async fn checking_a_guard_sends_nothing() {
    let wire = Wire::start();
    let manager = wire.manager().await;
    let guard = hold(&manager, "order:7").await;

    let cost = wire
        .cost(async {
            guard.check().expect("it is held");
            assert!(guard.remaining() > Duration::ZERO);
        })
        .await;

    cost.is("", "");
}

#[tokio::test]
async fn an_inspection_is_one_command() {
    let wire = Wire::start();
    let manager = wire.manager().await;
    let _guard = hold(&manager, "order:7").await;

    let cost =
        wire.cost(async { assert!(manager.inspect("order:7").await.expect("it replies").is_some()) }).await;

    // The value of the lock, and its counter of fencing tokens.
    cost.is("1 EVALSHA", "1 evalsha, 2 getrange, 1 pttl");
}

#[tokio::test]
async fn a_force_release_is_one_command() {
    let wire = Wire::start();
    let (holder, operator) = (wire.manager().await, wire.manager().await);
    let _guard = hold(&holder, "order:7").await;

    let cost =
        wire.cost(async { assert!(operator.force_release("order:7").await.expect("it replies")) }).await;

    cost.is("1 EVALSHA", "1 del, 1 evalsha, 1 getrange");
}

#[tokio::test]
async fn min_hold_is_one_command_after_the_body_and_one_later() {
    let wire = Wire::start();
    let manager = wire.manager().await;
    let kept = manager.lock("job").lease(LONG).min_hold(Duration::from_millis(500));
    let guard = kept.acquire().await.expect("the lock is free");

    let body = wire.cost(release(guard)).await;
    let later = wire.cost(one_more(&wire, &manager)).await;

    body.is("1 EVALSHA", "1 evalsha, 1 getrange, 1 pexpire");
    later.is("1 EVALSHA", "1 del, 1 evalsha, 1 getrange");
}

#[tokio::test]
async fn a_renewal_is_one_command_each_third_of_the_lease() {
    let wire = Wire::start();
    let manager = wire.manager().await;
    let lease = Duration::from_secs(3);
    let guard = manager.lock("order:7").lease(lease).acquire().await.expect("the lock is free");

    let cost = wire.cost(one_more(&wire, &manager)).await;

    cost.is("1 EVALSHA", "1 evalsha, 1 getrange, 1 pexpire, 1 pttl");
    release(guard).await;
}

#[tokio::test]
async fn a_renewal_of_a_tracked_lock_checks_it_once_more() {
    let wire = Wire::start();
    let manager = wire.manager_with("?grant_lease=60s&response_timeout=5s").await;
    let guard =
        manager.lock("order:7").lease(Duration::from_secs(3)).acquire().await.expect("the lock is free");
    // The tracking connection is established for the first lock that is held for long. The lock is
    // checked before that, and again over that connection.
    until("both checks", async || wire.server.command_count("getrange") >= 2).await;

    let cost = wire.cost(one_more(&wire, &manager)).await;

    if wire.server.redis_version() < 7 {
        cost.is("1 EVALSHA, 1 GETRANGE", "1 evalsha, 2 getrange, 1 pexpire, 2 pttl");
    } else {
        cost.is("1 EVALSHA", "1 evalsha, 1 getrange, 1 pexpire, 2 pttl");
    }
    release(guard).await;
}

#[tokio::test]
async fn a_call_dropped_before_its_reply_releases_its_grant() {
    let wire = Wire::start();
    let manager = wire.manager().await;

    let cost = wire
        .cost(async {
            wire.proxy.hold_replies();
            let sent = wire.proxy.on_request(b"SET");
            let lock = manager.lock("order:7");
            tokio::select! {
                _ = lock.acquire() => unreachable!("no reply arrives"),
                _ = sent => {}
            }
            wire.proxy.pass();
            manager.shutdown(LONG).await;
        })
        .await;

    cost.is("1 EVALSHA, 1 SET", "1 del, 1 evalsha, 1 getrange, 1 set");
}

#[tokio::test]
async fn a_call_that_is_dropped_before_it_is_polled_sends_nothing() {
    let wire = Wire::start();
    let manager = wire.manager().await;

    let lock = manager.lock("order:7");
    let cost = wire.cost(async { drop(lock.acquire()) }).await;

    cost.is("", "");
}

/// Waits until one more script was called and its reply was received.
async fn one_more(wire: &Wire, manager: &LockManager) {
    let _ = wire.proxy.on_request(b"EVALSHA").await;
    manager.ready().await.expect("the server replies"); // its reply follows that of the script
}
