//! What an operator is shown of a lock.
//!
//! Not here: how it is looked at (`manager`), what stands under its key (`protocol::lock_value`).

use std::time::Duration;

use crate::protocol::command::RecordInfo;
use crate::token::ProcessId;

/// A lock that somebody holds, as [`LockManager::inspect`](crate::LockManager::inspect) found it. It may be another's by now.
///
/// It names holders by their managers and shows nobody's token, so it can be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    holder: Option<String>,
    ours: bool,
    remaining: Option<Duration>,
    waiters: usize,
}

impl LockInfo {
    pub(crate) fn new(sight: RecordInfo, us: ProcessId) -> Self {
        let RecordInfo { holder, waiters, ttl } = sight;
        Self { holder: holder.map(ProcessId::shown), ours: holder == Some(us), remaining: ttl, waiters }
    }

    /// Returns the [id](crate::LockManager::id) of the manager that holds the lock; `None` where the value is not of our making.
    #[must_use]
    pub fn holder(&self) -> Option<&str> {
        self.holder.as_deref()
    }

    /// Returns whether this very manager holds it, or keeps it for an `min_hold`.
    #[must_use]
    pub fn is_held_here(&self) -> bool {
        self.ours
    }

    /// Returns whether the value is not of our making: another library's lock, or no lock at all.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.holder.is_none()
    }

    /// Returns how long the key still lives unless it is renewed, by the server's clock; `None` where it has no end, which no lock
    /// of ours is without.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Returns how many managers stand in the server's queue. Tasks that wait behind another of their own process stand in that
    /// process's memory, and those who only look at the lock now and then stand nowhere.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.waiters
    }
}
