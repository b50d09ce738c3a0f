//! Locks of the `redisson` layout together with a real Redisson client: each library excludes and
//! wakes the other, and neither breaks the other's locks.
//!
//! In these tests, our managers poll a held lock only every 10 s, so an earlier wake-up shows a
//! received message. `DLOCK_SOAK_SECONDS` sets the length of the soak:
//!
//! ```text
//! DLOCK_SOAK_SECONDS=60 cargo test -p dlock-tests --test redisson contention -- --nocapture
//! ```

mod cluster;
mod contention;
mod exclusion;
mod fencing;
mod foreign_keys;
mod leases;
mod sentinel;
mod waking;
mod wrong_kind;

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::resp::Reply;
use dlock_tests::{RedisServer, Redisson, acl, within};

/// A server, a dlock manager, and a Redisson client.
struct Fleet {
    ours: LockManager,
    java: Redisson,
    // The last field: its clients are dropped before the server.
    server: RedisServer,
}

impl Fleet {
    /// Starts a fleet whose Redisson has a watchdog of 1 s. Returns `None` if Java is missing.
    async fn start() -> Option<Self> {
        let server = server();
        let java = Redisson::connect(&server.url(), WATCHDOG).await?;
        Some(Self { ours: manager(&server.url_with(OPTIONS)).await, java, server })
    }
}

/// Starts a server whose user of locks may access all keys and channels.
fn server() -> RedisServer {
    let server = RedisServer::start();
    server.allow(acl::documented_for_redisson().chain(["allkeys", "allchannels"]));
    server
}

async fn manager(url: &str) -> LockManager {
    LockManager::connect(url).await.expect("the server accepts connections")
}

/// Waits until a client is subscribed to the channel of `key` at one of `servers`, plus 50 ms for
/// its check of the lock.
async fn until_subscribed(servers: &[RedisServer], key: &str) {
    let name = if key.contains('{') { key.to_owned() } else { format!("{{{key}}}") };
    let channel = format!("redisson_lock__channel:{name}");
    let is_subscribed = |server: &RedisServer, kind| {
        let listening = server.call(&["PUBSUB", kind, &channel]);
        matches!(listening, Reply::List(listening) if listening.last().is_some_and(|count| *count != Reply::Integer(0)))
    };
    let subscribed = async {
        while !servers
            .iter()
            .any(|server| is_subscribed(server, "NUMSUB") || is_subscribed(server, "SHARDNUMSUB"))
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(LONG, "a subscriber", subscribed).await;
    tokio::time::sleep(MOMENT).await;
}

/// Redisson's layout, without a namespace, so that the names equal those of the Java locks.
const OPTIONS: &str = "?layout=redisson&namespace=&poll_interval=10s";

const WATCHDOG: Duration = Duration::from_secs(1);

/// The bound of one wake-up, far below every poll interval. A message takes about 1 ms, and the
/// machine may be busy.
const SOON: Duration = Duration::from_millis(250);

/// The time in which a subscribed waiter checks the lock once more.
const MOMENT: Duration = Duration::from_millis(50);

const LONG: Duration = Duration::from_secs(20);

const WORKER: &str = env!("CARGO_BIN_EXE_lock-worker");
