//! J1: two valid holds of a lock never overlap; where a row of the fault list may lose locks, they do so across its fault only.

use std::time::Duration;

use crate::history::{Hold, View};

/// Two who held one lock at once.
#[derive(Clone, Debug)]
pub struct Overlap<'a> {
    /// Who came first.
    pub first: &'a Hold,
    /// Who came while the first one's hold was valid.
    pub second: &'a Hold,
    /// For how long both held.
    pub lasted: Duration,
    /// The row of the fault that may have lost the first one's lock, if there was one between the two.
    pub row: Option<&'a str>,
}

/// Returns all overlaps, expected ones included.
#[must_use]
pub fn overlaps<'a>(view: &'a View<'a>) -> Vec<Overlap<'a>> {
    let mut overlaps = Vec::new();
    for holds in view.by_key().into_values() {
        for (at, first) in holds.iter().enumerate() {
            let later = holds[at + 1..].iter().take_while(|second| second.enter < first.until());
            let later = later.filter(|second| !slept_on_the_way_in(view, second));
            overlaps.extend(later.map(|second| {
                // Lost by what happened between the two entries, and to nobody else's hold.
                let row = view.may_have_lost(first.enter, second.enter).map(|fault| &*fault.row);
                let lasted = first.until().min(second.until()).since(second.enter);
                Overlap { first, second, lasted, row }
            }));
        }
    }
    overlaps
}

/// Returns whether the hold was over before it was entered, and only as its process was put to sleep on the way: it was no hold at all.
fn slept_on_the_way_in(view: &View<'_>, hold: &Hold) -> bool {
    let call = view.calls.iter().find(|call| (call.process, call.call) == (hold.process, hold.call));
    let began = call.map_or(hold.enter, |call| call.began);
    if hold.first_deadline <= began {
        return view.was_stopped(hold.process, began, hold.enter); // the deadline was over at the first look, and nobody knows it
    }
    let slept = view.stood_still(hold.process, began, hold.enter);
    hold.first_deadline <= hold.enter && hold.enter < hold.first_deadline + slept
}

/// Returns the overlaps that no fault explains.
#[must_use]
pub fn violations(view: &View<'_>) -> Vec<String> {
    let unexplained = overlaps(view).into_iter().filter(|overlap| overlap.row.is_none());
    unexplained
        .map(|Overlap { first, second, lasted, .. }| {
            format!("for {lasted:?}, {} and {}", first.told(), second.told())
        })
        .collect()
}
