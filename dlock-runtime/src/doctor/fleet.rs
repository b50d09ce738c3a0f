//! Several servers seen together: whether sentinels agree, whether clocks do.
//!
//! Not here: what is true of one server alone (`keeping`, `standing`, `reaching`).

use std::time::Duration;

use crate::doctor::facts::{Part, Seed, Sentinel, Server};
use crate::doctor::report::Finding;
use crate::doctor::report::Severity::{Danger, Ok as Fine, Warning};

/// Whether sentinels can be asked, agree, and could elect.
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
        Ok(master) => Finding::new(Fine, CHECK, format!("it names {master} as the master"), "we can ask it"),
        Err(why) => {
            let meaning = "we learn of a fail-over later without it, or not at all if no other can be asked";
            let finding = Finding::new(Warning, CHECK, &**why, meaning);
            finding.advice(
                "check that it runs, its address in the URL, and `sentinel_user` and `sentinel_password`",
            )
        }
    };
    let quorum = match &sentinel.quorum {
        _ if sentinel.master.is_err() => None,
        Ok(Ok(())) => {
            Some(Finding::new(Fine, "quorum", "it can have a fail-over elected", "a dead master is replaced"))
        }
        Ok(Err(said)) => {
            let meaning = "no new master would be elected: when this one goes, no lock can be had";
            let finding = Finding::new(Danger, "quorum", format!("it says: {said}"), meaning);
            Some(finding.advice("start the sentinels that are missing, and check that they see each other"))
        }
        Err(why) => {
            let what = "whether it can have a fail-over elected";
            Some(Finding::unread("quorum", what, why, "`SENTINEL CKQUORUM <name>` on each sentinel"))
        }
    };
    [Some(first), quorum].into_iter().flatten().map(|finding| finding.of(&sentinel.address)).collect()
}

fn agreement(sentinels: &[Sentinel]) -> Finding {
    const CHECK: &str = "sentinels";
    let mut named: Vec<_> = sentinels.iter().filter_map(|sentinel| sentinel.master.as_ref().ok()).collect();
    let answered = named.len();
    named.sort_unstable();
    named.dedup();
    let count = format!("{answered} of {} sentinels answer", sentinels.len());
    match named.as_slice() {
        [] => {
            let finding =
                Finding::new(Danger, CHECK, count, "the master cannot be found, so no lock can be had");
            finding
                .advice("check the addresses of the sentinels, and their ports, which are 26379 unless given")
        }
        [master] if answered * 2 > sentinels.len() => {
            Finding::new(Fine, CHECK, format!("{count}, and agree on {master}"), "the master is known")
        }
        [_] => {
            let meaning = "fewer than half can be asked: what they say may be old";
            Finding::new(Warning, CHECK, count, meaning)
                .advice("see the findings of those that do not answer")
        }
        several => {
            let several: Vec<_> = several.iter().map(|master| master.as_str()).collect();
            let found = format!("{count}, and name {} as the master", several.join(" and "));
            let meaning = "a fail-over is under way, or they do not see each other: two masters give the same lock away";
            Finding::new(Danger, CHECK, found, meaning)
                .advice("examine again in a minute; if it stays so, check the network between the sentinels")
        }
    }
}

/// Each sentinel is to be listened to, so each is to be named.
fn number(known: u64, named: usize) -> Option<Finding> {
    const CHECK: &str = "sentinels";
    if known > named as u64 {
        let found = format!("the URL names {named} sentinels, and they know of {known}");
        let finding =
            Finding::new(Warning, CHECK, found, "a fail-over that the others told first is learnt of late");
        return Some(finding.advice("name all of them in the URL"));
    }
    if known < 3 {
        let found = if known == 2 { "there are two sentinels" } else { "there is one sentinel" };
        let meaning =
            "when the machine of one is lost, the rest have no majority, and no new master is elected";
        return Some(Finding::new(Warning, CHECK, found, meaning).advice("run three, on three machines"));
    }
    None
}

/// Whether a cluster is whole, by those that were named.
pub(super) fn cluster(seeds: &[Seed], servers: &[Server]) -> Vec<Finding> {
    const CHECK: &str = "cluster";
    if seeds.is_empty() {
        return Vec::new();
    }
    let nobody = seeds.iter().all(|seed| seed.whole.is_err());
    let mut findings: Vec<_> = seeds.iter().map(|seed| of_seed(seed, nobody)).collect();
    let masters = servers.iter().filter(|server| server.part == Part::Master).count();
    if (1..3).contains(&masters) {
        let found = format!("it has {masters} of the three masters that it needs");
        let finding = Finding::new(Warning, CHECK, found, "no new master is elected when one goes");
        findings.push(finding.advice("have three masters at least, on three machines"));
    }
    findings
}

fn of_seed(seed: &Seed, nobody: bool) -> Finding {
    const CHECK: &str = "cluster";
    let finding = match &seed.whole {
        Ok(()) => Finding::new(
            Fine,
            CHECK,
            "every slot is served, by what it says",
            "locks of every key can be had",
        ),
        Err(why) if nobody => {
            Finding::new(Danger, CHECK, &**why, "locks of some keys, or of all, cannot be had")
                .advice("do what the words say; `CLUSTER INFO` and `CLUSTER NODES` have more")
        }
        Err(why) => Finding::new(Warning, CHECK, &**why, "we cannot find the cluster by this one")
            .advice("check its address, and that it is a part of the cluster"),
    };
    finding.of(&seed.address)
}

/// A replica keeps when a lock ends by its own wall clock.
pub(super) fn clocks(servers: &[Server]) -> Option<Finding> {
    const CHECK: &str = "clocks";
    let clocks = servers
        .iter()
        .filter_map(|server| Some((&server.address, *server.answers.as_ref().ok()?.clock.as_ref().ok()?)));
    let clocks: Vec<_> = clocks.collect();
    let (first, last) =
        (clocks.iter().min_by_key(|(_, at)| at.ahead)?, clocks.iter().max_by_key(|(_, at)| at.ahead)?);
    if clocks.len() < 2 {
        return None;
    }
    let between = last.1.from(first.1);
    let found = format!("the clock of {} is {between} that of {}", last.0, first.0);
    if between.least() < APART {
        return Some(Finding::new(Fine, CHECK, found, "a lock ends at the same time on each"));
    }
    let meaning = "after a fail-over locks end by that much too early, while they are held, or too late";
    let severity = if between.least() < FAR_APART { Warning } else { Danger };
    Some(
        Finding::new(severity, CHECK, found, meaning)
            .advice("keep them by NTP, slewed and not stepped (`chronyd`)"),
    )
}

/// Less than what a renewal is early by, and more than NTP lets clocks differ.
const APART: Duration = Duration::from_millis(250);
/// A lease of half a minute has lost a third of itself then: what renewals have to spare.
const FAR_APART: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::facts::tests::answers;
    use crate::doctor::facts::{Answers, Offset};
    use crate::doctor::report::Severity;

    fn sentinel(master: Result<&str, &str>, known: u64, quorum: Result<(), &str>) -> Sentinel {
        Sentinel {
            address: "s:26379".to_owned(),
            master: master.map(str::to_owned).map_err(Into::into),
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
    fn sentinels_must_answer_agree_and_be_able_to_elect() {
        let good = || sentinel(Ok("m:1"), 3, Ok(()));
        let cases = [
            ([good(), good(), good()], Fine, ""),
            ([good(), good(), sentinel(Err("no connection"), 3, Ok(()))], Warning, "no connection"),
            ([good(), good(), sentinel(Ok("m:2"), 3, Ok(()))], Danger, "m:1 and m:2"),
            ([good(), good(), sentinel(Ok("m:1"), 3, Err("NOQUORUM"))], Danger, "it says: NOQUORUM"),
            ([good(), good(), sentinel(Ok("m:1"), 5, Ok(()))], Warning, "they know of 5"),
        ];
        for (said, severity, text) in cases {
            let (worst, shown) = worst(&said);
            assert_eq!(worst, severity, "{shown}");
            assert!(shown.contains(text), "{shown}");
        }
        assert_eq!(worst(&[sentinel(Err("gone"), 1, Ok(()))]).0, Danger);
        assert!(sentinels(&[]).is_empty());
    }

    #[test]
    fn a_cluster_must_be_whole_by_those_that_are_named() {
        let seed =
            |whole: Result<(), &str>| Seed { address: "h:1".to_owned(), whole: whole.map_err(Into::into) };
        let worst = |seeds: &[Seed]| cluster(seeds, &[]).iter().map(Finding::severity).max();

        assert_eq!(worst(&[]), None);
        assert_eq!(worst(&[seed(Ok(())), seed(Ok(()))]), Some(Fine));
        assert_eq!(worst(&[seed(Ok(())), seed(Err("gone"))]), Some(Warning));
        assert_eq!(worst(&[seed(Err("nobody serves 5 of its slots"))]), Some(Danger));
    }

    #[test]
    fn clocks_of_servers_are_told_apart_by_what_is_sure() {
        let with = |offsets: &[(i64, i64)]| {
            let servers = offsets.iter().map(|(ahead, within)| Server {
                address: "h".to_owned(),
                part: Part::Replica,
                answers: Ok(Answers { clock: Ok(Offset { ahead: *ahead, within: *within }), ..answers() }),
            });
            clocks(&servers.collect::<Vec<_>>()).map(|finding| finding.severity())
        };

        assert_eq!(with(&[(5_000_000, 0)]), None);
        assert_eq!(with(&[(5_000_000, 100), (5_100_000, 100)]), Some(Fine));
        assert_eq!(with(&[(0, 300_000), (500_000, 0)]), Some(Fine));
        assert_eq!(with(&[(0, 100), (1_000_000, 100)]), Some(Warning));
        assert_eq!(with(&[(-6_000_000, 100), (6_000_000, 100)]), Some(Danger));
    }
}
