//! Whole schedules of the rules, each from a seed: worlds that lose, delay, double, freeze and forget. Time is a number, so that a
//! schedule costs a fraction of a millisecond.
//!
//! ```text
//! lanes      one server, and processes whose tasks want one key (several servers: `quorum::simulation`)
//! chance     all that is left to chance, each choice under a name of its own
//! agenda     what happens when
//! tally      what happened how often
//! campaign   many seeds on all processors
//! shrink     a failing schedule becomes a short one
//! story      and is told in words
//! ```
//!
//! Every seed has a weather of its own (which faults there are, and how strong): schedules that are all alike find little. A judge
//! that cannot fail proves nothing: rules are broken on purpose, and the worlds must notice.
//!
//! Not here: every schedule of a small world (`exhaustive`), and tasks, wake-ups and sockets, which the rules know nothing of.

pub(in crate::protocol) mod agenda;
pub(in crate::protocol) mod campaign;
pub(in crate::protocol) mod chance;
mod lanes;
pub(in crate::protocol) mod shrink;
pub(in crate::protocol) mod story;
pub(in crate::protocol) mod tally;

use crate::protocol::deadline::BootInstant;

/// Returns the time as a clock that runs right has it.
pub(in crate::protocol) fn at(ms: u64) -> BootInstant {
    BootInstant::from_nanos(ms * 1_000_000)
}

/// What a judge says of a schedule that breaks a promise.
#[derive(Clone, Debug)]
pub(in crate::protocol) struct Wrong {
    /// Which promise: a shrunk schedule must break the same.
    pub(in crate::protocol) judge: &'static str,
    /// What is seen, in words.
    pub(in crate::protocol) said: String,
}

/// Breaks off a schedule: a promise is broken.
pub(in crate::protocol) fn wrong<T>(judge: &'static str, said: impl Into<String>) -> Result<T, Box<Wrong>> {
    Err(Box::new(Wrong { judge, said: said.into() }))
}
