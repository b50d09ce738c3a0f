//! Locks that are shared with real `SET NX` clients: redis-py, node-redlock, redlock-universal,
//! redsync, and rslock.
//!
//! Each test has its own Redis. The clients' programs are installed once (`support/fleet.rs`). A
//! test whose client cannot be installed prints `SKIPPED:`. The clients use the default user, which
//! has all permissions.
//!
//! `soak` runs all clients and two of our managers on one lock. `DLOCK_SOAK_SECONDS` sets its
//! length:
//!
//! ```text
//! DLOCK_SOAK_SECONDS=60 cargo test -p dlock-tests --test setnx soak -- --nocapture
//! ```

mod exclusion;
mod ownership;
mod soak;

use std::path::Path;
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::resp::Reply;
use dlock_tests::{Client, Fleet, RedisServer, within};

/// Generates a test with every client for each named `async fn(Place)`.
macro_rules! with_every_client {
    ($($test:ident),+ $(,)?) => {
        with_every_client!(@ redis_py RedisPy [$($test)+]);
        with_every_client!(@ node_redlock NodeRedlock [$($test)+]);
        with_every_client!(@ redlock_universal RedlockUniversal [$($test)+]);
        with_every_client!(@ redsync Redsync [$($test)+]);
        with_every_client!(@ rslock Rslock [$($test)+]);
    };
    (@ $name:ident $client:ident [$($test:ident)+]) => {
        mod $name {
            $(#[tokio::test]
            async fn $test() {
                if let Some(place) = $crate::Place::with(dlock_tests::Client::$client).await {
                    dlock_tests::within($crate::LIMIT, "the test", super::$test(place)).await;
                }
            })+
        }
    };
}
use with_every_client;

/// A server, a client of another library, and a dlock manager.
struct Place {
    server: RedisServer,
    theirs: Fleet,
    ours: LockManager,
}

impl Place {
    /// Starts a client, or prints why it is unavailable.
    async fn with(client: Client) -> Option<Self> {
        let server = RedisServer::start();
        match start(client, &server).await {
            Ok(theirs) => Some(Self { ours: manager(&server, "").await, theirs, server }),
            Err(missing) => {
                println!("SKIPPED: {missing}");
                None
            }
        }
    }

    /// Returns the value of the lock's key.
    fn value(&self) -> Reply {
        self.server.call(&["GET", NAME])
    }

    /// Waits until the server has executed `count` more commands.
    async fn until_commands(&self, count: u64) {
        let before = self.server.command_total();
        let executed = async {
            // Reading the total does not count as a command.
            while self.server.command_total() < before + count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(LIMIT, "more commands", executed).await;
    }
}

async fn start(client: Client, server: &RedisServer) -> Result<Fleet, String> {
    let url = format!("redis://127.0.0.1:{}", server.port());
    let started = Fleet::start(client, Path::new(env!("CARGO_TARGET_TMPDIR")), &url).await;
    started.map_err(|why| format!("{client:?}: {why}"))
}

async fn manager(server: &RedisServer, options: &str) -> LockManager {
    LockManager::connect(&server.url_with(options)).await.expect("the server accepts connections")
}

/// The lock's key, and its name for all clients.
const KEY: &str = "order:7";
const NAME: &str = "dlock:order:7";

/// Longer than any test. The clients take the value in milliseconds.
const LONG: Duration = Duration::from_secs(30);
const LONG_MS: u64 = 30_000;

/// The bound of any one step on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
