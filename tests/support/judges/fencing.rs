//! J4: the guarded resource, which keeps the highest token, takes no write with a lower one, anywhere.
//!
//! It counts the writes of a key, and they are judged in its own order: no stamp of a slow process can hide one.

use std::collections::BTreeMap;

use crate::history::{View, What};

/// How often a stale write was tried, and how often it was refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stale {
    /// Writes with a token below one that the resource had taken before.
    pub attempted: u64,
    /// Those of them that it refused.
    pub refused: u64,
}

/// A write as the resource answered it.
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

/// Returns the stale writes that were taken, and good ones that were refused.
#[must_use]
pub fn violations(view: &View<'_>) -> Vec<String> {
    let mut seen = Vec::new();
    each(view, |write, highest| match write.accepted {
        true if write.token < highest => seen.push(format!("{} was taken after {highest}", write.told)),
        false if write.token >= highest && !write.is_after_a_gap(highest) => {
            seen.push(format!("{} was refused after {highest}", write.told));
        }
        _ => {}
    });
    seen
}

impl Write {
    /// Returns whether the resource may have taken a higher token of a process that was killed before it could note so.
    fn is_after_a_gap(&self, highest: u64) -> bool {
        self.told.ends_with(GAP) && self.token >= highest
    }
}

/// Walks through the writes of each key in the resource's order, each with the highest token that was taken before.
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

const GAP: &str = ", after one that nobody noted";
