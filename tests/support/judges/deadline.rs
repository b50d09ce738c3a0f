//! J2: no entry and no poll of a body at or after its deadline, and a timely report of each loss.
//!
//! A process may be stopped between the check of the clock and the poll that follows. Fencing
//! tokens exist for that poll. Therefore the first poll after a stop is [`excused`], and no second
//! one. Stops hit this gap rarely: a run with many stops must check that few polls were excused.

use std::time::Duration;

use super::Terms;
use crate::history::{Hold, View};

/// Returns late entries, late polls, and losses that were reported late or never.
#[must_use]
pub fn violations(view: &View<'_>, terms: &Terms) -> Vec<String> {
    view.holds.iter().flat_map(|hold| of(view, terms, hold)).collect()
}

/// Returns the late entries and polls that a stop of their process excuses.
#[must_use]
pub fn excused(view: &View<'_>, terms: &Terms) -> Vec<String> {
    let late = view.holds.iter().flat_map(|hold| late(view, terms, hold));
    late.filter(|late| late.is_excused).map(|late| late.text).collect()
}

/// An entry or a poll after its deadline.
struct Late {
    text: String,
    is_excused: bool,
}

fn of(view: &View<'_>, terms: &Terms, hold: &Hold) -> Vec<String> {
    let late = late(view, terms, hold).into_iter().filter(|late| !late.is_excused);
    let mut seen: Vec<_> = late.map(|late| late.text).collect();

    let over = hold.over.unwrap_or(view.history.end());
    let limit =
        hold.deadline + REPORTED_WITHIN + terms.late + view.stood_still(hold.process, hold.deadline, over);
    if over > limit {
        let what = if hold.over.is_some() { "over" } else { "still considered valid" };
        seen.push(format!("{}: {what} {:?} after its deadline", hold.told(), over.since(hold.deadline)));
    }
    seen
}

fn late(view: &View<'_>, terms: &Terms, hold: &Hold) -> Vec<Late> {
    let call = view.calls.iter().find(|call| (call.process, call.call) == (hold.process, hold.call));
    let entry = ("entered", hold.enter, hold.first_deadline);
    let polls = hold.polls.iter().map(|(at, deadline)| ("polled", *at, *deadline));
    let mut before = call.map_or(hold.enter, |call| call.began);
    let mut seen = Vec::new();
    for (what, at, deadline) in std::iter::once(entry).chain(polls) {
        if at >= deadline + terms.late {
            let text = format!("{}: {what} {:?} after its deadline", hold.told(), at.since(deadline));
            let is_excused = at < deadline + terms.late + view.stood_still(hold.process, before, at);
            seen.push(Late { text, is_excused });
        }
        before = at;
    }
    seen
}

/// The longest acceptable delay until a loss is reported.
pub const REPORTED_WITHIN: Duration = Duration::from_millis(50);
