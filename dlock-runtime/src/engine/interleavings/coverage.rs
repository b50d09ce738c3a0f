//! Counts the events that the large models must cover. An event that does not happen is not tested.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::sync::lock;

/// The events that must happen in some schedule.
const ALL: [&str; 14] = [
    "a lock was deleted",
    "a lock was handed off",
    "a loss was reported inside",
    "contended: timed out",
    "contended: tried once",
    "dropped while holding",
    "dropped while releasing",
    "dropped while waiting",
    "half of the hand-off budget was used, and waiters were probed",
    "no reply in time",
    "rejected: shut down",
    "the hand-off budget was used, and another process acquired",
    "the hand-off budget was used, and no other process acquired",
    "the other process waited",
];

/// Events that need not happen. A grant that is denied before its body starts is rare, and usually
/// only delays the call.
const RARE: [&str; 1] = ["rejected: lost before its start"];

static COUNTS: Mutex<BTreeMap<&'static str, usize>> = Mutex::new(BTreeMap::new());

/// Counts an event.
pub(super) fn cover(what: &'static str, times: usize) {
    assert!(ALL.contains(&what) || RARE.contains(&what), "{what} is not a known event");
    *lock(&COUNTS).entry(what).or_default() += times;
}

/// Returns how often each event happened that must happen.
#[must_use]
pub fn coverage() -> Vec<(&'static str, usize)> {
    let counts = lock(&COUNTS);
    ALL.iter().map(|what| (*what, counts.get(what).copied().unwrap_or_default())).collect()
}
