//! T10: leaked guards and futures, which are never dropped and never polled again.

use std::mem;
use std::time::Duration;

use dlock_runtime::{Error, LossCause};
use dlock_tests::polls::poll_with;
use dlock_tests::{RedisServer, overrun, within};

use super::{KEY, LONG, PROMPT, assert_nothing_is_left, manager_of, until_waiting};

const LEASE: Duration = Duration::from_millis(600);

#[tokio::test]
async fn a_forgotten_guard_is_bounded_by_max_hold_and_shutdown() {
    let server = RedisServer::start();
    let (manager, other) = (manager_of(&server).await, manager_of(&server).await);
    mem::forget(manager.lock("bounded").lease(LEASE).max_hold(LEASE).acquire().await.expect("it is free"));
    mem::forget(manager.lock(KEY).lease(LEASE).acquire().await.expect("it is free"));

    let bounded = other.lock("bounded").lease(LONG).wait(LONG);
    let (bounded, late) = overrun(LEASE * 2, bounded.acquire()).await;
    let bounded = bounded.expect("max_hold has elapsed");
    let kept = other.lock(KEY).lease(LONG).wait(LEASE * 2).acquire().await;
    manager.shutdown(Duration::from_millis(50)).await;
    let again = other.lock(KEY).lease(LONG).wait(LONG);
    let freed = within(PROMPT, "the lock after the shutdown", again.acquire()).await;
    let freed = freed.expect("shutdown releases it");

    assert!(late < Duration::from_millis(250), "{late:?}");
    assert!(
        matches!(kept, Err(Error::Contended { .. })),
        "a live process renews a leaked guard's lock: {kept:?}"
    );
    drop((bounded, freed));
    assert_nothing_is_left(&server, PROMPT).await;
}

/// Examples: a `select!` branch in a loop that is not polled while another runs, or a future in a
/// set that is not polled. It is granted the lock, and holds it like a task that hangs.
#[tokio::test]
async fn a_waiter_that_is_never_polled_again_is_bounded_by_max_hold() {
    let server = RedisServer::start();
    let (manager, other) = (manager_of(&server).await, manager_of(&server).await);
    let held = other.lock(KEY).lease(LONG).acquire().await.expect("it is free");
    let lock = manager.lock(KEY).lease(LEASE).max_hold(LEASE).wait(LONG);
    let mut forgotten = Box::pin(lock.acquire());
    assert!(poll_with(std::task::Waker::noop(), forgotten.as_mut()).is_pending());
    until_waiting(&server, KEY, 1).await;

    held.release().await.expect("it is held");
    let next = within(LONG, "the lock", other.lock(KEY).lease(LONG).wait(LONG).acquire());
    let (next, late) = overrun(LEASE * 2, next).await;
    // A late poll returns the loss.
    let reported = within(PROMPT, "the loss", forgotten).await;

    assert!(next.is_ok(), "{next:?}");
    assert!(late < Duration::from_millis(250), "{late:?}");
    assert!(matches!(reported, Err(Error::Lost { cause: LossCause::MaxHold, .. })), "{reported:?}");
    drop(next);
    assert_nothing_is_left(&server, PROMPT).await;
}

/// The granted call is not polled until its drop releases the lock.
#[tokio::test]
async fn a_waiter_dropped_long_after_its_grant_releases() {
    let server = RedisServer::start();
    let (manager, other) = (manager_of(&server).await, manager_of(&server).await);
    let held = other.lock(KEY).lease(LONG).acquire().await.expect("it is free");
    let lock = manager.lock(KEY).lease(LEASE).wait(LONG);
    let mut stalled = Box::pin(lock.acquire());
    assert!(poll_with(std::task::Waker::noop(), stalled.as_mut()).is_pending());
    until_waiting(&server, KEY, 1).await;

    held.release().await.expect("it is held");
    tokio::time::sleep(LEASE * 2).await;
    drop(stalled);

    assert_nothing_is_left(&server, PROMPT).await;
}

#[tokio::test]
async fn a_call_that_is_never_polled_again_is_bounded_by_max_hold() {
    let server = RedisServer::start();
    let (manager, other) = (manager_of(&server).await, manager_of(&server).await);
    let lock = manager.lock(KEY).lease(LEASE).max_hold(LEASE);
    let body = async |guard: &dlock_runtime::LockGuard| guard.lost().await;
    let mut call = Box::pin(lock.run(body));
    let entered = async {
        while poll_with(std::task::Waker::noop(), call.as_mut()).is_pending()
            && server.call(&["EXISTS", "dlock:order:7"]).integer() != Some(1)
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(LONG, "the hold", entered).await;

    let (next, late) = overrun(LEASE * 2, other.lock(KEY).lease(LONG).wait(LONG).acquire()).await;
    // A late poll returns the loss.
    let reported = within(PROMPT, "the loss", call).await;

    assert!(next.is_ok(), "{next:?}");
    assert!(late < Duration::from_millis(250), "{late:?}");
    assert!(matches!(reported, Err(Error::Lost { cause: LossCause::MaxHold, .. })), "{reported:?}");
}
