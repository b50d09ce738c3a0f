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
    owner: Option<String>,
    ours: bool,
    kept: bool,
    remaining: Option<Duration>,
    waiters: usize,
    fencing_token: Option<FencingToken>,
}

impl LockInfo {
    /// Describes what the server has reported. `kept`: the manager `us` keeps the lock after its
    /// hold has ended.
    pub(crate) fn new(sight: RecordInfo, owner: Option<String>, us: ProcessId, kept: bool) -> Self {
        let RecordInfo { holder, waiters, ttl, fence } = sight;
        let ours = holder == Some(us);
        Self {
            holder: holder.map(ProcessId::shown),
            owner,
            ours,
            kept: ours && kept,
            remaining: ttl,
            waiters,
            fencing_token: fence.map(FencingToken::new),
        }
    }

    /// Returns the [ID](crate::LockManager::id) of the manager that holds the lock.
    ///
    /// Returns `None` if the value is not of this library.
    #[must_use]
    pub fn holder(&self) -> Option<&str> {
        self.holder.as_deref()
    }

    /// Returns the [owner](crate::Builder::owner) of that manager, such as `web-1:4242`.
    ///
    /// The manager's connection announces it, so it is known only while the manager is connected to
    /// the server of the lock. Returns `None` if it is not connected, if the value is not of this
    /// library, if this user may not run `PUBSUB CHANNELS`, or with a quorum if the lock is another
    /// manager's.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenSource;

    #[test]
    fn the_state_of_a_lock_is_shown_as_the_server_reports_it() {
        let (us, other) =
            (TokenSource::of_process(7 << 32).process(), TokenSource::of_process(8 << 32).process());
        let ttl = Some(Duration::from_secs(5));
        for (holder, kept, is_here, is_kept, is_foreign) in [
            (Some(us), false, true, false, false),
            (Some(us), true, true, true, false),
            (Some(other), true, false, false, false),
            (None, true, false, false, true),
        ] {
            let record = RecordInfo { holder, waiters: 3, ttl, fence: Some(9) };

            let info = LockInfo::new(record, Some("web-1".to_owned()), us, kept);

            assert_eq!(info.holder().map(str::to_owned), holder.map(ProcessId::shown));
            assert_eq!(
                (info.is_held_here(), info.is_kept_here(), info.is_foreign()),
                (is_here, is_kept, is_foreign)
            );
            assert_eq!((info.owner(), info.waiters(), info.remaining()), (Some("web-1"), 3, ttl));
            assert_eq!(info.fencing_token().map(FencingToken::get), Some(9));
        }
    }

    #[test]
    fn unknown_fields_are_none() {
        let (us, record) = (
            TokenSource::of_process(7 << 32).process(),
            RecordInfo { holder: None, waiters: 0, ttl: None, fence: None },
        );

        let info = LockInfo::new(record, None, us, false);

        assert_eq!((info.holder(), info.owner(), info.waiters()), (None, None, 0));
        assert_eq!((info.remaining(), info.fencing_token()), (None, None));
    }
}
