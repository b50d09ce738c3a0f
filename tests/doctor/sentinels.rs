//! Sentinels and their monitored servers, examined together.

use std::time::Duration;

use dlock_runtime::doctor::Report;
use dlock_runtime::doctor::Severity::{Danger, Note, Ok as Fine, Warning};
use dlock_tests::sentinel::{MASTER, SentinelFleet, start_sentinel};
use dlock_tests::{RedisServer, WallClock, within};

use super::{assert_finds, examine, worst};

#[tokio::test]
async fn a_fleet_is_examined_from_its_sentinels_to_its_replicas() {
    let mut fleet = SentinelFleet::start().await;
    let url = fleet.url_with("");

    let before = examine(&url).await;
    fleet.master().call(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let after = examine(&url).await;
    fleet.master().call(&["CONFIG", "SET", "min-replicas-max-lag", "0"]);
    let without_lag = examine(&url).await;
    for replica in fleet.replicas() {
        replica.call(&["CONFIG", "SET", "replica-priority", "0"]);
    }
    let without_successor = examine(&url).await;
    let (hosts, name) = url.rsplit_once('/').expect("the name follows the hosts");
    let (most, _) = hosts.rsplit_once(',').expect("there are three");
    let not_all = examine(&format!("{most}/{name}")).await;
    fleet.sentinels()[1].kill();
    let one_less = examine(&url).await;

    assert_finds(&before, "replication", Warning, "2 replicas online, and `min-replicas-to-write` is 0");
    assert_finds(&after, "replication", Fine, "`min-replicas-max-lag` are set");
    assert_finds(&without_successor, "role", Note, "`replica-priority 0`");
    assert_finds(&without_successor, "replication", Warning, "`replica-priority` of every replica is 0");
    assert_finds(&without_lag, "replication", Warning, "`min-replicas-max-lag` is 0");
    assert_finds(&after, "sentinels", Fine, "3 of 3 sentinels report the primary, and agree");
    assert_finds(&after, "quorum", Fine, "");
    assert_finds(&after, "clocks", Fine, "");
    let replicas =
        after.findings().iter().filter(|at| at.check() == "role" && at.found().contains("follows"));
    assert_eq!(replicas.count(), 2, "{after}");
    assert_finds(&not_all, "sentinels", Warning, "names 2 sentinels, and they know of 3");
    assert_finds(&one_less, "sentinel", Warning, "refused");
    assert_finds(&one_less, "sentinels", Fine, "2 of 3 sentinels report the primary, and agree");
}

#[tokio::test]
async fn a_sentinel_alone_and_a_master_without_replicas_are_found() {
    let master = RedisServer::start();
    // The quorum is two, and there is only one sentinel.
    let sentinel = start_sentinel(master.port());

    let report = examine(&format!("redis+sentinel://127.0.0.1:{}/{MASTER}", sentinel.port())).await;
    let no_such_master = examine(&format!("redis+sentinel://127.0.0.1:{}/other", sentinel.port())).await;

    assert_finds(&report, "quorum", Danger, "NOQUORUM");
    assert_finds(&report, "sentinels", Warning, "there is one sentinel");
    assert_finds(&report, "replication", Warning, "no replica");
    assert_finds(&no_such_master, "sentinel", Warning, "knows no master `other`");
    assert_finds(&no_such_master, "sentinels", Danger, "0 of 1 sentinels report the primary");
    assert_is_reachable_but_wrong(&no_such_master);
    assert!(!no_such_master.is_reachable(), "{no_such_master}");
}

/// Asserts that the advice is to correct what the URL says about the sentinels, not their network.
#[track_caller]
fn assert_is_reachable_but_wrong(report: &Report) {
    let advice = worst(report, "sentinel").remedy().unwrap_or_default();
    assert!(advice.contains("is reachable") && !advice.contains("firewall"), "{report}");
}

#[tokio::test]
async fn servers_that_are_no_sentinels_and_wrong_passwords_are_found() {
    let server = RedisServer::start();
    let sentinel = RedisServer::builder().sentinel().password("sesame").start();
    let url = |port, options| format!("redis+sentinel://127.0.0.1:{port}/{MASTER}{options}");

    let no_sentinel = examine(&url(server.port(), "")).await;
    let no_password = examine(&url(sentinel.port(), "")).await;
    let wrong_password = examine(&url(sentinel.port(), "?sentinel_password=hunter2")).await;

    for (report, said) in [
        (&no_sentinel, "is not a sentinel"),
        (&no_password, "requires a password"),
        (&wrong_password, "refused the user or the password"),
    ] {
        assert_finds(report, "sentinel", Warning, said);
        assert_is_reachable_but_wrong(report);
    }
}

#[tokio::test]
async fn a_clock_that_goes_wrong_is_found_here_and_between_servers() {
    let clock = match WallClock::new() {
        Ok(clock) => clock,
        Err(reason) => return println!("SKIPPED: steps of a server's clock: {reason}"),
    };
    let master = RedisServer::start();
    let of_master = format!("replicaof 127.0.0.1 {}", master.port());
    let _replica = RedisServer::builder().line(&of_master).wall_clock(&clock).start();
    let sentinel = start_sentinel(master.port());
    let known = async {
        while !sentinel
            .call(&["SENTINEL", "MASTER", MASTER])
            .texts()
            .windows(2)
            .any(|at| at == ["num-slaves", "1"])
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(Duration::from_secs(20), "the replica, by the sentinel", known).await;
    let url = format!("redis+sentinel://127.0.0.1:{}/{MASTER}", sentinel.port());

    let right = examine(&url).await;
    clock.step_to(5);
    let ahead = examine(&url).await;
    clock.step_to(-3_600);
    let behind = examine(&url).await;

    assert_finds(&right, "clocks", Fine, "");
    assert_finds(&ahead, "clock", Note, "ahead of this machine's");
    assert_finds(&ahead, "clocks", Warning, "ahead of that of");
    assert_finds(&behind, "clock", Warning, "behind this machine's");
    assert_finds(&behind, "clocks", Warning, "ahead of that of");
    assert_eq!(worst(&behind, "connection").severity(), Fine, "{behind}");
}
