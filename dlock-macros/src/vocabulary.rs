//! The words of one attribute: its parameters, and the nouns of its messages.

use crate::arguments::names::{self, plain};
use crate::report::list;

/// The words of one attribute.
pub(crate) struct Vocabulary {
    /// The attribute as it is written, without `#[..]`.
    pub(crate) attribute: &'static str,
    /// The method of the manager that does the same without the attribute.
    pub(crate) method: &'static str,
    /// Whether the attribute must have a `key`.
    pub(crate) has_key: bool,
    /// The parameters of this version, separated by spaces.
    pub(crate) parameters: &'static str,
    /// The parameters whose values have quotes, separated by spaces.
    pub(crate) quoted: &'static str,
    /// Names of parameters that it does not have, and what to write instead.
    pub(crate) absent: &'static [(&'static str, &'static str)],
    /// Names in dlock, each with those in other libraries: in lower case, without underscores.
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
    /// The start of the key of an example.
    pub(crate) example: &'static str,
    /// A whole key as an example.
    pub(crate) example_key: &'static str,
    /// "*lock without the attribute*: `manager.lock(key)`"
    pub(crate) without: &'static str,
}

impl Vocabulary {
    /// Returns `true` if the attribute has this parameter.
    pub(crate) fn has_parameter(&self, name: &str) -> bool {
        contains(self.parameters, name)
    }

    /// Returns `true` if the values of the parameter have quotes.
    pub(crate) fn has_quotes(&self, name: &str) -> bool {
        contains(self.quoted, name)
    }

    /// Returns the name in dlock of another library's parameter.
    pub(crate) fn canonical_name(&self, foreign: &str) -> Option<&'static str> {
        let plain = plain(foreign);
        self.aliases.iter().find(|(_, foreign)| contains(foreign, &plain)).map(|(ours, _)| *ours)
    }

    /// Returns what to write for a wish that no single parameter grants.
    fn hint(&self, name: &str) -> Option<&'static str> {
        let plain = plain(name);
        let mut hints = HINTS.iter().filter(|(_, by, _)| by.is_none_or(|by| self.has_parameter(by)));
        hints.find(|(names, ..)| contains(names, &plain)).map(|(.., hint)| *hint)
    }

    /// Returns the parameter that was probably meant by an unknown name.
    #[cfg(feature = "scheduled")]
    pub(crate) fn meant(&self, name: &str) -> Option<&'static str> {
        self.canonical_name(name).or_else(|| names::nearest(name, self.parameters.split(' ')))
    }

    /// Returns the error for an unknown parameter, with a suggestion.
    pub(crate) fn unknown(&self, name: &str) -> String {
        if let Some((_, meanings)) = self.ambiguous.iter().find(|(ambiguous, _)| *ambiguous == name) {
            return format!("`{name}` is ambiguous: {meanings}");
        }
        let none = format!("there is no parameter `{name}`");
        let canonical = self.canonical_name(name);
        let wanted = canonical.unwrap_or(name);
        if let Some((_, instead)) = self.absent.iter().find(|(absent, _)| *absent == wanted) {
            return format!("{none}: {instead}");
        }
        if let Some(ours) = canonical {
            return format!("{none}: dlock calls it `{ours}`");
        }
        if let Some(hint) = self.hint(name) {
            return format!("{none}: {hint}");
        }
        let near = names::nearest(name, self.parameters.split(' '));
        let near = near.map_or_else(String::new, |near| format!(": did you mean `{near}`"));
        format!("{none}{near}; the parameters are {}", list(self.parameters.split(' ')))
    }
}

/// Returns `true` if a list of words, separated by spaces, has `word`.
pub(crate) fn contains(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

/// Plain names, the parameter of the attribute that a hint needs, and the hint.
const HINTS: &[(&str, Option<&str>, &str)] = &[
    (
        "fencing fence fenced fencingtoken fencetoken withfencing usefencing",
        Some("guard"),
        "write `guard = lock`, and in the body `lock.fencing_token().await?`",
    ),
    (
        "owner clientname ownername holder",
        Some("guard"),
        "the owner is that of the manager: write `?owner=web-1` in its URL",
    ),
    (
        "blocking block waitforever forever",
        Some("wait"),
        "a call tries once unless it has `wait` or `retry`: write `wait = \"5s\"`",
    ),
    (
        "nonblocking nowait failfast tryonly trylock once",
        Some("on_contended"),
        "a call without `wait` and `retry` tries once: leave it out, or write `on_contended = skip` to skip the body",
    ),
    (
        "fair fairness fifo queue ordered priority",
        Some("wait"),
        "waiting calls of a process are served in their order, and a process that waits is queued: write `wait = \"5s\"`",
    ),
    (
        "url uri redisurl host server servers nodes address addr endpoint connection \
         connectionstring dsn pool port db database password quorum redlock majority sentinel \
         cluster tls",
        Some("manager"),
        "the servers are in the URL of `dlock_runtime::init(\"redis://host:port\").await`, which is called once at the start",
    ),
    (
        "layout publish responsetimeout connecttimeout connect fencettl tlsca tlscert tlskey \
         tlsname grantlease handoffbudget pollinterval yieldtoforeign replicaacks tracking",
        Some("manager"),
        "it is an option of the manager: write it in the URL of `init`, or set it on `LockManager::builder`",
    ),
    (
        "args arguments params vars variables keyargs by fields",
        Some("key"),
        "the key names the arguments: write `key = \"order:<user_id>\"`",
    ),
    (
        "error err errortype exception throws message orelse default",
        Some("on_contended"),
        "the function's error type carries lock errors by `From<dlock_runtime::Error>`; for contention alone, write `on_contended = return(value)`",
    ),
    (
        "log logging loglevel level trace tracing metrics span debug",
        Some("name"),
        "every call has a span and events: `name = \"place_order\"` sets the function's name in them",
    ),
    (
        "hash hashed escape escaped raw optional",
        Some("key"),
        "write it in the placeholder: `<user_id|hash>`, `<user_id|opt>`, or `<user_id|raw>`",
    ),
    (
        "enabled disabled condition when unless onlyif",
        Some("on_contended"),
        "an annotated function always acquires its lock: for a condition, call `manager.lock(key).run(..)` under an `if`",
    ),
    ("send spawn boxed sync", None, "the future is `Send` if the one of the plain function is: leave it out"),
];

#[cfg(test)]
pub(crate) mod tests {
    use crate::{distributed_lock, idempotent};

    /// The attributes of this crate.
    pub(crate) const ALL: &[&super::Vocabulary] = &[
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
    fn a_wish_without_a_parameter_gets_a_hint() {
        let names = &distributed_lock::VOCABULARY;

        for (name, hint) in [
            ("fencing", "`guard = lock`"),
            ("fencingToken", "`guard = lock`"),
            ("blocking", "`wait = \"5s\"`"),
            ("fail_fast", "`on_contended = skip`"),
            ("url", "`dlock_runtime::init("),
            ("poll_interval", "`LockManager::builder`"),
            ("args", "`key = \"order:<user_id>\"`"),
            ("error", "`From<dlock_runtime::Error>`"),
            ("logging", "`name = \"place_order\"`"),
            ("hash", "`<user_id|hash>`"),
            ("condition", "`manager.lock(key).run(..)`"),
        ] {
            assert!(names.unknown(name).contains(hint), "{name}: {}", names.unknown(name));
        }
    }

    #[test]
    fn every_hint_and_alias_is_given_for_its_names() {
        let names = &distributed_lock::VOCABULARY;
        for (wishes, _, hint) in super::HINTS {
            for wish in wishes.split(' ') {
                assert_eq!(names.unknown(wish), format!("there is no parameter `{wish}`: {hint}"));
            }
        }
        for names in ALL {
            for (ours, foreign) in names.aliases.iter().filter(|(ours, _)| names.has_parameter(ours)) {
                for foreign in foreign.split(' ') {
                    let told = names.unknown(foreign);
                    assert_eq!(told, format!("there is no parameter `{foreign}`: dlock calls it `{ours}`"));
                }
            }
            for (absent, instead) in names.absent {
                assert_eq!(names.unknown(absent), format!("there is no parameter `{absent}`: {instead}"));
            }
        }
    }

    #[test]
    fn a_hint_of_a_parameter_needs_the_parameter() {
        let record = &idempotent::VOCABULARY;

        assert!(record.unknown("fencing").starts_with("there is no parameter `fencing`; the parameters are"));
        assert!(record.unknown("url").contains(": the servers are in the URL of"));
        assert!(record.unknown("boxed").contains(": the future is `Send` if"));
    }

    #[test]
    fn every_hint_has_plain_names_that_nothing_else_has() {
        // An alias of another attribute may precede a hint, since it is more specific.
        let words = &distributed_lock::VOCABULARY;
        for (names, by, _) in super::HINTS {
            assert!(by.is_none_or(|by| words.has_parameter(by)), "{by:?} is no parameter");
            for name in names.split(' ') {
                assert_eq!(super::plain(name), name);
                let uses = super::HINTS.iter().filter(|(names, ..)| super::contains(names, name)).count();
                assert_eq!(uses, 1, "`{name}` has several hints");
                assert!(words.canonical_name(name).is_none(), "`{name}` is an alias and has a hint");
                assert!(!words.has_parameter(name), "`{name}` is a parameter and has a hint");
            }
        }
    }

    #[test]
    fn every_foreign_name_leads_to_one_of_ours() {
        for names in ALL {
            let absent = names.absent.iter().map(|(name, _)| *name);
            let ours: Vec<&str> = names.parameters.split(' ').chain(absent).collect();

            for (name, foreign) in names.aliases {
                assert!(ours.contains(name), "`{foreign}` leads to `{name}` in `{}`", names.attribute);
                for foreign in foreign.split(' ') {
                    assert!(!ours.contains(&foreign), "`{foreign}` is a parameter of `{}`", names.attribute);
                    assert_eq!(super::plain(foreign), foreign);
                }
            }
        }
    }
}
