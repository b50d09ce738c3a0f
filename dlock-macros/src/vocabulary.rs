//! The words of one attribute: its parameters, and the nouns of its messages.

use crate::arguments::names;
use crate::report::list;

/// The words of one attribute.
pub(crate) struct Vocabulary {
    /// The attribute as it is written, without `#[..]`.
    pub(crate) attribute: &'static str,
    /// The method of the manager that does the same without the attribute.
    pub(crate) method: &'static str,
    /// Whether the attribute must have a `key`.
    pub(crate) has_key: bool,
    /// The parameters of this version.
    pub(crate) parameters: &'static [&'static str],
    /// Known parameters that this version does not have, with alternatives.
    pub(crate) planned: &'static [(&'static str, &'static str)],
    /// Names in other libraries, in lower case and without underscores, and the names in dlock.
    pub(crate) aliases: &'static [(&'static str, &'static str)],
    /// Names that could be meant in two ways, and both of them.
    pub(crate) ambiguous: &'static [(&'static str, &'static str)],
    pub(crate) nouns: Nouns,
}

/// The nouns and clauses of messages. Each comment shows one as a part of its sentence.
pub(crate) struct Nouns {
    /// "all callers would share ONE *lock*"
    pub(crate) entry: &'static str,
    /// "*a lock* needs an `async fn`"
    pub(crate) call: &'static str,
    /// "`#[distributed_lock]` *locks a function*, and this is an `enum`"
    pub(crate) acts: &'static str,
    /// "there is no body *to run under a lock*"
    pub(crate) purpose: &'static str,
    /// "*lock* an `async fn` that it calls"
    pub(crate) apply: &'static str,
    /// "it cannot be *locked* itself"
    pub(crate) applied: &'static str,
    /// "start with *what is locked*"
    pub(crate) subject: &'static str,
    /// What the key of an example starts with.
    pub(crate) example: &'static str,
    /// A whole key as an example.
    pub(crate) example_key: &'static str,
    /// "*lock without the attribute*: `manager.lock(key)`"
    pub(crate) without: &'static str,
}

impl Vocabulary {
    /// Returns the name in dlock of another library's parameter.
    pub(crate) fn canonical_name(&self, foreign: &str) -> Option<&'static str> {
        let plain: String = foreign.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect();
        self.aliases.iter().find(|(name, _)| *name == plain).map(|(_, ours)| *ours)
    }

    /// Returns the error for an unknown parameter, with a suggestion.
    pub(crate) fn unknown(&self, name: &str) -> String {
        if let Some((_, meanings)) = self.ambiguous.iter().find(|(ambiguous, _)| *ambiguous == name) {
            return format!("`{name}` is ambiguous: {meanings}");
        }
        let none = format!("there is no parameter `{name}`");
        let later = |ours| {
            let instead = self.planned.iter().find(|(later, _)| *later == ours).map(|(_, instead)| instead);
            instead.map(|instead| format!("`{ours}` is not available in this version of dlock: {instead}"))
        };
        if let Some(later) = later(name) {
            return later;
        }
        if let Some(ours) = self.canonical_name(name) {
            let here = format!("{none}: dlock calls it `{ours}`");
            return later(ours).map_or(here, |later| format!("{none}; {later}"));
        }
        let near = names::nearest(name, self.parameters.iter().copied());
        let near = near.map_or_else(String::new, |near| format!(": did you mean `{near}`"));
        format!("{none}{near}; the parameters are {}", list(self.parameters))
    }
}

#[cfg(test)]
mod tests {
    use crate::{distributed_lock, idempotent};

    /// The attributes of this crate.
    const ALL: &[&super::Vocabulary] = &[
        &distributed_lock::VOCABULARY,
        &idempotent::VOCABULARY,
        #[cfg(feature = "scheduled")]
        &crate::scheduled::VOCABULARY,
    ];

    #[test]
    fn a_foreign_name_is_found_in_every_spelling() {
        let names = &distributed_lock::VOCABULARY;

        assert_eq!(names.canonical_name("leaseTime"), Some("lease"));
        assert_eq!(names.canonical_name("lease_time"), Some("lease"));
        assert_eq!(names.canonical_name("lease"), None);
    }

    #[test]
    fn every_foreign_name_leads_to_one_of_ours() {
        for names in ALL {
            let planned = names.planned.iter().map(|(name, _)| *name);
            let ours: Vec<&str> = names.parameters.iter().copied().chain(planned).collect();

            for (foreign, name) in names.aliases {
                assert!(ours.contains(name), "`{foreign}` leads to `{name}` in `{}`", names.attribute);
                assert!(!ours.contains(foreign), "`{foreign}` is a parameter of `{}`", names.attribute);
            }
        }
    }
}
