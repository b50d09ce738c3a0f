//! Operations that wait for no replica are not delayed by a frozen one.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::Moment;
use dlock_tests::handoff::{allow_namespaces, assert_handed_off_in_each_namespace};

use crate::replica_pair::{LONG, Pair};

/// A tenth of the time that one `WAIT` takes here.
const AT_ONCE: Duration = Duration::from_millis(20);

#[tokio::test]
async fn frozen_replica_does_not_delay_releases_or_plain_managers() {
    let pair = Pair::start().await;
    let (acked, plain) = (pair.manager(1).await, pair.manager(0).await);
    let mut held = Vec::new();
    for number in 0..20 {
        held.push(acked.lock(format!("held:{number}")).wait(LONG).acquire().await.expect("the lock is free"));
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
        let guard = plain.lock(format!("plain:{number}")).acquire().await.expect("it waits for no replica");
        took.push(since.elapsed());
        drop(guard);
    }

    took.sort();
    assert!(took[took.len() * 9 / 10] < AT_ONCE, "{took:?}");
    hanging.abort();
}

#[tokio::test]
async fn waiters_are_woken_in_each_namespace_with_replica_acks() {
    let pair = Pair::start().await;
    allow_namespaces(&pair.master);
    let url = pair.master.url_with("?replica_acks=1&grant_lease=30s&poll_interval=30s");
    let (ours, theirs) = (LockManager::connect(&url).await, LockManager::connect(&url).await);
    let (ours, theirs) = (ours.expect("it accepts connections"), theirs.expect("it accepts connections"));

    for key in ["first", "second"] {
        assert_handed_off_in_each_namespace(&ours, &theirs, key).await;
    }
}
