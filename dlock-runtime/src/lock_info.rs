//! [`LockInfo`], the state of a lock as an operator sees it.

use std::time::Duration;

use crate::guard::FencingToken;
use crate::protocol::command::RecordInfo;
use crate::token::ProcessId;

/// The state of a held lock, returned by [`LockManager::inspect`](crate::LockManager::inspect).
///
/// It is a snapshot: the lock may have another holder by the time you read it. It identifies
/// holders by their managers and contains no token, so it can be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    holder: Option<String>,
    ours: bool,
    kept: bool,
    remaining: Option<Duration>,
    waiters: usize,
    fencing_token: Option<FencingToken>,
}

impl LockInfo {
    /// Describes what the server has reported. `kept`: the manager `us` keeps the lock after its
    /// hold has ended.
    pub(crate) fn new(sight: RecordInfo, us: ProcessId, kept: bool) -> Self {
        let RecordInfo { holder, waiters, ttl, fence } = sight;
        let ours = holder == Some(us);
        let fencing_token = fence.map(FencingToken::new);
        let holder = holder.map(ProcessId::shown);
        Self { holder, ours, kept: ours && kept, remaining: ttl, waiters, fencing_token }
    }

    /// Returns the [ID](crate::LockManager::id) of the manager that holds the lock.
    ///
    /// Returns `None` if the value is not of this library.
    #[must_use]
    pub fn holder(&self) -> Option<&str> {
        self.holder.as_deref()
    }

    /// Returns `true` if this manager holds the lock, or keeps it for a `min_hold`.
    #[must_use]
    pub fn is_held_here(&self) -> bool {
        self.ours
    }

    /// Returns `true` if this manager keeps the lock for a `min_hold`, although its hold has ended.
    ///
    /// The server does not know that a lock is kept, so for locks of other managers it is `false`.
    #[must_use]
    pub fn is_kept_here(&self) -> bool {
        self.kept
    }

    /// Returns `true` if the value is not of this library: another library's lock, or no lock at
    /// all.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.holder.is_none()
    }

    /// Returns the time to live of the key, by the server's clock.
    ///
    /// A renewal extends it. Returns `None` if the key has none, which is never so for a lock of
    /// this library.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Returns the number of managers in the server's queue.
    ///
    /// Tasks that wait behind another task of their process are in that process's memory, and
    /// waiters that poll are in no queue.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.waiters
    }

    /// Returns the last [fencing token](crate::LockGuard::fencing_token) that was issued for the
    /// key, to this holder or to an earlier one.
    ///
    /// Returns `None` if none was issued, or the servers of a quorum disagree. A quorum disagrees
    /// only while fewer servers than a majority know the last one, or if servers are down.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.fencing_token
    }
}
