//! Inspection of locks by an operator, on each kind of backend.

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::resp::Reply;
use dlock_tests::world::FOREIGN;
use dlock_tests::{RedisServer, within};

use super::{LONG, SOON, until_ready};

/// Two managers of one in-memory store, and two of one server.
async fn worlds(server: &RedisServer) -> [[LockManager; 2]; 2] {
    let connect = async |url: &str| LockManager::connect(url).await.expect("it accepts connections");
    let (memory, redis) = ("memory://inspected", server.url());
    [[connect(memory).await, connect(memory).await], [connect(&redis).await, connect(&redis).await]]
}

#[tokio::test]
async fn inspect_shows_holder_remaining_lease_and_waiters() {
    let server = RedisServer::start();
    for [holder, onlooker] in worlds(&server).await {
        let free = onlooker.inspect("order:7").await.expect("the server replies");
        let _guard = holder.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
        let waiter = onlooker.clone();
        let waits = tokio::spawn(async move { waiter.lock("order:7").wait(LONG).acquire().await });
        let queued = async {
            loop {
                let seen =
                    onlooker.inspect("order:7").await.expect("the server replies").expect("it is held");
                if seen.waiters() > 0 {
                    break seen;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let theirs = within(SOON, "the queue entry", queued).await;
        let ours = holder.inspect("order:7").await.expect("the server replies").expect("it is held");
        waits.abort();

        assert_eq!(free, None);
        assert_eq!(theirs.holder(), Some(&*holder.id()));
        assert_eq!((theirs.is_held_here(), theirs.is_foreign(), theirs.waiters()), (false, false, 1));
        assert!(ours.is_held_here(), "{ours:?}");
        let left = ours.remaining().expect("every lock has an expiry");
        assert!(left <= LONG && left > LONG / 2, "{left:?}");
        assert_ne!(holder.id(), onlooker.id());
    }
}

#[tokio::test]
async fn inspect_shows_the_holder_but_no_whole_token() {
    let server = RedisServer::start();
    let manager = LockManager::connect(&server.url()).await.expect("the server accepts connections");
    let _guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");

    let seen = manager.inspect("order:7").await.expect("the server replies").expect("it is held");

    let value = server.call(&["GET", "dlock:order:7"]);
    let token = value.text().expect("a token");
    let holder = seen.holder().expect("it is a lock of dlock");
    assert!(token.starts_with(holder) && holder.len() == 12, "{holder} of {token}");
    assert!(!format!("{seen:?} {manager:?}").contains(&token[..20]), "{seen:?} {manager:?}");
}

#[tokio::test]
async fn inspect_changes_nothing() {
    let server = RedisServer::start();
    let manager = LockManager::connect(&server.url()).await.expect("the server accepts connections");
    // As long as two tokens, which must not count as two.
    let value = FOREIGN.repeat(4);
    server.call(&["SET", "dlock:order:7", &value]);

    let foreign = manager.inspect("order:7").await.expect("the server replies").expect("the key exists");
    let nothing = manager.inspect("order:8").await.expect("the server replies");

    assert!(foreign.is_foreign() && !foreign.is_held_here(), "{foreign:?}");
    assert_eq!((foreign.holder(), foreign.waiters(), foreign.remaining()), (None, 0, None));
    assert_eq!(nothing, None);
    assert_eq!(server.call(&["GET", "dlock:order:7"]).text(), Some(&*value));
    assert_eq!(server.call(&["PTTL", "dlock:order:7"]), Reply::Integer(-1));
    assert_eq!(server.call(&["EXISTS", "dlock:order:8"]), Reply::Integer(0));
}

#[tokio::test]
async fn inspect_of_a_list_or_a_stopped_server_is_an_error() {
    let mut server = RedisServer::start();
    let manager = LockManager::connect(&server.url()).await.expect("the server accepts connections");
    server.call(&["RPUSH", "dlock:order:7", "a list"]);

    let list = manager.inspect("order:7").await;
    let invalid = manager.inspect("").await;
    server.kill();
    let gone = manager.inspect("order:7").await;
    server.restart();
    until_ready(&manager).await;

    assert!(matches!(list, Err(Error::WrongKind { .. })), "{list:?}");
    assert!(matches!(invalid, Err(Error::InvalidKey { .. })), "{invalid:?}");
    assert!(matches!(gone, Err(Error::Unavailable { .. })), "{gone:?}");
}

#[tokio::test]
async fn a_lock_that_is_kept_after_its_hold_is_shown_as_kept() {
    let server = RedisServer::start();
    let [_, [manager, other]] = worlds(&server).await;
    let lock = manager.lock("job").min_hold(LONG);

    let held = lock.acquire().await.expect("the lock is free");
    let during = manager.inspect("job").await.expect("it replies").expect("it is held");
    held.release().await.expect("it is held");
    let after = manager.inspect("job").await.expect("it replies").expect("it is kept");
    let elsewhere = other.inspect("job").await.expect("it replies").expect("it is kept");

    assert!(during.is_held_here() && !during.is_kept_here(), "{during:?}");
    assert!(after.is_held_here() && after.is_kept_here(), "{after:?}");
    assert!(!elsewhere.is_held_here() && !elsewhere.is_kept_here(), "{elsewhere:?}");
}
