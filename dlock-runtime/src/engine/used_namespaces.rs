//! The namespaces of the locks that a manager has acquired, and whether two of them overlap.

use std::collections::BTreeSet;
use std::sync::Mutex;

use once_cell::sync::OnceCell;

use crate::sync::lock;

/// The namespaces that are in use.
#[derive(Debug, Default)]
pub(crate) struct UsedNamespaces {
    /// The first namespace. Most managers use only one.
    first: OnceCell<Box<str>>,
    others: Mutex<BTreeSet<Box<str>>>,
}

impl UsedNamespaces {
    /// Records that a namespace is used.
    ///
    /// The first time, returns the namespaces in use that can share a key with it. Otherwise, and
    /// once 1,024 namespaces are in use, returns `None`.
    pub(crate) fn record(&self, namespace: &str) -> Option<Vec<Box<str>>> {
        let mut is_new = false;
        let first = self.first.get_or_init(|| {
            is_new = true;
            namespace.into()
        });
        if **first == *namespace {
            return is_new.then(Vec::new);
        }
        let mut others = lock(&self.others);
        if others.len() >= MAX_NAMESPACES || others.contains(namespace) {
            return None;
        }
        let used = std::iter::once(first).chain(others.iter());
        let overlapping = used.filter(|used| overlap(used, namespace)).cloned().collect();
        others.insert(namespace.into());
        Some(overlapping)
    }
}

/// Returns `true` if two namespaces can share a key: `a` with `b:c`, and `a:b` with `c`.
fn overlap(one: &str, other: &str) -> bool {
    let is_within = |inner: &str, outer: &str| {
        outer.is_empty() || inner.strip_prefix(outer).is_some_and(|behind| behind.starts_with(':'))
    };
    is_within(one, other) || is_within(other, one)
}

/// More than an application uses, unless it derives namespaces from user input.
const MAX_NAMESPACES: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_namespaces_are_returned_once_per_pair() {
        let namespaces = UsedNamespaces::default();
        let record = |namespace| namespaces.record(namespace).map(|found| found.join(","));

        assert_eq!(record("shop").as_deref(), Some(""));
        assert_eq!(record("shop"), None);
        assert_eq!(record("shopping").as_deref(), Some(""));
        assert_eq!(record("shop:eu").as_deref(), Some("shop"));
        assert_eq!(record("shop:eu"), None);
        assert_eq!(record("shop:eu:de").as_deref(), Some("shop,shop:eu"));
        assert_eq!(record("shop:us").as_deref(), Some("shop"));
        assert_eq!(record("").as_deref(), Some("shop,shop:eu,shop:eu:de,shop:us,shopping"));
        assert_eq!(record("shop"), None);
    }

    #[test]
    fn namespaces_beyond_the_limit_are_ignored() {
        let namespaces = UsedNamespaces::default();

        let noted =
            (0..3 * MAX_NAMESPACES).filter(|number| namespaces.record(&number.to_string()).is_some()).count();

        assert_eq!(noted, MAX_NAMESPACES + 1);
    }
}
