//! What is asked of a backend, and what it can answer: the whole language between the engine and a server.
//!
//! Not here: how a backend says it to its server (`backend`), and what follows from an answer (`lane`).

use std::sync::Arc;
use std::time::Duration;

use crate::config::config;
use crate::error::Error;
use crate::key::LockKey;
use crate::protocol::foreign_clients::FleetHold;
use crate::token::{ProcessId, Token};

/// One step on one key, under one token. Every backend does each of them atomically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Takes the lock if nothing stands there. Answered [`Reply::Owner`] or [`Reply::Contended`].
    Acquire {
        /// How long the server keeps the key.
        lease: Duration,
    },
    /// Tries again, and else puts the token at the end of the queue in the value.
    Enqueue {
        /// The lease that is asked for.
        lease: Duration,
        /// Which enqueue of the token it is.
        mode: EnqueueMode,
    },
    /// Prolongs the hold to at least `lease` from now; never shortens it. Answered [`Reply::Owner`] or [`Reply::NotOwner`].
    Renew {
        /// The least time to live afterwards.
        lease: Duration,
    },
    /// Asks whether the token holds, and changes nothing. Answered [`Reply::Owner`] or [`Reply::NotOwner`].
    Verify,
    /// Has the key live for just `ttl` from now, longer or shorter than it would. Answered [`Reply::Owner`] or [`Reply::NotOwner`].
    SetTtl {
        /// The time to live afterwards.
        ttl: Duration,
    },
    /// Gives the lock to the first live waiter, or frees it. Answered [`Reply::Owner`] or [`Reply::NotOwner`].
    Release,
    /// A release that tells the waiter who gets the lock for how long our family has had it.
    ReleaseWithFleetHold {
        /// For how long that is.
        fleet_hold: FleetHold,
    },
    /// A release that gives the lock to nobody: who waits is told that he does not any more.
    ReleaseWithoutHandoff,
    /// Takes the token out of the value, wherever it stands in it; as the holder's it is a release.
    Withdraw,
    /// Hands over to the first live waiter and queues `next` behind the others. Answered [`Reply::Owner`] when nobody waits,
    /// [`Reply::Yielded`], or [`Reply::NotOwner`]. Where nobody queues it frees the lock and is answered [`Reply::NotQueued`] with
    /// the time that others have to take it, or [`Reply::NotOwner`].
    Yield {
        /// The token that waits for our next turn.
        next: Token,
        /// What the waiter who gets the lock is told of how long our family has had it.
        fleet_hold: FleetHold,
    },
    /// Takes the lock from whoever holds it, as if he had released it. Answered [`Reply::Owner`], or [`Reply::NotOwner`] when nobody
    /// held it.
    ForceRelease,
    /// Issues a fencing token to the holder. Answered [`Reply::Fenced`] or [`Reply::NotOwner`].
    Fence,
    /// Raises the counter of the holder's fencing tokens to `fence`, where it is lower: what several servers issued is to be known to
    /// them all. Answered [`Reply::Fenced`], with what stands there then, or [`Reply::NotOwner`].
    RaiseFence {
        /// What no later token may be below.
        fence: u64,
    },
    /// Looks at what stands there, and changes nothing. Answered [`Reply::Info`].
    Inspect,
    /// Asks whether the server answers; the key matters only for where that is asked. Answered [`Reply::Owner`].
    Ping,
}

impl Command {
    /// Returns whether the lane has forgotten the token once this is sent: what is left of it is the backend's to undo.
    pub(crate) fn is_release(self) -> bool {
        matches!(
            self,
            Self::Release | Self::ReleaseWithFleetHold { .. } | Self::ReleaseWithoutHandoff | Self::Withdraw
        )
    }

    /// Returns whether a body starts, or goes on for longer, where the answer is [`Reply::Owner`].
    pub(crate) fn grants_ownership(self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::Enqueue { .. } | Self::Renew { .. })
    }

    /// Returns whether it is what a lock costs for being held.
    pub(crate) fn is_renewal(self) -> bool {
        matches!(self, Self::Renew { .. } | Self::Verify)
    }
}

/// Which enqueue of a token it is. A token is added to a value at most once in its life, so it is granted at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnqueueMode {
    /// The only one that may take the key or append the token.
    Join,
    /// A later one, which only asks: answered [`Reply::Owner`], [`Reply::Queued`], or [`Reply::Absent`].
    Recheck,
    /// Tries once more and adds nothing: for a call that will not wait but wants to know what stands there.
    TryOnly,
}

/// What a server said, or that it said nothing.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// The token holds the lock (or held it, for a release).
    Owner,
    /// Something stands under the key.
    Contended,
    /// The token is in the queue.
    Queued {
        /// What is left of the present hold.
        ttl: Option<Duration>,
    },
    /// Something stands under the key and the token was not added: the value is foreign or full, or nothing was to be added.
    NotQueued {
        /// What is left of the present hold; `None` where the key has no end.
        ttl: Option<Duration>,
    },
    /// The token is neither holder nor queued: it is dead.
    Absent,
    /// The token does not hold the lock.
    NotOwner,
    /// The lock went to the first waiter, and the next token is queued.
    Yielded,
    /// The fencing token.
    Fenced(u64),
    /// What stands under the key, if anything does.
    Info(Option<RecordInfo>),
    /// The command did not run and will not.
    Refused(Failure),
    /// The command may have run, or may still run.
    Unknown(Failure),
}

/// What somebody who looks at a key sees there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordInfo {
    /// The manager that holds; `None` for a foreign value.
    pub(crate) holder: Option<ProcessId>,
    /// How many wait in the value.
    pub(crate) waiters: usize,
    /// What is left of the present hold; `None` where the key has no end.
    pub(crate) ttl: Option<Duration>,
}

/// Why there is no answer that can be used.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    /// What happened, in words; holds no secret.
    pub(crate) reason: Arc<str>,
    /// Whether the connection was lost after the command may have been written. Another attempt may succeed, under a new token.
    pub(crate) connection_lost: bool,
}

impl Failure {
    /// A failure in our own words.
    pub(crate) fn new(kind: FailureKind, reason: impl Into<Arc<str>>) -> Self {
        Self { kind, reason: reason.into(), connection_lost: false }
    }

    /// Notes that the connection was lost after the command may have been written.
    pub(crate) fn with_connection_lost(self) -> Self {
        Self { connection_lost: true, ..self }
    }

    /// Returns the error that a caller who asked for `key` gets: one kind of failure, one thing to do about it.
    pub(crate) fn into_error(self, key: LockKey) -> Error {
        match self.kind {
            FailureKind::WrongKind => Error::WrongKind { key, found: self.reason },
            FailureKind::InvalidKey => {
                Error::InvalidKey { template: key.as_str().into(), problem: self.reason }
            }
            FailureKind::FencingCounter => Error::FencingCounter { key, problem: self.reason },
            _ => self.error(Some(key)),
        }
    }

    /// Returns the error of somebody who asked for no key.
    pub(crate) fn of_the_server(self) -> Error {
        self.error(None)
    }

    fn error(self, key: Option<LockKey>) -> Error {
        let Self { kind, reason, connection_lost: _ } = self;
        match kind {
            FailureKind::Passing
            | FailureKind::WrongKind
            | FailureKind::InvalidKey
            | FailureKind::FencingCounter => Error::Unavailable { key, reason },
            FailureKind::Lasting => config("server", &*reason),
            FailureKind::Untrusted => config("tls", &*reason),
        }
    }
}

/// What can be done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// It may pass: the server is away, loading, read-only, out of memory.
    Passing,
    /// It will be the same next time: no permission, no such command.
    Lasting,
    /// One end does not accept the other's certificate, or does not speak TLS: that will be the same next time, too.
    Untrusted,
    /// Something that is no lock of this kind stands under the key.
    WrongKind,
    /// No lock of this kind can have the name.
    InvalidKey,
    /// The counter of fencing tokens has no next number.
    FencingCounter,
}

#[cfg(test)]
mod tests;
