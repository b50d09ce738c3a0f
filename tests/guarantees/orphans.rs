//! A command without a reply is cleaned up, even if its connection or its manager is lost.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::polls::{Polled, poll_times};
use dlock_tests::resp::Reply;
use dlock_tests::world::name;
use dlock_tests::{Answer, HostileServer, Moment, Proxy, RedisServer, within};

use super::{LONG, until_free};

/// Far below the lease of these locks, which is the last bound.
const CLEANED_UP: Duration = Duration::from_millis(2_500);

#[tokio::test]
async fn a_lost_grant_is_cleaned_up_despite_a_lost_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("the server takes managers");
    proxy.hold_replies_after(0);
    let lock = manager.lock("order:7").lease(LONG);
    let unanswered = tokio::spawn(async move { lock.acquire().await });
    until_held(&server, "order:7").await;

    proxy.black_hole();
    let undoing = proxy.on_request(b"dlock:order:7");
    // A second command, sent before the cleanup, gets no reply either, so the connection is dropped
    // in the middle of the cleanup.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let second = manager.lock("order:8").lease(LONG).acquire().await;
    let unanswered = unanswered.await.expect("the call does not panic");
    within(LONG, "the undoing", undoing).await;
    proxy.pass();
    proxy.reset_all();

    until_free(&server, "order:7", Duration::from_secs(3)).await;
    assert!(matches!(unanswered, Err(Error::Unavailable { .. })), "{unanswered:?}");
    assert!(matches!(second, Err(Error::Unavailable { .. })), "{second:?}");
}

#[tokio::test]
async fn an_acquire_dropped_with_its_manager_leaves_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("the server takes managers");
    let lock = manager.lock("order:7").lease(LONG);
    proxy.hold_replies();

    let polled = poll_times(2, lock.acquire()).await;
    until_held(&server, "order:7").await;
    drop((lock, manager));
    proxy.pass();

    assert!(matches!(polled, Polled::Stuck));
    until_free(&server, "order:7", CLEANED_UP).await;
}

#[tokio::test]
async fn min_hold_outlives_a_manager_with_a_renewal_in_flight() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("the server takes managers");
    let guard = manager.lock("order:7").lease(LONG).min_hold(4 * LONG).acquire().await;
    let guard = guard.expect("it is free");
    proxy.hold_replies();

    let polled = poll_times(2, guard.extend(LONG)).await;
    drop((guard, manager));
    let is_retained = async {
        while ttl_of(&server, "order:7") <= 3 * LONG {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(LONG, "the time to live", is_retained).await;
    proxy.pass();
    let has_ended = async {
        while proxy.stats().open > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(LONG, "the end of the manager", has_ended).await;

    assert!(matches!(polled, Polled::Stuck));
    assert!(ttl_of(&server, "order:7") > 3 * LONG, "min_hold goes on");
}

/// Returns the time to live of a key, or zero if the key does not exist.
fn ttl_of(server: &RedisServer, key: &str) -> Duration {
    match server.call(&["PTTL", &name(key)]) {
        Reply::Integer(millis) => Duration::from_millis(u64::try_from(millis).unwrap_or_default()),
        other => panic!("PTTL of {key}: {other:?}"),
    }
}

#[tokio::test]
async fn an_acquire_dropped_while_sent_leaves_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("the server takes managers");
    let lock = manager.lock("order:7").lease(LONG);
    let sent = proxy.on_request(b"dlock:order:7");

    let polled = poll_times(1, lock.acquire()).await;
    drop((lock, manager));
    // The command may never be sent.
    let _ = tokio::time::timeout(Duration::from_millis(200), sent).await;

    assert!(matches!(polled, Polled::Dropped));
    until_free(&server, "order:7", CLEANED_UP).await;
}

#[tokio::test]
async fn an_unanswered_release_is_repeated_after_a_reconnect() {
    let (server, proxy, manager) = with_a_release_without_an_answer().await;

    proxy.pass();
    proxy.reset_all();

    until_free(&server, "order:7", CLEANED_UP).await;
    drop(manager);
}

#[tokio::test]
async fn an_unanswered_release_survives_its_connection_then_manager() {
    let (server, proxy, manager) = with_a_release_without_an_answer().await;

    proxy.pass();
    proxy.reset_all();
    drop(manager);

    until_free(&server, "order:7", CLEANED_UP).await;
}

#[tokio::test]
async fn an_unanswered_release_survives_its_manager_then_connection() {
    let (server, proxy, manager) = with_a_release_without_an_answer().await;

    drop(manager);
    proxy.pass();
    proxy.reset_all();

    until_free(&server, "order:7", CLEANED_UP).await;
}

/// A command on a dropped connection may run later. If the process ended before that, the lock
/// would stay held.
#[tokio::test]
async fn a_shutdown_cleans_up_requests_of_a_lost_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url_with("?response_timeout=150ms")).await.expect("it is open");
    proxy.delay_requests(Duration::from_millis(800));
    let late = manager.lock("order:7").lease(LONG).acquire().await;
    proxy.pass(); // requests already received stay delayed; those of the next connection do not

    let began = Moment::now();
    within(LONG, "the shutdown", manager.shutdown(Duration::ZERO)).await;

    assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
    assert_eq!(server.command_count("set"), 1, "the shutdown ended before the delayed command arrived");
    assert_eq!(server.call(&["EXISTS", "dlock:order:7"]), Reply::Integer(0));
    assert!(began.elapsed() < CLEANED_UP, "{:?}", began.elapsed());
}

/// Returns a server, a black-hole proxy, and a manager whose last release is lost in that proxy.
async fn with_a_release_without_an_answer() -> (RedisServer, Proxy, LockManager) {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("the server takes managers");
    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    proxy.black_hole();
    let released = proxy.on_request(b"dlock:order:7");
    drop(guard);
    within(LONG, "the release", released).await;
    (server, proxy, manager)
}

/// A command without a reply may still run. If two attempts of a call shared a token, the late
/// release of the first would release the lock of the second.
#[tokio::test]
async fn every_attempt_has_a_token_of_its_own() {
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&tokens);
    let server = HostileServer::start(move |request| {
        if request.name() != "SET" {
            return Answer::Usual;
        }
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(request.word(2));
        Answer::Close
    });
    let manager = LockManager::connect(&server.url()).await.expect("it greets like a Redis");
    // Long enough for a new connection to be established.
    let delay = Duration::from_millis(150);
    let lock = manager.lock("order:7").lease(LONG).retry(3).backoff(delay, delay);

    for call in 0..2 {
        let refused = lock.acquire().await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "call {call}: {refused:?}");
    }

    let mut tokens = tokens.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let tries = tokens.len();
    tokens.sort();
    tokens.dedup();
    assert!(tries >= 5, "{tries} tries");
    assert_eq!(tokens.len(), tries, "a token was used again");
}

async fn until_held(server: &RedisServer, key: &str) {
    let held = async {
        while server.call(&["EXISTS", &name(key)]) != Reply::Integer(1) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(LONG, &format!("{key} is held"), held).await;
}
