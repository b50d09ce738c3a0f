//! How well a server can be used from here, as this user: clock, latency, commands, messages.
//!
//! Not here: what it keeps (`keeping`), how clocks differ between servers (`fleet`).

use std::time::Duration;

use crate::doctor::facts::{Answers, Info, Need, Probe, Refusal, Terms, Topology};
use crate::doctor::report::Finding;
use crate::doctor::report::Severity::{Danger, Note, Ok as Fine, Warning};

/// How far its clock is from ours. Leases are spans of time on either side, so that none is wrong for it.
pub(super) fn clock(answers: &Answers) -> Finding {
    const CHECK: &str = "clock";
    match &answers.clock {
        Ok(offset) if offset.least() < APART => {
            let found = format!("its clock is {offset} ours");
            Finding::new(Fine, CHECK, found, "the two agree as far as it matters")
        }
        Ok(offset) => {
            let meaning = "one of the two is wrong: no lease is, but a clock that somebody sets right ends locks early or late";
            let severity = if offset.least() < FAR_APART { Note } else { Warning };
            Finding::new(severity, CHECK, format!("its clock is {offset} ours"), meaning)
                .advice("keep both by NTP, slewed and not stepped (`chronyd`)")
        }
        Err(why) => Finding::unread(CHECK, "its clock", why, "`TIME`, against the clock here"),
    }
}

/// How long a round trip takes, against every option that has to leave time for some of them.
pub(super) fn latency(answers: &Answers, terms: &Terms) -> Finding {
    const CHECK: &str = "latency";
    let mut pings = answers.pings.clone();
    pings.sort_unstable();
    let of_hundred = |share: usize| pings.get((pings.len() * share / 100).min(pings.len().saturating_sub(1)));
    let (Some(half), Some(slow)) = (of_hundred(50), of_hundred(99)) else {
        return Finding::unread(
            CHECK,
            "how soon it answers",
            "no ping was answered",
            "`redis-cli --latency`",
        );
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
        let meaning = "each lock waits for two answers, and each hand-over between processes for two more";
        return Finding::new(Note, CHECK, found, meaning).advice("have the server closer to those who lock");
    }
    Finding::new(Fine, CHECK, found, "answers come well in time")
}

/// Which options are too short for a round trip that takes `half` most of the time, and `slow` at worst.
fn too_short(half: Duration, slow: Duration, terms: &Terms, found: &str) -> Option<Finding> {
    let Terms { response_timeout, grant_lease, lease, .. } = *terms;
    // As much more as the slow replies take beside the others, and a quarter where all take the same.
    let latest = slow + slow.saturating_sub(half).max(slow / 4);
    // (option, its value, the least that does, what comes of less)
    let checks = [
        (
            "response_timeout",
            response_timeout,
            latest,
            "answers come so late that some will count as none: calls fail, and holds are lost",
        ),
        ("lease", lease, slow * 3, "a renewal is answered so late that holds are lost"),
        (
            "grant_lease",
            grant_lease,
            slow * TRIPS_OF_A_GRANT,
            "less than two round trips remain of some grants: each is confirmed before its body starts, a round trip later",
        ),
    ];
    let short: Vec<_> = checks.into_iter().filter(|(_, value, least, _)| value < least).collect();
    if short.is_empty() {
        return None;
    }
    let mut meanings: Vec<_> = short.iter().map(|(.., meaning)| *meaning).collect();
    if grant_lease < slow * 2 {
        meanings.push("a grant may end before it is confirmed, and is made again");
    }
    let raise = short.iter().map(|(option, _, least, _)| format!("raise `{option}` to `{}ms`", up(*least)));
    let mut cures: Vec<_> = raise.collect();
    if slow > half * 2 {
        cures.push("find what holds the server up (`SLOWLOG GET`, `LATENCY DOCTOR`)".to_owned());
    }
    let costs_time_alone = meanings.len() == 1 && short.iter().all(|(option, ..)| *option == "grant_lease");
    let severity = if costs_time_alone { Note } else { Warning };
    Some(Finding::new(severity, "latency", found, meanings.join("; ")).advice(cures.join(", or ")))
}

/// Returns a time in milliseconds, rounded up to two digits or so: as one would write it.
fn up(time: Duration) -> u128 {
    time.as_micros().div_ceil(50_000) * 50
}

/// A fork stops the whole server while it lasts.
pub(super) fn forks(info: &Info, terms: &Terms) -> Option<Finding> {
    let fork = Duration::from_micros(info.number("latest_fork_usec")?);
    if fork * 2 <= terms.response_timeout {
        return None;
    }
    let found = format!("its last fork for a snapshot or a rewrite stopped it for {}", millis(fork));
    let meaning = "meanwhile no lock is given or renewed, and calls fail whose answer is late";
    let finding = Finding::new(Warning, "latency", found, meaning);
    Some(finding.advice("give locks a server of their own, or raise `response_timeout`"))
}

/// Whether this user may do what locks need, each command tried.
pub(super) fn commands(answers: &Answers, terms: &Terms) -> Vec<Finding> {
    const CHECK: &str = "commands";
    let refused = answers.probes.iter().filter_map(|probe| Some((probe, probe.answer.as_ref().err()?)));
    let (mut forbidden, unable): (Vec<_>, Vec<_>) = refused.partition(|(probe, refusal)| {
        refusal.is_forbidden || matches!(probe.need, Need::Tracking | Need::ScriptNames)
    });
    // Of the steps in a lock's life the first is told: those behind it need the same.
    forbidden.dedup_by(|(next, _), (probe, _)| next.rule.is_none() && probe.rule.is_none());
    let mut findings: Vec<_> =
        forbidden.iter().map(|(probe, refusal)| not_allowed(probe, refusal, terms)).collect();
    // What keeps a server from one command keeps it from others: it is told once.
    findings.extend(unable.first().map(|(probe, refusal)| {
        let found = format!("`{}` did not do: {}", probe.command, refusal.said);
        let finding = Finding::new(Danger, CHECK, found, "no lock can be had from it as it is");
        finding.advice("do what the server's words say; its log has more")
    }));
    if findings.iter().all(|finding| finding.check() != CHECK) {
        let found = "every command that locks need is allowed";
        findings.push(Finding::new(
            Fine,
            CHECK,
            found,
            "locks can be taken, renewed, handed over and released",
        ));
    }
    findings
}

/// A server that votes must say which it is, and since when it is up.
pub(super) fn not_introduced(why: &str, terms: &Terms) -> Option<Finding> {
    let found = format!("this user may not do `INFO`: {why}");
    let finding =
        Finding::new(Danger, "commands", found, "a server that does not say since when it is up has no vote");
    (terms.topology == Topology::Quorum).then(|| finding.advice("allow by `ACL SETUSER` `+info`"))
}

fn not_allowed(probe: &Probe, refusal: &Refusal, terms: &Terms) -> Finding {
    let Probe { command, rule, need, .. } = probe;
    let (severity, check, meaning) = match need {
        Need::Locks => (Danger, "commands", "locks cannot be taken, or cannot be renewed and released"),
        Need::Telling => (Warning, "channel", NOT_TOLD),
        Need::Fencing => (Warning, "fencing", "locks can be had, and calls for a fencing token fail"),
        Need::Tracking => (Note, "tracking", NOT_TRACKED),
        Need::ScriptNames if refusal.is_unknown() => (Note, "scripts", BY_TEXT),
        Need::ScriptNames => (Warning, "commands", BY_TEXT),
    };
    if refusal.is_unknown() && rule.is_some() {
        let found = format!("this service has no `{command}`: {}", refusal.said);
        let finding = Finding::new(severity, check, found, meaning);
        return match (need, *command) {
            (_, "WAIT") => finding.advice("leave out `replica_acks`, or use a service that has it"),
            (Need::Tracking, _) => finding.advice("write `tracking=off`, or use a service that has it"),
            (Need::ScriptNames, _) => finding,
            _ => finding.advice("use a service that has it"),
        };
    }
    let namespace = &terms.namespace;
    let (keys, counters) = if namespace.is_empty() {
        ("~*".to_owned(), "~*".to_owned())
    } else {
        (format!("~{namespace}:*"), format!("~{{{namespace}:*"))
    };
    let on = match need {
        Need::Locks => format!(" on the keys `{keys}`"),
        Need::Telling => format!(" on the channels `&{}`", terms.channels),
        Need::Fencing => format!(" on the keys `{counters}`"),
        Need::Tracking => ", or write `tracking=off`".to_owned(),
        Need::ScriptNames => ", which makes requests shorter".to_owned(),
    };
    let rule = rule.map_or("what this layout needs besides".to_owned(), |rule| format!("`{rule}`"));
    let cure = format!("allow by `ACL SETUSER` {rule}{on}");
    let found = format!("this user may not do `{command}`: {}", refusal.said);
    Finding::new(severity, check, found, meaning)
        .advice(format!("{cure}; the guide on operating has the whole line"))
}

/// What it costs that scripts have no names.
const BY_TEXT: &str = "locks work, and each request carries the text of its script";

/// Whether we are told of releases.
pub(super) fn channel(answers: &Answers, terms: &Terms) -> Finding {
    const CHECK: &str = "channel";
    match &answers.listening {
        Ok(()) => {
            Finding::new(Fine, CHECK, "we may listen for releases", "a release wakes the next who waits")
        }
        Err(why) => {
            let meaning = format!("{NOT_TOLD}, {}", millis(terms.poll_interval));
            let cure = format!("allow by `ACL SETUSER` `+subscribe` on the channels `&{}`", terms.channels);
            Finding::new(Warning, CHECK, format!("we may not listen for releases: {why}"), meaning)
                .advice(cure)
        }
    }
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

const NOT_TOLD: &str =
    "nobody who waits is told of a release: locks are handed over late, as each looks every `poll_interval`";
const NOT_TRACKED: &str = "a lock that is taken away is found out at its next renewal, a third of its lease later; who waits for a client \
                           of another library looks each `poll_interval`";
/// Clocks that are kept by NTP are closer than this.
const APART: Duration = Duration::from_secs(1);
/// So far apart are clocks that nobody keeps.
const FAR_APART: Duration = Duration::from_secs(30);
/// A grant's waiter asked last up to half a grant lease and a round trip before the message arrives; then two round trips must be left.
const TRIPS_OF_A_GRANT: u32 = 6;
/// Within one region an answer comes sooner.
const SLOW: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::facts::Offset;
    use crate::doctor::facts::tests::{answers, assert_is, terms};

    #[test]
    fn a_clock_is_judged_by_what_is_sure() {
        let of = |ahead, within| clock(&Answers { clock: Ok(Offset { ahead, within }), ..answers() });

        assert_is(&of(1_400_000, 500_000), Fine, "1400.0 ms ahead of ours");
        assert_is(&of(-2_000_000, 500), Note, "2000.0 ms behind ours");
        assert_is(&of(60_000_000, 500), Warning, "NTP");
        assert_is(&clock(&Answers { clock: Err("NOPERM".into()), ..answers() }), Note, "NOPERM");
    }

    #[test]
    fn latency_is_judged_against_the_response_timeout() {
        let of = |slow: u64, slow_ones: usize| {
            let mut pings = vec![Duration::from_millis(1); 100 - slow_ones];
            pings.extend(vec![Duration::from_millis(slow); slow_ones]);
            latency(&Answers { pings, ..answers() }, &terms())
        };

        assert_is(&of(3, 2), Fine, "p50 1.00 ms, p99 3.00 ms of 100");
        assert_is(&of(300, 0), Fine, "p99 1.00 ms");
        assert_is(&of(60, 2), Note, "closer");
        assert_is(&of(300, 2), Warning, "raise `response_timeout` to `600ms`");
        assert_is(&latency(&answers(), &terms()), Note, "no ping");
    }

    #[test]
    fn round_trip_is_compared_with_each_option_that_has_to_leave_time_for_it() {
        let steady = |ms: u64, change: fn(&mut Terms)| {
            let mut terms = terms();
            change(&mut terms);
            latency(&Answers { pings: vec![Duration::from_millis(ms); 100], ..answers() }, &terms)
        };
        let raised = |finding: &Finding| {
            let advice = finding.what_to_do().unwrap_or_default().to_owned();
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
    fn a_fork_that_takes_as_long_as_an_answer_may_is_told() {
        assert!(forks(&Info("latest_fork_usec:900".to_owned()), &terms()).is_none());
        let told = forks(&Info("latest_fork_usec:400000".to_owned()), &terms());
        assert_is(&told.expect("it is told"), Warning, "400.00 ms");
    }

    #[test]
    fn each_command_that_is_forbidden_is_told_and_what_else_is_wrong_but_once() {
        let probe = |command, need, answer| Probe { command, rule: Some("+it"), need, answer };
        let refusal = |is_forbidden| Err(Refusal { is_forbidden, said: "no".into() });
        let of = |probes| commands(&Answers { probes, ..answers() }, &terms());

        assert_is(&of(vec![probe("SET", Need::Locks, Ok(()))])[0], Fine, "every command");
        let forbidden = of(vec![
            probe("SET", Need::Locks, refusal(true)),
            probe("PUBLISH", Need::Telling, refusal(true)),
            probe("SET of a counter", Need::Fencing, refusal(true)),
        ]);
        assert_is(&forbidden[0], Danger, "~dlock:*");
        assert_is(&forbidden[1], Warning, "&dlock:grant:*");
        assert_is(&forbidden[2], Warning, "~{dlock:*");
        let unable =
            of(vec![probe("SET", Need::Locks, refusal(false)), probe("DEL", Need::Locks, refusal(false))]);
        assert_eq!(unable.len(), 1, "{unable:?}");
        assert_is(&unable[0], Danger, "`SET` did not do: no");
    }

    #[test]
    fn nobody_is_woken_where_nobody_may_listen() {
        assert_is(&channel(&answers(), &terms()), Fine, "we may listen");
        let deaf = Answers { listening: Err("NOPERM".into()), ..answers() };
        assert_is(&channel(&deaf, &terms()), Warning, "every `poll_interval`, 100.00 ms");
    }
}
