//! The manager that is installed for the process.

use std::time::Duration;

use dlock_runtime::{Error, LockManager, distributed_lock};
use tokio::sync::{Mutex, MutexGuard};

/// Held by each test: the process has one installed manager.
static INSTALLED: Mutex<()> = Mutex::const_new(());

/// Runs a test alone, without a manager that another test has installed and not shut down.
async fn alone() -> MutexGuard<'static, ()> {
    INSTALLED.lock().await
}

#[distributed_lock(key = "order:<user>")]
async fn order(user: u64) -> Result<u64, Error> {
    Ok(user)
}

#[tokio::test]
async fn init_again_returns_the_same_manager_until_shutdown() {
    let _alone = alone().await;
    let first = dlock_runtime::init("memory://").await.expect("no server is needed");

    let again = dlock_runtime::init("memory://").await.expect("it is installed");
    let other = dlock_runtime::init("memory://other").await;

    assert_eq!(again.id(), first.id());
    assert!(matches!(other, Err(Error::Config { .. })), "{other:?}");
    assert_eq!(dlock_runtime::manager().expect("it is installed").id(), first.id());
    first.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn init_after_shutdown_connects_again() {
    let _alone = alone().await;
    let first = dlock_runtime::init("memory://").await.expect("no server is needed");
    first.shutdown(Duration::ZERO).await;
    assert!(matches!(order(7).await, Err(Error::Shutdown { .. })), "it is still installed");

    let same_url = dlock_runtime::init("memory://").await.expect("it was shut down");
    let placed = order(7).await;
    same_url.shutdown(Duration::ZERO).await;
    let other_url = dlock_runtime::init("memory://other").await.expect("it was shut down");

    assert!(placed.is_ok(), "{placed:?}");
    assert!(order(7).await.is_ok());
    assert_ne!(first.id(), same_url.id());
    assert_eq!(dlock_runtime::manager().expect("it is installed").id(), other_url.id());
    other_url.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn concurrent_inits_connect_once() {
    let _alone = alone().await;

    let (one, other) = tokio::join!(dlock_runtime::init("memory://"), dlock_runtime::init("memory://"));

    let (one, other) = (one.expect("no server is needed"), other.expect("no server is needed"));
    assert_eq!(one.id(), other.id());
    one.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn install_replaces_a_manager_after_its_shutdown() {
    let _alone = alone().await;
    let [first, second] = [(); 2].map(|()| LockManager::connect("memory://"));
    let (first, second) = (first.await.expect("no server"), second.await.expect("no server"));
    dlock_runtime::install(first.clone()).expect("none is installed");

    let early = dlock_runtime::install(second.clone());
    first.shutdown(Duration::ZERO).await;
    let late = dlock_runtime::install(second.clone());

    assert!(early.is_err() && late.is_ok());
    assert_eq!(dlock_runtime::manager().expect("it is installed").id(), second.id());
    second.shutdown(Duration::ZERO).await;
}
