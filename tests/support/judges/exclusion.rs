//! J1: two valid holds of a lock never overlap, except across a fault that may lose locks.

use std::time::Duration;

use crate::history::{Hold, View};

/// Two holds of one lock that overlap.
#[derive(Clone, Debug)]
pub struct Overlap<'a> {
    /// The hold that was entered first.
    pub first: &'a Hold,
    /// The hold that was entered while the first was valid.
    pub second: &'a Hold,
    /// The duration of the overlap.
    pub lasted: Duration,
    /// The row of the fault between the two entries that may have lost the first lock, if any.
    pub row: Option<&'a str>,
}

/// Returns all overlaps, including expected ones.
#[must_use]
pub fn overlaps<'a>(view: &'a View<'a>) -> Vec<Overlap<'a>> {
    let mut overlaps = Vec::new();
    for holds in view.by_key().into_values() {
        for (at, first) in holds.iter().enumerate() {
            let later = holds[at + 1..].iter().take_while(|second| second.enter < first.until());
            let later = later.filter(|second| !slept_on_the_way_in(view, second));
            overlaps.extend(later.map(|second| {
                // Only a fault between the two entries can have lost the first lock.
                let row = view.may_have_lost(first.enter, second.enter).map(|fault| &*fault.row);
                let lasted = first.until().min(second.until()).since(second.enter);
                Overlap { first, second, lasted, row }
            }));
        }
    }
    overlaps
}

/// Returns `true` if a hold ended before its entry only because its process was stopped during the
/// call.
fn slept_on_the_way_in(view: &View<'_>, hold: &Hold) -> bool {
    let call = view.calls.iter().find(|call| (call.process, call.call) == (hold.process, hold.call));
    let began = call.map_or(hold.enter, |call| call.began);
    if hold.first_deadline <= began {
        // The deadline passed before the first check, and is unknown.
        return view.was_stopped(hold.process, began, hold.enter);
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
