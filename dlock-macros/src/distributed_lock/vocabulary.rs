//! The words of `#[distributed_lock]`.

use crate::vocabulary::{Nouns, Vocabulary};

/// The words of the attribute.
pub(crate) const VOCABULARY: Vocabulary = Vocabulary {
    attribute: "distributed_lock",
    method: "lock",
    has_key: true,
    parameters: PARAMETERS,
    quoted: QUOTED,
    absent: ABSENT,
    aliases: ALIASES,
    ambiguous: &[(
        "timeout",
        "`wait` is how long to wait for the lock, `lease` how long it outlives a crash",
    )],
    nouns: Nouns {
        entry: "lock",
        call: "a lock",
        acts: "locks a function",
        purpose: "to run under a lock",
        apply: "lock",
        applied: "locked",
        subject: "what is locked",
        example: "order",
        example_key: "order:<user_id>",
        without: "lock without the attribute",
    },
};

const PARAMETERS: &str = "key lease renew retry wait backoff max_hold min_hold min_hold_on reentrant on_contended \
    on_lost on_unavailable release guard manager namespace name kind crate";

const QUOTED: &str = "key lease wait backoff max_hold min_hold manager namespace name";

const ABSENT: &[(&str, &str)] = &[
    ("keys", "stack one attribute per lock, each with its `key = ..`, in the same order everywhere"),
    ("permits", "a lock has one holder at a time: write only `key = ..`"),
    (
        "read",
        "readers exclude each other like writers, since a lock has one holder at a time: write only `key = ..`",
    ),
    ("write", "every lock excludes all other calls: write only `key = ..`"),
];

const ALIASES: &[(&str, &str)] = &[
    (
        "lease",
        "ttl expire expires expiry expiration expirein expiresin px ex leasetime leaseduration \
         locktimeout duration holdtime leasems leaseseconds ttlms ttlseconds timetolive \
         expirems expiretime expireseconds expiresafter expireafter validity leaselength",
    ),
    (
        "max_hold",
        "lockatmostfor maxduration maxlocktime maxholdtime holdatmost timelimit maxtime \
         deadline",
    ),
    (
        "renew",
        "autorenew autoextend keepalive heartbeat watchdog renewal autorenewal refresh \
         autorefresh extend",
    ),
    (
        "retry",
        "retries retrycount maxretries attempts tries retrytimes retrylimit maxattempts \
         maxtries numretries",
    ),
    (
        "wait",
        "waittime maxwait acquiretimeout blockingtimeout waitfor waitms waittimeout \
         blocktimeout maxwaittime acquirewithin",
    ),
    (
        "backoff",
        "retrydelay retryinterval delay jitter retrybackoff retrywait retryafter sleep \
         interval pollingperiod",
    ),
    (
        "on_contended",
        "onfail onfailure onconflict lockfailurestrategy fallback skip onlockfailure \
         locktimeouthandling oncontention ifcontended onlocked iflocked onbusy onheld \
         ontimeout otherwise",
    ),
    (
        "key",
        "resource lockkey id lockname lockid keyname keytemplate keyexpression resourcename \
         template",
    ),
    ("guard", "lock token lockguard guardname handle bind"),
    ("manager", "client redis lockmanager locks locker backend store provider lockprovider"),
    ("min_hold", "lockatleastfor atleast minduration minholdtime holdatleast cooldown debounce throttle"),
    ("kind", "locktype type mode"),
    ("namespace", "prefix keyprefix ns keyspace lockprefix"),
    ("reentrant", "reentry recursive reentrancy nested allowreentry"),
    ("on_lost", "onloss onexpired onlocklost onlostlock iflost"),
    (
        "on_unavailable",
        "onerror failopen onoutage ondown onunreachable ifunavailable onredisdown ignoreerrors",
    ),
    ("release", "unlock asyncunlock asyncrelease onrelease releasemode backgroundrelease autorelease"),
    ("name", "label spanname functionname metricname"),
    ("permits", "concurrency maxconcurrency maxconcurrent semaphore slots limit holders maxholders"),
    ("read", "shared readonly readlock rwlock"),
    ("write", "exclusive writelock"),
    ("keys", "multi multilock resources"),
];
