//! How our mutexes are locked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A panic of somebody else's waker is no reason to refuse all locks from then on: every change under our locks is
/// whole before a waker runs.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
