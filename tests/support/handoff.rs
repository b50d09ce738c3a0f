//! Measures the time from a release to the grant to a waiter of another manager, in any namespace.

use std::time::Duration;

use dlock_runtime::{KeyBuilder, LockKey, LockManager};

use crate::acl;
use crate::clock::{Moment, within};
use crate::resp::Reply;
use crate::server::RedisServer;

/// Options with which waiters do not poll within a test, so that only a notification can wake them.
pub const NEVER_POLLS: &str = "?grant_lease=30s&poll_interval=30s";

/// The namespaces of tests that use several. The first is the default.
pub const NAMESPACES: [&str; 3] = ["dlock", "shop", "billing:eu"];

/// The longest acceptable wake-up on a busy machine, far below every poll interval of a waiter.
pub const PROMPT: Duration = Duration::from_millis(500);

/// Allows the documented user the locks and channels of all [`NAMESPACES`].
pub fn allow_namespaces(server: &RedisServer) {
    let words = NAMESPACES
        .iter()
        .flat_map(|name| [format!("~{name}:*"), format!("~{{{name}:*"), format!("&{name}:grant:*")]);
    let words: Vec<_> = words.collect();
    server.allow(words.iter().map(String::as_str));
}

/// Returns a key in a namespace.
///
/// # Panics
///
/// Panics if the key is invalid.
#[must_use]
pub fn key_in(namespace: &str, key: &str) -> LockKey {
    KeyBuilder::new(namespace).text(key).build().expect("a key")
}

/// Returns the time from a release by one manager until a waiter of the other is granted the lock.
///
/// # Panics
///
/// Panics if the waiter does not queue, or is not granted the lock.
pub async fn time_of_handoff(from: &LockManager, to: &LockManager, key: &LockKey) -> Duration {
    let held = from.lock(key).lease(LONG).acquire().await.expect("the lock is free");
    let lock = to.lock(key).lease(LONG).wait(LONG);
    let waiter = tokio::spawn(async move {
        let guard = lock.acquire().await.expect("the lock is granted");
        (Moment::now(), guard)
    });
    let queued = async {
        while from.inspect(key).await.expect("the server replies").is_none_or(|seen| seen.waiters() == 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(LONG, "the waiter's place in the queue", queued).await;
    let released = Moment::now();
    held.release().await.expect("it was held");
    let (woken, guard) = within(LONG, "the waiter's lock", waiter).await.expect("no panic");
    guard.release().await.expect("it was held");
    woken.since(released)
}

/// Asserts that waiters are woken by a release in each of [`NAMESPACES`].
///
/// # Panics
///
/// Panics if a waiter is not woken within 500 ms.
pub async fn assert_handed_off_in_each_namespace(from: &LockManager, to: &LockManager, key: &str) {
    for namespace in NAMESPACES {
        let took = time_of_handoff(from, to, &key_in(namespace, key)).await;
        assert!(took < PROMPT, "{namespace}: {took:?}");
    }
}

/// Returns the channel on which the creator of `token` receives the grants of a namespace.
///
/// The hash is computed in the server, as scripts do.
///
/// # Panics
///
/// Panics if the server does not reply.
#[must_use]
pub fn grant_channel(server: &RedisServer, namespace: &str, token: &str) -> String {
    let hash = server.call(&["EVAL", "return redis.sha1hex(ARGV[1])", "0", &token[..MANAGER]]);
    format!("{namespace}:grant:{}", hash.text().expect("a hash"))
}

/// Returns the channels of a server whose names begin with a namespace.
#[must_use]
pub fn channels_of(server: &RedisServer, namespace: &str) -> Vec<String> {
    let Reply::List(channels) = server.call(&["PUBSUB", "CHANNELS", &format!("{namespace}:*")]) else {
        return Vec::new();
    };
    channels.iter().filter_map(|channel| channel.text().map(str::to_owned)).collect()
}

/// Creates the guide's lock user for another namespace, with the namespace as its name.
///
/// # Panics
///
/// Panics if the server rejects a rule.
pub fn give_user_of(server: &RedisServer, namespace: &str) {
    let rules =
        acl::documented_user(acl::USER).skip(1).map(|rule| rule.replace("dlock:", &format!("{namespace}:")));
    let words: Vec<_> = ["ACL", "SETUSER", namespace].into_iter().map(str::to_owned).chain(rules).collect();
    assert_eq!(server.call(&words), Reply::Status("OK".to_owned()));
}

/// The length of the prefix of a token that identifies its manager.
pub const MANAGER: usize = 20;
const LONG: Duration = Duration::from_secs(30);
