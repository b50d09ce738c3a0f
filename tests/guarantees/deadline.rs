//! P1: no poll of the body after its deadline, even if the server, the process, or the thread is
//! stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::{Moment, Proxy, RedisServer, Worker, within};
use tokio::sync::oneshot;

use super::{LEASE, REPORTED_WITHIN, SLACK, VALID_FOR, WORKER, manager_of, tick};

#[tokio::test]
async fn a_frozen_server_stops_the_body_before_the_lease_ends() {
    let server = RedisServer::start();
    let lock = manager_of(&server).await.lock("order:7").lease(LEASE);
    let last_poll = Arc::new(AtomicU64::new(0));
    let of_body = Arc::clone(&last_poll);
    let (entered, has_entered) = oneshot::channel();
    let call = tokio::spawn(async move {
        lock.run(async |_guard| {
            let _ = entered.send(());
            tick(&of_body).await;
        })
        .await
    });
    has_entered.await.expect("the body starts");

    server.pause();
    let frozen = Moment::now();
    let outcome = within(LEASE * 3, "the loss", call).await.expect("the call does not panic");
    let reported = Moment::now();

    let last_poll = Moment::from_nanos(last_poll.load(Ordering::SeqCst));
    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    // A renewal extends the lease only if it was sent before the server froze.
    assert!(last_poll < frozen + VALID_FOR, "polled {:?} after the freeze", last_poll.since(frozen));
    assert!(
        reported < frozen + LEASE + REPORTED_WITHIN + SLACK,
        "reported {:?} after the freeze",
        reported.since(frozen)
    );
}

#[tokio::test]
async fn a_process_frozen_past_its_lease_does_not_poll_its_body() {
    // The freeze can hit between the check of the clock and the poll that follows. Fencing tokens
    // exist for that poll. The freeze does not hit this gap three times in a row, whereas a body
    // that is polled without a check is polled each time.
    let mut late_polls = Vec::new();
    for _ in 0..3 {
        match freeze_past_the_lease().await {
            None => return,
            Some(late) => late_polls.push(late),
        }
    }
    panic!("polled each time after the next holder acquired the lock: {late_polls:?}");
}

/// Freezes a holder until another process acquires its lock.
///
/// Returns how long after that the body was polled, or `None` if it was not.
async fn freeze_past_the_lease() -> Option<Duration> {
    let server = RedisServer::start();
    let mut frozen = Worker::spawn(WORKER, &[server.url()]).await;
    let mut other = Worker::spawn(WORKER, &[server.url()]).await;
    frozen.send("run order:7 1000 0");
    frozen.event("entered", "order:7").await;

    frozen.pause();
    let stopped = Moment::now();
    other.send("acquire order:7 30000 30000");
    let taken = other.event("acquired", "order:7").await;
    frozen.resume();
    let failed = frozen.event_or_failure("left", "order:7").await;

    assert!(taken.at < stopped + LEASE + Duration::from_millis(250), "{:?}", taken.at.since(stopped));
    assert!(failed.detail.starts_with("Lost"), "{failed:?}");
    let last_poll = failed.detail.rsplit_once("last_poll=").and_then(|(_, nanos)| nanos.parse().ok());
    let last_poll = Moment::from_nanos(last_poll.expect("the worker reports its last poll"));
    (last_poll >= taken.at).then(|| last_poll.since(taken.at))
}

#[tokio::test]
async fn a_blocked_body_is_not_polled_after_its_lease() {
    let server = RedisServer::start();
    let lock = manager_of(&server).await.lock("order:7").lease(LEASE);
    let went_on = Arc::new(AtomicBool::new(false));
    let of_body = Arc::clone(&went_on);

    let outcome = lock
        .run(async |_guard| {
            server.pause();
            // The worker thread is blocked, which no timer of its runtime can detect.
            std::thread::sleep(LEASE * 2);
            tokio::task::yield_now().await;
            of_body.store(true, Ordering::SeqCst);
        })
        .await;
    server.resume();

    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    assert!(!went_on.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_body_that_blocks_its_only_worker_keeps_its_lease() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;

    let outcome = manager
        .lock("order:7")
        .lease(LEASE)
        .run(async |guard| {
            std::thread::sleep(LEASE * 3);
            guard.check()
        })
        .await;

    assert!(matches!(outcome, Ok(Ok(()))), "{outcome:?}");
}

#[tokio::test]
async fn a_reply_slower_than_the_lease_grants_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("the server takes managers");
    proxy.delay_replies(Duration::from_millis(200));

    let late = manager.lock("order:7").lease(Duration::from_millis(100)).acquire().await;

    assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
}
