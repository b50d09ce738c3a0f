//! Locks of Redisson's layout beside a real Redisson.

use std::time::Duration;

use dlock_tests::{RedisServer, Redisson};

#[tokio::test]
async fn java_alone() {
    let server = RedisServer::start();
    let Some(mut java) = Redisson::connect(&server.url(), Duration::from_secs(1)).await else { return };
    java.does("t1", "lock k 0", "acquired").await;
    java.does("t2", "trylock k 100 1000", "refused").await;
    java.does("t1", "unlock k", "released").await;
}
