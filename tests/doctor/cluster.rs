//! Clusters, examined from some of their servers.

use dlock_runtime::doctor::Severity::{Danger, Ok as Fine, Warning};
use dlock_runtime::doctor::{Finding, Report};
use dlock_tests::resp::Reply;
use dlock_tests::{ClusterFleet, RedisServer, acl};

use super::{assert_finds, examine, worst};

#[tokio::test]
async fn all_servers_of_a_cluster_are_examined() {
    let mut fleet = ClusterFleet::start();
    let url = fleet.url_with("");
    let count = |report: &Report, check: &str, said: &str| {
        report.findings().iter().filter(|at| at.check() == check && at.found().contains(said)).count()
    };

    let whole = examine(&url).await;
    let other_server = RedisServer::start();
    let with_a_stranger = examine(&format!("{url},127.0.0.1:{}", other_server.port())).await;
    let lost = fleet.masters()[0];
    fleet.break_master(0, dlock_tests::sentinel::End::Kill);
    let broken = examine(&url).await;

    assert_finds(&whole, "cluster", Fine, "every slot");
    assert_finds(&whole, "commands", Fine, "");
    assert_finds(&whole, "replication", Warning, "`min-replicas-to-write` is 0");
    assert_eq!(
        (count(&whole, "commands", "is allowed"), count(&whole, "role", "follows")),
        (3, 3),
        "{whole}"
    );
    assert_finds(&with_a_stranger, "cluster", Warning, "is not part of a cluster");
    let unreached = broken.findings().iter().filter(|at| at.check() == "connection");
    let unreached = unreached.filter(|at| at.server().is_some_and(|at| at.ends_with(&lost.to_string())));
    assert!(unreached.map(Finding::severity).max() >= Some(Warning), "{broken}");
}

#[tokio::test]
async fn channels_for_redisson_in_a_cluster_are_examined() {
    let fleet = ClusterFleet::start();
    let sharded = ["+spublish", "+ssubscribe", "+sunsubscribe"];
    let documented: Vec<_> = acl::documented_for_redisson()
        .chain(acl::documented_besides(acl::IN_A_CLUSTER))
        .chain(sharded)
        .collect();
    let examine_without = async |denied: &str| {
        let rules: Vec<_> = documented.iter().copied().filter(|rule| *rule != denied).collect();
        for server in fleet.servers() {
            acl::give_user(server, acl::USER, &[], &rules);
        }
        examine(&acl::as_user(&fleet.url_with("?layout=redisson"))).await
    };
    let has_shards = !matches!(fleet.servers()[0].call(&["SPUBLISH", "c", "0"]), Reply::Error(said) if said.contains("nknown"));

    let whole = examine_without("").await;

    assert_finds(&whole, "channel", Fine, "");
    assert_finds(&whole, "commands", Fine, "");
    for denied in ["+unsubscribe"].into_iter().chain(sharded.into_iter().filter(|_| has_shards)) {
        let report = examine_without(denied).await;

        assert_finds(&report, "channel", Warning, "NOPERM");
        let advice = worst(&report, "channel").remedy().unwrap_or_default();
        assert!(advice.contains(&format!("`{denied}`")), "{denied}: {report}");
    }
}

#[tokio::test]
async fn a_cluster_without_slots_is_found() {
    let node = RedisServer::builder().line("cluster-enabled yes").start();

    let report = examine(&format!("redis+cluster://127.0.0.1:{}", node.port())).await;

    assert_finds(&report, "cluster", Danger, "no primary serves 16384 of its slots");
    assert!(!report.is_reachable(), "{report}");
}
