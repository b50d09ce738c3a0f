//! The names of the parameters: ours, those of other libraries, and the nearest to a misspelt one.
//!
//! Not here: what the parameters mean (`args`).

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

/// Parameters that are known by name and that this version does not have, with what can be done instead.
pub(crate) const LATER: &[(&str, &str)] = &[
    (
        "keys",
        "write the attribute once for each lock, one above the other, each with its `key = ..`, in one order everywhere",
    ),
    ("permits", "a lock lets one caller in at a time: write `key = ..` alone"),
];

/// What other libraries call it, without case and underscores, and what it is called here.
const FOREIGN: &[(&str, &str)] = &[
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

/// Returns what a name of another library is called here.
pub(crate) fn here(foreign: &str) -> Option<&'static str> {
    let plain: String = foreign.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect();
    FOREIGN.iter().find(|(name, _)| *name == plain).map(|(_, ours)| *ours)
}

/// Returns the candidate that `name` was probably meant to be: at most a third of its letters, and at least one, may differ.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The Levenshtein distance: how many letters to insert, delete or replace. Case and underscores are free.
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
        assert_eq!(here("leaseTime"), Some("lease"));
        assert_eq!(here("lease_time"), Some("lease"));
        assert_eq!(here("lease"), None);
    }

    #[test]
    fn every_foreign_name_leads_to_one_of_ours() {
        let ours: Vec<&str> = KNOWN.iter().copied().chain(LATER.iter().map(|(name, _)| *name)).collect();

        assert!(FOREIGN.iter().all(|(_, name)| ours.contains(name)));
        assert!(FOREIGN.iter().all(|(name, _)| !ours.contains(name)));
    }
}
