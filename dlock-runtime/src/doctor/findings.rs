//! Turns facts into findings, as pure functions.
//!
//! See `durability`, `replication`, and `connectivity` for checks of one server, and `deployment`
//! and `quorum` for checks of several.

use crate::doctor::facts::{Deployment, Facts, Part, Server, ServerReplies, Terms, Unreached};
use crate::doctor::report::{Finding, Report, Severity};
use crate::doctor::{connectivity, deployment, durability, quorum, replication};

/// Returns all findings.
pub(super) fn judge(facts: &Facts) -> Report {
    let mut findings: Vec<_> =
        facts.servers.iter().flat_map(|server| of_server(server, &facts.terms)).collect();
    findings.extend(deployment::omitted(facts.omitted, &facts.terms));
    findings.extend(deployment::sentinels(&facts.sentinels));
    findings.extend(deployment::cluster(&facts.seeds, &facts.servers));
    match facts.terms.topology {
        Deployment::Quorum => findings.extend(quorum::votes(&facts.servers)),
        Deployment::Sentinels => findings.extend(replication::promotion(&facts.servers)),
        Deployment::One | Deployment::Cluster => {}
    }
    if facts.terms.topology.fails_over() {
        findings.extend(deployment::clocks(&facts.servers));
    }
    let is_reachable = facts.servers.iter().any(|server| server.replies.is_ok());
    Report::new(findings, is_reachable)
}

/// Returns the report for `memory://`.
pub(super) fn of_memory() -> Report {
    let found = "`memory://` has no server";
    let finding = Finding::new(Severity::Note, "scope", found, "locks exclude only within this process");
    let finding = finding.advice("use `redis://host:port` if several processes must exclude each other");
    Report::new(vec![finding], true)
}

fn of_server(server: &Server, terms: &Terms) -> Vec<Finding> {
    let findings = match &server.replies {
        Err(unreached) => vec![of_unreached(server.part, unreached)],
        Ok(replies) if server.part == Part::Master => of_master(replies, terms),
        Ok(replies) => of_replica(replies, terms),
    };
    findings.into_iter().map(|finding| finding.of(&server.address)).collect()
}

fn of_unreached(part: Part, Unreached { why, is_lasting }: &Unreached) -> Finding {
    match part {
        Part::Master => {
            let finding = Finding::new(Severity::Danger, "connection", &**why, "it can grant no lock");
            if *is_lasting {
                return finding.correct_it();
            }
            finding.advice(
                "check that the server runs, its address, and that no firewall or proxy blocks the connection",
            )
        }
        Part::Replica => {
            let meaning =
                "it is unknown whether it can take over: after a failover, clients must reach it from here";
            let finding = Finding::new(Severity::Warning, "connection", &**why, meaning);
            if *is_lasting {
                return finding.advice(
                    "the address is reachable: create the same user on it, as users are not replicated, or correct what \
                     is named above",
                );
            }
            finding.advice(
                "create the same user on it, as users are not replicated, and make it announce an address that is reachable \
                 from here (`replica-announce-ip`)",
            )
        }
    }
}

fn of_master(replies: &ServerReplies, terms: &Terms) -> Vec<Finding> {
    let reached = Finding::new(Severity::Ok, "connection", "it replies", "locks can be acquired");
    let mut findings = vec![reached];
    match &replies.info {
        Ok(info) if replication::is_sentinel(info) => return vec![replication::role(info, terms)],
        Ok(info) => {
            findings.push(replication::version(info));
            findings.push(replication::role(info, terms));
            findings.push(durability::eviction(info));
            findings.push(durability::memory(info));
            findings.push(durability::persistence(info, replies, terms));
            findings.extend(durability::failing_disk(info, replies));
            findings.push(replication::replication(info, replies, terms));
            findings.extend(connectivity::forks(info, terms));
        }
        Err(refusal) => {
            findings.extend(unread(&refusal.said));
            findings.extend(connectivity::not_introduced(refusal, terms));
        }
    }
    findings.extend(replication::acknowledgments(replies, terms));
    findings.push(connectivity::clock(replies));
    findings.push(connectivity::latency(replies, terms));
    findings.extend(connectivity::commands(replies, terms));
    findings.extend(connectivity::records(replies, terms));
    findings
}

fn of_replica(replies: &ServerReplies, terms: &Terms) -> Vec<Finding> {
    let reached = Finding::new(Severity::Ok, "connection", "it replies", "it can be used if it is promoted");
    let mut findings = vec![reached];
    match &replies.info {
        Ok(info) => {
            findings.push(replication::version(info));
            findings.push(replication::following(info, terms));
            findings.push(durability::eviction(info));
        }
        Err(refusal) => findings.extend(unread(&refusal.said)),
    }
    findings.push(connectivity::clock(replies));
    findings
}

/// Returns findings for a server that does not reply to `INFO`, with what to check by hand.
fn unread(why: &str) -> [Finding; 4] {
    let by_hand = [
        ("version", "the version", "`INFO server`: Redis 6.2 or later, or Valkey"),
        ("eviction", "the eviction policy", "`CONFIG GET maxmemory-policy`: it must be `noeviction`"),
        (
            "persistence",
            "what a restart keeps",
            "`CONFIG GET appendonly`, `CONFIG GET appendfsync`, and `CONFIG GET no-appendfsync-on-rewrite`",
        ),
        (
            "replication",
            "the replicas",
            "`INFO replication`, `CONFIG GET min-replicas-to-write`, and `CONFIG GET min-replicas-max-lag`",
        ),
    ];
    by_hand.map(|(check, what, by_hand)| Finding::unread(check, what, why, by_hand))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::facts::Offset;
    use crate::doctor::facts::tests::{replies, terms};

    /// No server of a quorum takes over from another.
    #[test]
    fn clocks_are_compared_if_a_server_may_take_over() {
        for (topology, is_compared) in [(Deployment::Sentinels, true), (Deployment::Quorum, false)] {
            let server = |ahead| Server {
                address: "h:1".to_owned(),
                part: Part::Master,
                replies: Ok(ServerReplies { clock: Ok(Offset { ahead, within: 0 }), ..replies() }),
            };
            let facts = Facts {
                servers: vec![server(0), server(3_600_000_000)],
                omitted: 0,
                sentinels: Vec::new(),
                seeds: Vec::new(),
                terms: Terms { topology, ..terms() },
            };

            let report = judge(&facts);

            let clocks = report.findings().iter().find(|finding| finding.check() == "clocks");
            let expected = is_compared.then_some(Severity::Warning);
            assert_eq!(clocks.map(Finding::severity), expected, "{report}");
        }
    }
}
