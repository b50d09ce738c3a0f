//! Checks of a quorum: whether a majority is reachable, and whether all servers are different.

use crate::doctor::facts::{Info, Server};
use crate::doctor::report::Finding;
use crate::doctor::report::Severity::{Danger, Ok as Fine, Warning};

/// Checks the servers of a quorum.
pub(super) fn votes(servers: &[Server]) -> Vec<Finding> {
    const CHECK: &str = "quorum";
    let (all, asked) = (servers.len(), servers.iter().filter(|server| server.replies.is_ok()).count());
    let found = format!("{asked} of {all} servers are reachable");
    let advice = "see the findings of those that are not";
    let majority = if asked * 2 <= all {
        Finding::new(Danger, CHECK, found, "no lock can be acquired: more than half must grant it")
            .advice(advice)
    } else if asked < all {
        Finding::new(Warning, CHECK, found, "the quorum tolerates fewer further failures").advice(advice)
    } else {
        Finding::new(Fine, CHECK, found, "locks can be acquired while more than half are reachable")
    };
    let mut findings = vec![majority];
    findings.extend(twice(servers));
    findings
}

/// Finds a server that is named twice: it would have two votes.
fn twice(servers: &[Server]) -> Option<Finding> {
    let id = |server: &Server| Some(run_id(server.replies.as_ref().ok()?.info.as_ref().ok()?)?.to_owned());
    let known: Vec<_> = servers.iter().filter_map(|server| Some((&server.address, id(server)?))).collect();
    let (one, other) = known.iter().enumerate().find_map(|(at, (address, id))| {
        let (other, _) = known.iter().skip(at + 1).find(|(_, other)| other == id)?;
        Some((*address, *other))
    })?;
    let found = format!("{one} and {other} are the same server");
    let finding =
        Finding::new(Danger, "quorum", found, "it votes twice: two callers may acquire the same lock");
    Some(finding.advice("name each server once"))
}

fn run_id(info: &Info) -> Option<&str> {
    info.get("run_id").filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::facts::tests::replies;
    use crate::doctor::facts::{Part, ServerReplies, Unreached};
    use crate::doctor::report::Severity;

    fn server(run_id: Option<&str>) -> Server {
        let replies =
            run_id.map(|id| ServerReplies { info: Ok(Info(format!("run_id:{id}\r\n"))), ..replies() });
        Server {
            address: "h:1".to_owned(),
            part: Part::Master,
            replies: replies.ok_or_else(|| Unreached::passing("gone")),
        }
    }

    fn worst(ids: [Option<&str>; 3]) -> Severity {
        let findings = votes(&ids.map(server));
        findings.iter().map(Finding::severity).max().expect("there are findings")
    }

    #[test]
    fn more_than_half_must_reply_and_each_be_another() {
        assert_eq!(worst([Some("a"), Some("b"), Some("c")]), Fine);
        assert_eq!(worst([Some("a"), Some("b"), None]), Warning);
        assert_eq!(worst([Some("a"), None, None]), Danger);
        assert_eq!(worst([Some("a"), Some("b"), Some("a")]), Danger);
    }
}
