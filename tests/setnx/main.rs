//! Locks that are shared with the real clients of the `SET NX` family: redis-py, node-redlock, redlock-universal, redsync, rslock.
//!
//! Each test has a Redis of its own, and the clients' programs are installed once (`support/fleet.rs`); one that cannot be installed
//! here is named after `SKIPPED:`. They go as the default user, who may do everything, whoever we are.
//!
//! `soak` has all of them and two managers of ours at one lock; the long form takes as long as it is told:
//!
//! ```text
//! DLOCK_SOAK_SECONDS=60 cargo test -p dlock-tests --test setnx soak -- --nocapture
//! ```

mod exclusion;
mod respect;
mod soak;

use std::path::Path;
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::resp::Reply;
use dlock_tests::{Client, Fleet, RedisServer, within};

/// Makes each of the named `async fn(Place)` a test with every client.
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

/// A server, a client of another library, and a manager of ours.
struct Place {
    server: RedisServer,
    theirs: Fleet,
    ours: LockManager,
}

impl Place {
    /// Has one client, or says why it cannot be had.
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

    /// Returns what stands under the key.
    fn value(&self) -> Reply {
        self.server.call(&["GET", NAME])
    }

    /// Returns when the server has been asked for something `count` more times.
    async fn until_asked(&self, count: u64) {
        let before = self.server.command_total();
        let asked = async {
            // Asking for the total is not counted.
            while self.server.command_total() < before + count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(LIMIT, "somebody asks", asked).await;
    }
}

async fn start(client: Client, server: &RedisServer) -> Result<Fleet, String> {
    let url = format!("redis://127.0.0.1:{}", server.port());
    let started = Fleet::start(client, Path::new(env!("CARGO_TARGET_TMPDIR")), &url).await;
    started.map_err(|why| format!("{client:?}: {why}"))
}

async fn manager(server: &RedisServer, options: &str) -> LockManager {
    LockManager::connect(&server.url_with(options)).await.expect("the server takes managers")
}

/// The lock, and its name for everybody.
const KEY: &str = "order:7";
const NAME: &str = "dlock:order:7";

/// Long enough that no test sees its end by accident, in milliseconds for the clients.
const LONG: Duration = Duration::from_secs(30);
const LONG_MS: u64 = 30_000;

/// What any one step may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
