//! The contract of every backend: one suite, run in memory under paused time and over a real Redis.
//!
//! Each file lists its tests first; each test gets a world with nothing in it. A "manager" stands for a process: two of one world
//! share nothing but the backend.

mod exclusion;
mod fencing;
mod lease;
mod loss;
mod managers;
mod running;
mod sharing;
mod terms;
mod waiting;
mod wakers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager};
use dlock_tests::world::World;

/// Long enough that no test sees its end by accident.
const LONG: Duration = Duration::from_secs(30);
/// A lease whose end a test waits for.
const LEASE: Duration = Duration::from_millis(600);
/// What a wake-up may take on a busy machine, far below every poll and lease of these tests.
const PROMPT: Duration = Duration::from_millis(500);

/// Holds `key` until the guard is dropped.
async fn hold(manager: &LockManager, key: &str) -> LockGuard {
    manager.lock(key).lease(LONG).acquire().await.expect("the lock is free")
}

/// Returns whether `key` is held by anybody, seen from a process of its own: a manager and a task that inherit nothing.
async fn is_held(world: &World, key: &'static str) -> bool {
    let lock = world.manager().await.lock(key).lease(LONG);
    let stranger = tokio::spawn(async move {
        match lock.try_acquire().await.expect("the backend answers") {
            Some(guard) => {
                guard.release().await.expect("the backend answers");
                false
            }
            None => true,
        }
    });
    stranger.await.expect("the stranger does not panic")
}

/// Waits for `key` with much patience in a task of its own.
fn wait_for(manager: &LockManager, key: &str) -> tokio::task::JoinHandle<Result<LockGuard, Error>> {
    let lock = manager.lock(key).lease(LONG).wait(LONG);
    tokio::spawn(async move { lock.acquire().await })
}

/// Gives a task that has just been spawned its first poll.
async fn let_it_begin() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// Notes when it is dropped.
struct NotesDrop(Arc<AtomicBool>);

impl Drop for NotesDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
