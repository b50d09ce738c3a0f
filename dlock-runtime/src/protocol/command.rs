//! The commands of a backend and its replies: the complete interface between the engine and a
//! server.

use std::time::Duration;

pub(crate) use crate::protocol::failure::{Failure, FailureKind};
use crate::protocol::foreign_clients::FleetHold;
pub(crate) use crate::protocol::script_reply::ScriptReply;
use crate::token::{ProcessId, Token};

/// One operation on one key, under one token. Every backend executes it atomically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Acquires the lock if the key is absent. Replies: [`Reply::Owner`] or [`Reply::Contended`].
    Acquire {
        /// The time to live of the key.
        lease: Duration,
    },
    /// Acquires the lock if the key is absent, and otherwise appends the token to the queue in the
    /// value.
    Enqueue {
        /// The requested lease.
        lease: Duration,
        /// Whether the command may append the token.
        mode: EnqueueMode,
    },
    /// Renews the hold to at least `lease` from now, and never shortens it. Replies:
    /// [`Reply::Owner`] or [`Reply::NotOwner`].
    Renew {
        /// The minimum time to live afterwards.
        lease: Duration,
    },
    /// Checks whether the token holds the lock, and changes nothing. Replies: [`Reply::Owner`] or
    /// [`Reply::NotOwner`].
    Verify,
    /// Sets the time to live of the key to `ttl`, longer or shorter than before. Replies:
    /// [`Reply::Owner`] or [`Reply::NotOwner`].
    SetTtl {
        /// The time to live afterwards.
        ttl: Duration,
    },
    /// Releases the lock: grants it to the first live waiter, or deletes the key. Replies:
    /// [`Reply::Owner`] or [`Reply::NotOwner`].
    Release {
        /// How long the fleet has held the lock. The grant carries it, unless it is unknown.
        fleet_hold: FleetHold,
    },
    /// Releases the lock without a grant. The waiters are removed from the queue and notified.
    ReleaseWithoutHandoff,
    /// Removes the token from the value. If the token is the holder, this is a release.
    Withdraw,
    /// Grants the lock to the first live waiter and appends `next` to the queue.
    ///
    /// Replies: [`Reply::Owner`] if no process waits, [`Reply::Yielded`], or [`Reply::NotOwner`]. A
    /// backend without a queue frees the lock and replies [`Reply::NotQueued`], with the time that
    /// other clients have to acquire it, or [`Reply::NotOwner`].
    Yield {
        /// The token that is queued for the next acquisition of this process.
        next: Token,
        /// As in a release.
        fleet_hold: FleetHold,
    },
    /// Releases the lock regardless of its holder. Replies: [`Reply::Owner`], or
    /// [`Reply::NotOwner`] if the lock was not held.
    ForceRelease,
    /// Issues a fencing token to the holder. Replies: [`Reply::Fenced`] or [`Reply::NotOwner`].
    Fence,
    /// Raises the counter of fencing tokens to `fence` if it is lower, so that all servers of a
    /// quorum know the highest one. Replies: [`Reply::Fenced`] with the resulting value, or
    /// [`Reply::NotOwner`].
    RaiseFence {
        /// The lower bound of later tokens.
        fence: u64,
    },
    /// Reads the state of the lock. Replies: [`Reply::Info`].
    Inspect,
    /// Checks that the server replies. The key only selects the server. Replies: [`Reply::Owner`].
    Ping,
    /// Runs the operation that the request carries, on a key that is no lock. Replies:
    /// [`Reply::Called`].
    #[allow(dead_code, reason = "constructed by features that are not locks")]
    Call,
}

impl Command {
    /// A release whose grant does not carry how long the fleet has held the lock.
    pub(crate) const RELEASE: Self = Self::Release { fleet_hold: FleetHold::UNKNOWN };

    /// Returns `true` if the state of the key drops the token once this is sent: the backend cleans
    /// up what remains of it.
    pub(crate) fn is_release(self) -> bool {
        matches!(self, Self::Release { .. } | Self::ReleaseWithoutHandoff | Self::Withdraw)
    }

    /// Returns `true` if a body starts or continues when the reply is [`Reply::Owner`].
    pub(crate) fn grants_ownership(self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::Enqueue { .. } | Self::Renew { .. })
    }

    /// Returns `true` if the command maintains a hold.
    pub(crate) fn is_renewal(self) -> bool {
        matches!(self, Self::Renew { .. } | Self::Verify)
    }
}

/// The mode of an enqueue. A token is added to a value at most once in its life, so it is granted
/// at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnqueueMode {
    /// The first enqueue of a token: acquires the lock or appends the token.
    Join,
    /// A later enqueue, which changes no queue. Replies: [`Reply::Owner`], [`Reply::Queued`], or
    /// [`Reply::Absent`].
    Recheck,
    /// Acquires the lock or reads its state, and never appends the token: for a call that does not
    /// wait.
    TryOnly,
}

/// The reply of a server, or the lack of one.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// The token holds the lock, or held it before a release.
    Owner,
    /// The key exists.
    Contended,
    /// The token is in the queue.
    Queued {
        /// The remaining time to live of the key.
        ttl: Option<Duration>,
    },
    /// The key exists and the token was not appended: the value is foreign, the queue is full, or
    /// the mode forbids it.
    NotQueued {
        /// The remaining time to live of the key, or `None` if it does not expire.
        ttl: Option<Duration>,
    },
    /// The token is neither holder nor queued, and cannot be queued again.
    Absent,
    /// The token does not hold the lock.
    NotOwner,
    /// The lock was granted to the first waiter, and the next token is queued.
    Yielded,
    /// The fencing token.
    Fenced(u64),
    /// The state of the lock, or `None` if the key is absent.
    Info(Option<RecordInfo>),
    /// The reply to an operation on a key that is no lock.
    Called(ScriptReply),
    /// The command did not run, and will not run.
    Refused(Failure),
    /// The command may have run, or may still run.
    Unknown(Failure),
}

/// The state of a lock in the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordInfo {
    /// The manager that holds the lock, or `None` for a foreign value.
    pub(crate) holder: Option<ProcessId>,
    /// The number of waiters in the value.
    pub(crate) waiters: usize,
    /// The remaining time to live of the key, or `None` if it does not expire.
    pub(crate) ttl: Option<Duration>,
    /// The last fencing token that was issued for the key; `None` if there is none, or the servers
    /// of a quorum disagree.
    pub(crate) fence: Option<u64>,
}

#[cfg(test)]
mod tests;
