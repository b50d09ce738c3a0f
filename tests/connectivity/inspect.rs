//! Inspection of locks by an operator, on each kind of backend.

use std::time::Duration;

use dlock_runtime::{Error, KeyBuilder, LockManager};
use dlock_tests::resp::{Client, Reply};
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

/// Returns the names of the server's connections.
fn names_of_connections(server: &RedisServer) -> Vec<String> {
    let list = server.call(&["CLIENT", "LIST"]);
    let list = list.text().expect("a list of clients").to_owned();
    let names = list.split_whitespace().filter_map(|word| word.strip_prefix("name="));
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[tokio::test]
async fn inspect_shows_the_owner_that_the_holder_has_or_its_process() {
    let server = RedisServer::start();
    let without_namespace = format!("{}/3?namespace=", server.url());
    for url in [server.url(), "memory://owners".to_owned(), without_namespace] {
        let named = LockManager::builder(&url).owner("web-1").connect().await.expect("it connects");
        let unnamed = LockManager::connect(&url).await.expect("it connects");
        let _named = named.lock("order:7").acquire().await.expect("the lock is free");
        let _unnamed = unnamed.lock("order:8").acquire().await.expect("the lock is free");

        for onlooker in [&named, &unnamed] {
            let owner = async |key: &str| {
                let seen = onlooker.inspect(key).await.expect("it replies").expect("it is held");
                seen.owner().map(str::to_owned)
            };
            assert_eq!(owner("order:7").await.as_deref(), Some("web-1"), "{url}");
            let of_process = owner("order:8").await.expect("the default owner");
            assert!(of_process.ends_with(&format!(":{}", std::process::id())), "{url}: {of_process}");
            assert_eq!(of_process, unnamed.owner(), "{url}");
        }
    }
}

#[tokio::test]
async fn the_owner_is_shown_in_each_namespace_of_its_manager() {
    let server = RedisServer::start();
    let holder = LockManager::builder(&server.url()).owner("web-1").connect().await.expect("it connects");
    let onlooker = LockManager::connect(&server.url()).await.expect("it connects");
    let key = |namespace: &str| KeyBuilder::new(namespace).text("order:7").build().expect("a valid key");
    for namespace in ["shop", "a*[b"] {
        let _guard = holder.lock(key(namespace)).acquire().await.expect("the lock is free");

        // The manager subscribes in a namespace when it first uses a lock in it.
        let shown = async {
            loop {
                let seen = onlooker.inspect(key(namespace)).await.expect("it replies").expect("it is held");
                if seen.owner() == Some("web-1") {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within(LONG, namespace, shown).await;
    }
}

#[tokio::test]
async fn connections_have_the_owner_as_their_name() {
    let server = RedisServer::start();
    let url = format!("{}?owner=web-1", server.url());
    let manager = LockManager::connect(&url).await.expect("the server accepts connections");
    assert_eq!(names_of_connections(&server), ["web-1"]);

    // A hold of more than 100 ms is tracked, over a further connection.
    let _guard = manager.lock("order:7").acquire().await.expect("the lock is free");
    let tracked = async {
        while names_of_connections(&server) != ["web-1", "web-1"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(LONG, "the connection for tracking", tracked).await;
}

#[tokio::test]
async fn inspect_without_the_permission_shows_the_holder_without_its_owner() {
    let server =
        RedisServer::builder().line("user default on nopass ~* &* +@all -pubsub -client|setname").start();
    let [holder, onlooker] =
        [LockManager::connect(&server.url()).await, LockManager::connect(&server.url()).await]
            .map(|connected| connected.expect("the server accepts connections"));
    let _guard = holder.lock("order:7").acquire().await.expect("the lock is free");

    let seen = onlooker.inspect("order:7").await.expect("it replies").expect("it is held");
    let own = holder.inspect("order:7").await.expect("it replies").expect("it is held");

    assert_eq!((seen.holder(), seen.owner()), (Some(&*holder.id()), None));
    assert_eq!(own.owner(), Some(holder.owner()));
    assert!(names_of_connections(&server).is_empty());
}

/// Another client subscribes to channels that begin like the one with the owner. A reply with such
/// a name would be longer than any reply of a lock.
#[tokio::test]
async fn long_channels_of_other_clients_hide_no_owner() {
    let server = RedisServer::start();
    let holder = LockManager::builder(&server.url()).owner("web-1").connect().await.expect("it connects");
    let onlooker = LockManager::builder(&server.url()).owner("web-2").connect().await.expect("it connects");
    let _guard = holder.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let channels = server.call(&["PUBSUB", "CHANNELS", "dlock:grant:*:web-1"]).texts();
    let [channel] = <[String; 1]>::try_from(channels).expect("the channel of the owner");
    let mut other = Client::connect(server.port(), SOON).expect("the server listens");
    for number in 0..60 {
        let long = format!("{channel}{number}{}", "x".repeat(100_000));
        other.call(&["SUBSCRIBE", &long]).expect("it is subscribed");
    }
    let connections = || -> Vec<String> {
        let list = server.call(&["CLIENT", "LIST"]);
        let lines = list.text().expect("text").lines().filter(|line| line.contains("name=web-2 "));
        lines.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    };
    let before = connections();

    for _ in 0..5 {
        let seen = onlooker.inspect("order:7").await.expect("it replies").expect("it is held");
        assert_eq!((seen.holder(), seen.owner()), (Some(&*holder.id()), Some("web-1")));
    }

    assert_eq!(connections(), before, "a connection was closed");
}

#[tokio::test]
async fn an_owner_is_not_shown_once_its_manager_is_gone() {
    let server = RedisServer::start();
    let url = server.url();
    let onlooker = LockManager::connect(&url).await.expect("the server accepts connections");
    let holder =
        LockManager::builder(&url).owner("web-1").connect().await.expect("the server accepts connections");
    let id = holder.id();
    let guard = holder.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let token = server.call(&["GET", "dlock:order:7"]).text().expect("a token").to_owned();
    guard.release().await.expect("it is held");
    drop(holder);
    server.call(&["SET", "dlock:order:7", &token, "PX", "60000"]); // as if the process had been killed

    let gone = async {
        loop {
            let seen = onlooker.inspect("order:7").await.expect("it replies").expect("it is held");
            assert_eq!(seen.holder(), Some(&*id));
            if seen.owner().is_none() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(LONG, "the end of the connection", gone).await;
}
