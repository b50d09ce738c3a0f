//! Judges what was read: pure, from values to findings.
//!
//! Not here: the questions about one server (`keeping`, `standing`, `reaching`), about several (`fleet`, `voters`), and how they are asked
//! (`backend`).

use crate::doctor::facts::{Answers, Facts, Part, Server, Terms, Topology};
use crate::doctor::report::{Finding, Report, Severity};
use crate::doctor::{fleet, keeping, reaching, standing, voters};

/// Judges everything.
pub(super) fn judge(facts: &Facts) -> Report {
    let mut findings: Vec<_> =
        facts.servers.iter().flat_map(|server| of_server(server, &facts.terms)).collect();
    findings.extend(fleet::sentinels(&facts.sentinels));
    findings.extend(fleet::cluster(&facts.seeds, &facts.servers));
    if facts.terms.topology == Topology::Quorum {
        findings.extend(voters::votes(&facts.servers));
    }
    findings.extend(fleet::clocks(&facts.servers));
    let was_examined = facts.servers.iter().any(|server| server.answers.is_ok());
    Report::new(findings, was_examined)
}

/// What there is to say of locks in memory.
pub(super) fn of_memory() -> Report {
    let found = "`memory://` has no server";
    let finding = Finding::new(Severity::Note, "scope", found, "locks exclude within this process alone");
    let finding = finding.advice("use `redis://host:port` where several processes must exclude each other");
    Report::new(vec![finding], true)
}

fn of_server(server: &Server, terms: &Terms) -> Vec<Finding> {
    let findings = match &server.answers {
        Err(why) => vec![unreached(server.part, why)],
        Ok(answers) if server.part == Part::Master => of_master(answers, terms),
        Ok(answers) => of_replica(answers),
    };
    findings.into_iter().map(|finding| finding.of(&server.address)).collect()
}

fn unreached(part: Part, why: &str) -> Finding {
    match part {
        Part::Master => {
            let finding = Finding::new(Severity::Danger, "connection", why, "no lock can be had from it");
            finding.advice(
                "check that the server runs, its address, and user and password; and that nothing in between holds \
                 connections up",
            )
        }
        Part::Replica => {
            let meaning =
                "whether it could take over is not known: the clients of a fail-over must reach it from here";
            let finding = Finding::new(Severity::Warning, "connection", why, meaning);
            finding.advice(
                "give it the same user, as users are not replicated; and have it announce an address that is reachable \
                 from here (`replica-announce-ip`)",
            )
        }
    }
}

fn of_master(answers: &Answers, terms: &Terms) -> Vec<Finding> {
    let reached = Finding::new(Severity::Ok, "connection", "it answers", "locks can be asked for");
    let mut findings = vec![reached];
    match &answers.info {
        Ok(info) if standing::is_sentinel(info) => return vec![standing::role(info, terms)],
        Ok(info) => {
            findings.push(standing::version(info));
            findings.push(standing::role(info, terms));
            findings.push(keeping::eviction(info));
            findings.push(keeping::memory(info));
            findings.push(keeping::persistence(info, answers, terms));
            findings.extend(keeping::failing_disk(info));
            findings.push(standing::replication(info, answers, terms));
            findings.extend(reaching::forks(info, terms));
        }
        Err(why) => {
            findings.extend(unread(why));
            findings.extend(reaching::not_introduced(why, terms));
        }
    }
    findings.push(reaching::clock(answers));
    findings.push(reaching::latency(answers, terms));
    findings.extend(reaching::commands(answers, terms));
    findings.push(reaching::channel(answers, terms));
    findings
}

fn of_replica(answers: &Answers) -> Vec<Finding> {
    let reached = Finding::new(Severity::Ok, "connection", "it answers", "it can be used if it is promoted");
    let mut findings = vec![reached];
    match &answers.info {
        Ok(info) => {
            findings.push(standing::version(info));
            findings.push(standing::following(info));
            findings.push(keeping::eviction(info));
        }
        Err(why) => findings.extend(unread(why)),
    }
    findings.push(reaching::clock(answers));
    findings
}

/// What is not known where a user may not ask for `INFO`, with what to type instead as one who may.
fn unread(why: &str) -> [Finding; 4] {
    let by_hand = [
        ("version", "the version", "`INFO server`: Redis 6.2 or later, or Valkey"),
        ("eviction", "the eviction policy", "`CONFIG GET maxmemory-policy`: it must be `noeviction`"),
        ("persistence", "what a restart keeps", "`CONFIG GET appendonly` and `CONFIG GET appendfsync`"),
        ("replication", "the replicas", "`INFO replication`, and `CONFIG GET min-replicas-to-write`"),
    ];
    by_hand.map(|(check, what, by_hand)| Finding::unread(check, what, why, by_hand))
}
