//! The backend of a contract test: in memory under paused time, or a real Redis with each layout.
//!
//! A test that depends on the backend does not belong to the contract.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_runtime::{Layout, LockGuard, LockManager};

use crate::acl;
use crate::clock::within;
use crate::resp::Reply;
use crate::server::RedisServer;

/// One empty backend.
#[derive(Debug)]
pub struct World {
    url: String,
    server: Option<RedisServer>,
    /// The layout of locks in the server.
    layout: Layout,
}

impl World {
    /// Creates an in-memory backend with a unique name.
    #[must_use]
    pub fn in_memory() -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        Self { url: format!("memory://world-{number}"), server: None, layout: Layout::Native }
    }

    /// Creates a backend with a separate Redis.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start.
    #[must_use]
    pub fn over_redis() -> Self {
        let server = RedisServer::start();
        Self { url: server.url_with(""), server: Some(server), layout: Layout::Native }
    }

    /// Creates a backend with a separate Redis whose user may keep records of idempotent calls.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start.
    #[must_use]
    pub fn over_redis_with_records() -> Self {
        let world = Self::over_redis();
        if let Some(server) = &world.server {
            server.allow(acl::documented_besides(acl::WITH_RECORDS));
        }
        world
    }

    /// Creates a backend with a separate Redis and `layout=redisson`.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start.
    #[must_use]
    pub fn over_redis_as_redisson() -> Self {
        let server = RedisServer::start();
        server.allow(acl::documented_for_redisson());
        Self { url: server.url_with("?layout=redisson"), server: Some(server), layout: Layout::Redisson }
    }

    /// Returns the URL for managers of this backend.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the URL with further options, such as `yield_to_foreign=on`.
    #[must_use]
    pub fn url_with(&self, options: &str) -> String {
        let separator = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{separator}{options}", self.url)
    }

    /// Connects a new manager, like another process.
    ///
    /// # Panics
    ///
    /// Panics if the manager cannot connect.
    pub async fn manager(&self) -> LockManager {
        LockManager::connect(&self.url).await.expect("the world takes managers")
    }

    /// Waits for `time`. In memory, this takes no real time.
    pub async fn let_pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Waits until `count` contenders of other processes are queued behind the holder of `key`.
    ///
    /// # Panics
    ///
    /// Panics if that takes more than 10 s.
    pub async fn until_waiting(&self, key: &str, count: usize) {
        self.until(key, &format!("{count} waiting"), |there| there > count).await;
    }

    /// Waits until no contender is queued behind the holder of `key`.
    ///
    /// # Panics
    ///
    /// Panics if that takes more than 10 s.
    pub async fn until_no_waiter(&self, key: &str) {
        self.until(key, "no waiter", |there| there <= 1).await;
    }

    /// Waits until `key` is not held.
    ///
    /// # Panics
    ///
    /// Panics if that takes more than 10 s.
    pub async fn until_free(&self, key: &str) {
        self.until(key, "free", |there| there == 0).await;
    }

    /// Deletes the lock `key` without its holder.
    ///
    /// # Panics
    ///
    /// Panics if the lock cannot be deleted.
    pub async fn delete(&self, key: &str) {
        match &self.server {
            Some(server) => assert_eq!(server.call(&["DEL", &name(key)]), Reply::Integer(1)),
            None => {
                let _ = self.manager().await.force_release(key).await.expect("memory is always there");
            }
        }
    }

    /// Gives the lock `key` to another owner for a minute, without a release by its holder.
    ///
    /// # Panics
    ///
    /// Panics if the lock cannot be acquired.
    pub async fn steal(&self, key: &str) -> Thief {
        if let Some(server) = &self.server {
            let name = name(key);
            match self.layout {
                Layout::Redisson => {
                    server.call(&["DEL", &name]);
                    server.call(&["HSET", &name, FOREIGN_THREAD, "1"]);
                    server.call(&["PEXPIRE", &name, "60000"]);
                }
                _ => drop(server.call(&["SET", &name, FOREIGN, "PX", "60000"])),
            }
            return Thief { _guard: None };
        }
        self.delete(key).await;
        let lock = self.manager().await.lock(key).lease(Duration::from_secs(60));
        Thief { _guard: Some(lock.acquire().await.expect("the lock has just been freed")) }
    }

    /// Waits until `wanted` accepts the number of the holder and the waiters of `key`.
    async fn until(&self, key: &str, what: &str, wanted: impl Fn(usize) -> bool) {
        let Some(server) = &self.server else {
            // Under paused time, a sleep ends only when every task is idle.
            return tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let come = async {
            while !wanted(self.standing_at(server, &name(key))) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        within(Duration::from_secs(10), &format!("{key}: {what}"), come).await;
    }

    /// Returns the number of the holder and the waiters of a lock.
    ///
    /// They are in its value, or, in Redisson's layout, subscribed to its channel.
    fn standing_at(&self, server: &RedisServer, name: &str) -> usize {
        match self.layout {
            Layout::Redisson => held_or_heard(server, name),
            _ => ids_in(server.call(&["GET", name]).text().unwrap_or_default()),
        }
    }
}

/// The owner of a stolen lock. In memory, the lock is released on drop.
#[derive(Debug)]
pub struct Thief {
    _guard: Option<LockGuard>,
}

/// Returns 1 if a lock in Redisson's layout is held, plus the number of subscribers of its channel.
fn held_or_heard(server: &RedisServer, name: &str) -> usize {
    let number =
        |reply: &Reply| reply.integer().and_then(|number| usize::try_from(number).ok()).unwrap_or_default();
    let held = server.call(&["EXISTS", name]);
    let Reply::List(heard) =
        server.call(&["PUBSUB", "NUMSUB", &format!("redisson_lock__channel:{{{name}}}")])
    else {
        return 0;
    };
    number(&held) + heard.last().map_or(0, number)
}

/// Runs one contract test in memory. The time limit is on the paused clock.
pub async fn in_memory<F: Future<Output = ()>>(test: impl FnOnce(World) -> F) {
    within(Duration::from_secs(24 * 3600), "the test in memory", test(World::in_memory())).await;
}

/// Runs one contract test over a separate Redis.
pub async fn over_redis<F: Future<Output = ()>>(test: impl FnOnce(World) -> F) {
    within(Duration::from_secs(60), "the test over Redis", test(World::over_redis())).await;
}

/// Runs one contract test over a separate Redis, in Redisson's layout.
pub async fn over_redis_as_redisson<F: Future<Output = ()>>(test: impl FnOnce(World) -> F) {
    let world = World::over_redis_as_redisson();
    within(Duration::from_secs(60), "the test in Redisson's layout", test(world)).await;
}

/// Makes each of the named `async fn(World)` a test over every backend.
///
/// Those after `in_order` run only over backends that serve the waiters of several processes in
/// order.
#[macro_export]
macro_rules! contract {
    ($($test:ident),+ $(,)? $(; in_order: $($in_order:ident),+ $(,)?)?) => {
        $crate::contract!(@ordered $($test,)+ $($($in_order,)+)?);
        mod over_redis_as_redisson {
            $(#[tokio::test]
            async fn $test() {
                $crate::world::over_redis_as_redisson(super::$test).await;
            })+
        }
    };
    (@ordered $($test:ident,)+) => {
        mod in_memory {
            $(#[tokio::test(start_paused = true)]
            async fn $test() {
                $crate::world::in_memory(super::$test).await;
            })+
        }
        mod over_redis {
            $(#[tokio::test]
            async fn $test() {
                $crate::world::over_redis(super::$test).await;
            })+
        }
    };
}

/// Returns the name in Redis of the lock `key` of the default namespace.
#[must_use]
pub fn name(key: &str) -> String {
    format!("dlock:{key}")
}

/// Returns the number of dlock ids in the value of a lock: those of the holder and of the waiters.
#[must_use]
pub fn ids_in(value: &str) -> usize {
    value.matches("dl2-").count()
}

/// The value of a lock that a client of another library holds.
pub const FOREIGN: &str = "a-foreign-client";

/// The owner of a lock that a Redisson client holds.
const FOREIGN_THREAD: &str = "2b130015-a627-4ad5-af85-0b847b19b029:12";
