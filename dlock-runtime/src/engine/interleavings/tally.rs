//! How often each thing happened in crowds that must: what happens no more is not tested any more.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::sync::lock;

/// All that has to happen, some time in some schedule.
const ALL: [&str; 14] = [
    "a lock was deleted",
    "a loss was told inside",
    "a turn was handed on",
    "contended: it tried",
    "contended: its time was over",
    "dropped as it held",
    "dropped as it let go",
    "dropped as it waited",
    "no answer in its time",
    "refused: shut down",
    "the budget was half used up, and it was asked who else waits",
    "the budget was used up, and another process took the offer",
    "the budget was used up, and nobody took the offer",
    "the other process waited",
];

/// What may happen and need not: a grant that is denied before its call has started is rare, and mostly costs the call time alone.
const RARE: [&str; 1] = ["refused: lost before its start"];

static HAPPENED: Mutex<BTreeMap<&'static str, usize>> = Mutex::new(BTreeMap::new());

/// Something has happened so many times.
pub(super) fn happened(what: &'static str, times: usize) {
    assert!(ALL.contains(&what) || RARE.contains(&what), "{what} is not among what must happen");
    *lock(&HAPPENED).entry(what).or_default() += times;
}

/// Returns how often each thing happened that must.
#[must_use]
pub fn tally() -> Vec<(&'static str, usize)> {
    let happened = lock(&HAPPENED);
    ALL.iter().map(|what| (*what, happened.get(what).copied().unwrap_or_default())).collect()
}
