//! What waits for no replica is not held up by one.

use std::time::Duration;

use dlock_tests::Moment;

use crate::pair::{LONG, Pair};

/// A tenth of what one `WAIT` takes here.
const AT_ONCE: Duration = Duration::from_millis(20);

#[tokio::test]
async fn a_frozen_replica_holds_up_neither_releases_nor_managers_that_do_not_ask_for_it() {
    let pair = Pair::start().await;
    let (acked, plain) = (pair.manager(1).await, pair.manager(0).await);
    let mut held = Vec::new();
    for number in 0..20 {
        held.push(acked.lock(format!("held:{number}")).acquire().await.expect("the lock is free"));
    }

    pair.replica.pause();
    let hanging = acked.lock("order:7").wait(LONG);
    let hanging = tokio::spawn(async move { hanging.acquire().await });
    pair.until(|pair| pair.holds("order:7")).await;
    let mut took = Vec::new();
    for guard in held {
        let since = Moment::now();
        guard.release().await.expect("a release waits for no replica");
        took.push(since.elapsed());
    }
    for number in 0..20 {
        let since = Moment::now();
        let guard = plain.lock(format!("plain:{number}")).acquire().await.expect("it asks for no replica");
        took.push(since.elapsed());
        drop(guard);
    }

    took.sort();
    assert!(took[took.len() * 9 / 10] < AT_ONCE, "{took:?}");
    hanging.abort();
}
