//! Locks of Redisson's layout beside a real Redisson: each keeps the other out and wakes it, and nothing of one breaks the other.
//!
//! Our managers look at a held lock every ten seconds only, unless a test says otherwise: whoever is sooner was told. The soak is
//! short; the long form counts for as many seconds as it is told:
//!
//! ```text
//! DLOCK_SOAK_SECONDS=60 cargo test -p dlock-tests --test redisson contention -- --nocapture
//! ```

mod cluster;
mod contention;
mod exclusion;
mod fencing;
mod leases;
mod sentinel;
mod strangers;
mod waking;
mod wrong_kind;

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::resp::Reply;
use dlock_tests::{RedisServer, Redisson, acl, within};

/// A server, a manager of ours on it, and a Redisson.
struct Fleet {
    ours: LockManager,
    java: Redisson,
    // Last: what is connected to it goes first.
    server: RedisServer,
}

impl Fleet {
    /// Starts one, whose Redisson has a watchdog of a second; none where there is no Java.
    async fn start() -> Option<Self> {
        let server = server();
        let java = Redisson::connect(&server.url(), WATCHDOG).await?;
        Some(Self { ours: manager(&server.url_with(OPTIONS)).await, java, server })
    }
}

/// Starts a server on which the user of locks may have those of any name.
fn server() -> RedisServer {
    let server = RedisServer::start();
    server.allow(acl::documented_for_redisson().chain(["allkeys", "allchannels"]));
    server
}

async fn manager(url: &str) -> LockManager {
    LockManager::connect(url).await.expect("the server takes managers")
}

/// Returns when somebody listens to the channel of `key` at one of `servers`, and has had the time to look once more after that.
async fn until_listened_to(servers: &[RedisServer], key: &str) {
    let name = if key.contains('{') { key.to_owned() } else { format!("{{{key}}}") };
    let channel = format!("redisson_lock__channel:{name}");
    let heard = |server: &RedisServer, kind| {
        let listening = server.call(&["PUBSUB", kind, &channel]);
        matches!(listening, Reply::List(listening) if listening.last().is_some_and(|count| *count != Reply::Integer(0)))
    };
    let listened_to = async {
        while !servers.iter().any(|server| heard(server, "NUMSUB") || heard(server, "SHARDNUMSUB")) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(LONG, "somebody listens", listened_to).await;
    tokio::time::sleep(MOMENT).await;
}

/// Redisson's layout, with the names of Java's locks.
const OPTIONS: &str = "?layout=redisson&namespace=&poll_interval=10s";

const WATCHDOG: Duration = Duration::from_secs(1);

/// Whoever is woken is so within this, far below every poll: a message takes a millisecond, and the machine may be busy.
const SOON: Duration = Duration::from_millis(250);

/// Whoever is about to wait does so by then.
const MOMENT: Duration = Duration::from_millis(50);

const LONG: Duration = Duration::from_secs(20);

const WORKER: &str = env!("CARGO_BIN_EXE_lock-worker");
