//! J4: the guarded resource, which keeps the highest token, never accepts a write with a lower one.
//!
//! The writes of a key are checked in the order of the resource, so that the timestamps of slow
//! processes do not matter.

use std::collections::BTreeMap;

use crate::history::{View, What};

/// The number of stale writes, and how many of them were rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stale {
    /// Writes with a token below one that the resource had accepted before.
    pub attempted: u64,
    /// The stale writes that the resource rejected.
    pub refused: u64,
}

/// A write and the reply of the resource.
struct Write {
    turn: u64,
    token: u64,
    accepted: bool,
    told: String,
}

/// Counts the stale writes.
#[must_use]
pub fn stale(view: &View<'_>) -> Stale {
    let mut stale = Stale::default();
    each(view, |write, highest| {
        if write.token < highest {
            stale.attempted += 1;
            stale.refused += u64::from(!write.accepted);
        }
    });
    stale
}

/// Returns the stale writes that were accepted, and the valid ones that were rejected.
#[must_use]
pub fn violations(view: &View<'_>) -> Vec<String> {
    let mut seen = Vec::new();
    each(view, |write, highest| match write.accepted {
        true if write.token < highest => seen.push(format!("{} was accepted after {highest}", write.told)),
        false if write.token >= highest && !write.is_after_a_gap(highest) => {
            seen.push(format!("{} was rejected after {highest}", write.told));
        }
        _ => {}
    });
    seen
}

impl Write {
    /// Returns `true` if a killed process may have written a higher token without recording that.
    fn is_after_a_gap(&self, highest: u64) -> bool {
        self.told.ends_with(GAP) && self.token >= highest
    }
}

/// Calls `look` for each write in the order of the resource, with the highest token accepted
/// before.
fn each(view: &View<'_>, mut look: impl FnMut(&Write, u64)) {
    let mut keys: BTreeMap<&str, Vec<Write>> = BTreeMap::new();
    for event in view.history.events() {
        let What::Write { call, token, turn, accepted, .. } = event.what else { continue };
        let told = format!(
            "write {turn} of `{}` with token {token} (call {call} of process {})",
            event.key, event.process
        );
        keys.entry(&event.key).or_default().push(Write { turn, token, accepted, told });
    }
    for writes in keys.values_mut() {
        writes.sort_by_key(|write| write.turn);
        let mut highest = 0;
        let mut is_gapless = true;
        for (index, write) in (1..).zip(writes) {
            is_gapless &= write.turn == index;
            if !is_gapless {
                write.told.push_str(GAP);
            }
            look(write, highest);
            if write.accepted {
                highest = highest.max(write.token);
            }
        }
    }
}

const GAP: &str = ", after an unrecorded one";
