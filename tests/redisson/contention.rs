//! Threads of Java and tasks of ours count by reading and writing: no count is lost, and both get on.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{Moment, within};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::Fleet;

#[tokio::test]
async fn java_and_we_count_together_and_lose_nothing() {
    let times = std::env::var("DLOCK_COUNTS").ok().and_then(|times| times.parse().ok()).unwrap_or(100);
    let Some(Fleet { ours, mut java, server }) = Fleet::start().await else { return };
    let started = Moment::now();
    let other = crate::manager(&server.url_with(crate::OPTIONS)).await;

    let threads = ["t1", "t2", "t3", "t4"];
    for thread in threads {
        java.tell(thread, &format!("count k counter {times}"));
    }
    let connection = server.raw().await;
    let tasks = [&ours, &ours, &other, &other]
        .map(|manager| tokio::spawn(count(manager.clone(), connection.clone(), times)));
    let mut ends = Vec::new();
    let limit = Duration::from_secs(20).max(Duration::from_millis(20) * times);
    for task in tasks {
        ends.push(("we", within(limit, "our counts", task).await.expect("it does not panic").since(started)));
    }
    for thread in threads {
        ends.push((
            "java",
            within(limit, "java's counts", java.says(thread, "counted")).await.at.since(started),
        ));
    }

    println!("{times} each: {ends:?}");
    let counted = server.call(&["GET", "counter"]);
    assert_eq!(counted.text(), Some(&*(8 * times).to_string()));
}

async fn count(manager: LockManager, mut counter: MultiplexedConnection, times: u32) -> Moment {
    for _ in 0..times {
        let guard = manager.lock("k").wait(crate::LONG).acquire().await.expect("it comes free");
        let value: Option<u32> = counter.get("counter").await.expect("the server answers");
        let () = counter.set("counter", value.unwrap_or_default() + 1).await.expect("the server answers");
        guard.release().await.expect("ours");
    }
    Moment::now()
}
