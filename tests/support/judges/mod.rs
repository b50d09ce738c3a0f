//! What must be true of every history, one judge a file. A judge returns every violation, in words.
//!
//! | judge | of what |
//! |---|---|
//! | [`exclusion`] (J1) | no two valid holds of a lock at once |
//! | [`deadline`] (J2) | no entry and no poll of a body at or after its deadline; a loss is told |
//! | [`order`] (J3) | fencing tokens rise in the order of holding |
//! | [`fencing`] (J4) | the guarded resource takes no stale write |
//! | [`liveness`] (J5) | after a crash, and after a release, somebody gets in |
//! | [`residue`] (J6) | no key without an end; after a rest only counters are left |
//! | [`leaks`] (J7) | tasks, descriptors and subscriptions go back to where they were |
//! | [`outcomes`] (J8) | each call has one answer of a known type within its limit |
//! | [`secrets`] (J9) | no planted secret is said |
//!
//! Slack is for a busy machine, and a constant where it is used. It is far below what it would have to hide: a lease.
//!
//! Not here: how histories are made, and what is done to the servers meanwhile.

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
mod planted;

use std::fmt;
use std::time::Duration;

use crate::history::{History, View};

/// What the locks of a history were asked for with.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The lease of all locks.
    pub lease: Duration,
    /// How long a waiter that was granted a lock has to confirm it.
    pub grant_lease: Duration,
    /// How late a thread of this run may be scheduled: more where many processes share few cores.
    pub late: Duration,
    /// What nobody may say.
    pub secrets: Vec<String>,
}

/// One thing that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The judge who saw it.
    pub judge: &'static str,
    /// What was seen.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.judge, self.text)
    }
}

/// Has all judges look at a history; returns every violation.
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
