//! Invariants of every history, one judge per file. A judge returns a description of every
//! violation.
//!
//! | judge | invariant |
//! |---|---|
//! | [`exclusion`] (J1) | two valid holds of a lock never overlap |
//! | [`deadline`] (J2) | no entry and no poll of a body at or after its deadline; each loss is reported |
//! | [`order`] (J3) | fencing tokens rise in the order of the holds |
//! | [`fencing`] (J4) | the guarded resource accepts no stale write |
//! | [`liveness`] (J5) | after a crash and after a release, a waiter acquires the lock |
//! | [`residue`] (J6) | each key has a TTL; after a quiet time only fencing counters remain |
//! | [`leaks`] (J7) | tasks, descriptors, and subscriptions return to their initial numbers |
//! | [`outcomes`] (J8) | each call has one result of a known type within its limit |
//! | [`secrets`] (J9) | no secret of the test is printed or logged |
//!
//! Slack accounts for a busy machine. It is a constant where it is used, far below a lease.

pub mod deadline;
pub mod exclusion;
pub mod fencing;
pub mod leaks;
pub mod liveness;
pub mod order;
pub mod outcomes;
pub mod residue;
pub mod secrets;

#[cfg(test)]
mod seeded;

use std::fmt;
use std::time::Duration;

use crate::history::{History, View};

/// The settings of the locks of a history.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The lease of all locks.
    pub lease: Duration,
    /// How long a waiter has to confirm a grant.
    pub grant_lease: Duration,
    /// The longest acceptable scheduling delay: longer if many processes share few cores.
    pub late: Duration,
    /// Texts that must not be printed or logged.
    pub secrets: Vec<String>,
}

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The judge that found it.
    pub judge: &'static str,
    /// The description of the violation.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.judge, self.text)
    }
}

/// Checks a history with all judges, and returns every violation.
#[must_use]
pub fn judge(history: &History, terms: &Terms) -> Vec<Violation> {
    let view = View::of(history);
    let all = [
        ("J1", exclusion::violations(&view)),
        ("J2", deadline::violations(&view, terms)),
        ("J3", order::violations(&view)),
        ("J4", fencing::violations(&view)),
        ("J5", liveness::violations(&view, terms)),
        ("J6", residue::violations(&view)),
        ("J7", leaks::violations(&view)),
        ("J8", outcomes::violations(&view, terms)),
        ("J9", secrets::violations(&view, terms)),
    ];
    let told =
        |(judge, texts): (_, Vec<String>)| texts.into_iter().map(move |text| Violation { judge, text });
    all.into_iter().flat_map(told).collect()
}
