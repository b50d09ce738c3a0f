//! Records behind Sentinel, in a cluster, and over a quorum.

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::cluster::ClusterFleet;
use dlock_tests::quorum::QuorumFleet;
use dlock_tests::sentinel::End;
use dlock_tests::{RedisServer, SentinelFleet, acl, until, within};

use super::{LONG, PausedBody, Runs, crash, failure, server};

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

fn allow_records<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) {
    servers.into_iter().for_each(|server| server.allow(acl::documented_besides(acl::WITH_RECORDS)));
}

async fn connect(url: &str) -> LockManager {
    LockManager::connect(url).await.expect("the deployment takes managers")
}

/// Runs a body of one process, during which `meanwhile` happens, while another process waits for
/// its result, and then a third call.
async fn assert_shared(url: &str, key: &str, meanwhile: impl AsyncFnOnce()) {
    let (one, two) = (connect(url).await, connect(url).await);
    let paused = PausedBody::default();
    let (call, duplicate) = (one.idempotent(key), two.idempotent(key).wait(LONG / 3));
    let first = call.run_attached(async |_| paused.run().await);
    let second = async {
        paused.begun().await;
        let body = async |_| Ok::<_, Error>(8);
        let waits = async {
            while call.status().await.ok().flatten().is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            meanwhile().await;
            paused.end();
        };
        tokio::join!(duplicate.run_attached(body), waits).0
    };
    let both = Box::pin(async { tokio::join!(first, second) });
    let (first, second) = within(LONG, "both calls", both).await;

    assert_eq!(first.expect(key).into_value(), 7);
    let second = second.expect(key);
    assert_eq!((*second.value(), second.is_replayed()), (7, true), "{key}");
    let third = two.idempotent(key).run(async |_| Ok::<_, Error>(9)).await.expect(key);
    assert_eq!((*third.value(), third.is_replayed()), (7, true), "{key}");
}

/// A waiting call would check on its own after half a minute only.
const WOKEN: &str = "?grant_lease=60s";

/// The time in which a waiting call asks, and waits to be woken.
const ASKED: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_duplicate_is_woken_behind_sentinels_and_after_a_fail_over() {
    let mut fleet = SentinelFleet::start().await;
    allow_records(std::iter::once(fleet.master()).chain(fleet.replicas()));
    let url = fleet.url_with(WOKEN);

    assert_shared(&url, "before", async || tokio::time::sleep(ASKED).await).await;
    fleet.break_master(End::Order);
    let switch = fleet.switched().await;
    fleet.heal(switch.from);
    assert_shared(&url, "after", async || tokio::time::sleep(ASKED).await).await;
}

#[tokio::test]
async fn a_duplicate_is_woken_in_every_part_of_a_cluster() {
    let fleet = ClusterFleet::start();
    allow_records(fleet.servers());
    for key in fleet.keys_on_each("woken:") {
        assert_shared(&fleet.url_with(WOKEN), &key, async || tokio::time::sleep(ASKED).await).await;
    }
}

/// Returns the slot of the record of `key`.
fn slot_of_record(fleet: &ClusterFleet, key: &str) -> u16 {
    let record = format!("dlock:{key}##idem");
    let slot = fleet.server(fleet.masters()[0]).call(&["CLUSTER", "KEYSLOT", &record]).integer();
    slot.and_then(|slot| u16::try_from(slot).ok()).expect("a slot")
}

/// Returns a key with `prefix` whose record is in part 1 of the cluster.
fn key_in_part_1(fleet: &ClusterFleet, prefix: &str) -> String {
    let is_there = |key: &String| fleet.owner(slot_of_record(fleet, key)) == fleet.masters()[1];
    (0..1_000).map(|number| format!("{prefix}:{number}")).find(is_there).expect("slots are spread")
}

/// One failover meets a record that is completed, one of a running body, and one that no replica
/// has when the primary is killed.
#[tokio::test]
async fn a_fail_over_of_a_cluster_loses_no_record_that_a_replica_has() {
    let mut fleet = ClusterFleet::start();
    allow_records(fleet.servers());
    let [done, running, refused, careless] =
        ["done", "running", "refused", "careless"].map(|prefix| key_in_part_1(&fleet, prefix));
    let url = fleet.url_with("?replica_acks=1&response_timeout=1s");
    let (one, two, without_acks) =
        (connect(&url).await, connect(&url).await, connect(&fleet.url_with("")).await);
    let runs = [(); 4].map(|()| Runs::default());
    let [of_done, of_running, of_refused, of_careless] = &runs;

    assert_eq!(of_done.run(&one.idempotent(&done)).await.expect("it runs"), (1, false));
    let paused = PausedBody::default();
    let first = tokio::spawn({
        let (call, paused) = (one.idempotent(&running), paused.clone());
        async move { call.run(async move |_| paused.run().await).await }
    });
    paused.begun().await;
    let unreplicated = async {
        let started = of_refused.run(&one.idempotent(&refused)).await;
        (started, of_careless.run(&without_acks.idempotent(&careless)).await)
    };
    let (started, forgotten) = fleet.kill_before_replication(1, unreplicated).await;
    let switch = fleet.switched().await;
    fleet.heal(switch.from);

    assert!(matches!(started, Err(Error::Unavailable { .. })), "{started:?}");
    // It waits until its manager has followed the failover.
    let replayed = of_done.run(&two.idempotent(&done).wait(LONG / 3)).await;
    assert_eq!(replayed.expect("it is replayed"), (1, true));
    let duplicate = of_running.run(&two.idempotent(&running)).await;
    assert!(matches!(duplicate, Err(Error::InProgress { .. })), "{duplicate:?}");
    paused.end();
    let first = within(LONG, "the body", first).await.expect("no panic").expect("it runs");
    assert_eq!((first.into_value(), of_running.count()), (7, 0));
    let again = two.idempotent(&running).wait(LONG / 3);
    assert_eq!(of_running.run(&again).await.expect("it is replayed"), (7, true));
    let next = of_refused.run(&two.idempotent(&refused)).await;
    assert_eq!(next.expect("it runs"), (1, false), "no body ran without a replica");
    // Without `replica_acks`, the result is lost, and the body runs twice.
    assert_eq!(forgotten.expect("it runs"), (1, false));
    assert_eq!(of_careless.run(&two.idempotent(&careless)).await.expect("it runs"), (2, false));
}

#[tokio::test]
async fn a_record_moves_with_its_slot_while_its_body_runs() {
    let fleet = ClusterFleet::start();
    allow_records(fleet.servers());
    let slot = slot_of_record(&fleet, "moved");
    let to = *fleet.masters().iter().find(|port| **port != fleet.owner(slot)).expect("another master");

    let url = fleet.url_with("?grant_lease=200ms");
    assert_shared(&url, "moved", async || {
        tokio::time::sleep(ASKED).await;
        fleet.begin_to_move(slot, to);
        fleet.finish_the_move(slot, to);
    })
    .await;
    assert_eq!(fleet.owner(slot), to);
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
    let url = server.url_with("?replica_acks=1&response_timeout=2s");
    let strict = LockManager::connect(&url).await.expect("the server takes managers");
    let plain = LockManager::connect(&server.url_with("")).await.expect("the server takes managers");
    let runs = Runs::default();

    let refused = runs.run(&strict.idempotent("k")).await;
    assert!(matches!(&refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(refused.is_err_and(|error| error.to_string().contains("0 of 1 replicas")));

    let status = async || plain.idempotent("k").status().await.expect("the server replies");
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
