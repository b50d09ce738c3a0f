//! The names of the parameters, those of other libraries, and suggestions for misspelled ones.

/// The parameters of this version.
pub(crate) const KNOWN: &[&str] = &[
    "key",
    "lease",
    "renew",
    "retry",
    "wait",
    "backoff",
    "max_hold",
    "min_hold",
    "reentrant",
    "on_contended",
    "on_lost",
    "on_unavailable",
    "release",
    "guard",
    "manager",
    "namespace",
    "name",
    "kind",
    "crate",
];

/// Known parameters that this version does not have, with alternatives.
pub(crate) const PLANNED: &[(&str, &str)] = &[
    ("keys", "stack one attribute per lock, each with its `key = ..`, in the same order everywhere"),
    ("permits", "a lock has one holder at a time: write only `key = ..`"),
];

/// Names in other libraries, in lower case and without underscores, and the names in dlock.
const ALIASES: &[(&str, &str)] = &[
    ("ttl", "lease"),
    ("expire", "lease"),
    ("expires", "lease"),
    ("expiry", "lease"),
    ("expiration", "lease"),
    ("expirein", "lease"),
    ("expiresin", "lease"),
    ("px", "lease"),
    ("ex", "lease"),
    ("leasetime", "lease"),
    ("leaseduration", "lease"),
    ("locktimeout", "lease"),
    ("duration", "lease"),
    ("holdtime", "lease"),
    ("lockatmostfor", "lease"),
    ("autorenew", "renew"),
    ("autoextend", "renew"),
    ("keepalive", "renew"),
    ("heartbeat", "renew"),
    ("watchdog", "renew"),
    ("retries", "retry"),
    ("retrycount", "retry"),
    ("maxretries", "retry"),
    ("attempts", "retry"),
    ("tries", "retry"),
    ("waittime", "wait"),
    ("maxwait", "wait"),
    ("acquiretimeout", "wait"),
    ("blockingtimeout", "wait"),
    ("retrydelay", "backoff"),
    ("retryinterval", "backoff"),
    ("delay", "backoff"),
    ("jitter", "backoff"),
    ("onfail", "on_contended"),
    ("onfailure", "on_contended"),
    ("onconflict", "on_contended"),
    ("lockfailurestrategy", "on_contended"),
    ("fallback", "on_contended"),
    ("skip", "on_contended"),
    ("resource", "key"),
    ("lockkey", "key"),
    ("id", "key"),
    ("lock", "guard"),
    ("token", "guard"),
    ("client", "manager"),
    ("redis", "manager"),
    ("lockatleastfor", "min_hold"),
    ("atleast", "min_hold"),
    ("minduration", "min_hold"),
    ("locktype", "kind"),
    ("prefix", "namespace"),
    ("keyprefix", "namespace"),
    ("maxduration", "max_hold"),
    ("maxlocktime", "max_hold"),
    ("reentry", "reentrant"),
    ("recursive", "reentrant"),
    ("onlockfailure", "on_contended"),
    ("onloss", "on_lost"),
    ("onerror", "on_unavailable"),
    ("failopen", "on_unavailable"),
    ("unlock", "release"),
    ("asyncunlock", "release"),
    ("asyncrelease", "release"),
    ("onrelease", "release"),
    ("label", "name"),
    ("locktimeouthandling", "on_contended"),
    ("leasems", "lease"),
    ("leaseseconds", "lease"),
    ("concurrency", "permits"),
];

/// Returns the name in dlock of another library's parameter.
pub(crate) fn canonical_name(foreign: &str) -> Option<&'static str> {
    let plain: String = foreign.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect();
    ALIASES.iter().find(|(name, _)| *name == plain).map(|(_, ours)| *ours)
}

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
        assert_eq!(nearest("retrys", KNOWN.iter().copied()), Some("retry"));
        assert_eq!(nearest("leese", KNOWN.iter().copied()), Some("lease"));
        assert_eq!(nearest("userid", ["cart", "user_id"]), Some("user_id"));
        assert_eq!(nearest("banana", KNOWN.iter().copied()), None);
    }

    #[test]
    fn a_foreign_name_is_found_in_every_spelling() {
        assert_eq!(canonical_name("leaseTime"), Some("lease"));
        assert_eq!(canonical_name("lease_time"), Some("lease"));
        assert_eq!(canonical_name("lease"), None);
    }

    #[test]
    fn every_foreign_name_leads_to_one_of_ours() {
        let ours: Vec<&str> = KNOWN.iter().copied().chain(PLANNED.iter().map(|(name, _)| *name)).collect();

        assert!(ALIASES.iter().all(|(_, name)| ours.contains(name)));
        assert!(ALIASES.iter().all(|(name, _)| !ours.contains(name)));
    }
}
