//! Masters that fall while locks are in use of which every replica has acknowledged every hold: none is held twice.

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::judge::{self, FailOver};
use dlock_tests::sentinel::End;
use dlock_tests::work::{WAIT, Work};
use dlock_tests::{Moment, RedisServer, SentinelFleet};

/// As many as the fleet has replicas: whichever is promoted has every hold.
const REPLICAS: u8 = 2;
const MANAGERS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_acknowledged_locks_no_fail_over_lets_two_hold_at_once() {
    let count = std::env::var("DLOCK_FAIL_OVERS").map_or(3, |count| count.parse().expect("a number"));
    let mut fleet = SentinelFleet::start().await;
    let mut managers = Vec::new();
    for _ in 0..MANAGERS {
        let manager = LockManager::builder(&fleet.url_with("")).replica_acks(REPLICAS).connect().await;
        managers.push(manager.expect("the sentinels name a master that takes managers"));
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
    let _ = judge::nothing_is_believed_beyond_its_lease(&history, &fail_overs);
    assert_eq!(judge::overlaps_only_across_a_fail_over(&history, &fail_overs), 0, "two held at once");
    judge::tokens_rise(&history);
    println!("{} fail-overs, {} holds, no overlap", fail_overs.len(), history.holds.len());
}

#[tokio::test]
async fn what_no_replica_has_is_held_by_nobody_when_one_is_promoted() {
    let mut fleet = SentinelFleet::start().await;
    let url = fleet.url_with("?tracking=off");
    let connect = async || LockManager::builder(&url).replica_acks(REPLICAS).connect().await;
    let first = connect().await.expect("the sentinels name a master that takes managers");
    let second = connect().await.expect("the sentinels name a master that takes managers");
    let lock = |manager: &LockManager| manager.lock("order:7").lease(LONG).renew(false).wait(LONG / 2);

    fleet.replicas().for_each(RedisServer::pause);
    let held = lock(&first).wait(WAIT).acquire().await;
    fleet.break_master(End::Kill);
    fleet.replicas().for_each(RedisServer::resume);
    let switch = fleet.switched().await;
    fleet.heal(switch.from);
    let after = lock(&second).acquire().await;

    assert!(after.is_ok(), "{after:?}");
    assert!(held.as_ref().is_err_and(Error::is_unavailable), "two hold: {held:?}");
}

/// Longer than a fail-over takes.
const LONG: Duration = Duration::from_secs(20);

/// Whoever can still reach the old master has time to use it.
const BESIDE_THE_OLD_MASTER: Duration = Duration::from_millis(500);
