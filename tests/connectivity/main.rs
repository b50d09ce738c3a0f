//! Connections to a server, and inspection of its locks: TLS, Unix sockets, changing credentials,
//! readiness, lazy starts.

mod credentials;
mod inspect;
mod lazy;
mod missing_commands;
mod readiness;
mod tls;
#[cfg(unix)]
mod unix;

use std::time::Duration;

use dlock_runtime::{Error, LockManager, Result};
use dlock_tests::within;

const LONG: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_millis(600);
/// The bound of a manager's recovery.
const SOON: Duration = Duration::from_secs(10);

/// Acquires a lock, holds it over several renewals, and releases it.
async fn hold_beyond_the_lease(manager: &LockManager) {
    let guard = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");
    let lost = tokio::time::timeout(LEASE * 3, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    guard.release().await.expect("it was renewed");
}

/// Asserts that `waiter` is granted a lock that `holder` releases. Only a waiter with a working
/// subscription is queued, so the queue entry shows that its second connection works.
async fn assert_grant_is_received(holder: &LockManager, waiter: LockManager) {
    let guard = holder.lock("told").lease(LONG).acquire().await.expect("the lock is free");
    let waits = tokio::spawn(async move { waiter.lock("told").lease(LONG).wait(LONG).acquire().await });
    let queued = async {
        while holder.inspect("told").await.expect("the server replies").expect("it is held").waiters() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(SOON, "the queue entry", queued).await;
    guard.release().await.expect("it is held");
    let granted = within(SOON, "the grant", waits).await.expect("no panic");
    assert!(granted.is_ok(), "{granted:?}");
}

/// Waits until the server replies to the manager again.
async fn until_ready(manager: &LockManager) {
    let ready = async {
        while manager.ready().await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(SOON, "the manager's recovery", ready).await;
}

/// Asserts that the error is an error of configuration in `part_wanted` that contains `words`.
#[track_caller]
fn assert_config<T: std::fmt::Debug>(outcome: Result<T>, part_wanted: &str, words: &[&str]) {
    match outcome {
        Err(Error::Config { part, problem, .. }) => {
            assert_eq!(&*part, part_wanted, "{problem}");
            for word in words {
                assert!(problem.contains(word), "`{word}` is not in: {problem}");
            }
        }
        other => panic!("{part_wanted}: {other:?}"),
    }
}
