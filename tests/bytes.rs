//! What a lock that is held costs in memory: its guard, its key and all that the library keeps of it.
//!
//! A program of its own with one thread, so that nobody else's memory is in its figures. It is over `memory://`, whose record of the
//! lock, some 120 bytes, is in them too. Over a server: the benchmark `held`.

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
    let locks = LockManager::connect("memory://").await.expect("memory is always there");
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

/// Measured: 447 and 448.
const MOST: usize = 470;
