//! J7: after its work, a process has no more tasks, descriptors, threads, and subscriptions than
//! before.

use std::collections::BTreeMap;

use crate::history::{Phase, View, What};

/// Returns the resources of which a process has more after its work than before.
#[must_use]
pub fn violations(view: &View<'_>) -> Vec<String> {
    let mut bases = BTreeMap::new();
    let mut seen = Vec::new();
    for event in view.history.events() {
        let What::Resources { phase, counts } = &event.what else { continue };
        if *phase == Phase::Base {
            bases.insert(event.process, counts);
            continue;
        }
        let Some(base) = bases.get(&event.process) else { continue };
        for (what, count) in counts {
            let before = base.get(what).copied().unwrap_or_default();
            if *count > before + margin(what) {
                seen.push(format!("process {} had {before} {what} and has {count}", event.process));
            }
        }
    }
    seen
}

/// Returns the acceptable increase.
///
/// A connection to each of at most three quorum servers may be opened on first use.
fn margin(what: &str) -> u64 {
    match what {
        "descriptors" => 3,
        "tasks" => 4,
        _ => 0,
    }
}
