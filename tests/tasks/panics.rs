//! T2: a panic anywhere in a body or its destructors releases the lock and affects no other lock.

use std::sync::Arc;
use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::{RedisServer, until, within};
use tokio::sync::{Notify, oneshot};

use super::{KEY, LONG, PROMPT, assert_nothing_is_left, manager_of};

/// A value of a body that panics when it is dropped.
struct PanicsInDrop;

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        // A second panic during unwinding would abort the process.
        assert!(std::thread::panicking(), "the destructor's own panic");
    }
}

/// Asserts that another process acquires the lock promptly, that the manager of the panicked task
/// still works, and that no lock is left.
async fn assert_no_harm(server: &RedisServer, manager: &LockManager) {
    let other = manager_of(server).await;
    let lock = other.lock(KEY).lease(LONG).wait(LONG);
    let again = within(PROMPT, "the lock elsewhere", lock.acquire()).await.expect("it was released");
    let waiting = manager.lock(KEY).lease(LONG).wait(LONG);
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    super::until_waiting(server, KEY, 1).await;
    again.release().await.expect("it is held");
    let waiter = within(PROMPT, "a grant in the process that panicked", waiter).await.expect("no panic");
    waiter.expect("the lock is granted").release().await.expect("it is held");
    assert_nothing_is_left(server, PROMPT).await;
}

#[tokio::test]
async fn a_panic_in_a_destructor_at_the_end_of_a_body_releases() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let lock = manager.lock(KEY).lease(LONG);

    let call = tokio::spawn(async move { lock.run(async |_guard| drop(PanicsInDrop)).await });
    let panicked = call.await;

    assert!(panicked.is_err_and(|error| error.is_panic()));
    assert_no_harm(&server, &manager).await;
}

#[tokio::test]
async fn a_panic_in_a_destructor_of_a_cancelled_body_releases() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let lock = manager.lock(KEY).lease(LONG);
    let (entered, has_entered) = oneshot::channel();
    let call = tokio::spawn(async move {
        lock.run(async |_guard| {
            let _panics = PanicsInDrop;
            let _ = entered.send(());
            std::future::pending::<()>().await;
        })
        .await
    });
    has_entered.await.expect("the body begins");

    call.abort();
    let _ = call.await;

    assert_no_harm(&server, &manager).await;
}

#[tokio::test]
async fn destructor_panic_after_a_loss_harms_no_other_lock() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let beside = manager.lock("beside").lease(Duration::from_secs(5)).acquire().await.expect("it is free");
    let lock = manager.lock(KEY).lease(LONG);
    let (entered, has_entered) = oneshot::channel();
    let call = tokio::spawn(async move {
        lock.run(async |guard| {
            let _panics = PanicsInDrop;
            let _ = entered.send(());
            guard.lost().await;
            std::future::pending::<()>().await;
        })
        .await
    });
    has_entered.await.expect("the body begins");

    let other = manager_of(&server).await;
    assert!(other.force_release(KEY).await.expect("the server replies"));
    let panicked = within(LONG, "the end of the call", call).await;
    until("a renewal", async || server.command_count("pexpire") > 0).await;
    let kept = beside.check();
    beside.release().await.expect("it was renewed throughout");

    assert!(panicked.is_err_and(|error| error.is_panic()));
    assert!(kept.is_ok(), "{kept:?}");
    assert_no_harm(&server, &manager).await;
}

#[tokio::test]
async fn a_task_that_panics_while_it_owns_a_guard_releases() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let lock = manager.lock(KEY).lease(LONG);

    let call = tokio::spawn(async move {
        let _guard = lock.acquire().await.expect("it is free");
        panic!("the task's own panic");
    });
    let panicked: Result<(), _> = call.await;

    assert!(panicked.is_err_and(|error| error.is_panic()));
    assert_no_harm(&server, &manager).await;
}

#[tokio::test]
async fn a_panicking_nested_call_keeps_the_outer_hold() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let lock = manager.lock(KEY).lease(LONG);
    let stranger = manager_of(&server).await.lock(KEY);

    let outcome = lock
        .run(async |guard| {
            let nested =
                dlock_runtime::in_current_scope(async { lock.run(async |_guard| drop(PanicsInDrop)).await });
            let panicked = tokio::spawn({
                let lock = lock.clone();
                async move { lock.run(async |_guard| ()).await }
            });
            let _ = panicked.await;
            let caught = futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(nested)).await;
            assert!(caught.is_err(), "the nested body panicked");
            (guard.check(), stranger.try_acquire().await.map(|taken| taken.is_none()))
        })
        .await;

    assert!(matches!(outcome, Ok((Ok(()), Ok(true)))), "{outcome:?}");
    assert_no_harm(&server, &manager).await;
}

#[tokio::test]
async fn waiters_behind_a_task_that_panics_acquire() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let may_panic = Arc::new(Notify::new());
    let (lock, signal) = (manager.lock(KEY).lease(LONG), Arc::clone(&may_panic));
    let (entered, has_entered) = oneshot::channel();
    let call = tokio::spawn(async move {
        lock.run(async |_guard| {
            let _panics = PanicsInDrop;
            let _ = entered.send(());
            signal.notified().await;
            panic!("the body's own panic");
        })
        .await
    });
    has_entered.await.expect("the body begins");
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..4 {
        // Two in this process, and two in other processes.
        let waiting = if number % 2 == 0 { manager.clone() } else { manager_of(&server).await };
        waiters.spawn(async move { waiting.lock(KEY).lease(LONG).wait(LONG).run(async |_guard| ()).await });
    }
    super::until_waiting(&server, KEY, 2).await;

    may_panic.notify_one();
    let panicked: Result<Result<(), Error>, _> = call.await;
    let outcomes = within(PROMPT, "all holds", waiters.join_all()).await;

    assert!(panicked.is_err_and(|error| error.is_panic()));
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_nothing_is_left(&server, PROMPT).await;
}
