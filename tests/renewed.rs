//! The memory of a lock that is held on a server and has been renewed. Its requests may leave
//! unused capacity in buffers.
//!
//! This is a separate program, so the figures contain no other allocations. See also: `bytes`,
//! which needs no server.

#![cfg(target_os = "linux")]

use std::time::Duration;

use dlock_runtime::{LockGuard, LockManager};
use dlock_tests::RedisServer;
use dlock_tests::resident::resident_bytes;
use futures_util::future::join_all;

const COUNT: usize = 10_000;

/// Concurrent acquires, so that the memory of a pending acquire does not count.
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
    tokio::time::sleep(LEASE / 3).await; // each lock is renewed once
    let renewed = resident_bytes().saturating_sub(before) / COUNT;

    println!("{taken} bytes each when taken, {renewed} once renewed");
    assert!(held.iter().all(|guard| guard.check().is_ok()), "a lock is lost");
    assert!((100..=MOST).contains(&renewed), "{renewed} bytes each");
}

/// Measured: 357, and 639 with all renewals in flight at once. On a busy machine, more renewals are
/// queued and in flight.
const MOST: usize = 500;
