//! Holds across a failover are tracked on the new master, even with a fixed lease and without
//! renewals.

use std::time::Duration;

use dlock_runtime::{LockManager, LossCause};
use dlock_tests::sentinel::End;
use dlock_tests::world::name;
use dlock_tests::{Moment, SentinelFleet, within};

const LEASE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn loss_by_failover_and_a_later_theft_are_detected() {
    let mut fleet = SentinelFleet::start().await;
    let manager = LockManager::connect(&fleet.url_with("")).await.expect("there is a master");
    let hold = async |key| {
        let lock = manager.lock(key).lease(LEASE).renew(false);
        lock.acquire().await.expect("the lock is free")
    };
    let (lost, kept) = (hold("lost").await, hold("kept").await);
    for replica in fleet.replicas() {
        // As if the lock had not been replicated in time.
        replica.call(&["CONFIG", "SET", "replica-read-only", "no"]);
        while replica.call(&["DEL", &name("lost")]).integer() != Some(1) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        replica.call(&["CONFIG", "SET", "replica-read-only", "yes"]);
    }

    fleet.break_master(End::Kill);
    let switch = fleet.switched().await;
    let cause = within(LONG, "the loss", lost.lost()).await;
    assert_eq!(cause, LossCause::NotOwner);
    let took = switch.at.elapsed();
    assert!(took < Duration::from_millis(1_500), "{took:?} after the switch");
    assert!(kept.check().is_ok(), "{:?}", kept.check());

    let master = fleet.server(switch.to);
    let is_told_of = async {
        while master.call(&["INFO", "stats"]).text().is_none_or(|text| text.contains("tracking_total_keys:0"))
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(LONG, "a new connection", is_told_of).await;
    let since = Moment::now();
    master.call(&["DEL", &name("kept")]);
    within(LONG, "the loss", kept.lost()).await;
    assert!(since.elapsed() < Duration::from_millis(250), "{:?}", since.elapsed());
}
