//! J6: every lock key has an end, and after a rest of more than a lease only fencing counters are left.

use crate::history::{View, What};

/// Returns the keys that should not be there, or not as they are.
#[must_use]
pub fn violations(view: &View<'_>) -> Vec<String> {
    let mut seen = Vec::new();
    for event in view.history.events() {
        let What::Scan { keys, quiet } = &event.what else { continue };
        for key in keys {
            if key.ttl < 0 {
                seen.push(format!("`{}` has no end", key.name));
            } else if *quiet && !key.name.ends_with(COUNTER) {
                seen.push(format!("`{}` is left for another {} ms", key.name, key.ttl));
            }
        }
    }
    seen
}

/// What the name of a fencing counter ends in.
const COUNTER: &str = "##token";
