//! Checks of a server's version, role, and replication.

use crate::doctor::facts::{Deployment, Info, Part, Server, ServerReplies, Terms};
use crate::doctor::report::Finding;
use crate::doctor::report::Severity::{Danger, Note, Ok as Fine, Warning};

/// Checks the version: the scripts need Redis 6.2.
pub(super) fn version(info: &Info) -> Finding {
    const CHECK: &str = "version";
    let speaks = info.get("redis_version").unwrap_or_default();
    let others = ["valkey", "dragonfly", "keydb"].into_iter().find_map(|name| {
        let version = info
            .get(&format!("{name}_version"))
            .or_else(|| (info.get("server_name") == Some(name)).then_some(speaks))?;
        Some((name, version))
    });
    let found = match others {
        Some((name, version)) => format!("{}{} {version}", name[..1].to_uppercase(), &name[1..]),
        None => format!("Redis {speaks}"),
    };
    let mut numbers = speaks.split('.').map(|number| number.parse::<u32>().ok());
    let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next()) else {
        return Finding::unread(
            CHECK,
            "the version",
            "`INFO` does not name it",
            "Redis 6.2 or later, or Valkey",
        );
    };
    if (major, minor) < (6, 2) {
        let meaning = "it is older than the oldest supported version";
        return Finding::new(Danger, CHECK, found, meaning).advice("use Redis 6.2 or later, or Valkey");
    }
    if others.is_some_and(|(name, _)| name != "valkey") {
        let meaning = "only Redis and Valkey are tested";
        return Finding::new(Note, CHECK, found, meaning).advice("run your own tests against it");
    }
    Finding::new(Fine, CHECK, found, "it is supported")
}

/// Checks the role: a replica and a sentinel accept no writes, and a node of a cluster only those
/// of its slots.
pub(super) fn role(info: &Info, terms: &Terms) -> Finding {
    const CHECK: &str = "role";
    if is_sentinel(info) {
        let meaning = "it stores no locks: it reports the primary, which does";
        let finding = Finding::new(Danger, CHECK, "it is a sentinel", meaning);
        let scheme = terms.scheme_of(Deployment::Sentinels);
        return finding.advice(format!("write `{scheme}host:port/master-name`"));
    }
    if info.get("role") == Some("slave") {
        let of = info.get("master_host").unwrap_or("another server");
        let port = info.get("master_port").unwrap_or_default();
        let found = format!("it is a replica of {of}:{port}");
        let meaning = "it accepts no writes, so it can grant no lock; if it were writable, replication would overwrite its locks";
        let advice = terms.topology.replica_advice(terms.tls);
        return Finding::new(Danger, CHECK, found, meaning).advice(advice);
    }
    if info.number("cluster_enabled") == Some(1) && terms.topology != Deployment::Cluster {
        let (severity, meaning) = match terms.topology {
            Deployment::Quorum => (Danger, "a node of a cluster has no vote"),
            _ => (Warning, "it refuses the locks whose keys belong to other nodes"),
        };
        let finding = Finding::new(severity, CHECK, "it is a node of a cluster", meaning);
        return finding.advice(format!("name the cluster with `{}`", terms.scheme_of(Deployment::Cluster)));
    }
    Finding::new(Fine, CHECK, "it is a primary", "it accepts writes")
}

/// Returns `true` if it is a sentinel, to which the other checks do not apply.
pub(super) fn is_sentinel(info: &Info) -> bool {
    // Valkey uses another field name.
    ["redis_mode", "server_mode"].iter().any(|name| info.get(name) == Some("sentinel"))
}

/// Checks what happens to locks when this primary fails.
pub(super) fn replication(info: &Info, replies: &ServerReplies, terms: &Terms) -> Finding {
    const CHECK: &str = "replication";
    const ADVICE: &str =
        "set `min-replicas-to-write 1` and `min-replicas-max-lag 2` on every server that can become primary";
    let online = online(info);
    let replicas = match online {
        0 => "no replica".to_owned(),
        1 => "one replica".to_owned(),
        more => format!("{more} replicas"),
    };
    let wanted = usize::from(terms.replica_acks);
    if online < wanted {
        let found = format!("{replicas} online, and `replica_acks` asks for {wanted}");
        let finding =
            Finding::new(Danger, CHECK, found, "no lock can be acquired: too few replicas can confirm it");
        return finding.advice("start replicas, or lower `replica_acks`");
    }
    if !terms.topology.fails_over() {
        let found = format!("{replicas} online");
        if online == 0 {
            return Finding::new(Fine, CHECK, found, "no other server has its locks or can grant them");
        }
        let meaning = "if one is promoted, this URL does not follow it, and locks that were not replicated to it are lost";
        let advice = if terms.topology == Deployment::Quorum {
            "a quorum needs independent primaries without replicas".to_owned()
        } else {
            let scheme = terms.scheme_of(Deployment::Sentinels);
            format!("if sentinels monitor them, name the sentinels with `{scheme}`")
        };
        return Finding::new(Note, CHECK, found, meaning).advice(advice);
    }
    if online == 0 {
        let meaning = "no server can take over if it fails";
        return Finding::new(Warning, CHECK, format!("{replicas} online"), meaning)
            .advice("start a replica, and check that it can log in (`masteruser`, `masterauth`)");
    }
    for name in ["min-replicas-to-write", "min-replicas-max-lag"] {
        let (what, by_hand) =
            (format!("{replicas} online; `{name}`"), format!("`CONFIG GET {name}`: it should be 1 or more"));
        match replies.setting(name).map(str::parse::<u64>) {
            Ok(Ok(0)) => {
                let found = format!("{replicas} online, and `{name}` is 0");
                let meaning = "a primary that is cut off from its replicas keeps granting locks, which the new primary grants as well";
                return Finding::new(Warning, CHECK, found, meaning).advice(ADVICE);
            }
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return Finding::unread(CHECK, &what, "it is not a number", &by_hand),
            Err(why) => return Finding::unread(CHECK, &what, &why, &by_hand),
        }
    }
    let found =
        format!("{replicas} online, and both `min-replicas-to-write` and `min-replicas-max-lag` are set");
    let meaning =
        "a primary that is cut off from its replicas stops granting locks after `min-replicas-max-lag`";
    Finding::new(Fine, CHECK, found, meaning)
}

/// Checks that enough replicas acknowledge a write in time. `None` if they do, or if the reason why
/// they do not is another finding: too few are online, or a command fails.
pub(super) fn acknowledgments(replies: &ServerReplies, terms: &Terms) -> Option<Finding> {
    let (acks, wanted, limit) = (replies.acks.as_ref()?, terms.replica_acks, terms.ack_limit.as_millis());
    if replies.info.as_ref().is_ok_and(|info| online(info) < usize::from(wanted)) {
        return None;
    }
    let acks = match acks {
        Ok(acks) if *acks >= u64::from(wanted) => return None,
        Ok(acks) => acks,
        Err(why) => {
            let by_hand = format!("`WAIT {wanted} {limit}` after a write: it should return {wanted} or more");
            let what = "how many replicas acknowledge a write in time";
            return Some(Finding::unread("replication", what, why, &by_hand));
        }
    };
    let found = format!(
        "{acks} of {wanted} replicas acknowledged a write in {limit} ms, 2/5 of the response timeout"
    );
    let meaning = "no lock can be acquired: replicas must acknowledge it in that time";
    let finding = Finding::new(Danger, "replication", found, meaning);
    Some(finding.advice("raise `response_timeout`, or use replicas that are closer"))
}

fn online(info: &Info) -> usize {
    info.replicas().filter(|(.., online)| *online).count()
}

/// Returns `true` if sentinels never promote this replica.
fn is_never_promoted(info: &Info) -> bool {
    info.get("role") == Some("slave") && info.number("slave_priority") == Some(0)
}

/// Checks that sentinels can promote one of the replicas.
pub(super) fn promotion(servers: &[Server]) -> Option<Finding> {
    let mut replicas = servers.iter().filter(|server| server.part == Part::Replica).peekable();
    replicas.peek()?;
    let is_never_promoted = |server: &Server| {
        let info = server.replies.as_ref().ok().and_then(|replies| replies.info.as_ref().ok());
        info.is_some_and(is_never_promoted)
    };
    replicas.all(is_never_promoted).then(|| {
        let found = "`replica-priority` of every replica is 0";
        let meaning = "if the primary fails, no replica is promoted, and no lock can be acquired";
        Finding::new(Warning, "replication", found, meaning)
            .advice("set `replica-priority 100` on the replicas that may take over")
    })
}

/// Checks that a replica can take over.
pub(super) fn following(info: &Info, terms: &Terms) -> Finding {
    const CHECK: &str = "role";
    match (info.get("role"), info.get("master_link_status")) {
        (Some("slave"), Some("up")) if terms.topology == Deployment::Sentinels && is_never_promoted(info) => {
            let found = "it is a replica with `replica-priority 0`";
            let finding = Finding::new(Note, CHECK, found, "sentinels never promote it");
            finding.advice("set `replica-priority 100`, if it may take over")
        }
        (Some("slave"), Some("up")) => {
            Finding::new(Fine, CHECK, "it is a replica, and follows its primary", "it can take over")
        }
        (Some("slave"), _) => {
            let meaning = "later locks are not replicated to it: if promoted, it grants them again";
            let finding = Finding::new(Warning, CHECK, "it is a replica that has lost its primary", meaning);
            finding.advice("check the network between the two, and `masteruser` and `masterauth`")
        }
        _ => {
            let meaning = "a failover is in progress, or two servers act as primary";
            let finding =
                Finding::new(Warning, CHECK, "it was reported as a replica and is a primary", meaning);
            finding.advice("run this again; if it persists, make it follow the primary with `REPLICAOF`")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::facts::Refusal;
    use crate::doctor::facts::tests::{assert_is, info, replies, terms};

    #[test]
    fn a_server_is_named_and_must_be_new_enough() {
        assert_is(&version(&info("redis_version:7.0.15")), Fine, "Redis 7.0.15");
        assert_is(&version(&info("redis_version:6.2.0")), Fine, "Redis 6.2.0");
        assert_is(&version(&info("redis_version:6.0.16")), Danger, "Redis 6.0.16");
        assert_is(&version(&info("redis_version:5.0.1")), Danger, "6.2 or later");
        let valkey = info("redis_version:7.2.4 server_name:valkey valkey_version:9.0.0");
        assert_is(&version(&valkey), Fine, "Valkey 9.0.0");
        assert_is(&version(&info("redis_version:7.4.0 dragonfly_version:df-v1.2")), Note, "Dragonfly");
        assert_is(&version(&info("redis_version:unstable")), Note, "could not be read");
    }

    #[test]
    fn a_replica_is_no_place_for_locks() {
        let replica = role(&info("role:slave master_host:10.0.0.1 master_port:6379"), &terms());
        assert_is(&replica, Danger, "a replica of 10.0.0.1:6379");
        for (topology, advice) in [
            (Deployment::One, "its sentinels with `redis+sentinel://"),
            (Deployment::Sentinels, "still reported as the primary after the failover"),
            (Deployment::Cluster, "still reported as the primary after the failover"),
            (Deployment::Quorum, "name independent primaries"),
        ] {
            assert_is(&role(&info("role:slave"), &Terms { topology, ..terms() }), Danger, advice);
        }
        assert_is(&role(&info("role:master"), &terms()), Fine, "a primary");
        assert_is(&role(&info("redis_mode:sentinel"), &terms()), Danger, "redis+sentinel");
        assert_is(&role(&info("server_mode:sentinel"), &terms()), Danger, "redis+sentinel");
        let quorum = Terms { topology: Deployment::Quorum, ..terms() };
        for (terms, severity) in [(terms(), Warning), (quorum, Danger)] {
            assert_is(&role(&info("role:master cluster_enabled:1"), &terms), severity, "of a cluster");
        }
    }

    #[test]
    fn a_master_that_may_be_failed_over_must_ask_its_replicas() {
        let with = info("slave0:ip=h,port=1,state=online,offset=1,lag=0");
        let of = |least: &str, lag: &str| {
            let mut replies = replies();
            let settings = [("min-replicas-to-write", least), ("min-replicas-max-lag", lag)];
            replies.settings = settings.map(|(name, value)| (name, Ok(value.to_owned()))).into();
            replies
        };
        let least = |value: &str| of(value, "10");
        let alone = terms();
        let watched = Terms { topology: Deployment::Sentinels, ..terms() };

        assert_is(&replication(&with, &least("1"), &watched), Fine, "are set");
        assert_is(&replication(&with, &of("1", "0"), &watched), Warning, "`min-replicas-max-lag` is 0");
        assert_is(&replication(&with, &of("1", "x"), &watched), Note, "it is not a number");
        assert_is(&replication(&with, &least("0"), &watched), Warning, "min-replicas-to-write 1");
        assert_is(&replication(&with, &replies(), &watched), Note, "`CONFIG GET min-replicas-to-write`");
        assert_is(
            &replication(&info("role:master"), &least("0"), &watched),
            Warning,
            "no server can take over",
        );
        assert_is(&replication(&with, &least("0"), &alone), Note, "does not follow");
        assert_is(&replication(&info("role:master"), &least("0"), &alone), Fine, "no replica");
        let quorum = Terms { topology: Deployment::Quorum, ..terms() };
        assert_is(&replication(&with, &least("0"), &quorum), Note, "independent primaries without replicas");
        let acked = |replica_acks| Terms { replica_acks, ..terms() };
        assert_is(&replication(&with, &least("1"), &acked(2)), Danger, "asks for 2");
        assert_is(&replication(&with, &least("1"), &acked(1)), Note, "one replica");
    }

    #[test]
    fn replicas_that_acknowledge_too_late_are_reported() {
        let terms = Terms { replica_acks: 2, ..terms() };
        let two = "slave0:ip=h,port=1,state=online slave1:ip=i,port=1,state=online";
        let tried = |acks, known| acknowledgments(&ServerReplies { acks, info: known, ..replies() }, &terms);
        let of = |acks: Option<u64>, known| tried(acks.map(Ok), known);
        let unread = || Err(Refusal::other("NOPERM"));

        assert!(of(None, Ok(info(two))).is_none() && of(Some(2), Ok(info(two))).is_none());
        assert!(of(Some(0), Ok(info("role:master"))).is_none(), "too few are online");
        for known in [Ok(info(two)), unread()] {
            let late = of(Some(1), known).expect("it is reported");
            assert_is(&late, Danger, "1 of 2 replicas acknowledged a write in 200 ms");
            assert_is(&late, Danger, "raise `response_timeout`");
        }
        let untried = tried(Some(Err("the time was over".into())), Ok(info(two))).expect("it is reported");
        assert_is(&untried, Note, "acknowledge a write in time could not be read: the time was over");
        assert_is(&untried, Note, "check by hand: `WAIT 2 200`");
    }

    #[test]
    fn a_scheme_that_is_advised_keeps_tls() {
        let one = "slave0:ip=h,port=1,state=online,offset=1,lag=0";
        for (tls, word) in [(false, "`redis+"), (true, "`rediss+")] {
            let terms = Terms { tls, ..terms() };
            for finding in [
                role(&info("redis_mode:sentinel"), &terms),
                role(&info("role:slave"), &terms),
                role(&info("role:master cluster_enabled:1"), &terms),
                replication(&info(one), &replies(), &terms),
            ] {
                let advice = finding.remedy().unwrap_or_default();
                assert!(advice.contains(word) && advice.matches("://").count() == 1, "{finding}");
            }
        }
    }

    #[test]
    fn a_replica_must_follow_its_master() {
        let of = |text| following(&info(text), &terms());

        assert_is(&of("role:slave master_link_status:up"), Fine, "follows");
        assert_is(&of("role:slave master_link_status:down"), Warning, "lost its primary");
        assert_is(&of("role:master"), Warning, "is a primary");
    }

    #[test]
    fn sentinels_must_be_able_to_promote_a_replica() {
        let text = |priority| format!("role:slave master_link_status:up slave_priority:{priority}");
        let watched = Terms { topology: Deployment::Sentinels, ..terms() };
        assert_is(&following(&info(&text(0)), &watched), Note, "never promote it");
        assert_is(&following(&info(&text(100)), &watched), Fine, "follows");
        // A cluster does not read this priority.
        assert_is(&following(&info(&text(0)), &terms()), Fine, "follows");

        let server = |part, info| Server {
            address: "h:1".to_owned(),
            part,
            replies: Ok(ServerReplies { info, ..replies() }),
        };
        let replica = |priority| server(Part::Replica, Ok(info(&text(priority))));
        let unread = || server(Part::Replica, Err(Refusal::other("NOPERM")));
        let primary = || server(Part::Master, Ok(info("role:master slave_priority:0")));
        for (servers, is_found) in [
            (vec![primary(), replica(0), replica(0)], true),
            (vec![primary(), replica(0), replica(100)], false),
            (vec![primary(), replica(0), unread()], false),
            (vec![primary()], false),
        ] {
            assert_eq!(promotion(&servers).is_some(), is_found, "{servers:?}");
        }
    }
}
