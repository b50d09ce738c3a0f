//! J6: every lock key has a TTL, and after a quiet time longer than a lease only fencing counters
//! remain.

use crate::history::{View, What};

/// Returns the keys without a TTL and the keys that should not remain.
#[must_use]
pub fn violations(view: &View<'_>) -> Vec<String> {
    let mut seen = Vec::new();
    for event in view.history.events() {
        let What::Scan { keys, quiet } = &event.what else { continue };
        for key in keys {
            if key.ttl < 0 {
                seen.push(format!("`{}` has no TTL", key.name));
            } else if *quiet && !key.name.ends_with(COUNTER) {
                seen.push(format!("`{}` remains for another {} ms", key.name, key.ttl));
            }
        }
    }
    seen
}

/// The suffix of the name of a fencing counter.
const COUNTER: &str = "##token";
