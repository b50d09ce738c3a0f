//! The time to detect a loss.

use std::time::Duration;

use dlock_tests::world::name;
use dlock_tests::{Moment, RedisServer, within};

use crate::{AT_ONCE, LEASE, LONG, manager_of, until_armed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequential_losses_are_detected_soon() {
    let count: usize = std::env::var("DLOCK_LOSSES").map_or(50, |count| count.parse().expect("a number"));
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let mut held = Vec::new();
    for number in 0..count {
        held.push(manager.lock(format!("order:{number}")).lease(LEASE).acquire().await.expect("it is free"));
    }
    until_armed(&server, count).await;
    let mut thief = server.raw().await;

    let mut took = Vec::new();
    for (number, guard) in held.iter().enumerate() {
        let since = Moment::now();
        let gone: usize = redis::cmd("DEL")
            .arg(name(&format!("order:{number}")))
            .query_async(&mut thief)
            .await
            .expect("it replies");
        assert_eq!(gone, 1);
        within(LONG, "the loss", guard.lost()).await;
        took.push(since.elapsed());
    }

    took.sort();
    let at = |percent: usize| took[(took.len() * percent / 100).min(took.len() - 1)];
    println!("{count} losses detected after p50 {:?}, p99 {:?}, at most {:?}", at(50), at(99), at(100));
    assert!(at(50) < Duration::from_millis(20) && at(90) < AT_ONCE, "{took:?}");
}
