//! The words of `#[idempotent]`.

use crate::vocabulary::{Nouns, Vocabulary};

/// The words of the attribute.
pub(crate) const VOCABULARY: Vocabulary = Vocabulary {
    attribute: "idempotent",
    method: "idempotent",
    has_key: true,
    parameters: PARAMETERS,
    quoted: QUOTED,
    absent: ABSENT,
    aliases: ALIASES,
    ambiguous: &[(
        "timeout",
        "`on_duplicate = wait(\"10s\")` is how long a duplicate waits, `lease` how long a crashed call counts as running, `ttl` how long its result is kept",
    )],
    nouns: Nouns {
        entry: "record",
        call: "an idempotent call",
        acts: "makes a function idempotent",
        purpose: "to run once per key",
        apply: "annotate",
        applied: "idempotent",
        subject: "what is done once",
        example: "charge",
        example_key: "charge:<tenant>:<request_id>",
        without: "call it without the attribute",
    },
};

const PARAMETERS: &str = "key scope ttl fingerprint on_duplicate on_crash on_error on_unavailable on_missing record \
    detached lease version result_type manager namespace name crate";

const QUOTED: &str = "key ttl lease result_type manager namespace name";

const ABSENT: &[(&str, &str)] = &[
    ("wait", "write `on_duplicate = wait(\"10s\")`, which returns the stored result"),
    ("retry", "write `on_duplicate = wait(\"10s\")`, which returns the stored result"),
    ("max_response", "a result of more than 64 KiB is not stored: return an identifier instead"),
];

const ALIASES: &[(&str, &str)] = &[
    (
        "ttl",
        "expire expires expiry expiration expiresin expiresafter expiresafterseconds retention \
         window cachettl keepfor",
    ),
    ("fingerprint", "payload hash payloadvalidation payloadvalidationjmespath datakeywordargument compare"),
    ("key", "idempotencykey eventkeyjmespath id requestid resource"),
    ("scope", "tenant user owner"),
    ("on_duplicate", "onconflict oncontended oninprogress onrunning"),
    ("on_crash", "onlost onabandoned ontimeout recovery"),
    ("on_error", "onfailure onerr cacheerrors"),
    ("on_unavailable", "failopen"),
    ("on_missing", "raiseonnoidempotencykey required onempty"),
    ("record", "guard context ctx steps"),
    ("detached", "spawn background"),
    ("lease", "leasetime inprogressexpiry lockduration"),
    ("version", "schema"),
    ("result_type", "type typename returntype"),
    ("manager", "client redis store persistencestore"),
    ("namespace", "prefix keyprefix"),
    ("name", "label function"),
];
