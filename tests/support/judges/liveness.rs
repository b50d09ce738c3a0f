//! J5: a crashed holder's lock is had again within its lease, a released one by the next who waits, and nobody who waits is forgotten.
//!
//! Judged where somebody living waited all the time, and nothing else was broken meanwhile.

use std::time::Duration;

use super::Terms;
use crate::clock::Moment;
use crate::history::{Answered, Call, FaultSpan, Hold, View};

/// From a holder's death to the next entry of somebody who waited.
#[must_use]
pub fn after_crashes(view: &View<'_>, terms: &Terms) -> Vec<Duration> {
    crashes(view, terms).into_iter().filter_map(|(_, took)| took.ok()).map(|took| took.took).collect()
}

/// From a release to the next entry of somebody who waited, where nothing was broken.
#[must_use]
pub fn after_releases(view: &View<'_>, terms: &Terms) -> Vec<Duration> {
    releases(view, terms).into_iter().filter_map(|(_, took)| took.ok()).map(|took| took.took).collect()
}

/// Returns the locks that were had too late, or never, by those who waited.
#[must_use]
pub fn violations(view: &View<'_>, terms: &Terms) -> Vec<String> {
    let crashes = crashes(view, terms).into_iter().map(|gap| (gap, terms.lease + AFTER_A_CRASH));
    let releases = releases(view, terms).into_iter();
    let releases = releases.map(|gap| (gap, terms.lease.max(terms.grant_lease) + AFTER_A_CRASH));
    let mut seen = Vec::new();
    for ((told, took), bound) in crashes.chain(releases) {
        let (Ok(gap) | Err(gap)) = &took;
        if gap.took <= bound + terms.late + gap.stalled {
            continue;
        }
        let what = if took.is_ok() { "gets in" } else { "is not in after" };
        let later = if took.is_ok() { " later" } else { "" };
        seen.push(format!("{told}, and who waits {what} {:?}{later}", gap.took));
    }
    seen
}

/// Who was gone, and how long it took; an error is how long nobody came, to the end.
type Gap = (String, Result<Took, Took>);

/// How long something took, and for how much of it the machine had no time.
struct Took {
    took: Duration,
    stalled: Duration,
}

fn crashes(view: &View<'_>, terms: &Terms) -> Vec<Gap> {
    let mut gaps = Vec::new();
    for (process, at) in view.killed() {
        let died = |hold: &&Hold| hold.process == process && hold.over == Some(at) && hold.deadline > at;
        for hold in view.holds.iter().filter(died) {
            let bound = terms.lease + AFTER_A_CRASH;
            let told = format!("{} and is killed", hold.told());
            gaps.extend(gap(view, hold, at, bound, Some(process)).map(|took| (told, took)));
        }
    }
    gaps
}

fn releases(view: &View<'_>, terms: &Terms) -> Vec<Gap> {
    let bound = terms.lease.max(terms.grant_lease) + AFTER_A_CRASH;
    let mut gaps = Vec::new();
    for hold in &view.holds {
        let Some(exit) = hold.exit.filter(|exit| *exit < hold.deadline) else { continue };
        let told = format!("{} and lets go", hold.told());
        gaps.extend(gap(view, hold, exit, bound, None).map(|took| (told, took)));
    }
    gaps
}

/// Returns how long it took from `at` until somebody entered who waited all the while; nothing if nobody did, or if something else
/// than the end of the process itself was broken.
fn gap(
    view: &View<'_>,
    hold: &Hold,
    at: Moment,
    bound: Duration,
    own: Option<u32>,
) -> Option<Result<Took, Took>> {
    let others = view.holds.iter().filter(|other| other.key == hold.key && other.enter >= at);
    let next = others.min_by_key(|other| other.enter);
    let until = next.map_or(view.history.end(), |next| next.enter);
    let own_id = own.map(|process| process.to_string());
    let is_own = |to: &str| own_id.as_deref() == Some(to);
    let is_broken = view
        .faults
        .iter()
        .any(|fault| !is_own(&fault.to) && fault.from <= until && fault.until + rest(fault, bound) >= at);
    let waits = |call: &&Call| call.key == hold.key && call.began <= at && waits_until(view, call, until);
    let disturbed = is_broken || (own.is_none() && somebody_died(view, at, bound));
    if disturbed || !view.calls.iter().any(|call| waits(&call)) {
        return None;
    }
    let stalled = view.stalled(at, until);
    let took = Took { took: until.since(at), stalled };
    Some(if next.is_some() { Ok(took) } else { Err(took) })
}

/// How long after its healing a fault may still be felt: connections are made again. What befell a process ends with it.
fn rest(fault: &FaultSpan, bound: Duration) -> Duration {
    if fault.row.starts_with('P') { Duration::ZERO } else { bound * 2 }
}

/// Returns whether a call was waiting until then, in a process that lived and was not stopped.
fn waits_until(view: &View<'_>, call: &Call, until: Moment) -> bool {
    let lives = view.gone(call.process).is_none_or(|gone| gone > until);
    let answered = call.answers.first();
    let waits = answered
        .is_none_or(|(at, answer)| *at >= until || (*answer == Answered::Granted && *at + GRANTED >= until));
    lives && waits && !view.was_stopped(call.process, call.began, until)
}

/// A waiter that died may have been granted the lock, which then ends with its grant lease.
fn somebody_died(view: &View<'_>, at: Moment, bound: Duration) -> bool {
    view.killed().any(|(_, gone)| gone + bound >= at && gone <= at + bound)
}

/// How long after its lease a crashed holder's lock may be taken.
pub const AFTER_A_CRASH: Duration = Duration::from_millis(250);
/// Between the answer of a call and the first line of its body.
const GRANTED: Duration = Duration::from_millis(50);
