//! Says what to write instead of an option that the URL of a manager does not have.
//!
//! Names of other libraries lead to the same words as in the attribute, which `tests/manifest`
//! checks. An error repeats the name only if it is one of the known words or looks like a name: an
//! unencoded `?` in a password makes the rest of the password an option.

use crate::config::suggest::nearest;

/// Returns the problem with the option `name`. `known` are the options of this URL.
pub(super) fn problem(name: &str, known: &[&str]) -> String {
    let plain = plain(name);
    if let Some((_, hint)) = HINTS.iter().find(|(names, _)| contains(names, &plain)) {
        return format!("`{name}` is not an option: {hint}");
    }
    if let Some((_, new)) = RENAMED.iter().find(|(old, _)| *old == name) {
        return format!("`{name}` is now written `{new}`");
    }
    if contains(OF_CALLS, name) {
        return format!("`{name}` {OF_A_CALL}");
    }
    if let Some((meant, _)) = ALIASES.iter().find(|(_, foreign)| contains(foreign, &plain)) {
        let which = if contains(OF_CALLS, meant) { format!("; it {OF_A_CALL}") } else { String::new() };
        return format!("`{name}` is not an option: dlock calls it `{meant}`{which}");
    }
    let lower = name.to_ascii_lowercase();
    let shown = if looks_like_a_name(name) { format!("`{name}` is") } else { "one of them is".to_owned() };
    if let Some(near) = nearest(&lower, known.iter().copied()) {
        return format!("{shown} not known: did you mean `{near}`");
    }
    if let Some(near) = nearest(&lower, OF_CALLS.split(' ')) {
        return format!("{shown} not known: did you mean `{near}`; it {OF_A_CALL}");
    }
    let allowed: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
    format!("{shown} not known; allowed are {}", allowed.join(", "))
}

/// Returns a name in lower case and without separators: `pool_size` for `poolSize`.
fn plain(name: &str) -> String {
    name.chars().filter(|c| !"_-.".contains(*c)).map(|c| c.to_ascii_lowercase()).collect()
}

/// Returns `true` if a list of words, separated by spaces, has `word`.
fn contains(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

fn looks_like_a_name(text: &str) -> bool {
    text.len() <= 24 && text.bytes().all(|b| b.is_ascii_lowercase() || b"_-".contains(&b))
}

const OF_A_CALL: &str = "is an option of a call, not of a manager: write it in `#[distributed_lock(..)]`, or set it on the `Lock`";

/// Parameters of the attribute that no URL has.
const OF_CALLS: &str = "key renew retry wait backoff max_hold min_hold min_hold_on reentrant on_contended on_lost \
    on_unavailable release guard manager name kind";

/// Names that options had before 0.1.0, and the current ones.
const RENAMED: [(&str, &str); 3] = [
    ("hand_off", "handoff_budget"),
    ("poll", "poll_interval"),
    ("share", "yield_to_foreign=on` or `yield_to_foreign=off"),
];

/// Names of other libraries, plain, whose subject dlock does not set with an option.
const HINTS: [(&str, &str); 12] = [
    (
        "timeout timeoutms locktimeoutms",
        "`response_timeout` is how long to wait for one reply, `connect_timeout` for a connection; how long a call waits for \
         its lock is `wait` in `#[distributed_lock(..)]`",
    ),
    (
        "poolsize pool maxpoolsize minpoolsize poolmaxsize poolmin poolmax maxconnections \
         minconnections connections connectionlimit maxactive maxidle minidle maxtotal \
         pooltimeout",
        "there is no pool, since all calls share the manager's connections: leave it out",
    ),
    (
        "password passwd pass pwd auth user username requirepass",
        "write user and password before the host, as in `redis://user:password@host:port/database`, or \
         `redis://:password@host` without a user",
    ),
    ("db database dbnumber dbindex index", "write the database after the host, as in `redis://host:port/2`"),
    (
        "tls ssl usetls usessl sslmode tlsmode secure encryption encrypt",
        "the scheme selects TLS: write `rediss://` instead of `redis://`, and `rediss+cluster://` instead of \
         `redis+cluster://`",
    ),
    (
        "insecure tlsinsecure sslcertreqs skipverify tlsskipverify insecureskipverify \
         rejectunauthorized verify sslcheckhostname",
        "certificates are always checked: for your own authority, write `tls_ca=/path/to/ca.pem`, and for another name in the \
         certificate `tls_name=name`",
    ),
    ("protocol resp protocolversion version", "dlock chooses the version of the protocol: leave it out"),
    (
        "io threads keepalive tcpkeepalive heartbeat heartbeatinterval healthcheckinterval \
         reconnect autoreconnect maxretriesperrequest retryontimeout lazyconnect \
         enableofflinequeue decoderesponses",
        "it is not needed, since the manager drives, checks, and restores its connections by itself: leave it out",
    ),
    (
        "master mastername mymaster service servicename sentinelmaster mastergroup",
        "write the name of the master after the sentinels, as in `redis+sentinel://host,host,host/mymaster`",
    ),
    (
        "sentinel sentinels sentineladdrs",
        "write the sentinels as hosts, as in `redis+sentinel://host,host,host/mymaster`",
    ),
    (
        "cluster nodes hosts host port addrs addresses startupnodes servers endpoints",
        "write servers as hosts: `redis://host:port` for one, `redis+cluster://host,host` for a cluster",
    ),
    (
        "quorum redlock majority",
        "write the independent servers as hosts, as in `redis+quorum://host,host,host`",
    ),
];

/// The names of options, and of parameters of the attribute, each with those of other libraries,
/// plain.
const ALIASES: &[(&str, &str)] = &[
    (
        "lease",
        "ttl lockttl ttlms ttlseconds timetolive expirems expiretime expireseconds \
         expiresafter expireafter validity leaselength defaultttl defaultlease expire expires \
         expiry expiration expirein expiresin px ex leasetime leaseduration leasems \
         leaseseconds locktimeout lockwatchdogtimeout watchdogtimeout duration holdtime",
    ),
    ("namespace", "prefix keyprefix lockprefix ns keyspace"),
    ("owner", "clientname connectionname applicationname appname instance instanceid"),
    (
        "response_timeout",
        "sockettimeout readtimeout writetimeout commandtimeout requesttimeout operationtimeout \
         replytimeout",
    ),
    ("connect_timeout", "connectiontimeout socketconnecttimeout dialtimeout connecttimeoutms"),
    ("poll_interval", "pollingperiod pollinginterval polling sleep"),
    ("replica_acks", "replicas numreplicas minreplicas waitreplicas syncreplicas acks"),
    ("tracking", "clienttracking clientsidecaching notifications"),
    ("publish", "pubsub"),
    ("layout", "encoding format compatibility"),
    ("tls_ca", "ca cacert cafile sslca sslcacerts sslrootcert tlscafile"),
    ("tls_cert", "cert clientcert sslcert sslcertfile tlscertfile"),
    ("tls_key", "clientkey sslkey sslkeyfile tlskeyfile"),
    ("tls_name", "sni servername tlsservername"),
    ("renew", "autorenew autoextend watchdog"),
    ("retry", "retries retrycount maxretries attempts tries"),
    ("wait", "waittime maxwait waittimeout acquiretimeout blockingtimeout"),
    ("backoff", "retrydelay retryinterval delay jitter"),
    ("on_unavailable", "failopen"),
    ("max_hold", "maxduration maxlocktime lockatmostfor defaultlockatmostfor"),
    ("min_hold", "lockatleastfor"),
];

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 4] = ["namespace", "lease", "response_timeout", "tls_ca"];

    #[test]
    fn a_foreign_name_leads_to_an_option_in_every_spelling() {
        for (name, part) in [
            ("ttl", "dlock calls it `lease`"),
            ("TTL", "dlock calls it `lease`"),
            ("leaseTime", "dlock calls it `lease`"),
            ("lock-ttl", "dlock calls it `lease`"),
            ("prefix", "dlock calls it `namespace`"),
            ("keyPrefix", "dlock calls it `namespace`"),
            ("timeout", "`response_timeout` is how long to wait for one reply"),
            ("timeout", "`wait` in `#[distributed_lock(..)]`"),
            ("socket_timeout", "dlock calls it `response_timeout`"),
            ("commandTimeout", "dlock calls it `response_timeout`"),
            ("dial_timeout", "dlock calls it `connect_timeout`"),
            ("pool_size", "there is no pool"),
            ("maxConnections", "there is no pool"),
            ("auth", "`redis://:password@host`"),
            ("username", "`redis://user:password@host:port/database`"),
            ("database", "`redis://host:port/2`"),
            ("ssl", "write `rediss://`"),
            ("sslmode", "write `rediss://`"),
            ("ssl_cert_reqs", "`tls_ca=/path/to/ca.pem`"),
            ("insecure_skip_verify", "`tls_ca=/path/to/ca.pem`"),
            ("protocol", "leave it out"),
            ("keepAlive", "leave it out"),
            ("masterName", "`redis+sentinel://host,host,host/mymaster`"),
            ("nodes", "`redis+cluster://host,host`"),
            ("redlock", "`redis+quorum://host,host,host`"),
            ("minReplicas", "dlock calls it `replica_acks`"),
            ("client_name", "dlock calls it `owner`"),
            ("ssl_ca_certs", "dlock calls it `tls_ca`"),
            ("serverName", "dlock calls it `tls_name`"),
        ] {
            let problem = problem(name, &KNOWN);
            assert!(problem.contains(part), "{name}: {problem}");
        }
    }

    #[test]
    fn a_parameter_of_the_attribute_says_where_it_belongs() {
        for (name, meant) in [
            ("wait", "`wait`"),
            ("retry_count", "`retry`"),
            ("retryDelay", "`backoff`"),
            ("acquire_timeout", "`wait`"),
            ("auto_renew", "`renew`"),
            ("lockAtMostFor", "`max_hold`"),
            ("fail_open", "`on_unavailable`"),
            ("reentrent", "`reentrant`"),
            ("Wait", "`wait`"),
        ] {
            let problem = problem(name, &KNOWN);
            assert!(
                problem.contains(meant) && problem.contains("`#[distributed_lock(..)]`"),
                "{name}: {problem}"
            );
        }
    }

    #[test]
    fn a_misspelled_option_finds_the_nearest() {
        assert!(problem("leas", &KNOWN).contains("did you mean `lease`"));
        assert!(problem("LEASE", &KNOWN).contains("did you mean `lease`"));
        assert!(problem("tls-ca", &KNOWN).contains("did you mean `tls_ca`"));
        assert!(problem("banana", &KNOWN).contains("`banana` is not known; allowed are `namespace`"));
        assert!(!problem("Hunter2", &KNOWN).contains("Hunter2"), "it may be a part of a password");
    }

    #[test]
    fn every_table_is_plain_and_names_what_exists() {
        let options =
            || crate::config::url::OPTIONS.into_iter().map(|(name, _)| name).chain(OF_CALLS.split(' '));
        let lists =
            || ALIASES.iter().map(|(_, foreign)| *foreign).chain(HINTS.iter().map(|(names, _)| *names));

        assert!(ALIASES.iter().all(|(meant, _)| options().any(|option| option == *meant)));
        for name in lists().flat_map(|list| list.split(' ')) {
            assert_eq!(plain(name), name);
            let uses = lists().flat_map(|list| list.split(' ')).filter(|other| *other == name).count();
            assert_eq!(uses, 1, "{name} has two meanings");
        }
    }
}
