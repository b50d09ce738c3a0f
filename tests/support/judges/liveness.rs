//! J5: after a crash or a release, a waiter acquires the lock in time, and no waiter is forgotten.
//!
//! The limit is the lease plus 250 ms. After a release it is the longer of lease and grant lease,
//! plus 250 ms.
//!
//! A case counts only if a waiter that is alive waited all the time and no other fault was active.

use std::time::Duration;

use super::Terms;
use crate::clock::Moment;
use crate::history::{Answered, Call, FaultSpan, Hold, View};

/// Returns the times from a holder's death to the next entry of a waiter.
#[must_use]
pub fn after_crashes(view: &View<'_>, terms: &Terms) -> Vec<Duration> {
    crashes(view, terms).into_iter().filter_map(|(_, took)| took.ok()).map(|took| took.took).collect()
}

/// Returns the times from a release to the next entry of a waiter, without faults.
#[must_use]
pub fn after_releases(view: &View<'_>, terms: &Terms) -> Vec<Duration> {
    releases(view, terms).into_iter().filter_map(|(_, took)| took.ok()).map(|took| took.took).collect()
}

/// Returns the locks that a waiter acquired too late or never.
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
        let what = if took.is_ok() { "enters" } else { "has not entered after" };
        let later = if took.is_ok() { " later" } else { "" };
        seen.push(format!("{told}, and the next waiter {what} {:?}{later}", gap.took));
    }
    seen
}

/// A description of the previous holder, and the time until the next entry.
///
/// It is an error if there was no entry until the end of the history.
type Gap = (String, Result<Took, Took>);

/// A time, and the part of it for which the machine was too busy for some process.
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
        let told = format!("{} and releases", hold.told());
        gaps.extend(gap(view, hold, exit, bound, None).map(|took| (told, took)));
    }
    gaps
}

/// Returns the time from `at` until the entry of a caller that waited all the time.
///
/// Returns `None` if no caller waited, or if a fault other than the end of the process itself was
/// active.
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
    let disturbed = is_broken || (own.is_none() && a_process_died(view, at, bound));
    if disturbed || !view.calls.iter().any(|call| waits(&call)) {
        return None;
    }
    let stalled = view.stalled(at, until);
    let took = Took { took: until.since(at), stalled };
    Some(if next.is_some() { Ok(took) } else { Err(took) })
}

/// Returns how long after its end a fault may still have effects, because clients reconnect.
///
/// A fault of a process has none after its end.
fn rest(fault: &FaultSpan, bound: Duration) -> Duration {
    if fault.row.starts_with('P') { Duration::ZERO } else { bound * 2 }
}

/// Returns `true` if a call waited until `until` in a process that was alive and not stopped.
fn waits_until(view: &View<'_>, call: &Call, until: Moment) -> bool {
    let lives = view.gone(call.process).is_none_or(|gone| gone > until);
    let answered = call.answers.first();
    let waits = answered
        .is_none_or(|(at, answer)| *at >= until || (*answer == Answered::Granted && *at + GRANTED >= until));
    lives && waits && !view.was_stopped(call.process, call.began, until)
}

/// A waiter that died may have been granted the lock, which is then held until the end of its grant
/// lease.
fn a_process_died(view: &View<'_>, at: Moment, bound: Duration) -> bool {
    view.killed().any(|(_, gone)| gone + bound >= at && gone <= at + bound)
}

/// The longest acceptable time from the lease expiry of a crashed holder to the next entry.
pub const AFTER_A_CRASH: Duration = Duration::from_millis(250);
/// The time between the result of a call and the first line of its body.
const GRANTED: Duration = Duration::from_millis(50);
