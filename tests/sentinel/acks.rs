//! Failovers while locks are in use. All replicas have acknowledged every hold, so no lock has two
//! holders.

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::judge::{self, FailOver};
use dlock_tests::sentinel::End;
use dlock_tests::work::{WAIT, Work};
use dlock_tests::{Moment, RedisServer, SentinelFleet};

/// All replicas of the fleet, so the promoted one has every hold.
const REPLICAS: u8 = 2;
const MANAGERS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_locks_have_one_holder_across_failovers() {
    let count = std::env::var("DLOCK_FAIL_OVERS").map_or(3, |count| count.parse().expect("a number"));
    let mut fleet = SentinelFleet::start().await;
    let mut managers = Vec::new();
    for _ in 0..MANAGERS {
        let manager = LockManager::builder(&fleet.url_with("")).replica_acks(REPLICAS).connect().await;
        managers.push(manager.expect("the sentinels name a master that accepts connections"));
    }
    let work = Work::start(&managers, |key| vec![key.to_owned()]);

    let mut fail_overs = Vec::new();
    for end in [End::Kill, End::Pause, End::Order].into_iter().cycle().take(count) {
        work.until_entered(Moment::now(), 50).await;
        let broken = fleet.break_master(end);
        let switch = fleet.switched().await;
        if end == End::Pause {
            fleet.resume(switch.from);
        }
        tokio::time::sleep(BESIDE_THE_OLD_MASTER).await;
        fleet.heal(switch.from);
        fail_overs.push(FailOver { end: Some(end), broken, switched: switch.at });
    }
    work.until_entered(Moment::now(), 50).await;
    let history = work.end().await;

    judge::no_call_takes_longer_than_its_limit(&history);
    judge::every_refusal_has_its_type(&history);
    let _ = judge::no_hold_outlives_its_lease(&history, &fail_overs);
    assert_eq!(judge::overlaps_only_across_a_fail_over(&history, &fail_overs), 0, "two held at once");
    judge::tokens_rise(&history);
    println!("{} failovers, {} holds, no overlap", fail_overs.len(), history.holds.len());
}

#[tokio::test]
async fn unacknowledged_acquire_is_not_held_after_a_promotion() {
    let mut fleet = SentinelFleet::start().await;
    let url = fleet.url_with("?tracking=off");
    let connect = async || LockManager::builder(&url).replica_acks(REPLICAS).connect().await;
    let first = connect().await.expect("the sentinels name a master that accepts connections");
    let second = connect().await.expect("the sentinels name a master that accepts connections");
    let lock = |manager: &LockManager| manager.lock("order:7").lease(LONG).renew(false).wait(LONG / 2);

    fleet.replicas().for_each(RedisServer::pause);
    let held = lock(&first).wait(WAIT).acquire().await;
    fleet.break_master(End::Kill);
    fleet.replicas().for_each(RedisServer::resume);
    let switch = fleet.switched().await;
    fleet.heal(switch.from);
    let after = lock(&second).acquire().await;

    assert!(after.is_ok(), "{after:?}");
    assert!(held.as_ref().is_err_and(Error::is_unavailable), "two managers hold the lock: {held:?}");
}

/// Longer than a failover takes.
const LONG: Duration = Duration::from_secs(20);

/// In this time, a client that still reaches the old master could use it.
const BESIDE_THE_OLD_MASTER: Duration = Duration::from_millis(500);
