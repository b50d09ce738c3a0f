//! How our mutexes are locked, and what the engine's threads share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A panic of somebody else's waker is no reason to refuse all locks from then on: every change under our locks is
/// whole before a waker runs.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What threads share of the engine: the standard library's, or loom's, which tries every order of what they do with it
/// (`dlock-runtime/interleavings`), or shuttle's, which draws orders of more (`dlock-runtime/schedules`).
#[cfg(not(any(dlock_loom, dlock_shuttle)))]
pub(crate) mod shared {
    pub(crate) use std::sync::{Mutex, atomic};

    pub(crate) use super::lock;
}

#[cfg(dlock_loom)]
pub(crate) mod shared {
    pub(crate) use loom::sync::{Mutex, atomic};

    /// Locks a mutex, as [`lock`](super::lock) does.
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(super::PoisonError::into_inner)
    }
}

#[cfg(dlock_shuttle)]
pub(crate) mod shared {
    pub(crate) use shuttle::sync::{Mutex, atomic};

    /// Locks a mutex, as [`lock`](super::lock) does.
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> shuttle::sync::MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(super::PoisonError::into_inner)
    }
}
