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
pub(crate) mod shared {
    #[cfg(dlock_loom)]
    use loom::sync;
    #[cfg(dlock_shuttle)]
    use shuttle::sync;
    #[cfg(not(any(dlock_loom, dlock_shuttle)))]
    use std::sync;

    pub(crate) use sync::{Mutex, atomic};

    /// Locks a mutex, as [`lock`](super::lock) does.
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> sync::MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(super::PoisonError::into_inner)
    }
}
