//! P1: a guard never considers its lock valid for longer than the server keeps the key.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{Moment, Proxy, RedisServer, within};
use tokio::task::JoinSet;

use super::{LONG, time_to_live, until_waiting};

#[tokio::test]
async fn no_guard_outlives_its_key_after_a_script_flush_under_load() {
    const LOCKS: usize = 12;
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url_with("?response_timeout=5s")).await.expect("it is open");
    let mut held = Vec::new();
    for number in 0..LOCKS {
        let lock = manager.lock(format!("held:{number}").as_str()).lease(LONG);
        held.push(lock.acquire().await.expect("the lock is free"));
    }

    server.call(&["SCRIPT", "FLUSH"]);
    proxy.delay_replies(Duration::from_millis(100));
    drop(held);
    let mut calls = JoinSet::new();
    for number in 0..LOCKS {
        let key = format!("new:{number}");
        let lock = manager.lock(key.as_str()).lease(Duration::from_secs(5)).renew(false).wait(LONG);
        calls.spawn(async move { (key, lock.acquire().await) });
    }

    while let Some(call) = within(LONG, "the next lock", calls.join_next()).await {
        let (key, guard) = call.expect("no call panics");
        let guard = guard.expect("the lock is free");
        // The server is read first: the guard's remaining time can only be shorter after that.
        let ttl = time_to_live(&server, &key);
        let remaining = guard.remaining();
        assert!(remaining <= ttl, "{key}: {remaining:?} left in the guard, {ttl:?} at the server");
    }
}

#[tokio::test]
async fn no_guard_outlives_its_key_if_grant_leases_differ() {
    for (of_releaser, of_waiter) in [("100ms", "1s"), ("1s", "100ms")] {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let url = server.url_with(&format!("?grant_lease={of_releaser}"));
        let releaser = LockManager::connect(&url).await.expect("it is open");
        let url = proxy.url_with(&format!("?grant_lease={of_waiter}&response_timeout=2s"));
        let waiter = LockManager::connect(&url).await.expect("it is open");
        let held = releaser.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
        let lock = waiter.lock("order:7").lease(LONG).wait(LONG);
        let call = tokio::spawn(async move { lock.acquire().await });
        until_waiting(&server, "order:7", 1).await;

        // The confirmation of a grant takes longer than the short grant lease lasts.
        proxy.delay_requests(Duration::from_millis(400));
        drop(held);
        let call = within(LONG, "the lock", call).await.expect("the waiter does not panic");
        let guard = call.expect("the lock is granted");

        let granted = Moment::now();
        while granted.elapsed() < Duration::from_millis(800) {
            let ttl = time_to_live(&server, "order:7");
            let remaining = guard.remaining();
            assert!(
                remaining <= ttl,
                "granted for {of_releaser} or {of_waiter}: {remaining:?} left in the guard, {ttl:?} at the server"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
