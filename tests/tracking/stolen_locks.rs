//! The loss of a stolen lock is detected at once, not at its next renewal.

use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager, LossCause};
use dlock_tests::world::{FOREIGN, name};
use dlock_tests::{Moment, Proxy, QuorumFleet, RedisServer, acl, within};

use crate::{AT_ONCE, LEASE, LONG, armed, manager_of, until, until_armed};

const KEY: &str = "order:7";

/// Acquires a lock, and waits until it is tracked.
async fn held(server: &RedisServer, manager: &LockManager) -> LockGuard {
    let guard = manager.lock(KEY).lease(LEASE).acquire().await.expect("the lock is free");
    until_armed(server, 1).await;
    guard
}

/// Returns the ID of the tracking connection, after its first request for a lock.
fn tracker(server: &RedisServer) -> Option<String> {
    let clients = server.call(&["CLIENT", "LIST"]);
    let mut clients = clients.text()?.lines();
    let has_asked = |client: &str| client.contains(" cmd=get") || client.contains(" cmd=evalsha");
    let tracker = clients.find(|client| client.contains(" flags=t") && has_asked(client))?;
    tracker.split(' ').find_map(|part| part.strip_prefix("id=")).map(str::to_owned)
}

async fn assert_lost_at_once(server: &RedisServer, guard: &LockGuard, deeds: &[&[&str]]) {
    let since = Moment::now();
    for deed in deeds {
        server.call(deed);
    }
    let cause = within(LONG, "the loss", guard.lost()).await;
    let took = since.elapsed();

    assert!(took < AT_ONCE && cause == LossCause::NotOwner, "{deeds:?}: {cause:?} after {took:?}");
}

#[tokio::test]
async fn foreign_change_of_a_held_lock_is_detected_at_once() {
    let deeds: [&[&[&str]]; 5] = [
        &[&["SET", &name(KEY), FOREIGN, "PX", "60000"]],
        &[&["DEL", &name(KEY)]],
        &[&["FLUSHALL"]],
        &[&["RPUSH", "list", "x"], &["RENAME", "list", &name(KEY)]],
        &[&["PEXPIRE", &name(KEY), "1"]],
    ];
    for deeds in deeds {
        let server = RedisServer::start();
        let manager = manager_of(&server).await;
        let guard = held(&server, &manager).await;

        assert_lost_at_once(&server, &guard, deeds).await;
    }
}

#[tokio::test]
async fn theft_in_redisson_layout_is_detected_at_once() {
    for deed in [&["DEL", &name(KEY)][..], &["RENAME", "other", &name(KEY)]] {
        let server = RedisServer::start();
        server.allow(acl::documented_for_redisson().chain(["allkeys"]));
        server.call(&["HSET", "other", "somebody:1", "1"]);
        let manager =
            LockManager::connect(&server.url_with("?layout=redisson")).await.expect("the server is up");
        let guard = held(&server, &manager).await;

        assert_lost_at_once(&server, &guard, &[deed]).await;
    }
}

#[tokio::test]
async fn theft_at_a_quorum_majority_is_detected_at_once() {
    let mut fleet = QuorumFleet::start(3).await;
    let manager = fleet.manager("").await;
    let lock = manager.lock(KEY).renew(false); // otherwise, its next renewal would detect the theft
    let guard = lock.acquire().await.expect("the lock is free");
    let [first, second, third] = fleet.servers() else { panic!("there are three") };
    for server in [&*first, second, third] {
        until_armed(server, 1).await;
    }

    second.call(&["DEL", &name(KEY)]);
    assert_lost_at_once(first, &guard, &[&["DEL", &name(KEY)]]).await;
}

#[tokio::test]
async fn a_stolen_lock_stops_its_body_at_once() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;

    let lock = manager.lock(KEY).lease(LEASE);
    let body = tokio::spawn(async move { lock.run(async |_| std::future::pending::<()>().await).await });
    until_armed(&server, 1).await;
    let since = Moment::now();
    server.call(&["SET", &name(KEY), FOREIGN, "PX", "60000"]);
    let ended = within(LONG, "the end of the body", body).await.expect("no panic");

    assert!(matches!(ended, Err(Error::Lost { .. })), "{ended:?}");
    assert!(since.elapsed() < AT_ONCE, "{:?}", since.elapsed());
}

#[tokio::test]
async fn fixed_lease_is_tracked_and_not_extended() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let guard = manager.lock(KEY).lease(LEASE).renew(false).acquire().await.expect("the lock is free");
    let since = Moment::now();
    tokio::time::sleep(Duration::from_millis(200)).await;
    until_armed(&server, 1).await;

    let (held, left) = (since.elapsed(), server.call(&["PTTL", &name(KEY)]).integer());
    let left = Duration::from_millis(left.and_then(|left| left.try_into().ok()).expect("it is held"));
    assert!(left + held <= LEASE + Duration::from_millis(1), "{left:?} left after {held:?}");
    assert_lost_at_once(&server, &guard, &[&["DEL", &name(KEY)]]).await;
}

#[tokio::test]
async fn renewed_lock_is_still_tracked() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let lease = Duration::from_secs(6);
    let guard = manager.lock(KEY).lease(lease).acquire().await.expect("the lock is free");
    let left = || server.call(&["PTTL", &name(KEY)]).integer().unwrap_or_default();
    until(|| left() < 4_600).await;
    until(|| left() > 5_000).await;

    assert_lost_at_once(&server, &guard, &[&["DEL", &name(KEY)]]).await;
}

#[tokio::test]
async fn lock_handed_off_locally_is_tracked_for_its_new_holder() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let first = held(&server, &manager).await;
    let waiting = manager.lock(KEY).lease(LEASE).wait(LONG);
    let second = tokio::spawn(async move { waiting.acquire().await });
    drop(first);
    let second = within(LONG, "its grant", second).await.expect("no panic").expect("the lock is free");
    until_armed(&server, 1).await;

    assert_lost_at_once(&server, &second, &[&["DEL", &name(KEY)]]).await;
}

#[tokio::test]
async fn killed_tracking_connection_is_replaced() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    // Without renewals, which would start tracking again.
    let guard = manager.lock(KEY).lease(LEASE).renew(false).acquire().await.expect("the lock is free");
    until_armed(&server, 1).await;

    let first = tracker(&server).expect("a connection is tracking");
    assert_eq!(server.call(&["CLIENT", "KILL", "ID", &first]).integer(), Some(1));
    until(|| tracker(&server).is_some_and(|second| second != first)).await;

    assert_lost_at_once(&server, &guard, &[&["DEL", &name(KEY)]]).await;
}

#[tokio::test]
async fn empty_restart_is_detected_with_a_fixed_lease() {
    let mut server = RedisServer::start();
    let manager = manager_of(&server).await;
    let guard = manager.lock(KEY).lease(LEASE).renew(false).acquire().await.expect("the lock is free");
    until_armed(&server, 1).await;

    server.restart();
    let since = Moment::now();
    let cause = within(LONG, "the loss", guard.lost()).await;

    // The connection is replaced within at most 1 s.
    assert!(since.elapsed() < Duration::from_secs(2) && cause == LossCause::NotOwner, "{cause:?}");
}

#[tokio::test]
async fn flood_of_invalidations_causes_bounded_checks() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let guard = held(&server, &manager).await;

    let before = server.command_count("getrange");
    let since = Moment::now();
    let mut touches = 0;
    while since.elapsed() < Duration::from_secs(1) {
        server.call(&["PEXPIRE", &name(KEY), "60000"]);
        touches += 1;
    }
    let asked = server.command_count("getrange") - before;

    assert!(touches > 200 && (10..=110).contains(&asked), "{asked} checks after {touches} changes");
    assert!(guard.check().is_ok());
}

#[tokio::test]
async fn briefly_held_locks_are_never_tracked() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;

    for _ in 0..200 {
        let guard = manager.lock(KEY).acquire().await.expect("the lock is free");
        assert_eq!(
            manager.inspect(KEY).await.expect("it is there").map(|seen| seen.is_held_here()),
            Some(true)
        );
        guard.release().await.expect("it was held");
    }

    let tracked = server.call(&["INFO", "stats"]);
    let tracked = tracked.text().unwrap_or_default();
    assert!(tracked.contains("tracking_total_keys:0"), "{tracked}");
}

#[tokio::test]
async fn extension_of_a_briefly_held_lock_starts_no_tracking() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let lives = manager.lock("lives").lease(LEASE).acquire().await.expect("the lock is free");
    until_armed(&server, 1).await;

    let mut counts = Vec::new();
    for _ in 0..20 {
        let guard = manager.lock(KEY).acquire().await.expect("the lock is free");
        guard.extend(LEASE).await.expect("the lock is held");
        counts.push(armed(&server));
        guard.release().await.expect("it was held");
    }

    assert!(counts.contains(&1), "{counts:?}"); // not all: on a slow machine, a hold may last for 100 ms
    drop(lives);
}

#[tokio::test]
async fn ten_thousand_released_locks_leave_no_tracked_key() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let mut held = Vec::new();
    for number in 0..10_000 {
        held.push(manager.lock(format!("order:{number}")).lease(LEASE).acquire().await.expect("it is free"));
    }
    until_armed(&server, 10_000).await;

    let last = held.split_off(9_999);
    drop(held);
    until_armed(&server, 1).await;

    assert_lost_at_once(&server, &last[0], &[&["DEL", &name("order:9999")]]).await;
}

#[tokio::test]
async fn lost_replies_do_not_lose_a_lock_before_its_deadline() {
    let lease = Duration::from_secs(2);
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager =
        LockManager::connect(&proxy.url_with("?response_timeout=100ms")).await.expect("the server is up");
    let guard = manager.lock(KEY).lease(lease).acquire().await.expect("the lock is free");
    until_armed(&server, 1).await;

    let answer = proxy.on_reply(b":1\r\n");
    proxy.swallow_replies();
    // A connection with a missing reply delivers no further reply.
    within(LONG, "the reply", answer).await;
    proxy.pass();
    let lost = tokio::time::timeout(lease * 2, guard.lost()).await;

    assert!(lost.is_err(), "{lost:?}");
    assert_lost_at_once(&server, &guard, &[&["DEL", &name(KEY)]]).await;
}

/// Returns how many scripts and how many `GETRANGE` the server has run, at one moment.
fn scripts_and_gets(server: &RedisServer) -> [u64; 2] {
    let all = server.commands();
    ["evalsha", "getrange"].map(|command| all.get(command).copied().unwrap_or_default())
}

#[tokio::test]
async fn renewal_is_one_command_without_invalidation() {
    let server = RedisServer::start();
    if server.redis_version() < 7 {
        println!("SKIPPED: Redis before 7 reports changes by a script to its sender too");
        return;
    }
    let manager = manager_of(&server).await;
    let lease = Duration::from_millis(1_500);
    let guard = manager.lock(KEY).lease(lease).acquire().await.expect("the lock is free");
    until_armed(&server, 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;

    let before = scripts_and_gets(&server);
    tokio::time::sleep(lease * 2).await;
    let [scripts, gets] = scripts_and_gets(&server);
    let (scripts, gets) = (scripts - before[0], gets - before[1]);

    assert!((5..=8).contains(&scripts), "{scripts} scripts in two leases");
    assert_eq!(gets, scripts, "only the scripts read the holder");
    drop(guard);
}

#[tokio::test]
async fn extension_is_one_command_without_invalidation() {
    let server = RedisServer::start();
    if server.redis_version() < 7 {
        println!("SKIPPED: Redis before 7 reports changes by a script to its sender too");
        return;
    }
    let manager = manager_of(&server).await;
    let guard = manager.lock(KEY).lease(LEASE).acquire().await.expect("the lock is free");
    until_armed(&server, 1).await;
    let before = scripts_and_gets(&server);

    for _ in 0..3 {
        guard.extend(2 * LEASE).await.expect("the lock is held");
        tokio::time::sleep(Duration::from_millis(50)).await; // an invalidation would cause a check at once
    }

    let [scripts, gets] = scripts_and_gets(&server);
    assert_eq!((scripts - before[0], gets - before[1]), (3, 3), "only the scripts read the holder");
    assert_eq!(armed(&server), 1);
}
