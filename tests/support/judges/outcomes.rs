//! J8: each call has one answer, of a type that a call for a lock may give, within its limit and a tenth of a second.
//!
//! A process that is killed owes no answer, and one that stood still owes it so much later.

use std::time::Duration;

use super::Terms;
use crate::history::{Answered, Call, View};

/// Returns the calls with no answer, a late one, more than one, or one of another type.
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
            (waited > limit(terms, call)).then(|| format!("{told} has no answer after {waited:?}"))
        }
        [(at, answer)] => {
            let stood = view.stood_still(call.process, call.began, at);
            let took = at.since(call.began).saturating_sub(stood);
            match answer {
                Answered::Other => Some(format!("{told} has an answer of another type")),
                _ if took > limit(terms, call) => Some(format!(
                    "{told} is answered {answer:?} after {took:?}, its limit is {:?}",
                    call.limit
                )),
                _ => None,
            }
        }
        _ => Some(format!("{told} has {} answers", call.answers.len())),
    }
}

fn limit(terms: &Terms, call: &Call) -> Duration {
    call.limit + BEYOND + terms.late
}

/// How much longer than its limit a call may take.
pub const BEYOND: Duration = Duration::from_millis(100);
