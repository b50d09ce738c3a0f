//! Checks of whether a server keeps its data: eviction, memory, persistence. See also
//! `replication`.

use crate::doctor::facts::{Deployment, Info, ServerReplies, Terms};
use crate::doctor::report::Finding;
use crate::doctor::report::Severity::{Danger, Note, Ok as Fine, Warning};

/// Checks the eviction policy: every lock has a time to live, and only `noeviction` keeps such
/// keys.
pub(super) fn eviction(info: &Info) -> Finding {
    const CHECK: &str = "eviction";
    const ADVICE: &str = "set `maxmemory-policy noeviction`";
    let Some(policy) = info.get("maxmemory_policy") else {
        let by_hand = "`CONFIG GET maxmemory-policy`: it must be `noeviction`";
        return Finding::unread(CHECK, "the eviction policy", "`INFO` does not name it", by_hand);
    };
    let found = format!("`maxmemory-policy` is `{policy}`");
    let limit = info.number("maxmemory").unwrap_or(0);
    if policy == "noeviction" {
        return Finding::new(Fine, CHECK, found, "no lock is evicted");
    }
    if limit == 0 {
        let found = format!("{found}, and `maxmemory` is not set");
        let meaning = "nothing is evicted while `maxmemory` is not set; once it is set, locks can be";
        return Finding::new(Note, CHECK, found, meaning).advice(ADVICE);
    }
    let evicted = match info.number("evicted_keys") {
        Some(count) if count > 0 => format!("; {count} keys have been evicted so far"),
        _ => String::new(),
    };
    let found = format!("{found}, and `maxmemory` is {}{evicted}", megabytes(limit));
    let meaning = "if its memory is full, held locks are evicted, and other clients acquire them; records of idempotent calls are \
         evicted, and the calls run twice";
    Finding::new(Danger, CHECK, found, meaning).advice(ADVICE)
}

/// Checks the memory: a full server refuses new locks, and still renews existing ones, unless its
/// policy is to evict keys instead.
pub(super) fn memory(info: &Info) -> Finding {
    const CHECK: &str = "memory";
    let used = info.number("used_memory").unwrap_or(0);
    let Some(limit) = info.number("maxmemory").filter(|limit| *limit > 0) else {
        let found = format!("{} are used, and `maxmemory` is not set", megabytes(used));
        let meaning = "it grows until the machine's memory is full; then the system may kill it, and its locks are lost";
        let advice = "set `maxmemory` to what the machine can spare, with `maxmemory-policy noeviction`";
        return Finding::new(Note, CHECK, found, meaning).advice(advice);
    };
    let found = format!("{} of {} are used", megabytes(used), megabytes(limit));
    let advice = "raise `maxmemory`, or use a separate server for locks";
    let evicts = info.get("maxmemory_policy").is_some_and(|policy| policy != "noeviction");
    let when_full = if evicts { "held locks can be evicted" } else { "new locks are refused" };
    if used >= limit {
        return Finding::new(Danger, CHECK, found, when_full).advice(advice);
    }
    if used >= limit - limit / 10 {
        let meaning = format!("{when_full} once it is full");
        return Finding::new(Warning, CHECK, found, meaning).advice(advice);
    }
    Finding::new(Fine, CHECK, found, "there is memory for new locks")
}

/// Checks what a restart loses.
pub(super) fn persistence(info: &Info, replies: &ServerReplies, terms: &Terms) -> Finding {
    const CHECK: &str = "persistence";
    const ADVICE: &str = "set `appendonly yes`, `appendfsync always`, and `no-appendfsync-on-rewrite no` if no restart may lose a lock";
    if info.number("aof_enabled") == Some(1) {
        let (often, on_rewrite) = match (
            replies.setting("appendfsync"),
            replies.setting("no-appendfsync-on-rewrite"),
        ) {
            (Ok(often), Ok(on_rewrite)) => (often, on_rewrite),
            (Err(why), _) | (_, Err(why)) => {
                let what = "`appendonly` is `yes`; how often it is flushed to disk";
                let by_hand = "`CONFIG GET appendfsync` and `CONFIG GET no-appendfsync-on-rewrite`: only `always` and `no` lose nothing";
                return Finding::unread(CHECK, what, &why, by_hand);
            }
        };
        let (found, lost) = match (often, on_rewrite) {
            ("always", "no") => {
                let found = "`appendonly yes` with `appendfsync always`";
                return Finding::new(Fine, CHECK, found, "a restart keeps every granted lock");
            }
            ("always" | "everysec", "yes") => {
                ("`no-appendfsync-on-rewrite yes`", "since the start of a snapshot or a rewrite")
            }
            ("everysec", _) => ("", "of the last second"),
            _ => ("", "of the last half minute"),
        };
        let with = if found.is_empty() { "" } else { " and " };
        let found = format!("`appendonly yes` with `appendfsync {often}`{with}{found}");
        let meaning = format!(
            "a restart keeps locks; a crash of the machine may lose those {lost}, and other clients may acquire them while they \
             are held"
        );
        return Finding::new(Note, CHECK, found, meaning).advice(ADVICE);
    }
    if terms.topology == Deployment::Quorum {
        let meaning = "a restart loses its locks, which the other servers keep: it votes again when the longest lease has expired";
        return Finding::new(Fine, CHECK, "`appendonly` is not set", meaning);
    }
    let (found, meaning) = if let Ok("") = replies.setting("save") {
        ("neither `appendonly` nor `save` is set", "a restart loses every lock")
    } else {
        let meaning = "a restart restores the locks of the last snapshot, and loses later ones";
        ("`appendonly` is not set", meaning)
    };
    let meaning = format!("{meaning}; their holders detect that at their next renewal");
    Finding::new(Warning, CHECK, found, meaning).advice(ADVICE)
}

/// Checks the disk: a server that cannot write to it refuses writes, unless its settings say that
/// it does not need the disk.
pub(super) fn failing_disk(info: &Info, replies: &ServerReplies) -> Option<Finding> {
    const CHECK: &str = "persistence";
    const AOF: &str = "aof_last_write_status";
    const RDB: &str = "rdb_last_bgsave_status";
    const REFUSES: &str = "it refuses new locks and renewals while it cannot write to its disk";
    let has_failed = |field: &str| info.get(field).is_some_and(|status| status != "ok");
    let is = |setting, value| replies.setting(setting) == Ok(value);
    let stops = !is("save", "") && !is("stop-writes-on-bgsave-error", "no");
    let (severity, failed, meaning) = if has_failed(AOF) && info.number("aof_enabled") != Some(0) {
        (Danger, AOF, REFUSES)
    } else if has_failed(RDB) && stops {
        (Danger, RDB, REFUSES)
    } else if has_failed(RDB) {
        (Warning, RDB, "snapshots fail: a restart without `appendonly` loses locks")
    } else {
        return None;
    };
    let finding = Finding::new(severity, CHECK, format!("`{failed}` is not `ok`"), meaning);
    Some(finding.advice("read the server's log: the disk may be full, or the directory read-only"))
}

fn megabytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) / (1024 * 1024);
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::facts::tests::{assert_is, info, replies, terms};

    #[test]
    fn a_policy_that_evicts_is_dangerous_once_there_is_a_limit() {
        assert_is(&eviction(&info("maxmemory:9 maxmemory_policy:noeviction")), Fine, "noeviction");
        assert_is(&eviction(&info("maxmemory:0 maxmemory_policy:volatile-ttl")), Note, "not set");
        let evicting = info("maxmemory:2097152 maxmemory_policy:allkeys-lru evicted_keys:7");
        assert_is(&eviction(&evicting), Danger, "`maxmemory` is 2.0 MB; 7 keys");
        assert_is(&eviction(&info("maxmemory:0")), Note, "by hand");
    }

    #[test]
    fn full_memory_is_reported() {
        assert_is(&memory(&info("used_memory:5 maxmemory:0")), Note, "not set");
        assert_is(&memory(&info("used_memory:89 maxmemory:100")), Fine, "are used");
        assert_is(&memory(&info("used_memory:90 maxmemory:100")), Warning, "once it is full");
        assert_is(&memory(&info("used_memory:100 maxmemory:100")), Danger, "new locks are refused");
        let evicting = info("used_memory:90 maxmemory:100 maxmemory_policy:volatile-ttl");
        assert_is(&memory(&evicting), Warning, "held locks can be evicted once it is full");
    }

    #[test]
    fn a_restart_loses_what_is_not_on_the_disk() {
        let set = |name, value: &str| {
            let mut replies = replies();
            replies.settings = vec![(name, Ok(value.to_owned()))];
            replies
        };
        let flushed = |often, on_rewrite: &str| {
            let mut replies = set("appendfsync", often);
            replies.settings.push(("no-appendfsync-on-rewrite", Ok(on_rewrite.to_owned())));
            replies
        };
        let (aof, none) = (info("aof_enabled:1"), info("aof_enabled:0"));

        for (often, on_rewrite, severity, said) in [
            ("always", "no", Fine, "always"),
            ("always", "yes", Note, "`appendfsync always` and `no-appendfsync-on-rewrite yes`"),
            ("everysec", "no", Note, "of the last second"),
            ("everysec", "yes", Note, "since the start of a snapshot"),
            ("no", "no", Note, "half minute"),
            ("no", "yes", Note, "half minute"),
        ] {
            assert_is(&persistence(&aof, &flushed(often, on_rewrite), &terms()), severity, said);
        }
        for unread in [replies(), set("appendfsync", "always"), set("no-appendfsync-on-rewrite", "no")] {
            assert_is(&persistence(&aof, &unread, &terms()), Note, "by hand: `CONFIG GET appendfsync`");
        }
        assert_is(&persistence(&none, &set("save", ""), &terms()), Warning, "loses every lock");
        assert_is(&persistence(&none, &set("save", "3600 1"), &terms()), Warning, "last snapshot");
        let voter = Terms { topology: Deployment::Quorum, ..terms() };
        assert_is(&persistence(&none, &set("save", ""), &voter), Fine, "not set");
    }

    #[test]
    fn a_disk_that_fails_is_dangerous_if_the_server_needs_it() {
        let with = |settings: &[(&'static str, &str)]| {
            let settings = settings.iter().map(|(name, value)| (*name, Ok((*value).to_owned())));
            ServerReplies { settings: settings.collect(), ..replies() }
        };
        let (aof, rdb) = ("aof_last_write_status:err", "rdb_last_bgsave_status:err");
        let (save, stop) = ("save", "stop-writes-on-bgsave-error");
        for (text, settings, severity) in [
            ("aof_last_write_status:ok rdb_last_bgsave_status:ok", &[][..], None),
            (&format!("aof_enabled:1 {aof}"), &[], Some(Danger)),
            (&format!("aof_enabled:0 {aof}"), &[], None),
            (rdb, &[], Some(Danger)),
            (rdb, &[(save, "3600 1"), (stop, "yes")], Some(Danger)),
            (rdb, &[(save, ""), (stop, "yes")], Some(Warning)),
            (rdb, &[(save, "3600 1"), (stop, "no")], Some(Warning)),
        ] {
            let found = failing_disk(&info(text), &with(settings));
            assert_eq!(found.map(|finding| finding.severity()), severity, "{text} {settings:?}");
        }
    }
}
