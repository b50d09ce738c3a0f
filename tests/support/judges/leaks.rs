//! J7: tasks, descriptors, threads and subscriptions of a process that did its work are no more than before it.

use std::collections::BTreeMap;

use crate::history::{Phase, View, What};

/// Returns what a process has more of after its work than before it.
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

/// How much more of something is no leak: there is one connection to each server of a quorum, of which there are three at most, that is
/// opened once there is use for it.
fn margin(what: &str) -> u64 {
    match what {
        "descriptors" => 3,
        "tasks" => 4,
        _ => 0,
    }
}
