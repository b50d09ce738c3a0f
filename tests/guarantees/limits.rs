//! P3: an acquire ends within its limit, and its leftovers are cleaned up.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::polls::{Panics, poll_with};
use dlock_tests::{Moment, Proxy, RedisServer, overrun, within};

use super::{LEASE, LONG, SLACK, manager_of};

#[tokio::test]
async fn acquiring_through_a_black_hole_ends_within_its_wait() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("the server takes managers");
    proxy.black_hole();
    let wait = Duration::from_millis(800);

    for attempt in 0..3 {
        let refused = manager.lock("order:7").lease(LONG).wait(wait).acquire();
        let (refused, late) = overrun(wait, refused).await;

        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        assert!(late < SLACK, "attempt {attempt}: {late:?}");
    }
}

#[tokio::test]
async fn acquiring_through_a_black_hole_ends_within_its_tries() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("the server takes managers");
    proxy.black_hole();
    let (delay, response_timeout) = (Duration::from_millis(20), Duration::from_millis(500));

    for retry in [0, 1, 3] {
        let refused = manager.lock("order:7").lease(LONG).retry(retry).backoff(delay, delay).acquire();
        let limit = response_timeout * (retry + 1) + delay * retry;
        let (refused, late) = overrun(limit, refused).await;

        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        assert!(late < SLACK, "{retry} retries: {late:?}");
    }
}

#[tokio::test]
async fn a_hundred_acquires_of_a_frozen_server_end_in_time() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    server.pause();
    let wait = Duration::from_millis(700);

    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..100 {
        let lock = manager.lock(format!("key:{}", number % 10).as_str()).lease(LONG).wait(wait);
        tasks.spawn(async move { lock.acquire().await });
    }
    let (outcomes, late) = overrun(wait, tasks.join_all()).await;
    server.resume();

    // A task queued behind another task of its process cannot distinguish a slow holder from an
    // unreachable server.
    let is_typed = |outcome: &Result<_, Error>| {
        matches!(outcome, Err(Error::Unavailable { .. } | Error::Contended { .. }))
    };
    assert!(outcomes.iter().all(is_typed), "{outcomes:?}");
    assert!(late < SLACK, "{late:?}");
}

#[tokio::test]
async fn a_waker_that_panics_after_a_wait_does_not_hang_an_acquire() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let _held = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let lock = manager.lock("order:7").lease(LONG).wait(Duration::from_millis(20));
    let mut waiter = Box::pin(lock.acquire());
    let panics = Arc::new(Panics::default());

    assert!(poll_with(&Waker::from(Arc::clone(&panics)), waiter.as_mut()).is_pending());
    within(LONG, "the waker's panic", panics.until_it_has()).await;
    let acquire = async { manager.lock("order:8").lease(LONG).acquire().await };
    let granted = within(LONG, "the next acquire", acquire).await;

    assert!(granted.is_ok(), "{granted:?}");
}

#[tokio::test]
async fn an_orphaned_attempt_blocks_others_for_at_most_its_lease() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let cut_off = LockManager::connect(&proxy.url()).await.expect("the server takes managers");
    let other = manager_of(&server).await;
    proxy.swallow_replies();

    let refused = cut_off.lock("order:7").lease(LEASE).acquire().await;
    let granted = other.lock("order:7").lease(LONG).wait(LONG).acquire();
    let (granted, late) = overrun(LEASE, granted).await;

    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(granted.is_ok(), "{granted:?}");
    assert!(late < SLACK, "{late:?}");
}

#[tokio::test]
async fn an_orphaned_attempt_is_cleaned_up_after_a_reconnect() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let cut_off = LockManager::connect(&proxy.url()).await.expect("the server takes managers");
    let other = manager_of(&server).await;
    proxy.swallow_replies();
    let refused = cut_off.lock("order:7").lease(LONG).acquire().await;

    proxy.pass();
    proxy.reset_all();
    let started = Moment::now();
    let granted = other.lock("order:7").lease(LONG).wait(LONG).acquire().await;
    let took = started.elapsed();

    assert!(refused.is_err(), "{refused:?}");
    assert!(granted.is_ok(), "{granted:?}");
    assert!(took < Duration::from_secs(5), "the orphan stayed until its lease expired: {took:?}");
}
