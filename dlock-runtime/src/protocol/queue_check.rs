//! When a queued contender checks that its token is still in the server's queue.
//!
//! ```text
//!  Scheduled --recheck sent--> InFlight --"queued"--> Scheduled
//!                                  |
//!                                  +--"absent"--> the contender starts again under a fresh token
//! ```
//!
//! The message of a grant can be lost, and a queue ends when its key expires. So the contender
//! sends a [`Recheck`] half a grant lease after the last proof that its token is queued, or when
//! the key has expired, whichever is sooner.
//!
//! [`Recheck`]: crate::protocol::command::EnqueueMode::Recheck

use std::time::Duration;

use crate::protocol::deadline::BootInstant;

/// The next check of a queued token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueCheck {
    /// The recheck is sent at this time.
    Scheduled(BootInstant),
    /// The recheck was sent, and its reply has not arrived.
    InFlight,
}

impl QueueCheck {
    /// Returns the check that follows the reply "queued" to an enqueue that was sent at `sent`.
    ///
    /// `ttl` is the remaining time to live of the key. Half a grant lease leaves a body the other
    /// half if the grant's message was lost.
    pub(super) fn after_reply(sent: BootInstant, ttl: Option<Duration>, grant_lease: Duration) -> Self {
        let half = grant_lease / 2;
        let expires_after = ttl.map_or(half, |ttl| ttl.saturating_add(RESOLUTION));
        Self::Scheduled(sent.plus(half.min(expires_after)))
    }

    pub(super) const fn due(self) -> BootInstant {
        match self {
            Self::Scheduled(at) => at,
            Self::InFlight => BootInstant::NEVER,
        }
    }
}

/// The resolution of a time to live: the server rounds it down to whole milliseconds.
pub(super) const RESOLUTION: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests;
