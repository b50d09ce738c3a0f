//! Records in a cluster and over a quorum.

use dlock_runtime::{Error, LockManager};
use dlock_tests::cluster::ClusterFleet;
use dlock_tests::quorum::QuorumFleet;

use super::Runs;

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
