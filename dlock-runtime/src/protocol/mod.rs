//! The rules of the lock, as state machines: `(event, now) -> (new state, actions)`.
//!
//! No clock, socket, runtime, or server is used here. A rule of the lock belongs in this module and
//! nowhere else.
//!
//! ```text
//! key_state        the state of one key in one process: an event goes in, actions come out
//!   contender        the head of the local queue acquires the lock
//!   queue_check      when a queued contender rechecks its token
//!   hold             a task holds the lock: renewal, loss, hand-off, yield, release
//!   holds            all holds of the key
//!   hold_terms       the lease and the bounds of a hold
//!   handoff_budget   how long tasks of one process hand the lock to each other
//!   retained         the key is kept although its hold has ended, for `min_hold` or for a running body
//!   invalidation     another client may have changed the key
//!   deferral         renewals and checks that can wait while many others are sent
//!   foreign_clients  time for clients of other libraries, which only poll
//!   reentrancy       nested calls that want the key of their own hold
//!   timers           every reason to wake up
//!   wait_queue       the waiting tasks · retry_state  how long each of them waits
//! lock_value       the holder and the waiters, as stored in the server · record  what each command does to them
//! command          commands to a backend, and its replies · script_reply  replies of other operations
//! deadline         until when a hold is valid · renewal  when it is renewed · fencing  fencing tokens
//! round_trip       the measured distance of the server
//! quorum           one command over several servers: what their replies amount to
//! orphans          commands without a reply, and how their effect is cleaned up
//! stray_grants     grants that no task waits for
//! job              scheduled jobs: each tick starts once
//! deadlock         the wait-for graph of nested calls
//! idempotency      the record of an idempotent call
//! owner_lease      the lease of the body of a job or of an idempotent call
//! ```
//!
//! Unit tests are in a `tests` file for each module. The proof counts runs of these rules for each
//! state of their sources, and tests may change without a new count.

pub(crate) mod command;
pub(crate) mod contender;
pub(crate) mod deadline;
pub(crate) mod deadlock;
pub(crate) mod deferral;
#[cfg(test)]
mod exhaustive;
pub(crate) mod failure;
pub(crate) mod fencing;
pub(crate) mod foreign_clients;
pub(crate) mod handoff_budget;
pub(crate) mod hold;
pub(crate) mod hold_terms;
mod holds;
#[cfg_attr(
    not(feature = "idempotent"),
    allow(dead_code, unreachable_pub, unused_imports, reason = "used by the feature")
)]
pub(crate) mod idempotency;
pub(crate) mod invalidation;
#[cfg(any(test, feature = "scheduled"))]
#[cfg_attr(
    not(feature = "scheduled"),
    allow(dead_code, unreachable_pub, reason = "only tests use it without the feature")
)]
pub(crate) mod job;
pub(crate) mod key_state;
pub(crate) mod lock_value;
pub(crate) mod orphans;
#[cfg(any(test, feature = "idempotent", feature = "scheduled"))]
pub(crate) mod owner_lease;
pub(crate) mod queue_check;
pub(crate) mod quorum;
pub(crate) mod record;
pub(crate) mod reentrancy;
pub(crate) mod renewal;
pub(crate) mod retained;
pub(crate) mod retry_state;
mod round_trip;
#[cfg(test)]
mod scene;
pub(crate) mod script_reply;
#[cfg(test)]
mod simulation;
pub(crate) mod stray_grants;
pub(crate) mod timers;
pub(crate) mod wait_queue;

use std::time::Duration;

/// The settings of the rules. All of them can be set in the URL.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent option or fact of the backend")]
pub(crate) struct ProtocolConfig {
    /// How long a granted token holds the lock unless it confirms.
    pub(crate) grant_lease: Duration,
    /// How long tasks of one process may hand the lock to each other before other processes get it.
    pub(crate) handoff_budget: Duration,
    /// How long a server may take for one reply.
    pub(crate) response_timeout: Duration,
    /// How often to check a lock whose holder does not announce its release.
    pub(crate) poll_interval: Duration,
    /// Whether the fleet yields to clients of other libraries.
    pub(crate) yield_to_foreign: bool,
    /// The longest random delay before a contender reacts to a release, since other clients receive
    /// the message later. Zero if contenders queue at the server, which grants the lock to the
    /// first.
    pub(crate) wakeup_jitter: Duration,
    /// How many replicas must have a hold before a body relies on it.
    pub(crate) replica_acks: u8,
    /// Whether the backend can report changes of a key.
    pub(crate) tracking: bool,
    /// Whether the message of a grant proves the grant. In a cluster or with Sentinel it does not.
    pub(crate) grants_are_proof: bool,
}

impl ProtocolConfig {
    /// Returns `true` if contenders queue at the server, so that it can report waiters.
    pub(crate) fn has_queue(&self) -> bool {
        self.wakeup_jitter.is_zero()
    }

    pub(crate) const DEFAULT: Self = Self {
        grant_lease: Duration::from_secs(1),
        handoff_budget: Duration::from_millis(15),
        response_timeout: Duration::from_millis(500),
        poll_interval: Duration::from_millis(100),
        yield_to_foreign: false,
        wakeup_jitter: Duration::ZERO,
        replica_acks: 0,
        tracking: false,
        grants_are_proof: true,
    };
}
