//! What a lock costs in memory that is held over a server and has been renewed: what is sent on its behalf leaves room behind in buffers.
//!
//! A program of its own, so that nobody else's memory is in its figures. Without a server: `bytes`.

#![cfg(target_os = "linux")]

use std::time::Duration;

use dlock_runtime::{LockGuard, LockManager};
use dlock_tests::RedisServer;
use dlock_tests::resident::resident_bytes;
use futures_util::future::join_all;

const COUNT: usize = 10_000;

/// So many are asked for at a time: what asking takes is not in the figures.
const AT_ONCE: usize = 64;

const LEASE: Duration = Duration::from_secs(12);

async fn hold(locks: &LockManager, count: usize, held: &mut Vec<LockGuard>) {
    for first in (0..count).step_by(AT_ONCE) {
        let acquire =
            |number| async move { locks.lock(format!("held:{number}")).lease(LEASE).acquire().await };
        let taken = join_all((first..count.min(first + AT_ONCE)).map(acquire)).await;
        held.extend(taken.into_iter().map(|guard| guard.expect("the lock is free")));
    }
}

#[tokio::test]
async fn a_lock_that_has_been_renewed_costs_few_bytes() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.expect("it runs");
    let mut held = Vec::with_capacity(COUNT);
    for _ in 0..COUNT.div_ceil(AT_ONCE) {
        hold(&locks, AT_ONCE, &mut held).await;
        held.clear();
    }

    let before = resident_bytes();
    hold(&locks, COUNT, &mut held).await;
    let taken = resident_bytes().saturating_sub(before) / COUNT;
    tokio::time::sleep(LEASE / 3).await; // a renewal of each
    let renewed = resident_bytes().saturating_sub(before) / COUNT;

    println!("{taken} bytes each when taken, {renewed} once renewed");
    assert!(held.iter().all(|guard| guard.check().is_ok()), "a lock is lost");
    assert!((100..=MOST).contains(&renewed), "{renewed} bytes each");
}

/// Measured: 357; with all renewals on their way at once 639. A busy machine has a longer line of them, and more on their way.
const MOST: usize = 500;
