//! The state in Redis: one key with a TTL, and the commands that a lock costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::resp::Reply;
use dlock_tests::world::{ids_in, name};
use dlock_tests::{RedisServer, within};

use super::{LEASE, LONG, manager_of, time_to_live, until_waiting};

#[tokio::test]
async fn a_lock_is_one_key_with_its_name_and_a_ttl() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;

    let held = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let (keys, ttl) = (server.call(&["KEYS", "*"]), server.call(&["PTTL", "dlock:order:7"]));
    held.release().await.expect("it was held");

    assert_eq!(keys.texts(), ["dlock:order:7"]);
    assert!(ttl.integer().is_some_and(|ttl| (28_000..=30_000).contains(&ttl)), "{ttl:?}");
    assert_eq!(server.call(&["DBSIZE"]), Reply::Integer(0));
}

#[tokio::test]
async fn a_namespace_of_the_url_replaces_the_default_one() {
    let server = RedisServer::start();
    server.allow_keys(&["shop:*", "order:*"]);
    let shop = LockManager::connect(&server.url_with("?namespace=shop")).await.expect("a good URL");
    let bare = LockManager::connect(&server.url_with("?namespace=")).await.expect("a good URL");

    let _of_shop = shop.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let _bare = bare.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");

    let mut keys = server.call(&["KEYS", "*"]).texts();
    keys.sort();
    assert_eq!(keys, ["order:7", "shop:order:7"]);
}

#[tokio::test]
async fn an_uncontended_lock_costs_one_set_and_one_script() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    manager.lock("warm").lease(LONG).acquire().await.expect("free").release().await.expect("held");
    let (sets, scripts) = (server.command_count("set"), server.command_count("evalsha"));

    for _ in 0..20 {
        manager.lock("order:7").lease(LONG).acquire().await.expect("free").release().await.expect("held");
    }

    assert_eq!(server.command_count("set") - sets, 20);
    assert_eq!(server.command_count("evalsha") - scripts, 20);
    assert_eq!(server.command_count("eval"), 0);
}

/// P4, after a foreign command has removed the TTL.
#[tokio::test]
async fn a_persisted_key_outlives_a_waiter_and_gets_a_ttl_again() {
    let server = RedisServer::start();
    let (first, second) = (manager_of(&server).await, manager_of(&server).await);
    let held = first.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");
    let lock = second.lock("order:7").lease(LONG).wait(Duration::from_secs(1));
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until_waiting(&server, "order:7", 1).await;

    server.call(&["PERSIST", "dlock:order:7"]);
    let refused = waiter.await.expect("the waiter does not panic");
    let has_a_ttl = async {
        loop {
            assert_eq!(server.call(&["EXISTS", "dlock:order:7"]), Reply::Integer(1));
            if server.call(&["PTTL", "dlock:order:7"]).integer().is_some_and(|ttl| ttl > 0) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(LEASE, "the key has a TTL again", has_a_ttl).await;
    // If the waiter had set a TTL when it withdrew, the key would expire here.
    tokio::time::sleep(LEASE).await;

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    assert!(held.check().is_ok(), "{:?}", held.check());
    assert!(held.release().await.is_ok());
}

/// A grant is published only if the server has written it.
#[tokio::test]
async fn no_grant_is_published_while_the_server_rejects_writes() {
    let server = RedisServer::start();
    let first = manager_of(&server).await;
    // Without tracking, the next script that the server runs is the release.
    let url = server.url_with("?grant_lease=60s&tracking=off");
    let second = LockManager::connect(&url).await.expect("the server takes managers");
    let held = first.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let lock = second.lock("order:7").lease(LONG).wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until_waiting(&server, "order:7", 1).await;

    let releases = server.command_count("evalsha");
    server.call(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    drop(held);
    let refused = async {
        while server.command_count("evalsha") == releases {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(LONG, "the release", refused).await;
    let published = server.command_count("publish");
    server.call(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    let granted = within(LONG, "the lock", waiter).await.expect("the waiter does not panic");

    assert_eq!(published, 0);
    assert!(granted.is_ok(), "{granted:?}");
}

/// P1: if all queued processes are dead, a holder that offers the lock keeps it for its lease.
#[tokio::test]
async fn a_lock_offered_to_dead_waiters_keeps_its_lease() {
    let server = RedisServer::start();
    let manager = LockManager::connect(&server.url_with("?handoff_budget=0ms")).await.expect("it is open");
    let lock = manager.lock("order:7").lease(LONG).wait(LONG);
    let held = lock.acquire().await.expect("the lock is free");
    let next = tokio::spawn(async move { lock.acquire().await });
    tokio::task::yield_now().await; // it is queued behind
    let holder = server.call(&["GET", "dlock:order:7"]).text().expect("it is held").to_owned();
    let (family, of_process) = holder.split_at(4);
    let dead: String = of_process.chars().rev().collect();
    server.call(&["APPEND", "dlock:order:7", &format!("{family}{dead}")]);
    until_waiting(&server, "order:7", 1).await;

    held.release().await.expect("it was held");
    let next = within(LONG, "the lock", next).await.expect("no panic").expect("the lock is granted");
    let (remaining, ttl) = (next.remaining(), time_to_live(&server, "order:7"));

    assert_eq!(
        server.call(&["GET", "dlock:order:7"]).text(),
        Some(&*holder),
        "the lock is kept, and the dead waiter is removed"
    );
    assert!(
        remaining > LONG / 2 && remaining <= ttl,
        "{remaining:?} left in the guard, {ttl:?} at the server"
    );
}

/// A hand-off between processes needs no additional memory.
#[tokio::test]
async fn a_server_without_memory_grants_and_withdraws() {
    let server = RedisServer::start();
    let (first, second, third) =
        (manager_of(&server).await, manager_of(&server).await, manager_of(&server).await);
    let held = first.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let mut waiters = Vec::new();
    for (manager, count) in [(second, 1), (third, 2)] {
        let lock = manager.lock("order:7").lease(LONG).wait(LONG);
        waiters.push(tokio::spawn(async move { lock.acquire().await }));
        until_waiting(&server, "order:7", count).await;
    }

    server.call(&["CONFIG", "SET", "maxmemory", "1"]);
    waiters.remove(1).abort();
    let left = async {
        while ids_in(server.call(&["GET", "dlock:order:7"]).text().unwrap_or_default()) != 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(LONG, "the leave", left).await;
    let ttl = time_to_live(&server, "order:7");
    let released = held.release().await;
    let granted = within(LONG, "the lock", waiters.remove(0)).await.expect("the waiter does not panic");

    assert!(ttl > LONG / 2, "{ttl:?}");
    assert!(released.is_ok(), "{released:?}");
    assert!(granted.is_ok(), "{granted:?}");
}

/// P4.
#[tokio::test]
async fn every_key_has_a_ttl_at_every_instant() {
    const KEYS_WITHOUT_TTL: &str = "local bad = {} \
        for _, key in ipairs(redis.call('KEYS', '*')) do \
          if redis.call('PTTL', key) == -1 then bad[#bad + 1] = key end \
        end return bad";
    let server = Arc::new(RedisServer::start());
    let stop = Arc::new(AtomicBool::new(false));
    let mut contenders = Vec::new();
    for _ in 0..3 {
        let manager = manager_of(&server).await;
        for task in 0..8 {
            let lock = manager.lock(format!("key:{}", task % 4).as_str()).lease(LEASE).wait(LONG);
            let stop = Arc::clone(&stop);
            contenders.push(tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.acquire().await.expect("the lock is granted");
                    guard.fencing_token().await.expect("it is held");
                    guard.release().await.expect("it was held");
                }
            }));
        }
    }

    let scanned = Arc::clone(&server);
    let scan = tokio::task::spawn_blocking(move || {
        let bad = (0..500).map(|_| scanned.call(&["EVAL", KEYS_WITHOUT_TTL, "0"]));
        bad.filter(|reply| *reply != Reply::List(Vec::new())).collect::<Vec<_>>()
    });
    let bad = scan.await.expect("the scan does not panic");
    stop.store(true, Ordering::SeqCst);
    for contender in contenders {
        contender.await.expect("no contender panics");
    }

    assert_eq!(bad, []);
}

/// P4, if no holder is alive to restore the TTL.
#[tokio::test]
async fn a_waiter_that_withdraws_behind_a_dead_holder_keeps_a_ttl() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    for (key, has_an_end) in [("ends", true), ("persisted", false)] {
        server.call(&["SET", &name(key), "dl2-0123456789abcdef000000000001", "PX", "30000"]);
        let lock = manager.lock(key).wait(Duration::from_millis(300));
        let waiter = tokio::spawn(async move { lock.acquire().await });
        until_waiting(&server, key, 1).await;
        if !has_an_end {
            server.call(&["PERSIST", &name(key)]);
        }

        let refused = waiter.await.expect("the waiter does not panic");
        let has_left = async {
            while ids_in(server.call(&["GET", &name(key)]).text().unwrap_or_default()) > 1 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within(LONG, key, has_left).await;

        assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
        assert!(!time_to_live(&server, key).is_zero(), "{key} is gone");
    }
}

#[tokio::test]
async fn withdrawals_at_expiry_do_not_extend_a_key() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let keys: Vec<_> = (0..400_u64).map(|number| format!("dying:{number}")).collect();

    let mut waiting = Vec::new();
    for (key, at) in keys.iter().zip(0_u64..) {
        // The holder is dead, so only the TTL ends the hold.
        server.call(&["SET", &name(key), "dl2-0123456789abcdef000000000001", "PX", "50"]);
        let lock = manager.lock(key).wait(Duration::from_micros(47_500 + at % 30 * 100));
        waiting.push(tokio::spawn(async move { drop(lock.acquire().await) }));
        tokio::task::yield_now().await;
    }
    for waiter in waiting {
        waiter.await.expect("the waiter does not panic");
    }

    let longest = Duration::from_secs(31);
    for key in keys {
        let left = server.call(&["PTTL", &name(&key)]);
        let outlives = matches!(left, Reply::Integer(left) if u128::try_from(left).is_ok_and(|left| left > longest.as_millis()));
        assert!(!outlives, "{key}: {left:?}");
    }
}

#[tokio::test]
async fn fencing_counter_expires_after_its_ttl_from_its_last_use() {
    let server = RedisServer::start();
    for (option, seconds) in [("", 7 * 24 * 3_600), ("?fence_ttl=1h", 3_600)] {
        let manager = LockManager::connect(&server.url_with(option)).await.expect("the server is up");

        let guard = manager.lock("order:7").acquire().await.expect("the lock is free");
        guard.fencing_token().await.expect("it is held");
        let ttl = server.call(&["TTL", "{dlock:order:7}##token"]).integer();
        guard.release().await.expect("it is held");

        assert!(ttl.is_some_and(|ttl| (seconds - 60..=seconds).contains(&ttl)), "{option}: {ttl:?}");
    }
}
