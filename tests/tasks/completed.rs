//! Bodies that complete in the poll that detects the loss of their lock, and the caller's result.

use std::time::Duration;

use dlock_runtime::testing::TestLocks;
use dlock_runtime::{Error, LockManager, LossCause, OnLost, ReleaseMode, distributed_lock, in_current_scope};
use dlock_tests::RedisServer;
use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::{KEY, LONG, manager_of};

const LEASE: Duration = Duration::from_secs(10);

/// Advances the paused clock within the current poll, like a body that blocks its thread.
fn block_for(time: Duration) {
    let _ = tokio::time::advance(time).now_or_never();
}

/// Returns `true` if a result is the loss of a lock whose body had completed.
fn is_completed<T>(outcome: &Result<T, Error>, by: LossCause) -> bool {
    matches!(outcome, Err(Error::Lost { completed: true, cause, .. }) if *cause == by)
}

#[derive(Debug, PartialEq)]
enum Failed {
    Own,
    Lock(bool),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Lock(matches!(error, Error::Lost { completed: true, .. }))
    }
}

#[distributed_lock(key = "order:<id>", lease = "10s", renew = false)]
async fn order(id: u64, body: impl FnOnce() -> Result<u64, Failed>) -> Result<u64, Failed> {
    let _ = id;
    body()
}

#[distributed_lock(key = "order:<id>", lease = "10s", renew = false, release = background)]
async fn order_in_background(id: u64, body: impl FnOnce()) -> Result<u64, Error> {
    body();
    Ok(id)
}

#[distributed_lock(key = "order:<id>", lease = "10s", renew = false, on_lost = finish)]
async fn order_to_the_end(id: u64, body: impl FnOnce()) -> Result<u64, Error> {
    body();
    Ok(id)
}

#[distributed_lock(key = "order:<id>", lease = "10s", renew = false, on_contended = skip)]
async fn order_or_none(id: u64, body: impl FnOnce()) -> Option<u64> {
    body();
    Some(id)
}

#[distributed_lock(key = "order:<id>", lease = "10s", renew = false, on_contended = skip)]
async fn order_or_nothing(id: u64, body: impl FnOnce()) {
    let _ = id;
    body();
}

#[distributed_lock(key = "order:<id>", lease = "10s", renew = false, on_contended = skip)]
async fn order_or_none_or_error(id: u64, body: impl FnOnce()) -> Result<Option<u64>, Error> {
    body();
    Ok(Some(id))
}

#[distributed_lock(key = "order:<id>", lease = "10s", renew = false, on_contended = return(0))]
async fn order_or_zero(id: u64, body: impl FnOnce()) -> u64 {
    body();
    id
}

async fn order_elsewhere(_id: u64, _body: impl FnOnce()) -> Result<u64, Error> {
    std::future::ready(Ok(0)).await
}

#[distributed_lock(key = "order:<id>", lease = "10s", renew = false, on_contended = fallback(order_elsewhere))]
async fn order_or_fall_back(id: u64, body: impl FnOnce()) -> Result<u64, Error> {
    body();
    Ok(id)
}

#[distributed_lock(key = "order:<id>", lease = "10s", renew = false)]
async fn respond(id: u64, status: axum::http::StatusCode) -> axum::http::StatusCode {
    let _ = id;
    block_for(LEASE);
    status
}

#[distributed_lock(key = "order:<id>", lease = "10s", max_hold = "15s")]
async fn order_within(id: u64, body: impl FnOnce()) -> Result<u64, Error> {
    body();
    Ok(id)
}

#[tokio::test(start_paused = true)]
async fn body_completed_after_its_lease_reports_the_loss() {
    let locks = TestLocks::new();
    let late = || {
        block_for(LEASE);
        Ok(7)
    };

    assert_eq!(locks.run(order(7, || Ok(7))).await, Ok(7));
    assert_eq!(locks.run(order(7, late)).await, Err(Failed::Lock(true)));
    let background = locks.run(order_in_background(7, || block_for(LEASE))).await;
    assert!(is_completed(&background, LossCause::Expired), "{background:?}");
    assert!(!locks.is_held(KEY));
}

#[tokio::test(start_paused = true)]
async fn body_completed_after_a_theft_reports_the_loss() {
    let locks = TestLocks::new();
    let taken = || {
        locks.lose(KEY);
        Ok(7)
    };

    assert_eq!(locks.run(order(7, taken)).await, Err(Failed::Lock(true)));

    let lock = locks.manager().lock(KEY);
    let outcome = lock.run(async |_guard| locks.lose(KEY)).await;
    assert!(is_completed(&outcome, LossCause::NotOwner), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_body_wins_over_the_loss() {
    let locks = TestLocks::new();
    let fails = || {
        block_for(LEASE);
        Err(Failed::Own)
    };

    assert_eq!(locks.run(order(7, fails)).await, Err(Failed::Own));
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_closure_wins_over_the_loss_in_try_run() {
    let locks = TestLocks::new();
    let lock = locks.manager().lock(KEY).lease(LEASE).renew(false);
    let late = async |own: Result<u64, Failed>| {
        lock.try_run(async |_guard| {
            block_for(LEASE);
            own
        })
        .await
    };

    assert_eq!(late(Err(Failed::Own)).await, Err(Failed::Own));
    assert_eq!(late(Ok(7)).await, Err(Failed::Lock(true)));
    let taken = lock.try_run(async |_guard| {
        locks.lose(KEY);
        Err::<u64, _>(Failed::Own)
    });
    assert_eq!(taken.await, Err(Failed::Own));
    // `run` does not distinguish errors from other values.
    let outcome = lock.run(async |_guard| {
        block_for(LEASE);
        Err::<u64, _>(Failed::Own)
    });
    let outcome = outcome.await;
    assert!(is_completed(&outcome, LossCause::Expired), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn error_response_wins_over_the_loss_but_success_does_not() {
    use axum::http::StatusCode;
    let locks = TestLocks::new();

    for (own, wanted) in [
        (StatusCode::OK, StatusCode::INTERNAL_SERVER_ERROR),
        (StatusCode::NOT_FOUND, StatusCode::NOT_FOUND),
        (StatusCode::BAD_GATEWAY, StatusCode::BAD_GATEWAY),
    ] {
        assert_eq!(locks.run(respond(7, own)).await, wanted);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_outlives_its_max_hold_alone_gives_its_value() {
    let locks = TestLocks::new();
    let past = |time| move || block_for(Duration::from_secs(time));

    // `memory://` renews the lease although the thread is blocked, until `max_hold` stops it. The
    // lease expires at about 23 s.
    assert_eq!(locks.run(order_within(7, past(16))).await.ok(), Some(7));
    let renewed_first = locks.manager().lock(KEY).lease(LEASE).max_hold(LEASE);
    let outcome = renewed_first
        .run(async |_guard| {
            tokio::time::sleep(Duration::from_secs(6)).await;
            block_for(Duration::from_secs(5));
            7
        })
        .await;
    assert_eq!(outcome.ok(), Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_outlives_max_hold_and_lease_may_have_overlapped() {
    let locks = TestLocks::new();
    let lock = locks.manager().lock(KEY).lease(LEASE).max_hold(LEASE);
    let elsewhere = locks.another_manager().lock("another");

    for max_hold_is_noticed in [false, true] {
        let outcome = lock
            .run(async |_guard| {
                tokio::time::sleep(Duration::from_secs(6)).await;
                block_for(Duration::from_secs(5));
                if max_hold_is_noticed {
                    let _ = elsewhere.try_acquire().now_or_never(); // updates the in-memory store
                }
                block_for(LEASE);
            })
            .await;

        assert!(is_completed(&outcome, LossCause::Expired), "{max_hold_is_noticed}: {outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_finishes_gives_its_value() {
    let locks = TestLocks::new();

    assert_eq!(locks.run(order_to_the_end(7, || block_for(LEASE))).await.ok(), Some(7));
    let lock = locks.manager().lock(KEY).lease(LEASE).renew(false).on_lost(OnLost::Finish);
    assert_eq!(lock.run(async |_guard| block_for(LEASE)).await.ok(), Some(()));
}

#[tokio::test(start_paused = true)]
async fn type_without_lock_error_keeps_a_completed_value() {
    let locks = TestLocks::new();

    assert_eq!(locks.run(order_or_none(7, || block_for(LEASE))).await, Some(7));
    assert_eq!(locks.run(order_or_zero(7, || block_for(LEASE))).await, 7);
    locks.run(order_or_nothing(7, || block_for(LEASE))).await;
    let skips = locks.run(order_or_none_or_error(7, || block_for(LEASE))).await;
    assert!(is_completed(&skips, LossCause::Expired), "{skips:?}");
    let falls_back = locks.run(order_or_fall_back(7, || block_for(LEASE))).await;
    assert!(is_completed(&falls_back, LossCause::Expired), "{falls_back:?}");
}

#[tokio::test(start_paused = true)]
async fn a_joined_call_and_its_root_both_report_the_loss() {
    let locks = TestLocks::new();
    let lock = locks.manager().lock(KEY).lease(LEASE).renew(false);
    let mut joined = None;

    let root = lock
        .run(async |_guard| {
            joined = Some(lock.run(async |_guard| block_for(LEASE)).await);
        })
        .await;

    assert!(joined.is_some_and(|joined| is_completed(&joined, LossCause::Expired)));
    assert!(is_completed(&root, LossCause::Expired), "{root:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_inside_a_lost_lock_keeps_the_value_of_its_own() {
    let locks = TestLocks::new();
    let (outer, inner) = (locks.manager().lock(KEY), locks.manager().lock("another"));
    let mut inside = None;

    let outside = outer
        .run(async |_guard| {
            inside = Some(inner.run(async |_guard| locks.lose(KEY)).await);
        })
        .await;

    assert!(matches!(inside, Some(Ok(true))), "{inside:?}");
    assert!(is_completed(&outside, LossCause::NotOwner), "{outside:?}");
}

#[tokio::test(start_paused = true)]
async fn a_joined_call_whose_root_was_released_has_not_completed() {
    let locks = TestLocks::new();
    let lock = locks.manager().lock(KEY);
    let (entered, has_entered) = oneshot::channel();
    let mut inner_lock = Some(lock.clone());
    let mut joined = None;

    let root = lock
        .run(async |_guard| {
            let inner = inner_lock.take().expect("the body runs once");
            let (wake, woken) = oneshot::channel::<()>();
            let mut call = Box::pin(in_current_scope(async move {
                inner
                    .run(async |_guard| {
                        let _ = entered.send(());
                        let _ = woken.await;
                    })
                    .await
            }));
            assert!(call.as_mut().now_or_never().is_none());
            let _ = has_entered.await;
            joined = Some((call, wake));
        })
        .await;
    let (call, wake) = joined.expect("the call has joined");
    drop(wake);
    let joined = call.await;

    assert!(root.is_ok(), "{root:?}");
    // The joined body was not polled again, so it has not completed.
    assert!(
        matches!(joined, Err(Error::Lost { completed: false, cause: LossCause::Released, .. })),
        "{joined:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_stopped_has_not_completed() {
    let locks = TestLocks::new();
    let lock = locks.manager().lock(KEY).lease(LEASE).renew(false);

    let stopped = lock
        .run(async |_guard| {
            block_for(LEASE);
            tokio::task::yield_now().await;
        })
        .await;

    assert!(matches!(stopped, Err(Error::Lost { completed: false, .. })), "{stopped:?}");
    assert!(!stopped.expect_err("it was lost").to_string().contains("completed"));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_panics_when_its_lease_is_over_panics() {
    let locks = TestLocks::new();
    let manager = locks.manager();
    let call = tokio::spawn(async move {
        let lock = manager.lock(KEY).lease(LEASE).renew(false);
        let body = async |_guard: &dlock_runtime::LockGuard| {
            block_for(LEASE);
            panic!("this panic is part of the test")
        };
        lock.run(body).await
    });

    assert!(call.await.is_err_and(|error| error.is_panic()));
    assert!(!locks.is_held(KEY));
}

#[tokio::test]
async fn a_loss_that_only_the_release_reveals_leaves_the_value() {
    let server = RedisServer::start();
    for release in [ReleaseMode::Awaited, ReleaseMode::Background] {
        let lock = manager_of(&server).await.lock(KEY).release_mode(release);

        let outcome =
            lock.run(async |_guard| drop(server.call(&["DEL", &dlock_tests::world::name(KEY)]))).await;

        assert!(outcome.is_ok(), "{outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_body_that_overlaps_a_new_holder_reports_the_loss() {
    let server = RedisServer::start();
    let lease = Duration::from_millis(100);
    let (holder, other) = (manager_of(&server).await, manager_of(&server).await);
    let (entered, has_entered) = oneshot::channel();
    let (taken, is_taken) = std::sync::mpsc::channel();
    let call = tokio::spawn(async move {
        let lock = holder.lock(KEY).lease(lease).renew(false);
        lock.run(async move |_guard| {
            let _ = entered.send(());
            is_taken.recv_timeout(LONG).expect("another process acquires the lock"); // blocks the thread
        })
        .await
    });
    has_entered.await.expect("the body starts");

    let beside = other.lock(KEY).wait(LONG).acquire().await.expect("the lease expires");
    taken.send(()).expect("the body waits");
    let outcome = call.await.expect("no panic");

    assert!(matches!(outcome, Err(Error::Lost { completed: true, .. })), "{outcome:?}");
    assert!(beside.check().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_over_has_no_time_left() {
    let locks = TestLocks::new();
    let guard = locks.manager().lock(KEY).lease(LEASE).renew(false).acquire().await.expect("it is free");
    let before = guard.remaining();
    block_for(LEASE);
    let expired = guard.remaining();
    let (first, second) = (locks.manager().lock("taken"), locks.manager().lock("over"));
    let (taken, max_held) = (
        first.acquire().await.expect("it is free"),
        second.max_hold(LEASE).lease(LEASE / 2).acquire().await.expect("it is free"),
    );
    locks.lose("taken");
    let after_theft = taken.remaining();
    tokio::time::sleep(LEASE).await;

    assert!(before > LEASE / 2, "{before:?}");
    assert_eq!([expired, after_theft, max_held.remaining()], [Duration::ZERO; 3]);
}

#[tokio::test]
async fn the_release_of_a_stolen_lock_reports_the_loss() {
    let server = RedisServer::start();
    let guard = manager_of(&server).await.lock(KEY).acquire().await.expect("it is free");
    server.call(&["DEL", &dlock_tests::world::name(KEY)]);

    let released = guard.release().await;

    let is_lost = matches!(released, Err(Error::Lost { completed: false, cause: LossCause::NotOwner, .. }));
    assert!(is_lost, "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn a_scope_of_another_manager_is_not_joined() {
    let (ours, theirs) = (in_memory("ours").await, in_memory("theirs").await);
    let (outer, inner) = (ours.lock(KEY), theirs.lock(KEY));
    let _held = theirs.lock("another").acquire().await.expect("it is free");
    let own = theirs.lock(KEY).acquire().await.expect("it is free");

    let inside = outer.run(async |_guard| inner.run(async |_guard| ()).await).await.expect("it is free");
    drop(own);
    // A guard of another manager is not part of a call inside this hold either.
    let guard = outer.run(async |_guard| inner.acquire().await).await.expect("it is free");

    assert!(inside.is_err_and(|error| error.is_contended()), "it joined the hold of another manager");
    assert!(guard.is_ok(), "{guard:?}");
}

async fn in_memory(world: &str) -> LockManager {
    LockManager::connect(&format!("memory://{world}")).await.expect("the in-memory backend connects")
}

/// Checks, when it is dropped, whether its lock is free.
struct ChecksWhenDropped {
    other: dlock_runtime::Lock,
    was_free: std::sync::Arc<std::sync::Mutex<Option<bool>>>,
}

impl Drop for ChecksWhenDropped {
    fn drop(&mut self) {
        let taken = self.other.try_acquire().now_or_never();
        let free = matches!(taken, Some(Ok(Some(_))));
        *self.was_free.lock().expect("no panic while locked") = Some(free);
    }
}

#[tokio::test(start_paused = true)]
async fn body_stopped_by_max_hold_is_dropped_before_the_release() {
    let locks = TestLocks::new();
    let other = locks.another_manager().lock(KEY);
    let was_free = std::sync::Arc::default();
    let lock = locks.manager().lock(KEY).lease(LEASE).max_hold(LEASE);

    let stopped = lock
        .run(async |_guard| {
            let _checks =
                ChecksWhenDropped { other: other.clone(), was_free: std::sync::Arc::clone(&was_free) };
            std::future::pending::<()>().await;
        })
        .await;

    assert!(
        matches!(stopped, Err(Error::Lost { completed: false, cause: LossCause::MaxHold, .. })),
        "{stopped:?}"
    );
    assert_eq!(
        *was_free.lock().expect("no panic while locked"),
        Some(false),
        "released before the body was dropped"
    );
    assert!(other.try_acquire().await.is_ok_and(|guard| guard.is_some()));
}
