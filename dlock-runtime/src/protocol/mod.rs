//! The rules of the lock, as state machines: `(event, now) -> (new state, actions)`. No clock, no socket, no runtime, no server.
//!
//! ```text
//! lane       one key's affairs in one process; an event goes in here, actions come out
//!   acquire    the head of the local queue asks for the lock and waits for it
//!   inquiry    whether it is still queued there, and what follows that question
//!   hold       a task has it, on its terms: renewal, loss, hand-over, yield, release
//!   budget     for how long tasks hand it to each other before other processes get their turn
//!   keep       nobody has it until its `min_hold` is over
//!   hint       somebody may have changed the key
//!   put_off    what can wait while many others are renewed
//!   share      room for clients that only poll
//!   nesting    calls inside a hold that want the same key
//!   queue      the tasks that wait, and how long each still does (patience)
//! value      who holds and who waits, as it stands in the server · record  what each command makes of it
//! command    what is asked of a backend and what it can answer
//! deadline   until when a hold is believed · renew  when it is prolonged · fencing  which turn it is
//! round_trip how far away the server is, as its replies measure it
//! quorum     one command over several servers: what their answers come to
//! abandon    commands without an answer, and how their effect is undone
//! strangers  grants that nobody waits for
//! waits      who waits for whom among nested calls: deadlock
//! ```
//!
//! A rule of the lock that stands anywhere else stands in the wrong room. Its unit tests are in `tests` below it: the rule is what
//! campaigns of the proof are about, and add up over, while its tests may change.

pub(crate) mod command;
pub(crate) mod contender;
pub(crate) mod deadline;
pub(crate) mod deadlock;
pub(crate) mod deferral;
#[cfg(test)]
mod exhaustive;
pub(crate) mod fencing;
pub(crate) mod foreign_clients;
pub(crate) mod handoff_budget;
pub(crate) mod hold;
pub(crate) mod hold_terms;
pub(crate) mod invalidation;
pub(crate) mod key_state;
pub(crate) mod lock_value;
pub(crate) mod orphans;
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
#[cfg(test)]
mod simulation;
pub(crate) mod stray_grants;
pub(crate) mod wait_queue;

use std::time::Duration;

/// What the rules go by; all of it can be set in the URL.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent option or fact of the backend")]
pub(crate) struct ProtocolConfig {
    /// How long a granted waiter has to confirm.
    pub(crate) grant_lease: Duration,
    /// How long tasks of one process may hand the lock to each other before others get their turn.
    pub(crate) handoff_budget: Duration,
    /// How long a server may take for one answer.
    pub(crate) response_timeout: Duration,
    /// How often a holder that tells nobody of its release is looked at.
    pub(crate) poll_interval: Duration,
    /// Whether clients of other libraries get their turn.
    pub(crate) yield_to_foreign: bool,
    /// How long those who hear that a lock was let go of may hold back, each at random: others hear it later than we do. Zero where they
    /// queue up at the server, which gives it to the first.
    pub(crate) wakeup_jitter: Duration,
    /// How many replicas must have a hold before anybody relies on it.
    pub(crate) replica_acks: u8,
    /// Whether the backend can tell of changes of a key that it was asked about.
    pub(crate) tracking: bool,
    /// Whether who is told of a grant has been given it. Elsewhere one who was passed over may be told, too.
    pub(crate) grants_are_proof: bool,
    /// Whether a grant is confirmed in the moment in which it is believed. So it is where what keeps the time shares its threads with
    /// bodies, and may come to nothing for as long as one blocks them.
    pub(crate) confirm_grants_first: bool,
}

impl ProtocolConfig {
    /// Returns whether those who wait queue up at the server, so that it can say whether anybody does.
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
        confirm_grants_first: false,
    };
}
