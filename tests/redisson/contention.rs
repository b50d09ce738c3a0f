//! Java threads and Rust tasks increment a counter by reading and writing: no update is lost, and
//! both make progress.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{Moment, within};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::{Fleet, LONG};

#[tokio::test]
async fn java_and_we_count_together_and_lose_nothing() {
    let seconds =
        std::env::var("DLOCK_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(3);
    let time = Duration::from_secs(seconds);
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    let other = crate::manager(&server.url_with(crate::OPTIONS)).await;
    let connection = server.raw().await;

    let threads = ["t1", "t2", "t3", "t4"];
    for thread in threads {
        java.tell(thread, &format!("count k counter {}", time.as_millis()));
    }
    let tasks = [&ours, &ours, &ours, &ours, &other, &other]
        .map(|manager| tokio::spawn(count(manager.clone(), connection.clone(), time)));
    let (mut by_us, mut by_java) = (Vec::new(), Vec::new());
    for task in tasks {
        by_us.push(within(time + LONG, "our counts", task).await.expect("it does not panic"));
    }
    for thread in threads {
        let counted = within(time + LONG, "java's counts", java.says(thread, "counted")).await;
        by_java.push(counted.detail.parse::<u64>().expect("a number"));
    }

    println!("in {time:?}: by us {by_us:?}, by Java {by_java:?}");
    let (ours, javas): (u64, u64) = (by_us.iter().sum(), by_java.iter().sum());
    assert_eq!(server.call(&["GET", "counter"]).text(), Some(&*(ours + javas).to_string()));
    // Fairness between the two is not guaranteed, but neither may starve the other.
    assert!(ours.min(javas) > 5 * seconds, "{ours} {javas}");
}

/// Counts as the Java process does, and returns the number of increments.
async fn count(manager: LockManager, mut server: MultiplexedConnection, time: Duration) -> u64 {
    let started = Moment::now();
    let mut counted = 0;
    while started.elapsed() < time {
        let guard = manager.lock("k").wait(LONG).acquire().await.expect("it becomes free");
        let value: Option<u64> = server.get("counter").await.expect("the server replies");
        let () = server.set("counter", value.unwrap_or_default() + 1).await.expect("the server replies");
        guard.release().await.expect("held");
        counted += 1;
    }
    counted
}
