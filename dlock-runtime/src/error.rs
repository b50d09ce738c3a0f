//! What can go wrong, one variant per cause that a caller can act on.
//!
//! Not here: when each of them is given (`protocol`), and which of them a function's return type can carry (`private`).

use std::sync::Arc;
use std::time::Duration;

use crate::key::LockKey;
use crate::printable::Escaped;

/// The result of a lock operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a lock was not taken, was lost, or could not be asked for.
///
/// Each variant is one cause that a caller can act on; [`http_status`](Self::http_status), [`grpc_code`](Self::grpc_code) and
/// [`retry_after`](Self::retry_after) say what a service answers for it. The features `axum`, `actix` and `tonic` make it that
/// answer; see [`docs::services`](crate::docs::services). No text of an error holds a password or a token.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No lock manager is installed, so an annotated function has nothing to ask.
    #[error(
        "no lock manager is installed: call `dlock_runtime::init(url).await` once at start, or run the call inside `with_manager`"
    )]
    #[non_exhaustive]
    NotInstalled {},

    /// Another call holds the lock, of this process or another, and the call's `retry` and `wait` are used up.
    #[error("lock `{key}` is held by another call ({attempts} attempt{} in {} ms)", if *attempts == 1 { "" } else { "s" }, waited.as_millis())]
    #[non_exhaustive]
    Contended {
        /// The lock that was asked for.
        key: LockKey,
        /// How often the lock was asked for on behalf of this call: once, and once more for each retry that came due.
        attempts: u32,
        /// How long the call waited, by this process's clock.
        waited: Duration,
        /// The time to live that the server gave for the present hold when last asked; a renewal prolongs it.
        retry_after: Option<Duration>,
    },

    /// The lock was held and is not any more; with `on_lost = abort` the body has been dropped, or had completed.
    #[error(
        "lock `{key}` was lost after {} ms: {cause}{}",
        held.as_millis(),
        if *completed { "; the body had completed by then and may have overlapped with another holder's" } else { "" }
    )]
    #[non_exhaustive]
    Lost {
        /// The lock that was held.
        key: LockKey,
        /// How long it was held before the loss was noticed, by this process's clock.
        held: Duration,
        /// How it was lost.
        cause: LossCause,
        /// Whether the body had completed when the loss was found. All its work is done, and another holder may have worked at the
        /// same time: find out what was written before you do it again. If `false`, the body was dropped part of the way, never
        /// started, or there was none.
        completed: bool,
    },

    /// The server could not be asked, gave no usable answer in time, or was connected by a process that this one was forked from.
    #[error("{} could not be asked{}: {reason}", subject(key.as_ref()), if key.is_some() { " for" } else { "" })]
    #[non_exhaustive]
    Unavailable {
        /// The lock that was asked for; `None` while connecting, and where no lock was asked for.
        key: Option<LockKey>,
        /// What happened, in words, with its cause: there is no [`source`](std::error::Error::source) that would say it again.
        reason: Arc<str>,
    },

    /// The key cannot be built from these arguments, or is no valid key.
    #[error("invalid lock key `{}`: {problem}", Escaped(template))]
    #[non_exhaustive]
    InvalidKey {
        /// The key or the template that it was built from.
        template: Arc<str>,
        /// What is wrong with it, and what to write instead.
        problem: Arc<str>,
    },

    /// Something that is not a lock of this kind stands under the lock's name: no lock at all, or one of another layout.
    #[error("what stands as `{}` is no lock of this layout, and all who share one need the same `layout`: {found}", Escaped(key.full_name()))]
    #[non_exhaustive]
    WrongKind {
        /// The lock that was asked for.
        key: LockKey,
        /// What the server said of the value that stands there.
        found: Arc<str>,
    },

    /// The lock's counter of fencing tokens is spent, or is no counter, so a higher token cannot be issued. The lock is still held.
    ///
    /// An operator has to repair the counter; see [`docs::safety`](crate::docs::safety#fencing-tokens).
    #[error("lock `{key}` has no further fencing token: {problem}")]
    #[non_exhaustive]
    FencingCounter {
        /// The lock whose token was asked for.
        key: LockKey,
        /// The name of the counter, the largest token, and what to do.
        problem: Arc<str>,
    },

    /// The current call chain holds this key already, and this way of asking does not join it.
    #[error(
        "lock `{key}` is held by the call this one runs in: `acquire` and `reentrant = false` do not join it, `run` and the attribute do"
    )]
    #[non_exhaustive]
    Reentrant {
        /// The lock that was asked for.
        key: LockKey,
    },

    /// Call chains of this process wait for each other's locks in a circle: the last to come is told.
    #[error(
        "while holding `{held}`, waiting for `{key}`: another call of this process holds `{key}` and waits, itself or through others, for `{held}`; take both in one order"
    )]
    #[non_exhaustive]
    Deadlock {
        /// The lock that was asked for.
        key: LockKey,
        /// The lock that this call chain holds and another in the circle waits for.
        held: LockKey,
    },

    /// The manager has been shut down and takes no new work.
    #[error("{}the lock manager has been shut down", key.as_ref().map_or_else(String::new, |key| format!("lock `{key}` was not taken: ")))]
    #[non_exhaustive]
    Shutdown {
        /// The lock that was asked for; `None` where none was, as by [`LockManager::ready`](crate::LockManager::ready).
        key: Option<LockKey>,
    },

    /// A URL or an option cannot be used.
    #[error("invalid lock configuration: {part}: {problem}")]
    #[non_exhaustive]
    Config {
        /// Which part of the URL or which option is wrong. Never a password.
        part: Arc<str>,
        /// What is wrong with it, and what is allowed.
        problem: Arc<str>,
    },
}

impl Error {
    /// Returns whether somebody else held the lock.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        matches!(self, Self::Contended { .. })
    }

    /// Returns whether the lock was held and was lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Returns whether the server could not be asked.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Returns the lock that the error is about, where it is about one.
    #[must_use]
    pub fn key(&self) -> Option<&LockKey> {
        match self {
            Self::Contended { key, .. }
            | Self::Lost { key, .. }
            | Self::WrongKind { key, .. }
            | Self::FencingCounter { key, .. }
            | Self::Reentrant { key }
            | Self::Deadlock { key, .. } => Some(key),
            Self::Unavailable { key, .. } | Self::Shutdown { key } => key.as_ref(),
            Self::NotInstalled {} | Self::InvalidKey { .. } | Self::Config { .. } => None,
        }
    }

    /// Returns the HTTP status that a service answers with: 409 for contention, 503 while the server is away or the process
    /// shuts down, 400 for a key that the request's values cannot make, 500 for all else.
    #[must_use]
    pub fn http_status(&self) -> u16 {
        match self {
            Self::Contended { .. } => 409,
            Self::Unavailable { .. } | Self::Shutdown { .. } => 503,
            Self::InvalidKey { .. } => 400,
            _ => 500,
        }
    }

    /// Returns the gRPC status code, by its number: 10 `ABORTED` for contention, 14 `UNAVAILABLE` while the server is away or
    /// the process shuts down, 3 `INVALID_ARGUMENT` for a key that the request's values cannot make, 13 `INTERNAL` for all else.
    #[must_use]
    pub fn grpc_code(&self) -> i32 {
        match self {
            Self::Contended { .. } => 10,
            Self::Unavailable { .. } | Self::Shutdown { .. } => 14,
            Self::InvalidKey { .. } => 3,
            _ => 13,
        }
    }

    /// Returns after how long a caller may ask again; `None` where asking again does not help, or may do the work twice.
    ///
    /// For [`Contended`](Self::Contended) it is the time to live that the server gave for the present hold, but at least 100 ms and
    /// at most one second. A lock that is held is usually released long before its time to live, which its watchdog renews, so a
    /// longer one says nothing of when it will be free; and at the end of a short one, its holder's renewal or its next holder is as
    /// likely as a free lock. For [`Unavailable`](Self::Unavailable) and [`Shutdown`](Self::Shutdown) it is one second: the
    /// connection is made anew within that time, or another process answers.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Contended { retry_after, .. } => {
                Some(retry_after.map_or(LATEST_RETRY, |live| live.clamp(SOONEST_RETRY, LATEST_RETRY)))
            }
            Self::Unavailable { .. } | Self::Shutdown { .. } => Some(LATEST_RETRY),
            _ => None,
        }
    }
}

/// The first delay of the default backoff, and the shortest lease: sooner than this nothing will have changed.
const SOONEST_RETRY: Duration = Duration::from_millis(100);
const LATEST_RETRY: Duration = Duration::from_secs(1);

fn subject(key: Option<&LockKey>) -> String {
    key.map_or_else(|| "the lock server".to_owned(), |key| format!("lock `{key}`"))
}

/// How a held lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossCause {
    /// The lease ran out by this process's clock before a renewal was confirmed.
    Expired,
    /// The lock was granted by its last holder, and the server's confirmation of the grant came too late, or not at all.
    GrantUnconfirmed,
    /// The server says that the lock is not ours any more: it was deleted, flushed, overwritten, or had expired there.
    NotOwner,
    /// It was held for its `max_hold`; it was ours to the end.
    MaxHold,
    /// The manager was shut down while the body ran, and the deadline given to `shutdown` passed.
    Shutdown,
    /// The guard was released while something still used the hold.
    ReleaseOutcome,
    /// The current process was forked from the one that holds the lock, which still holds it.
    Forked,
}

impl std::fmt::Display for LossCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out",
            Self::GrantUnconfirmed => "the grant was not confirmed in time; raise `grant_lease`",
            Self::NotOwner => "the server says that it is not ours any more",
            Self::MaxHold => "its `max_hold` is over",
            Self::Shutdown => "the lock manager was shut down",
            Self::ReleaseOutcome => "it was released",
            Self::Forked => "this process was forked from the one that holds it",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contended(retry_after: Option<Duration>) -> Error {
        let key = LockKey::new("order:7").expect("a key");
        Error::Contended { key, attempts: 1, waited: Duration::ZERO, retry_after }
    }

    #[test]
    fn who_finds_a_lock_held_asks_again_within_a_second_but_not_at_once() {
        let after = |millis| contended(Some(Duration::from_millis(millis))).retry_after();

        assert_eq!(after(0), Some(Duration::from_millis(100)));
        assert_eq!(after(700), Some(Duration::from_millis(700)));
        assert_eq!(after(30_000), Some(Duration::from_secs(1)));
        assert_eq!(contended(None).retry_after(), Some(Duration::from_secs(1)));
    }

    #[test]
    fn who_lost_a_lock_is_not_told_to_do_the_work_again() {
        let key = LockKey::new("order:7").expect("a key");

        for completed in [false, true] {
            let lost =
                Error::Lost { key: key.clone(), held: Duration::ZERO, cause: LossCause::Expired, completed };

            assert_eq!(lost.retry_after(), None);
        }
    }

    #[test]
    fn the_text_of_a_loss_says_if_the_body_had_completed() {
        let text = |completed| {
            let key = LockKey::new("order:7").expect("a key");
            let held = Duration::from_millis(150);
            Error::Lost { key, held, cause: LossCause::Expired, completed }.to_string()
        };

        assert_eq!(text(false), "lock `order:7` was lost after 150 ms: its lease ran out");
        assert_eq!(
            text(true),
            "lock `order:7` was lost after 150 ms: its lease ran out; the body had completed by then and may have \
             overlapped with another holder's"
        );
    }

    #[test]
    fn a_deadlock_names_both_locks_and_who_has_which() {
        let key = |key| LockKey::new(key).expect("a key");

        let text = Error::Deadlock { key: key("a"), held: key("b") }.to_string();

        assert_eq!(
            text,
            "while holding `b`, waiting for `a`: another call of this process holds `a` and waits, itself or through others, for `b`; take both in one order"
        );
    }
}
