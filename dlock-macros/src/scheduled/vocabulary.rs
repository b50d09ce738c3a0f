//! The words of `#[scheduled]`.

use crate::vocabulary::{Nouns, Vocabulary};

/// The words of the attribute.
pub(crate) const VOCABULARY: Vocabulary = Vocabulary {
    attribute: "scheduled",
    method: "job",
    has_key: false,
    parameters: PARAMETERS,
    quoted: QUOTED,
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

const PARAMETERS: &str = "name cron tz every slot overlap catch_up spread on_error on_crash lease min_hold max_hold \
    tick guard manager crate";

const QUOTED: &str = "name cron tz every spread lease min_hold max_hold manager";

const ABSENT: &[(&str, &str)] = &[
    ("key", "the `name` identifies the job: write `name = \"nightly-report\"`"),
    ("wait", "a call that does not run its tick returns `None` at once; see `overlap`"),
    (
        "lock_at_most_for",
        "`max_hold = \"10m\"` bounds the run, and `lease` (30 s by default) is how long a crashed run blocks the job",
    ),
    (
        "lock_at_least_for",
        "a tick starts once, so it is not needed; if callers choose the slots, write `min_hold = \"30s\"`",
    ),
    ("namespace", "the job is in the namespace of its manager"),
    ("retry", "a tick whose run has failed is repeated with `on_error = retry(3)`"),
];

const ALIASES: &[(&str, &str)] = &[
    ("cron", "schedule expression crontab"),
    ("tz", "zone timezone"),
    ("every", "interval period fixedrate fixeddelay"),
    ("name", "id jobname jobkey"),
    ("slot", "fireat"),
    ("overlap", "concurrencypolicy disallowconcurrentexecution maxinstances oncontended"),
    ("catch_up", "misfire misfirepolicy startingdeadlineseconds coalesce"),
    ("spread", "jitter"),
    ("on_error", "onfailure"),
    ("retry", "retries backofflimit"),
    ("on_crash", "onlost requestsrecovery"),
    ("lease", "leasetime"),
    ("lock_at_most_for", "lockatmostfor"),
    ("lock_at_least_for", "lockatleastfor"),
    ("guard", "fencing fencingtoken lock"),
    ("max_hold", "activedeadlineseconds"),
    ("tick", "context"),
    ("manager", "client locks"),
];
