//! Suggests the known name that is nearest to a misspelled one.

use strsim::levenshtein;

/// Returns the candidate nearest to `name`. At most 1/3 of its letters may differ, and from one to
/// three.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = ((name.chars().count() + 1) / 3).clamp(1, 3); // two of five: two swapped letters count as two
    let near = candidates.into_iter().map(|candidate| (levenshtein(name, candidate), candidate));
    let near = near.filter(|(distance, _)| *distance <= limit).min_by_key(|(distance, _)| *distance);
    near.map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_name_finds_the_nearest() {
        let names = ["lease", "namespace", "tls_ca", "poll_interval"];

        for (name, meant) in [
            ("leas", Some("lease")),
            ("laese", Some("lease")),
            ("namepsace", Some("namespace")),
            ("tls-ca", Some("tls_ca")),
            ("pol_interval", Some("poll_interval")),
            ("timeout", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, names), meant, "{name}");
        }
    }
}
