//! Slots that migrate between masters while their locks are in use.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::judge;
use dlock_tests::work::{WAIT, Work};
use dlock_tests::{ClusterFleet, Moment, within};
use tokio::runtime::Builder;

use crate::locks::until_ids_in;

const MANAGERS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_move_with_their_slots_and_never_two_hold_at_once() {
    let count = std::env::var("DLOCK_MIGRATIONS").map_or(3, |count| count.parse().expect("a number"));
    let fleet = ClusterFleet::start();
    let mut managers = Vec::new();
    for number in 0..MANAGERS {
        // One manager also waits for replicas, over a separate connection.
        let acks = u8::from(number == 2);
        let manager = LockManager::builder(&fleet.url_with("")).replica_acks(acks).connect().await;
        managers.push(manager.expect("the cluster accepts connections"));
    }
    let work = Work::start(&managers, |prefix| vec![fleet.key_in(0, prefix)]);
    let keys = ["shared", "own:0", "long:1"].map(|prefix| fleet.key_in(0, prefix));

    for (number, key) in keys.iter().cycle().take(count).enumerate() {
        work.until_entered(Moment::now(), 20).await;
        let (slot, masters) = (fleet.slot(key), fleet.masters());
        let from = fleet.owner(slot);
        let to = *masters.iter().cycle().skip_while(|port| **port != from).nth(1).expect("there are others");
        let begun = Moment::now();
        fleet.begin_to_move(slot, to);
        // The slot stays between two masters for 50 ms, or longer than a request may take.
        let between = if number % 3 == 2 { WAIT } else { Duration::from_millis(50) };
        tokio::time::sleep(between).await;
        fleet.finish_the_move(slot, to);
        println!("move {number}: `{key}` from {from} to {to} in {:?}", begun.elapsed());
        work.until_entered(Moment::now(), 0).await;
    }
    let history = work.end().await;

    judge::no_call_takes_longer_than_its_limit(&history);
    judge::every_refusal_has_its_type(&history);
    judge::tokens_rise(&history);
    assert_eq!(judge::overlaps_only_across_a_fail_over(&history, &[]), 0);
    let refused = history.tries.iter().filter(|call| call.refused.is_some()).count();
    println!(
        "{count} moves, {} holds, {refused} of {} calls refused",
        history.holds.len(),
        history.tries.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_acks_follow_redirects() {
    let fleet = ClusterFleet::start();
    let (key, never_polls) = (fleet.key_in(0, "moved"), fleet.url_with("?grant_lease=30s&poll_interval=30s"));
    let connect = || LockManager::builder(&never_polls).replica_acks(1).connect();
    let ours = connect().await.expect("the cluster accepts connections");
    let theirs = connect().await.expect("the cluster accepts connections");
    let held = ours.lock(&*key).wait(WAIT).acquire().await.expect("the lock is free");
    let waiting = tokio::spawn({
        let lock = theirs.lock(&*key).wait(Duration::from_secs(20));
        async move { lock.acquire().await }
    });
    until_ids_in(&fleet, &key, 2).await;

    let (slot, to) = (fleet.slot(&key), fleet.masters()[1]);
    fleet.begin_to_move(slot, to);
    fleet.finish_the_move(slot, to);
    held.fencing_token().await.expect("it is held on the new master");
    // Move it back: a client that knows only the last move is redirected again.
    let to = fleet.masters()[0];
    fleet.begin_to_move(slot, to);
    fleet.finish_the_move(slot, to);
    held.release().await.expect("it is held on the new master");

    let next = within(Duration::from_secs(2), "the grant", waiting).await.expect("no panic");
    next.expect("it was handed off").release().await.expect("it was held");
}

/// The reply with the redirect is read on the runtime of the callers.
#[test]
fn a_redirected_release_with_acks_needs_no_timers() {
    let fleet = ClusterFleet::start();
    let (key, at_target) = (fleet.key_in(0, "moved"), fleet.key_in(1, "other"));
    let runtime = Builder::new_current_thread().enable_io().build().expect("a runtime can be made");

    let released = runtime.block_on(async {
        let connecting = LockManager::builder(&fleet.url_with("")).replica_acks(1).connect();
        let manager = connecting.await.expect("the cluster accepts connections");
        let held = manager.lock(&*key).lease(2 * WAIT).acquire().await.expect("the lock is free");
        // The manager is connected to the target.
        manager.lock(&*at_target).run(async |_guard| ()).await.expect("the lock is free");
        let (slot, to) = (fleet.slot(&key), fleet.masters()[1]);
        fleet.begin_to_move(slot, to);
        fleet.finish_the_move(slot, to);
        held.release().await
    });

    released.expect("it is held on the new master");
}
