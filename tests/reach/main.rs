//! Ways to a server, and a look at what stands there: TLS, unix sockets, credentials that change, readiness, inspection.

mod credentials;
mod inspect;
mod lacking;
mod ready;
mod tls;
#[cfg(unix)]
mod unix;

use std::time::Duration;

use dlock_runtime::{Error, LockManager, Result};
use dlock_tests::within;

const LONG: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_millis(600);
/// How long a manager may take to come back by itself.
const SOON: Duration = Duration::from_secs(10);

/// Takes a lock, holds it over several renewals, and releases it.
async fn hold_beyond_the_lease(manager: &LockManager) {
    let guard = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");
    let lost = tokio::time::timeout(LEASE * 3, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    guard.release().await.expect("it was renewed");
}

/// Has a second manager wait for what a first one holds. Only who can be told of a grant stands in the queue, so the place in it
/// shows that the second connection works, too.
async fn is_told_of_grants(holder: &LockManager, waiter: LockManager) {
    let guard = holder.lock("told").lease(LONG).acquire().await.expect("the lock is free");
    let waits = tokio::spawn(async move { waiter.lock("told").lease(LONG).wait(LONG).acquire().await });
    let queued = async {
        while holder.inspect("told").await.expect("it can be asked").expect("it is held").waiters() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(SOON, "a place in the queue", queued).await;
    guard.release().await.expect("it is ours");
    let granted = within(SOON, "the grant", waits).await.expect("no panic");
    assert!(granted.is_ok(), "{granted:?}");
}

/// Waits until the manager can ask its server again.
async fn until_ready(manager: &LockManager) {
    let ready = async {
        while manager.ready().await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(SOON, "a manager that comes back", ready).await;
}

/// Asserts that the error is one of configuration, of that part and with these words.
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
