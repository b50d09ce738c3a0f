//! Checks of how well a server can be used by this user: clock, latency, commands, messages.

use std::cmp::Reverse;
use std::time::Duration;

use crate::doctor::facts::{
    Deployment, Info, Need, Probe, RecordNeed, Refusal, RefusalCause, ServerReplies, Terms,
};
use crate::doctor::report::Finding;
use crate::doctor::report::Severity::{Danger, Note, Ok as Fine, Warning};

/// Checks the server's clock against this machine's. Leases are durations on either side, so no
/// lease depends on it.
pub(super) fn clock(replies: &ServerReplies) -> Finding {
    const CHECK: &str = "clock";
    match &replies.clock {
        Ok(offset) if offset.least() < APART => {
            let found = format!("its clock is {offset} this machine's");
            Finding::new(Fine, CHECK, found, "the difference does not matter")
        }
        Ok(offset) => {
            let meaning = "one of the two is wrong: leases are unaffected, but correcting the server's clock expires locks early or late";
            let severity = if offset.least() < FAR_APART { Note } else { Warning };
            Finding::new(severity, CHECK, format!("its clock is {offset} this machine's"), meaning)
                .advice("synchronize both by NTP, slewed and not stepped (`chronyd`)")
        }
        Err(why) => {
            Finding::unread(CHECK, "its clock", why, "`TIME`, compared with the clock of this machine")
        }
    }
}

/// Checks the round trip time against every option that must leave time for round trips.
pub(super) fn latency(replies: &ServerReplies, terms: &Terms) -> Finding {
    const CHECK: &str = "latency";
    let mut pings = replies.pings.clone();
    pings.sort_unstable();
    let of_hundred = |share: usize| pings.get((pings.len() * share / 100).min(pings.len().saturating_sub(1)));
    let (Some(half), Some(slow)) = (of_hundred(50), of_hundred(99)) else {
        return Finding::unread(CHECK, "its latency", "no ping got a reply", "`redis-cli --latency`");
    };
    let found = format!(
        "p50 {}, p99 {} of {} pings; the response timeout is {}, the grant lease {}",
        millis(*half),
        millis(*slow),
        pings.len(),
        millis(terms.response_timeout),
        millis(terms.grant_lease),
    );
    if let Some(finding) = too_short(*half, *slow, terms, &found) {
        return finding;
    }
    if *slow > SLOW {
        let meaning = "each lock waits for two replies, and each hand-off between processes for two more";
        return Finding::new(Note, CHECK, found, meaning).advice("use a server that is closer");
    }
    Finding::new(Fine, CHECK, found, "replies arrive well in time")
}

/// Returns the options that are too short for a round trip of `half` (median) and `slow` (99th
/// percentile).
fn too_short(half: Duration, slow: Duration, terms: &Terms, found: &str) -> Option<Finding> {
    let Terms { response_timeout, grant_lease, lease, .. } = *terms;
    // The 99th percentile plus its distance from the median, but at least plus 1/4.
    let latest = slow + slow.saturating_sub(half).max(slow / 4);
    // (option, its value, its minimum, the effect of a lower value)
    let checks = [
        (
            "response_timeout",
            response_timeout,
            latest,
            "some replies will arrive after the timeout: calls fail, and holds are lost",
        ),
        ("lease", lease, slow * 3, "replies to renewals arrive so late that holds are lost"),
        (
            "grant_lease",
            grant_lease,
            slow * TRIPS_OF_A_GRANT,
            "some grants have less than two round trips left: each is confirmed before its body starts, one round trip later",
        ),
    ];
    let short: Vec<_> = checks.into_iter().filter(|(_, value, least, _)| value < least).collect();
    if short.is_empty() {
        return None;
    }
    let mut meanings: Vec<_> = short.iter().map(|(.., meaning)| *meaning).collect();
    if grant_lease < slow * 2 {
        meanings.push("a grant may expire before it is confirmed, and is repeated");
    }
    let raise = short.iter().map(|(option, _, least, _)| format!("raise `{option}` to `{}ms`", up(*least)));
    let mut advice: Vec<_> = raise.collect();
    if slow > half * 2 {
        advice.push("find what delays the server (`SLOWLOG GET`, `LATENCY DOCTOR`)".to_owned());
    }
    let costs_time_alone = meanings.len() == 1 && short.iter().all(|(option, ..)| *option == "grant_lease");
    let severity = if costs_time_alone { Note } else { Warning };
    Some(Finding::new(severity, "latency", found, meanings.join("; ")).advice(advice.join(", or ")))
}

/// Returns a time in milliseconds, rounded up to a multiple of 50 ms.
fn up(time: Duration) -> u128 {
    time.as_micros().div_ceil(50_000) * 50
}

/// Checks the last fork, which stops the whole server while it lasts.
pub(super) fn forks(info: &Info, terms: &Terms) -> Option<Finding> {
    let fork = Duration::from_micros(info.number("latest_fork_usec")?);
    if fork * 2 <= terms.response_timeout {
        return None;
    }
    let found = format!("its last fork for a snapshot or a rewrite stopped it for {}", millis(fork));
    let meaning = "during a fork, no lock is granted or renewed, and calls whose reply is late fail";
    let finding = Finding::new(Warning, "latency", found, meaning);
    Some(finding.advice("use a separate server for locks, or raise `response_timeout`"))
}

/// Checks that the server runs the commands that locks need for this user, by the results of trying
/// each.
pub(super) fn commands(replies: &ServerReplies, terms: &Terms) -> Vec<Finding> {
    let (unread, refused) = refused(&replies.probes);
    let (mut lacking, unable): (Vec<_>, Vec<_>) =
        refused.into_iter().partition(|(_, refusal)| refusal.is_lasting());
    // Of the steps in a lock's life, only the first is reported: later ones need the same
    // permissions.
    lacking.dedup_by(|(next, _), (probe, _)| next.rule.is_none() && probe.rule.is_none());
    let mut findings: Vec<_> =
        lacking.iter().map(|(probe, refusal)| refused_command(probe, refusal, terms)).collect();
    // Any other failure also affects further commands, so only the first of the worst is reported.
    let mut unable: Vec<_> =
        unable.iter().map(|(probe, refusal)| refused_command(probe, refusal, terms)).collect();
    unable.sort_by_key(|finding| Reverse(finding.severity()));
    findings.extend(unable.into_iter().next());
    findings.extend(not_tried("commands", &unread));
    if findings.iter().all(|finding| finding.check() != "commands") {
        let found = "every command that locks need is allowed";
        let meaning = "locks can be acquired, renewed, handed off, and released";
        findings.push(Finding::new(Fine, "commands", found, meaning));
    }
    let is_told = |probe: &Probe| probe.reply.is_ok() || probe.need != Need::Telling;
    if replies.probes.iter().all(is_told) && findings.iter().all(|finding| finding.check() != "channel") {
        let found = "this user may subscribe to releases, and publish them";
        findings.push(Finding::new(Fine, "channel", found, "a release wakes the next waiter"));
    }
    findings
}

/// A command that failed, and why.
type Refused<'a, N> = (&'a Probe<N>, &'a Refusal);

/// Returns the commands that there was no time for, and the others that failed.
fn refused<N>(probes: &[Probe<N>]) -> (Vec<Refused<'_, N>>, Vec<Refused<'_, N>>) {
    let refused = probes.iter().filter_map(|probe| Some((probe, probe.reply.as_ref().err()?)));
    refused.partition(|(_, refusal)| refusal.cause == RefusalCause::NoTime)
}

/// Reports the commands that there was no time for. `None` if there are none.
fn not_tried<N>(check: &'static str, unread: &[Refused<'_, N>]) -> Option<Finding> {
    let (_, first) = unread.first()?;
    let (what, by_hand) =
        ("whether it has some commands", format!("`{}`", list(unread, |probe| probe.command)));
    Some(Finding::unread(check, what, &first.said, &by_hand))
}

/// Returns the commands, to be written between two backticks.
fn list<N>(refused: &[Refused<'_, N>], of: fn(&Probe<N>) -> &str) -> String {
    refused.iter().map(|(probe, _)| of(probe)).collect::<Vec<_>>().join("`, `")
}

/// Reports that a server of a quorum does not reply to `INFO`, which identifies it and reports its
/// uptime.
pub(super) fn not_introduced(refusal: &Refusal, terms: &Terms) -> Option<Finding> {
    let meaning = "a server that does not report its uptime has no vote";
    let finding = Finding::new(Danger, "commands", found("INFO", refusal), meaning);
    let advice = match refusal.cause {
        RefusalCause::NotPermitted => "allow it with `ACL SETUSER`: `+info`".to_owned(),
        cause => advice_for(cause, terms),
    };
    let is_known = refusal.cause != RefusalCause::NoTime;
    (is_known && terms.topology == Deployment::Quorum).then(|| finding.advice(advice))
}

/// Returns what was found about a command that failed.
fn found(command: &str, refusal: &Refusal) -> String {
    let said = &refusal.said;
    match refusal.cause {
        RefusalCause::NotPermitted => format!("this user may not run `{command}`: {said}"),
        RefusalCause::NoCommand | RefusalCause::Closed => {
            format!("this service has no `{command}`: {said}")
        }
        _ => format!("`{command}` failed: {said}"),
    }
}

/// Returns what to do about a failed command. An ACL rule helps only if a permission is missing.
fn advice_for(cause: RefusalCause, terms: &Terms) -> String {
    let advice = match cause {
        RefusalCause::NotPermitted => "allow it with `ACL SETUSER`",
        RefusalCause::NoCommand | RefusalCause::Closed => "use a service that has it",
        RefusalCause::ReadOnly => {
            return format!("it is a replica: {}", terms.topology.replica_advice(terms.tls));
        }
        RefusalCause::OtherNode if terms.topology == Deployment::Cluster => {
            "slots are moving: run this again when they have moved"
        }
        RefusalCause::OtherNode => {
            let scheme = terms.scheme_of(Deployment::Cluster);
            return format!("it is a node of a cluster: name the cluster with `{scheme}`");
        }
        RefusalCause::NoTime => "run this again from a host that is closer to the server",
        RefusalCause::Other => "fix the reported problem; the server's log shows more",
    };
    advice.to_owned()
}

fn refused_command(probe: &Probe, refusal: &Refusal, terms: &Terms) -> Finding {
    let Probe { command, rule, need, .. } = probe;
    let lacks_sharded = *command == "SSUBSCRIBE" && refusal.is_unknown();
    let (severity, check, meaning) = match need {
        Need::Locks if refusal.is_lasting() => {
            (Danger, "commands", "locks cannot be acquired, or cannot be renewed and released")
        }
        Need::Locks => (Danger, "commands", "it can grant no lock in this state"),
        Need::Telling if lacks_sharded => {
            (Warning, "channel", "releases are published on sharded channels, which need `HELLO 3`")
        }
        Need::Telling => (
            Warning,
            "channel",
            "waiters are not notified of releases: locks are handed off late, as each waiter polls every `poll_interval`",
        ),
        Need::Unsubscribing => (
            Warning,
            "channel",
            "subscriptions to the channels of unused locks never end: the server needs more memory for each further lock",
        ),
        Need::Fencing => {
            (Warning, "fencing", "locks work, but requests for a fencing token and inspections fail")
        }
        Need::Tracking => (Note, "tracking", NOT_TRACKED),
        Need::ScriptNames if *command == "EVALSHA" && refusal.cause == RefusalCause::Closed => {
            (Danger, "commands", "each request of a lock ends the connection")
        }
        Need::ScriptNames if refusal.is_unknown() => (Note, "scripts", BY_TEXT),
        Need::ScriptNames => (Warning, "commands", BY_TEXT),
        Need::Owner => {
            (Note, "owner", "locks work, but `CLIENT LIST` does not show whose connections these are")
        }
    };
    let found = match rule {
        None if refusal.is_unknown() => {
            format!("this service lacks a command of `{command}`: {}", refusal.said)
        }
        _ => found(command, refusal),
    };
    let finding = Finding::new(severity, check, found, meaning);
    if refusal.cause == RefusalCause::NotPermitted {
        return finding.advice(permission(probe, terms));
    }
    match need {
        Need::Locks if refusal.is_unknown() && *command == "WAIT" => {
            finding.advice("leave out `replica_acks`, or use a service that has it")
        }
        Need::Telling if lacks_sharded => {
            finding.advice("write `publish=both`, or use a service that has it")
        }
        Need::Tracking if refusal.is_unknown() => {
            finding.advice("write `tracking=off`, or use a service that has it")
        }
        Need::ScriptNames | Need::Owner if refusal.is_unknown() && severity == Note => finding,
        _ => finding.advice(advice_for(refusal.cause, terms)),
    }
}

/// Returns the advice to allow a command.
fn permission(probe: &Probe, terms: &Terms) -> String {
    let (keys, counters) = key_patterns(&terms.namespace);
    let on = match probe.need {
        Need::Locks => format!(" on the keys `{keys}`"),
        Need::Telling => format!(" on the channels `&{}`", terms.channels),
        Need::Fencing => format!(" on the keys `{counters}`"),
        Need::Tracking => ", or write `tracking=off`".to_owned(),
        Need::ScriptNames => ", which makes requests shorter".to_owned(),
        Need::Unsubscribing | Need::Owner => String::new(),
    };
    let rule = probe.rule.map_or("the other commands of this layout".to_owned(), |rule| format!("`{rule}`"));
    format!("allow it with `ACL SETUSER`: {rule}{on}; the guide on operating has the complete line")
}

/// Returns the patterns of the keys of a namespace: locks, and names in braces.
fn key_patterns(namespace: &str) -> (String, String) {
    if namespace.is_empty() {
        ("~*".to_owned(), "~*".to_owned())
    } else {
        (format!("~{namespace}:*"), format!("~{{{namespace}:*"))
    }
}

/// Checks that the server runs the commands of the records of idempotent calls and of jobs for this
/// user.
///
/// Locks need none of these commands, so what is missing is one note for each cause.
pub(super) fn records(replies: &ServerReplies, terms: &Terms) -> Vec<Finding> {
    let (unread, refused) = refused(&replies.record_probes);
    let (lacking, unable): (Vec<_>, Vec<_>) =
        refused.into_iter().partition(|(_, refusal)| refusal.is_lasting());
    let (unknown, forbidden): (Vec<_>, Vec<_>) =
        lacking.into_iter().partition(|(_, refusal)| refusal.is_unknown());
    let causes = [forbidden, unknown, unable];
    let findings = causes.iter().filter_map(|refused| refused_records(refused, terms));
    findings.chain(not_tried("records", &unread)).collect()
}

/// Reports commands of records that failed for one cause. `None` if there are none.
fn refused_records(refused: &[Refused<'_, RecordNeed>], terms: &Terms) -> Option<Finding> {
    let (_, first) = refused.first()?;
    let meaning = if refused.iter().all(|(probe, _)| probe.need == RecordNeed::Calls) {
        "locks, leaders, and scheduled jobs work, but idempotent calls fail"
    } else {
        "locks and leaders work, but idempotent calls and scheduled jobs fail"
    };
    let advice = match first.cause {
        RefusalCause::NotPermitted => {
            let (keys, counters) = key_patterns(&terms.namespace);
            let rules = list(refused, |probe| probe.rule.unwrap_or(probe.command));
            format!("allow the commands with `ACL SETUSER`: `{rules}` on the keys `{keys}` and `{counters}`")
        }
        RefusalCause::NoCommand | RefusalCause::Closed => "use a service that has them".to_owned(),
        cause => advice_for(cause, terms),
    };
    let finding = Finding::new(Note, "records", found(&list(refused, |probe| probe.command), first), meaning);
    Some(finding.advice(format!("for idempotent calls or scheduled jobs, {advice}")))
}

/// The effect of a server without `EVALSHA`.
const BY_TEXT: &str = "locks work, but each request carries the text of its script";

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

const NOT_TRACKED: &str = "a lost lock is detected only at its next renewal, at most a third of its lease later, or half of it while more \
                           than 64 renewals are in flight; waiters for a lock of a client of another library poll every `poll_interval`";
/// Clocks that NTP synchronizes differ by less.
const APART: Duration = Duration::from_secs(1);
/// Clocks that differ by more are not synchronized.
const FAR_APART: Duration = Duration::from_secs(30);
/// A waiter's last request precedes the grant message by up to half a grant lease plus one
/// round trip; two round trips must be left.
const TRIPS_OF_A_GRANT: u32 = 6;
/// Replies within one region arrive sooner.
const SLOW: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::facts::Offset;
    use crate::doctor::facts::tests::{assert_is, replies, terms};

    #[test]
    fn a_clock_is_judged_by_what_is_sure() {
        let of = |ahead, within| clock(&ServerReplies { clock: Ok(Offset { ahead, within }), ..replies() });

        assert_is(&of(1_400_000, 500_000), Fine, "1400.0 ms ahead of this machine's");
        assert_is(&of(-2_000_000, 500), Note, "2000.0 ms behind this machine's");
        assert_is(&of(60_000_000, 500), Warning, "NTP");
        assert_is(&clock(&ServerReplies { clock: Err("NOPERM".into()), ..replies() }), Note, "NOPERM");
    }

    #[test]
    fn latency_is_judged_against_the_response_timeout() {
        let of = |slow: u64, slow_ones: usize| {
            let mut pings = vec![Duration::from_millis(1); 100 - slow_ones];
            pings.extend(vec![Duration::from_millis(slow); slow_ones]);
            latency(&ServerReplies { pings, ..replies() }, &terms())
        };

        assert_is(&of(3, 2), Fine, "p50 1.00 ms, p99 3.00 ms of 100");
        assert_is(&of(300, 0), Fine, "p99 1.00 ms");
        assert_is(&of(60, 2), Note, "closer");
        assert_is(&of(300, 2), Warning, "raise `response_timeout` to `600ms`");
        assert_is(&latency(&replies(), &terms()), Note, "no ping");
    }

    #[test]
    fn round_trip_is_compared_with_each_option_that_has_to_leave_time_for_it() {
        let steady = |ms: u64, change: fn(&mut Terms)| {
            let mut terms = terms();
            change(&mut terms);
            latency(&ServerReplies { pings: vec![Duration::from_millis(ms); 100], ..replies() }, &terms)
        };
        let raised = |finding: &Finding| {
            let advice = finding.remedy().unwrap_or_default().to_owned();
            ["response_timeout", "lease", "grant_lease"].map(|option| advice.contains(&format!("`{option}`")))
        };

        for (ms, change, severity, expected) in [
            (160, (|_| {}) as fn(&mut Terms), Note, [false, false, false]),
            (170, |_| {}, Note, [false, false, true]),
            (300, |_| {}, Note, [false, false, true]),
            (480, |_| {}, Warning, [true, false, true]),
            (300, |terms| terms.grant_lease = Duration::from_millis(1_800), Note, [false, false, false]),
            (300, |terms| terms.grant_lease = Duration::from_millis(599), Warning, [false, false, true]),
            (30, |terms| terms.grant_lease = Duration::from_millis(100), Note, [false, false, true]),
            (100, |terms| terms.lease = Duration::from_millis(250), Warning, [false, true, false]),
            (1, |_| {}, Fine, [false, false, false]),
        ] {
            let finding = steady(ms, change);
            assert_eq!((finding.severity(), raised(&finding)), (severity, expected), "{ms} ms: {finding}");
        }
        assert_is(&steady(300, |_| {}), Note, "raise `grant_lease` to `1800ms`");
    }

    #[test]
    fn a_fork_longer_than_the_response_timeout_is_reported() {
        assert!(forks(&Info("latest_fork_usec:900".to_owned()), &terms()).is_none());
        let told = forks(&Info("latest_fork_usec:400000".to_owned()), &terms());
        assert_is(&told.expect("it is reported"), Warning, "400.00 ms");
    }

    #[test]
    fn forbidden_commands_are_reported_each_others_once() {
        use RefusalCause::{NotPermitted, Other};
        let probe = |command, need, reply| Probe { command, rule: Some("+it"), need, reply };
        let refusal = |cause| Err(Refusal { cause, said: "no".into() });
        let of = |probes| commands(&ServerReplies { probes, ..replies() }, &terms());

        assert_is(&of(vec![probe("SET", Need::Locks, Ok(()))])[0], Fine, "every command");
        let forbidden = of(vec![
            probe("SET", Need::Locks, refusal(NotPermitted)),
            probe("PUBLISH", Need::Telling, refusal(NotPermitted)),
            probe("SET of a counter", Need::Fencing, refusal(NotPermitted)),
        ]);
        assert_is(&forbidden[0], Danger, "~dlock:*");
        assert_is(&forbidden[1], Warning, "&dlock:grant:*");
        assert_is(&forbidden[2], Warning, "~{dlock:*");
        let unable =
            of(vec![probe("SET", Need::Locks, refusal(Other)), probe("DEL", Need::Locks, refusal(Other))]);
        assert_eq!(unable.iter().filter(|finding| finding.severity() > Fine).count(), 1, "{unable:?}");
        assert_is(&unable[0], Danger, "`SET` failed: no");
    }

    #[test]
    fn commands_that_there_was_no_time_for_are_one_note() {
        let refusal = || Err::<(), _>(Refusal { cause: RefusalCause::NoTime, said: "no time".into() });
        let probe = |command| Probe { command, rule: None, need: Need::Locks, reply: refusal() };
        let record = Probe { command: "HSET", rule: None, need: RecordNeed::Calls, reply: refusal() };
        let probes = vec![probe("SET"), probe("DEL")];
        let replies = ServerReplies { probes, record_probes: vec![record], ..replies() };

        for (findings, commands) in
            [(commands(&replies, &terms()), "`SET`, `DEL`"), (records(&replies, &terms()), "`HSET`")]
        {
            let unread: Vec<_> = findings.iter().filter(|finding| finding.check() != "channel").collect();
            assert_eq!(unread.len(), 1, "{findings:?}");
            assert_is(
                unread[0],
                Note,
                &format!(
                    "no time\n         meaning: its state is unknown\n         do: check by hand: {commands}"
                ),
            );
        }
        let quorum = Terms { topology: Deployment::Quorum, ..terms() };
        assert!(not_introduced(&refusal().expect_err("a refusal"), &quorum).is_none());
    }

    #[test]
    fn missing_commands_of_records_are_one_note() {
        let probe = |command, need, is_refused| {
            let refusal = Refusal { cause: RefusalCause::NotPermitted, said: "NOPERM".into() };
            Probe { command, rule: Some("+it"), need, reply: if is_refused { Err(refusal) } else { Ok(()) } }
        };
        let of = |refused: [bool; 2]| {
            let record_probes = vec![
                probe("HSET", RecordNeed::CallsAndJobs, refused[0]),
                probe("EXISTS", RecordNeed::Calls, refused[1]),
            ];
            records(&ServerReplies { record_probes, ..replies() }, &terms())
        };

        assert!(of([false; 2]).is_empty());
        for (refused, said) in [
            ([true; 2], "`HSET`, `EXISTS`: NOPERM"),
            ([true; 2], "but idempotent calls and scheduled jobs fail"),
            ([true, false], "but idempotent calls and scheduled jobs fail"),
            ([false, true], "jobs work, but idempotent calls fail"),
        ] {
            let findings = of(refused);
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert_is(&findings[0], Note, said);
        }
    }

    #[test]
    fn records_that_fail_for_different_causes_have_different_advice() {
        let probe = |command, cause| Probe {
            command,
            rule: Some("+it"),
            need: RecordNeed::CallsAndJobs,
            reply: Err(Refusal { cause, said: "no".into() }),
        };
        let record_probes = vec![
            probe("HSET", RefusalCause::NotPermitted),
            probe("MEMORY USAGE", RefusalCause::NoCommand),
            probe("HLEN", RefusalCause::Other),
        ];

        let findings = records(&ServerReplies { record_probes, ..replies() }, &terms());

        let texts: Vec<_> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 3, "{texts:?}");
        for (text, [found, advised]) in texts.iter().zip([
            ["may not run `HSET`: no", "ACL SETUSER`: `+it`"],
            ["has no `MEMORY USAGE`: no", "use a service that has them"],
            ["`HLEN` failed: no", "fix the reported problem"],
        ]) {
            assert!(text.contains(found) && text.contains(advised), "{text}");
        }
    }

    /// Returns the findings about a server that refuses every command for this cause.
    fn all_refused(cause: RefusalCause, terms: &Terms) -> Vec<Finding> {
        let refusal = Refusal { cause, said: "no".into() };
        let probe = |rule, need| Probe { command: "X", rule, need, reply: Err(refusal.clone()) };
        let record =
            Probe { command: "Y", rule: Some("+y"), need: RecordNeed::Calls, reply: Err(refusal.clone()) };
        let probes = [
            probe(Some("+evalsha"), Need::ScriptNames),
            probe(None, Need::Locks),
            probe(Some("+subscribe"), Need::Telling),
        ];
        let of_each = probes.map(|probe| {
            let findings = commands(&ServerReplies { probes: vec![probe], ..replies() }, terms);
            findings.into_iter().next().expect("a finding")
        });
        let mut findings = of_each.to_vec();
        findings.extend(records(&ServerReplies { record_probes: vec![record], ..replies() }, terms));
        findings
    }

    #[test]
    fn an_acl_rule_is_advised_only_if_a_permission_is_missing() {
        let watched = Terms { topology: Deployment::Sentinels, ..terms() };
        let cluster = Terms { topology: Deployment::Cluster, ..terms() };
        let quorum = Terms { topology: Deployment::Quorum, ..terms() };
        let over_tls = Terms { tls: true, ..terms() };
        for (cause, terms, expected) in [
            (RefusalCause::NotPermitted, terms(), "with `ACL SETUSER`: `"),
            (RefusalCause::ReadOnly, terms(), "name the primary, or its sentinels with `redis+sentinel://"),
            (RefusalCause::ReadOnly, over_tls.clone(), "or its sentinels with `rediss+sentinel://"),
            (RefusalCause::ReadOnly, watched, "still reported as the primary after the failover"),
            (RefusalCause::ReadOnly, quorum.clone(), "name independent primaries"),
            (RefusalCause::OtherNode, terms(), "`redis+cluster://`"),
            (RefusalCause::OtherNode, over_tls, "`rediss+cluster://`"),
            (RefusalCause::OtherNode, cluster, "slots are moving"),
            (RefusalCause::Other, terms(), "fix the reported problem"),
        ] {
            let findings = all_refused(cause, &terms);
            assert_eq!(findings.len(), 4);
            for finding in findings {
                let advice = finding.remedy().unwrap_or_default();
                assert_eq!(advice.contains("ACL"), cause == RefusalCause::NotPermitted, "{finding}");
                assert!(advice.contains(expected) || advice.contains("the other commands"), "{finding}");
            }
        }
        let of = |cause| not_introduced(&Refusal { cause, said: "no".into() }, &quorum).expect("no vote");
        assert_is(&of(RefusalCause::NotPermitted), Danger, "`ACL SETUSER`: `+info`");
        assert_is(&of(RefusalCause::Other), Danger, "`INFO` failed: no");
    }

    #[test]
    fn a_command_that_the_server_lacks_is_not_a_missing_permission() {
        let findings = all_refused(RefusalCause::NoCommand, &terms());

        for (finding, found) in findings.iter().zip(["no `X`", "a command of `X`", "no `X`", "no `Y`"]) {
            assert!(finding.found().contains(found), "{finding}");
            assert!(finding.remedy().is_none_or(|advice| advice.contains("use a service")), "{finding}");
        }
        assert_eq!((findings.len(), findings[0].remedy()), (4, None), "locks work without it");
    }

    #[test]
    fn a_command_that_closes_the_connection_is_missing() {
        let findings = all_refused(RefusalCause::Closed, &terms());

        for (finding, command) in findings.iter().zip(["X", "X", "X", "Y"]) {
            assert!(finding.found().contains(&format!("`{command}`")), "{finding}");
        }
        assert_is(&findings[0], Note, "has no `X`");
        let reply = Err(Refusal { cause: RefusalCause::Closed, said: "no".into() });
        let evalsha = Probe { command: "EVALSHA", rule: Some("+evalsha"), need: Need::ScriptNames, reply };
        let findings = commands(&ServerReplies { probes: vec![evalsha], ..replies() }, &terms());
        assert_is(&findings[0], Danger, "each request of a lock ends the connection");
    }

    #[test]
    fn each_command_of_a_subscriber_must_be_allowed() {
        let of = |need, cause: Option<RefusalCause>| {
            let reply = cause.map_or(Ok(()), |cause| Err(Refusal { cause, said: "no".into() }));
            let probe = Probe { command: "X", rule: Some("+x"), need, reply };
            let findings = commands(&ServerReplies { probes: vec![probe], ..replies() }, &terms());
            let of_channel: Vec<_> = findings.into_iter().filter(|at| at.check() == "channel").collect();
            assert_eq!(of_channel.len(), 1, "{of_channel:?}");
            of_channel.into_iter().next().expect("there is one")
        };

        assert_is(&of(Need::Telling, None), Fine, "may subscribe");
        assert_is(&of(Need::Locks, Some(RefusalCause::Other)), Fine, "may subscribe");
        for cause in [RefusalCause::NotPermitted, RefusalCause::NoCommand, RefusalCause::Other] {
            assert_is(&of(Need::Telling, Some(cause)), Warning, "polls every `poll_interval`");
            assert_is(&of(Need::Unsubscribing, Some(cause)), Warning, "never end");
        }
        let reply = Err(Refusal { cause: RefusalCause::NoCommand, said: "no".into() });
        let sharded = Probe { command: "SSUBSCRIBE", rule: Some("+ssubscribe"), need: Need::Telling, reply };
        let findings = commands(&ServerReplies { probes: vec![sharded], ..replies() }, &terms());
        assert_is(&findings[0], Warning, "need `HELLO 3`\n         do: write `publish=both`");
        let forbidden = of(Need::Unsubscribing, Some(RefusalCause::NotPermitted));
        assert_is(&forbidden, Warning, "`ACL SETUSER`: `+x`;");
    }
}
