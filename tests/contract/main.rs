//! The contract of every backend: one suite that runs in memory under paused time, and over a real
//! Redis.
//!
//! Each file lists its tests first. Each test gets an empty backend. A manager represents a
//! process: two managers of one test share only the backend.

mod exclusion;
mod fencing;
mod lease;
mod loss;
mod managers;
mod running;
mod terms;
mod waiting;
mod wakers;
mod yield_to_foreign;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager};
use dlock_tests::world::World;

/// Long enough that it never ends within a test.
const LONG: Duration = Duration::from_secs(30);
/// A lease whose end a test waits for.
const LEASE: Duration = Duration::from_millis(600);
/// The longest acceptable wake-up on a busy machine, far below every poll interval and lease here.
const PROMPT: Duration = Duration::from_millis(500);

/// Holds `key` until the guard is dropped.
async fn hold(manager: &LockManager, key: &str) -> LockGuard {
    manager.lock(key).lease(LONG).acquire().await.expect("the lock is free")
}

/// Returns `true` if `key` is held, as seen by a manager and a task that inherit nothing.
async fn is_held(world: &World, key: &'static str) -> bool {
    is_held_for(&world.manager().await, key).await
}

/// As [`is_held`], with a manager that is connected already.
async fn is_held_for(manager: &LockManager, key: &'static str) -> bool {
    let lock = manager.lock(key).lease(LONG);
    let outsider = tokio::spawn(async move {
        match lock.try_acquire().await.expect("the backend replies") {
            Some(guard) => {
                guard.release().await.expect("the backend replies");
                false
            }
            None => true,
        }
    });
    outsider.await.expect("the task does not panic")
}

/// Waits for `key` in a new task, for up to 30 seconds.
fn wait_for(manager: &LockManager, key: &str) -> tokio::task::JoinHandle<Result<LockGuard, Error>> {
    let lock = manager.lock(key).lease(LONG).wait(LONG);
    tokio::spawn(async move { lock.acquire().await })
}

/// Lets a task that has just been spawned run until its first wait.
async fn let_it_begin() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// Records that it was dropped.
struct NotesDrop(Arc<AtomicBool>);

impl Drop for NotesDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
