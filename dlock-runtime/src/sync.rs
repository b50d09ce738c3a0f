//! Locking of mutexes, and the synchronization primitives of the engine.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, and ignores poisoning.
///
/// A panic in an application's waker must not disable all locks: every change under a mutex of this
/// crate is complete before a waker runs.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The synchronization primitives of the engine: the standard library's; loom's, which tries every
/// interleaving (`dlock-runtime/interleavings`); or shuttle's, which samples interleavings of
/// larger tests (`dlock-runtime/schedules`).
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
