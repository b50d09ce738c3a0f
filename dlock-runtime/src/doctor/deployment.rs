//! Checks of several servers: sentinels, clusters, and clocks.

use std::time::Duration;

use crate::doctor::facts::{Deployment, Part, Seed, Sentinel, Server, Terms, Unreached};
use crate::doctor::report::Finding;
use crate::doctor::report::Severity::{Danger, Note, Ok as Fine, Warning};

/// Reports servers that were not examined, since too many were named.
pub(super) fn omitted(count: usize, terms: &Terms) -> Option<Finding> {
    let found = format!("{count} further servers were named, and not examined");
    let finding = Finding::new(Note, "connection", found, "their state is unknown");
    let scheme = terms.scheme_of(Deployment::One);
    let advice = format!("check that there are so many, and examine each with `{scheme}host:port`");
    let finding = finding.advice(advice);
    (count > 0).then_some(finding)
}

/// Checks that sentinels reply, agree, and can elect.
pub(super) fn sentinels(sentinels: &[Sentinel]) -> Vec<Finding> {
    if sentinels.is_empty() {
        return Vec::new();
    }
    let mut findings: Vec<_> = sentinels.iter().flat_map(of_sentinel).collect();
    findings.push(agreement(sentinels));
    let known = sentinels.iter().filter_map(|sentinel| sentinel.known.as_ref().ok()).max();
    findings.extend(known.and_then(|known| number(*known, sentinels.len())));
    findings
}

fn of_sentinel(sentinel: &Sentinel) -> Vec<Finding> {
    const CHECK: &str = "sentinel";
    let first = match &sentinel.master {
        Ok(master) => Finding::new(
            Fine,
            CHECK,
            format!("it reports {master} as the primary"),
            "it can be used for discovery",
        ),
        Err(Unreached { why, is_lasting }) => {
            let meaning = "without it, a failover is detected later, or not at all if no other sentinel reports the primary";
            let finding = Finding::new(Warning, CHECK, &**why, meaning);
            if *is_lasting {
                finding.correct_it()
            } else {
                finding.advice(
                    "check that it runs, its address in the URL, where the port is 26379 unless given, and that no firewall or \
                     proxy blocks the connection",
                )
            }
        }
    };
    let quorum = match &sentinel.quorum {
        _ if sentinel.master.is_err() => None,
        Ok(Ok(())) => Some(Finding::new(
            Fine,
            "quorum",
            "enough sentinels are reachable for a failover",
            "a failed primary is replaced",
        )),
        Ok(Err(said)) => {
            let meaning = "if the primary fails, no replica is promoted, and no lock can be acquired";
            let finding = Finding::new(Danger, "quorum", format!("it reports: {said}"), meaning);
            Some(finding.advice("start the missing sentinels, and check that they reach each other"))
        }
        Err(why) => {
            let what = "whether a failover is possible";
            Some(Finding::unread("quorum", what, why, "`SENTINEL CKQUORUM <name>` on each sentinel"))
        }
    };
    [Some(first), quorum].into_iter().flatten().map(|finding| finding.of(&sentinel.address)).collect()
}

fn agreement(sentinels: &[Sentinel]) -> Finding {
    const CHECK: &str = "sentinels";
    let mut named: Vec<_> = sentinels.iter().filter_map(|sentinel| sentinel.master.as_ref().ok()).collect();
    let replied = named.len();
    named.sort_unstable();
    named.dedup();
    let count = format!("{replied} of {} sentinels report the primary", sentinels.len());
    let advice = "see the findings of those that do not report it";
    match named.as_slice() {
        [] => Finding::new(Danger, CHECK, count, "the primary is unknown, so no lock can be acquired")
            .advice(advice),
        [master] if replied * 2 > sentinels.len() => {
            Finding::new(Fine, CHECK, format!("{count}, and agree on {master}"), "the primary is known")
        }
        [_] => {
            let meaning = "no majority reports it, so the reports may be out of date";
            Finding::new(Warning, CHECK, count, meaning).advice(advice)
        }
        several => {
            let several: Vec<_> = several.iter().map(|master| master.as_str()).collect();
            let found = format!("{count}, and it is {}", several.join(" or "));
            let meaning = "a failover is in progress, or the sentinels do not reach each other: two primaries may grant the same lock";
            Finding::new(Danger, CHECK, found, meaning)
                .advice("run this again in a minute; if it persists, check the network between the sentinels")
        }
    }
}

/// Checks that the URL names all sentinels, because the manager subscribes only to those.
fn number(known: u64, named: usize) -> Option<Finding> {
    const CHECK: &str = "sentinels";
    if known > named as u64 {
        let found = format!("the URL names {named} sentinels, and they know of {known}");
        let finding = Finding::new(
            Warning,
            CHECK,
            found,
            "a failover that another sentinel announces first is detected late",
        );
        return Some(finding.advice("name all of them in the URL"));
    }
    if known < 3 {
        let found = if known == 2 { "there are two sentinels" } else { "there is one sentinel" };
        let meaning = "if one machine fails, the rest have no majority, and no replica is promoted";
        return Some(Finding::new(Warning, CHECK, found, meaning).advice("run three, on three machines"));
    }
    None
}

/// Checks that a cluster is complete, as the servers of the URL report.
pub(super) fn cluster(seeds: &[Seed], servers: &[Server]) -> Vec<Finding> {
    const CHECK: &str = "cluster";
    if seeds.is_empty() {
        return Vec::new();
    }
    let all_failed = seeds.iter().all(|seed| seed.whole.is_err());
    let mut findings: Vec<_> = seeds.iter().map(|seed| of_seed(seed, all_failed)).collect();
    let masters = servers.iter().filter(|server| server.part == Part::Master).count();
    if (1..3).contains(&masters) {
        let found = format!("it has {masters} of the three primaries that it needs");
        let finding = Finding::new(Warning, CHECK, found, "if one fails, no replica is promoted");
        findings.push(finding.advice("run at least three primaries, on three machines"));
    }
    findings
}

fn of_seed(seed: &Seed, all_failed: bool) -> Finding {
    const CHECK: &str = "cluster";
    let finding = match &seed.whole {
        Ok(()) => Finding::new(
            Fine,
            CHECK,
            "it reports that every slot is served",
            "locks of all keys can be acquired",
        ),
        Err(why) if all_failed => {
            Finding::new(Danger, CHECK, &**why, "locks of some or all keys cannot be acquired")
                .advice("fix the reported problem; `CLUSTER INFO` and `CLUSTER NODES` show more")
        }
        Err(why) => {
            Finding::new(Warning, CHECK, &**why, "the cluster cannot be discovered through this server")
                .advice("check its address, and that it is a node of the cluster")
        }
    };
    finding.of(&seed.address)
}

/// Compares the clocks of all servers of a Sentinel or cluster deployment: a replica expires locks
/// by its own wall clock.
pub(super) fn clocks(servers: &[Server]) -> Option<Finding> {
    const CHECK: &str = "clocks";
    let clocks = servers
        .iter()
        .filter_map(|server| Some((&server.address, *server.replies.as_ref().ok()?.clock.as_ref().ok()?)));
    let clocks: Vec<_> = clocks.collect();
    let (first, last) =
        (clocks.iter().min_by_key(|(_, at)| at.ahead)?, clocks.iter().max_by_key(|(_, at)| at.ahead)?);
    if clocks.len() < 2 {
        return None;
    }
    let between = last.1.from(first.1);
    let found = format!("the clock of {} is {between} that of {}", last.0, first.0);
    if between.least() < APART {
        return Some(Finding::new(Fine, CHECK, found, "a lock expires at the same time on each"));
    }
    let meaning = "after a failover, locks expire by that much too early, while they are held, or too late";
    let finding = Finding::new(Warning, CHECK, found, meaning);
    Some(finding.advice("synchronize them by NTP, slewed and not stepped (`chronyd`)"))
}

/// Less than the lead of a renewal, and more than NTP lets clocks differ.
const APART: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::facts::tests::{assert_is, replies};
    use crate::doctor::facts::{Offset, ServerReplies};
    use crate::doctor::report::Severity;

    fn sentinel(master: Result<&str, &str>, known: u64, quorum: Result<(), &str>) -> Sentinel {
        Sentinel {
            address: "s:26379".to_owned(),
            master: master.map(str::to_owned).map_err(Unreached::passing),
            known: Ok(known),
            quorum: Ok(quorum.map_err(str::to_owned)),
        }
    }

    fn worst(said: &[Sentinel]) -> (Severity, String) {
        let findings = sentinels(said);
        let worst = findings.iter().max_by_key(|finding| finding.severity()).expect("there are findings");
        (worst.severity(), worst.to_string())
    }

    #[test]
    fn sentinels_must_reply_agree_and_be_able_to_elect() {
        let good = || sentinel(Ok("m:1"), 3, Ok(()));
        let cases = [
            ([good(), good(), good()], Fine, ""),
            ([good(), good(), sentinel(Err("no connection"), 3, Ok(()))], Warning, "no connection"),
            ([good(), good(), sentinel(Ok("m:2"), 3, Ok(()))], Danger, "m:1 or m:2"),
            ([good(), good(), sentinel(Ok("m:1"), 3, Err("NOQUORUM"))], Danger, "it reports: NOQUORUM"),
            ([good(), good(), sentinel(Ok("m:1"), 5, Ok(()))], Warning, "they know of 5"),
        ];
        for (said, severity, text) in cases {
            let (worst, shown) = worst(&said);
            assert_eq!(worst, severity, "{shown}");
            assert!(shown.contains(text), "{shown}");
        }
        assert_eq!(worst(&[sentinel(Err("gone"), 1, Ok(()))]).0, Danger);
        let half = agreement(&[good(), sentinel(Err("gone"), 2, Ok(()))]);
        assert_is(&half, Warning, "no majority reports it");
        assert!(sentinels(&[]).is_empty());
    }

    #[test]
    fn the_advice_about_a_sentinel_depends_on_whether_it_is_reachable() {
        for (is_lasting, advice) in [(true, "is reachable"), (false, "firewall")] {
            let unreached = Unreached { is_lasting, ..Unreached::passing("no") };
            let sentinel = Sentinel { master: Err(unreached), ..sentinel(Ok("m:1"), 3, Ok(())) };

            let findings = of_sentinel(&sentinel);

            assert!(findings[0].remedy().is_some_and(|given| given.contains(advice)), "{findings:?}");
        }
    }

    #[test]
    fn a_cluster_must_be_whole_by_those_that_are_named() {
        let seed =
            |whole: Result<(), &str>| Seed { address: "h:1".to_owned(), whole: whole.map_err(Into::into) };
        let worst = |seeds: &[Seed]| cluster(seeds, &[]).iter().map(Finding::severity).max();

        assert_eq!(worst(&[]), None);
        assert_eq!(worst(&[seed(Ok(())), seed(Ok(()))]), Some(Fine));
        assert_eq!(worst(&[seed(Ok(())), seed(Err("gone"))]), Some(Warning));
        assert_eq!(worst(&[seed(Err("no primary serves 5 of its slots"))]), Some(Danger));
    }

    #[test]
    fn clocks_differ_by_the_minimum_difference() {
        let with = |offsets: &[(i64, i64)]| {
            let servers = offsets.iter().map(|(ahead, within)| Server {
                address: "h".to_owned(),
                part: Part::Replica,
                replies: Ok(ServerReplies {
                    clock: Ok(Offset { ahead: *ahead, within: *within }),
                    ..replies()
                }),
            });
            clocks(&servers.collect::<Vec<_>>()).map(|finding| finding.severity())
        };

        assert_eq!(with(&[(5_000_000, 0)]), None);
        assert_eq!(with(&[(5_000_000, 100), (5_100_000, 100)]), Some(Fine));
        assert_eq!(with(&[(0, 300_000), (500_000, 0)]), Some(Fine));
        assert_eq!(with(&[(0, 100), (1_000_000, 100)]), Some(Warning));
    }
}
