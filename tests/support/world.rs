//! Where a contract test runs: in memory under paused time, or over a real Redis in each layout, by the same code.
//!
//! Not here: what must hold. A test that cares which world it is in belongs to another file than the contract.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_runtime::{Layout, LockGuard, LockManager};

use crate::acl;
use crate::clock::within;
use crate::resp::Reply;
use crate::server::RedisServer;

/// One backend with nothing in it.
#[derive(Debug)]
pub struct World {
    url: String,
    server: Option<RedisServer>,
    /// How locks stand in the server.
    layout: Layout,
}

impl World {
    /// A world in memory that nobody else knows the name of.
    #[must_use]
    pub fn in_memory() -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        Self { url: format!("memory://world-{number}"), server: None, layout: Layout::Native }
    }

    /// A world of one Redis of its own.
    ///
    /// # Panics
    ///
    /// Panics if no server starts.
    #[must_use]
    pub fn over_redis() -> Self {
        let server = RedisServer::start();
        Self { url: server.url_with(""), server: Some(server), layout: Layout::Native }
    }

    /// A world of one Redis of its own, where locks stand as Redisson's do.
    ///
    /// # Panics
    ///
    /// Panics if no server starts.
    #[must_use]
    pub fn over_redis_as_redisson() -> Self {
        let server = RedisServer::start();
        server.allow(acl::documented_for_redisson());
        Self { url: server.url_with("?layout=redisson"), server: Some(server), layout: Layout::Redisson }
    }

    /// Returns the URL that managers of this world are connected by.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the URL with more options, such as `yield_to_foreign=on`.
    #[must_use]
    pub fn url_with(&self, options: &str) -> String {
        let separator = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{separator}{options}", self.url)
    }

    /// Connects a manager of its own, as another process would.
    ///
    /// # Panics
    ///
    /// Panics if it cannot connect.
    pub async fn manager(&self) -> LockManager {
        LockManager::connect(&self.url).await.expect("the world takes managers")
    }

    /// Lets `time` pass, for tests about what time does; in memory it costs none.
    pub async fn let_pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Returns when `count` contenders from other processes stand behind the holder of `key`.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer for ten seconds.
    pub async fn until_waiting(&self, key: &str, count: usize) {
        self.until(key, &format!("{count} waiting"), |there| there > count).await;
    }

    /// Returns when nobody stands behind the holder of `key`, if it has one.
    ///
    /// # Panics
    ///
    /// Panics if somebody does for ten seconds.
    pub async fn until_nobody_waits(&self, key: &str) {
        self.until(key, "nobody waiting", |there| there <= 1).await;
    }

    /// Returns when nobody holds `key`.
    ///
    /// # Panics
    ///
    /// Panics if somebody does for ten seconds.
    pub async fn until_free(&self, key: &str) {
        self.until(key, "free", |there| there == 0).await;
    }

    /// Deletes the lock `key` behind its holder's back.
    ///
    /// # Panics
    ///
    /// Panics if it cannot be deleted.
    pub async fn delete(&self, key: &str) {
        match &self.server {
            Some(server) => assert_eq!(server.call(&["DEL", &name(key)]), Reply::Integer(1)),
            None => {
                let _ = self.manager().await.force_release(key).await.expect("memory is always there");
            }
        }
    }

    /// Gives the lock `key` to somebody else, behind its holder's back and for a minute.
    ///
    /// # Panics
    ///
    /// Panics if it cannot be taken.
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

    /// Waits until as many stand at `key` as are `wanted`: its holder, and those who wait.
    async fn until(&self, key: &str, what: &str, wanted: impl Fn(usize) -> bool) {
        let Some(server) = &self.server else {
            // Under paused time a sleep ends only when every task has nothing left to do.
            return tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let come = async {
            while !wanted(self.standing_at(server, &name(key))) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        within(Duration::from_secs(10), &format!("{key}: {what}"), come).await;
    }

    /// Returns how many stand at a lock: in its value, or beside it, with an ear on its channel.
    fn standing_at(&self, server: &RedisServer, name: &str) -> usize {
        match self.layout {
            Layout::Redisson => held_or_heard(server, name),
            _ => ids_in(server.call(&["GET", name]).text().unwrap_or_default()),
        }
    }
}

/// Whoever has stolen a lock; lets go, in memory, when dropped.
#[derive(Debug)]
pub struct Thief {
    _guard: Option<LockGuard>,
}

/// Returns how many hold a lock of Redisson's layout or listen for its release.
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

/// Runs one contract test in memory; the time limit is by the paused clock.
pub async fn in_memory<F: Future<Output = ()>>(test: impl FnOnce(World) -> F) {
    within(Duration::from_secs(24 * 3600), "the test in memory", test(World::in_memory())).await;
}

/// Runs one contract test over a Redis of its own.
pub async fn over_redis<F: Future<Output = ()>>(test: impl FnOnce(World) -> F) {
    within(Duration::from_secs(60), "the test over Redis", test(World::over_redis())).await;
}

/// Runs one contract test over a Redis of its own, in Redisson's layout.
pub async fn over_redis_as_redisson<F: Future<Output = ()>>(test: impl FnOnce(World) -> F) {
    let world = World::over_redis_as_redisson();
    within(Duration::from_secs(60), "the test in Redisson's layout", test(world)).await;
}

/// Makes each of the named `async fn(World)` a test in every world; those behind `in_order` in worlds alone that serve the waiting
/// of several processes in the order in which they came.
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

/// Returns how many ids of ours stand in a lock's value: the holder's, and those of the waiting.
#[must_use]
pub fn ids_in(value: &str) -> usize {
    value.matches("dl2-").count()
}

/// The value of a lock that another family of clients holds.
pub const FOREIGN: &str = "a-foreign-client";

/// The owner of a lock that a Redisson holds.
const FOREIGN_THREAD: &str = "2b130015-a627-4ad5-af85-0b847b19b029:12";
