//! Discrete-event simulation of the protocol: random schedules with faults, each derived from a
//! seed.
//!
//! A schedule delays, loses, and duplicates messages, suspends processes, and restarts servers.
//! Time is a number, so one schedule takes a fraction of a millisecond.
//!
//! ```text
//! one_server    model: one server, and processes whose tasks contend for one key
//! choices       every random choice, each addressed by a name
//! event_queue   pending events, ordered by time
//! coverage      how often each event of interest occurred
//! campaign      many seeds, on all processors
//! shrink        reduces a failing schedule to a short one
//! trace         the readable record of a schedule
//! ```
//!
//! The model of several servers is in `quorum::simulation`.
//!
//! Every seed has its own fault profile: which faults occur, and how strong they are. Uniform
//! schedules find few bugs. An invariant that cannot fail proves nothing, so tests also run the
//! models with seeded bugs, and each bug must violate an invariant.
//!
//! See also `exhaustive`, which checks every schedule of a small model. Tasks, wake-ups, and
//! sockets are not part of the protocol; `engine::simulation` covers them.

pub(in crate::protocol) mod campaign;
pub(in crate::protocol) mod choices;
pub(in crate::protocol) mod coverage;
pub(in crate::protocol) mod event_queue;
mod one_server;
pub(in crate::protocol) mod shrink;
pub(in crate::protocol) mod trace;

use crate::protocol::deadline::BootInstant;

/// Returns the time `ms` milliseconds after boot, on a clock without drift.
pub(in crate::protocol) fn at(ms: u64) -> BootInstant {
    BootInstant::from_nanos(ms * 1_000_000)
}

/// An invariant that a schedule violates.
#[derive(Clone, Debug)]
pub(in crate::protocol) struct Violation {
    /// The name of the invariant. A shrunk schedule must violate the same one.
    pub(in crate::protocol) invariant: &'static str,
    /// The observed state.
    pub(in crate::protocol) message: String,
}

/// Returns an error that ends a schedule, because it violates `invariant`.
pub(in crate::protocol) fn violation<T>(
    invariant: &'static str,
    message: impl Into<String>,
) -> Result<T, Box<Violation>> {
    Err(Box::new(Violation { invariant, message: message.into() }))
}
