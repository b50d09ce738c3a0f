//! The words of `#[scheduled]`.

use crate::vocabulary::{Nouns, Vocabulary};

/// The words of the attribute.
pub(crate) const VOCABULARY: Vocabulary = Vocabulary {
    attribute: "scheduled",
    method: "job",
    has_key: false,
    parameters: PARAMETERS,
    absent: ABSENT,
    aliases: ALIASES,
    ambiguous: &[(
        "timeout",
        "`max_hold` is how long the body may run, `lease` how long a crashed run counts as running",
    )],
    nouns: Nouns {
        entry: "job",
        call: "a scheduled job",
        acts: "schedules a function",
        purpose: "to run at each tick",
        apply: "schedule",
        applied: "scheduled",
        subject: "what is done",
        example: "report",
        example_key: "nightly-report",
        without: "call it without the attribute",
    },
};

const PARAMETERS: &[&str] = &[
    "name", "cron", "tz", "every", "slot", "overlap", "catch_up", "spread", "on_error", "on_crash", "lease",
    "min_hold", "max_hold", "tick", "guard", "manager", "crate",
];

const ABSENT: &[(&str, &str)] = &[
    ("key", "the `name` identifies the job: write `name = \"nightly-report\"`"),
    ("wait", "a call that does not run its tick returns `None` at once; see `overlap`"),
    ("namespace", "the job is in the namespace of its manager"),
];

const ALIASES: &[(&str, &str)] = &[
    ("schedule", "cron"),
    ("expression", "cron"),
    ("crontab", "cron"),
    ("zone", "tz"),
    ("timezone", "tz"),
    ("interval", "every"),
    ("period", "every"),
    ("fixedrate", "every"),
    ("fixeddelay", "every"),
    ("id", "name"),
    ("jobname", "name"),
    ("jobkey", "name"),
    ("fireat", "slot"),
    ("concurrencypolicy", "overlap"),
    ("disallowconcurrentexecution", "overlap"),
    ("maxinstances", "overlap"),
    ("oncontended", "overlap"),
    ("misfire", "catch_up"),
    ("misfirepolicy", "catch_up"),
    ("startingdeadlineseconds", "catch_up"),
    ("coalesce", "catch_up"),
    ("jitter", "spread"),
    ("retries", "on_error"),
    ("retry", "on_error"),
    ("backofflimit", "on_error"),
    ("onfailure", "on_error"),
    ("onlost", "on_crash"),
    ("requestsrecovery", "on_crash"),
    ("lockatmostfor", "lease"),
    ("leasetime", "lease"),
    ("lockatleastfor", "min_hold"),
    ("fencing", "guard"),
    ("fencingtoken", "guard"),
    ("lock", "guard"),
    ("activedeadlineseconds", "max_hold"),
    ("context", "tick"),
    ("client", "manager"),
    ("locks", "manager"),
];
