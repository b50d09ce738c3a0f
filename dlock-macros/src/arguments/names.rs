//! Finds the name that was probably meant by a misspelled one.

use strsim::levenshtein;

/// Returns the candidate nearest to `name`: at most 1/3 of its letters, or one, may differ. Case
/// and underscores do not count.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (limit, meant) = ((name.chars().count() / 3).max(1), plain(name));
    candidates
        .into_iter()
        .map(|candidate| (levenshtein(&meant, &plain(candidate)), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns a name in lower case and without underscores.
pub(crate) fn plain(name: &str) -> String {
    name.replace('_', "").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_keyboard_finds_its_name() {
        let parameters = ["key", "lease", "retry", "wait"];

        assert_eq!(nearest("retrys", parameters), Some("retry"));
        assert_eq!(nearest("leese", parameters), Some("lease"));
        assert_eq!(nearest("userid", ["cart", "user_id"]), Some("user_id"));
        assert_eq!(nearest("banana", parameters), None);
    }

    #[test]
    fn a_third_of_the_letters_may_differ() {
        for (name, is_near) in
            [("abcdefxxx", true), ("abcdexxxx", false), ("ABC_DEF_xxx", true), ("abcdefghi", true)]
        {
            assert_eq!(nearest(name, ["abcdefghi"]), is_near.then_some("abcdefghi"), "{name}");
        }
        assert_eq!(nearest("ab", ["ac", "ab"]), Some("ab"));
        assert_eq!(nearest("xy", ["ab"]), None);
        assert_eq!(nearest("xb", ["ab"]), Some("ab"), "one letter may differ in a short name");
    }
}
