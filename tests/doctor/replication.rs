//! Servers whose role makes them unsuitable for locks.

use std::time::Duration;

use dlock_runtime::doctor::Severity::{Danger, Note, Warning};
use dlock_tests::{RedisServer, within};

use super::{assert_finds, examine, well_configured};

#[tokio::test]
async fn a_replica_is_found_and_so_is_a_master_that_has_one() {
    let master = well_configured().start();
    let of_master = format!("replicaof 127.0.0.1 {}", master.port());
    let replica = RedisServer::builder().line(&of_master).start();
    let online = async {
        while !master.call(&["INFO", "replication"]).text().unwrap_or_default().contains("state=online") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(Duration::from_secs(10), "the replica", online).await;

    let of_replica = examine(&replica.url()).await;
    let of_master = examine(&master.url()).await;

    assert_finds(&of_replica, "role", Danger, &format!("a replica of 127.0.0.1:{}", master.port()));
    assert_finds(&of_replica, "commands", Danger, "READONLY");
    assert_finds(&of_master, "replication", Note, "one replica");
}

#[tokio::test]
async fn a_node_of_a_cluster_is_found() {
    let node = RedisServer::builder().line("cluster-enabled yes").start();

    let report = examine(&node.url()).await;

    assert_finds(&report, "role", Warning, "node of a cluster");
    assert_finds(&report, "commands", Danger, "CLUSTERDOWN");
}

#[tokio::test]
async fn a_sentinel_is_found_and_not_examined_further() {
    let sentinel = RedisServer::builder().sentinel().start();

    let report = examine(&sentinel.url()).await;

    assert_finds(&report, "role", Danger, "a sentinel");
    assert!(report.findings().len() == 1, "{report}");
}

#[tokio::test]
async fn locks_in_memory_are_a_note() {
    let report = examine("memory://").await;

    assert_finds(&report, "scope", Note, "no server");
    assert!(report.is_reachable() && report.findings().len() == 1, "{report}");
}
