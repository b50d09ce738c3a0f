//! A held lock.

/// A lock that is held; released when dropped.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    _todo: (),
}
