//! J8: each call has one result, of an expected type, within its limit and 100 ms.
//!
//! A killed process owes no result. The time for which a process was stopped is added to its
//! limits.

use std::time::Duration;

use super::Terms;
use crate::history::{Answered, Call, View};

/// Returns the calls with no result, a late one, more than one, or one of an unexpected type.
#[must_use]
pub fn violations(view: &View<'_>, terms: &Terms) -> Vec<String> {
    view.calls.iter().filter_map(|call| of(view, terms, call)).collect()
}

fn of(view: &View<'_>, terms: &Terms, call: &Call) -> Option<String> {
    let told = format!("call {} of process {} for `{}`", call.call, call.process, call.key);
    let end = view.history.end();
    match call.answers[..] {
        [] => {
            let last = view.gone(call.process).unwrap_or(end);
            let stood = view.stood_still(call.process, call.began, last);
            let waited = last.since(call.began).saturating_sub(stood);
            (waited > limit(terms, call)).then(|| format!("{told} has no result after {waited:?}"))
        }
        [(at, answer)] => {
            let stood = view.stood_still(call.process, call.began, at);
            let took = at.since(call.began).saturating_sub(stood);
            match answer {
                Answered::Other => Some(format!("{told} has a result of an unexpected type")),
                _ if took > limit(terms, call) => Some(format!(
                    "{told} ended with {answer:?} after {took:?}, its limit is {:?}",
                    call.limit
                )),
                _ => None,
            }
        }
        _ => Some(format!("{told} has {} results", call.answers.len())),
    }
}

fn limit(terms: &Terms, call: &Call) -> Duration {
    call.limit + BEYOND + terms.late
}

/// The time beyond its limit that a call may take.
pub const BEYOND: Duration = Duration::from_millis(100);
