//! J3: fencing tokens rise in the order of the holds, even if two holds overlap.

use crate::history::View;

/// Returns the holds whose token is not above that of the previous hold.
#[must_use]
pub fn violations(view: &View<'_>) -> Vec<String> {
    let mut seen = Vec::new();
    for holds in view.by_key().into_values() {
        let with_token: Vec<_> = holds.into_iter().filter(|hold| hold.token.is_some()).collect();
        for pair in with_token.windows(2).filter(|pair| pair[0].token >= pair[1].token) {
            seen.push(format!("{}, and later {}", pair[0].told(), pair[1].told()));
        }
    }
    seen
}
