//! The memory that one held lock uses: its guard, its key, and all internal state.
//!
//! This is a separate program with one thread, so the figures contain no other allocations. It uses
//! `memory://`, whose record of about 120 bytes per lock is included. The benchmark `held` measures
//! the same with a server.

#![cfg(target_os = "linux")]

use dlock_runtime::{LockGuard, LockManager};
use dlock_tests::resident::resident_bytes;

const COUNT: usize = 20_000;

async fn hold(locks: &LockManager, held: &mut Vec<LockGuard>) {
    for number in 0..COUNT {
        held.push(locks.lock(format!("order:{number}")).acquire().await.expect("the lock is free"));
    }
}

#[tokio::test]
async fn a_held_lock_costs_few_bytes() {
    let locks = LockManager::connect("memory://").await.expect("the in-memory backend connects");
    for number in 0..COUNT {
        let lock = locks.lock(format!("order:{number}"));
        drop(lock.acquire().await.expect("the lock is free"));
    }
    let mut held = Vec::with_capacity(COUNT);

    let before = resident_bytes();
    hold(&locks, &mut held).await;
    let each = resident_bytes().saturating_sub(before) / COUNT;

    println!("{each} bytes each");
    assert!((100..=MOST).contains(&each), "{each} bytes each");
}

/// Measured: 458.
const MOST: usize = 468;
