//! The namespaces that locks of a manager were asked for in, and whether two of them overlap.

use std::collections::BTreeSet;
use std::sync::Mutex;

use once_cell::sync::OnceCell;

use crate::sync::lock;

/// The namespaces that are in use.
#[derive(Debug, Default)]
pub(crate) struct UsedNamespaces {
    /// The first, which nearly every manager uses alone.
    first: OnceCell<Box<str>>,
    others: Mutex<BTreeSet<Box<str>>>,
}

impl UsedNamespaces {
    /// Notes that a namespace is used. The first time, returns those in use that can have a key in common with it.
    pub(crate) fn note(&self, namespace: &str) -> Option<Vec<Box<str>>> {
        let mut is_new = false;
        let first = self.first.get_or_init(|| {
            is_new = true;
            namespace.into()
        });
        if **first == *namespace {
            return is_new.then(Vec::new);
        }
        let mut others = lock(&self.others);
        if others.len() >= MOST_NAMESPACES || others.contains(namespace) {
            return None;
        }
        let used = std::iter::once(first).chain(others.iter());
        let overlapping = used.filter(|used| overlap(used, namespace)).cloned().collect();
        others.insert(namespace.into());
        Some(overlapping)
    }
}

/// Returns whether two namespaces can have one key: `a` with `b:c`, and `a:b` with `c`.
fn overlap(one: &str, other: &str) -> bool {
    let is_within = |inner: &str, outer: &str| {
        outer.is_empty() || inner.strip_prefix(outer).is_some_and(|behind| behind.starts_with(':'))
    };
    is_within(one, other) || is_within(other, one)
}

/// ExtendedTerms than an application names, where namespaces are not made from what users type.
const MOST_NAMESPACES: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_namespaces_are_returned_once_per_pair() {
        let namespaces = UsedNamespaces::default();
        let note = |namespace| namespaces.note(namespace).map(|found| found.join(","));

        assert_eq!(note("shop").as_deref(), Some(""));
        assert_eq!(note("shop"), None);
        assert_eq!(note("shopping").as_deref(), Some(""));
        assert_eq!(note("shop:eu").as_deref(), Some("shop"));
        assert_eq!(note("shop:eu"), None);
        assert_eq!(note("shop:eu:de").as_deref(), Some("shop,shop:eu"));
        assert_eq!(note("shop:us").as_deref(), Some("shop"));
        assert_eq!(note("").as_deref(), Some("shop,shop:eu,shop:eu:de,shop:us,shopping"));
        assert_eq!(note("shop"), None);
    }

    #[test]
    fn too_many_are_not_noted() {
        let namespaces = UsedNamespaces::default();

        let noted =
            (0..3 * MOST_NAMESPACES).filter(|number| namespaces.note(&number.to_string()).is_some()).count();

        assert_eq!(noted, MOST_NAMESPACES + 1);
    }
}
