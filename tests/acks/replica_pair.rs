//! A master with one replica, which can be frozen.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::world::name;
use dlock_tests::{RedisServer, acl, within};

/// A master and its replica.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) master: RedisServer,
    pub(crate) replica: RedisServer,
}

impl Pair {
    /// Starts both servers, and returns when the replica is connected to its master.
    pub(crate) async fn start() -> Self {
        let master =
            RedisServer::builder().line("repl-diskless-sync-delay 0").also_allow(acl::WITH_ACKS).start();
        let replica = RedisServer::builder().line(&format!("replicaof 127.0.0.1 {}", master.port())).start();
        let pair = Self { master, replica };
        let follows = |pair: &Self| {
            pair.replica
                .call(&["INFO", "replication"])
                .text()
                .is_some_and(|text| text.contains("master_link_status:up"))
        };
        pair.until(follows).await;
        // The first full copy may already contain the data. Wait for a write that arrives by
        // replication.
        pair.master.call(&["SET", "first", "write"]);
        pair.until(|pair| pair.replica.call(&["GET", "first"]).text() == Some("write")).await;
        pair.master.call(&["DEL", "first"]);
        pair
    }

    /// Connects a manager that waits for `replica_acks` acknowledgements. Each acts as a separate
    /// process.
    pub(crate) async fn manager(&self, replica_acks: u8) -> LockManager {
        let manager = LockManager::builder(&self.master.url()).replica_acks(replica_acks).connect().await;
        manager.expect("the master accepts connections")
    }

    /// Connects a manager that waits for one acknowledgement, which may be late: for calls that
    /// expect it in one try.
    pub(crate) async fn patient(&self) -> LockManager {
        let manager = LockManager::builder(&self.master.url()).replica_acks(1).response_timeout(LONG / 6);
        manager.connect().await.expect("the master accepts connections")
    }

    /// Returns `true` if the lock's key exists on the master.
    pub(crate) fn holds(&self, key: &str) -> bool {
        self.master.call(&["EXISTS", &name(key)]).integer() == Some(1)
    }

    /// Waits until a condition is true.
    pub(crate) async fn until(&self, is: impl Fn(&Self) -> bool) {
        let comes = async {
            while !is(self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within(Duration::from_secs(10), "the condition", comes).await;
    }
}

/// Longer than any wait of these tests.
pub(crate) const LONG: Duration = Duration::from_secs(30);
