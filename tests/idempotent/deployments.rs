//! Records in a cluster and over a quorum.

use dlock_runtime::{Error, LockManager};
use dlock_tests::cluster::ClusterFleet;
use dlock_tests::quorum::QuorumFleet;
use dlock_tests::{acl, until};

use super::{Runs, crash, failure, server};

#[tokio::test]
async fn records_work_in_every_slot_of_a_cluster() {
    let fleet = ClusterFleet::start();
    let manager = LockManager::connect(&fleet.url_with("")).await.expect("the cluster takes managers");
    let runs = Runs::default();
    let mut keys = fleet.keys_on_each("order:");
    keys.extend(["{tag}:1", "a{b", "{}x", "x{y}z"].map(str::to_owned));

    for (number, key) in (1..).zip(&keys) {
        assert_eq!(runs.run(&manager.idempotent(key)).await.expect(key), (number, false), "{key}");
        assert_eq!(runs.run(&manager.idempotent(key)).await.expect(key), (number, true), "{key}");
    }
}

#[tokio::test]
async fn a_quorum_keeps_no_records() {
    let fleet = QuorumFleet::start(3).await;
    let (manager, runs) = (fleet.manager("").await, Runs::default());

    let refused = runs.run(&manager.idempotent("k")).await;

    assert!(matches!(&refused, Err(Error::Config { part, .. }) if &**part == "idempotent"), "{refused:?}");
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn a_start_that_no_replica_has_is_undone() {
    let server = server();
    server.allow(acl::documented_besides(acl::WITH_ACKS));
    let url = server.url_with("?replica_acks=1&response_timeout=300ms");
    let strict = LockManager::connect(&url).await.expect("the server takes managers");
    let plain = LockManager::connect(&server.url_with("")).await.expect("the server takes managers");
    let runs = Runs::default();

    let refused = runs.run(&strict.idempotent("k")).await;
    assert!(matches!(&refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(refused.is_err_and(|error| error.to_string().contains("0 of 1 replicas")));

    let status = async || plain.idempotent("k").status().await.expect("the server answers");
    until("the start is undone", async || status().await.is_none()).await;
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn the_documented_user_can_keep_records() {
    let server = server();
    acl::give_user(&server, acl::USER, &[], &acl::documented_besides(acl::WITH_RECORDS).collect::<Vec<_>>());
    let url = acl::as_user(&server.url_with(""));
    let (manager, runs) = (LockManager::connect(&url).await.expect("the user may connect"), Runs::default());

    assert_eq!(runs.run(&manager.idempotent("k")).await.expect("it runs"), (1, false));
    assert_eq!(runs.run(&manager.idempotent("k")).await.expect("it is replayed"), (1, true));
    let failing = manager.idempotent("steps");
    for _ in 0..2 {
        let failed = failing.run(async |record| {
            record.step("a", async || Ok::<_, Error>(1)).await?;
            Err::<u8, _>(failure())
        });
        assert!(matches!(failed.await, Err(Error::InvalidKey { .. })));
    }
    crash(&manager.idempotent("crashed")).await;
    assert!(manager.idempotent("crashed").resolve(&1).await.expect("the user may resolve"));
    assert!(manager.idempotent("crashed").forget().await.expect("the user may forget"));
}
