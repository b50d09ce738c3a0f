//! Finds the name that was probably meant by a misspelled one.

/// Returns the candidate nearest to `name`: at most 1/3 of its letters, or one, may differ.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns the Levenshtein distance: the number of letters to insert, delete, or replace. It
/// ignores case and underscores.
fn distance(left: &str, right: &str) -> usize {
    let plain = |name: &str| -> Vec<char> {
        name.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect()
    };
    let right = plain(right);
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (above, from) in plain(left).into_iter().enumerate() {
        let mut next = vec![above + 1];
        for ((to, diagonal), up) in right.iter().zip(&row).zip(row.iter().skip(1)) {
            let before = next.last().copied().unwrap_or_default();
            next.push((diagonal + usize::from(from != *to)).min(up + 1).min(before + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
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
}
