//! Behavior during the failure of a majority.

use std::time::Duration;

use dlock_runtime::Error;
use dlock_tests::quorum::{Fate, LEASE};
use dlock_tests::resp::Reply;
use dlock_tests::world::name;
use dlock_tests::{Moment, QuorumFleet, within};
use tokio::time::Instant;

const SOON: Duration = Duration::from_secs(10);

async fn without_a_majority(fate: Fate) {
    let mut fleet = QuorumFleet::start(3).await;
    let manager = fleet.manager("").await;
    let held = manager.lock("held").wait(SOON).acquire().await.expect("the lock is free");
    let since = Moment::now();
    fleet.befall(&[0, 1], fate);

    let begun = Moment::now();
    let refused = manager.lock("free").wait(LEASE / 2).acquire().await;
    let took = begun.elapsed();
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(took <= LEASE / 2 + Duration::from_millis(200), "{took:?}");

    within(2 * LEASE, "the loss", held.lost()).await;
    assert!(since.elapsed() <= LEASE + Duration::from_millis(150), "{:?}", since.elapsed());
    assert!(manager.ready().await.is_err());

    fleet.heal(&[0, 1], fate);
    let again = manager.lock("free").wait(SOON).acquire().await;
    assert!(again.is_ok(), "{again:?}");
}

#[tokio::test]
async fn killed_majority_fails_calls_and_loses_holds_in_time() {
    without_a_majority(Fate::Killed).await;
}

#[tokio::test]
async fn frozen_majority_fails_calls_and_loses_holds_in_time() {
    without_a_majority(Fate::Frozen).await;
}

#[tokio::test]
async fn empty_restarted_server_grants_no_second_hold() {
    let mut fleet = QuorumFleet::start(3).await;
    let (ours, theirs) = (fleet.manager("").await, fleet.manager("").await);
    let held = ours.lock("order:7").renew(false).wait(SOON).acquire().await.expect("the lock is free");
    // The lock is on a bare majority, and one of its servers loses it.
    let gone = async {
        while fleet.servers()[2].call(&["DEL", &name("order:7")]) == Reply::Integer(0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(LEASE, "the third", gone).await;
    fleet.befall(&[1], Fate::Restarted);
    let late = fleet.manager("").await;

    while held.check().is_ok() {
        for (which, manager) in [("the older", &theirs), ("the newer", &late)] {
            let second = manager.lock("order:7").acquire().await;
            assert!(second.is_err() || held.check().is_err(), "{which} manager holds as well");
        }
    }
    let next = theirs.lock("order:7").wait(SOON).acquire().await;
    assert!(next.is_ok(), "{next:?}");
}

/// A release that fails at the server leaves nothing there: it never had the lock.
#[tokio::test]
async fn shutdown_while_a_server_is_down_has_nothing_to_clean_up() {
    let mut fleet = QuorumFleet::start(3).await;
    let manager = fleet.manager("").await;
    fleet.befall(&[2], Fate::Killed);
    let hold =
        async || manager.lock("order:7").wait(SOON).acquire().await.expect("two of three servers are up");
    // The first attempts to connect again may still be pending.
    tokio::time::sleep(Duration::from_millis(500)).await;
    for _ in 0..1_000 {
        hold().await.release().await.expect("a majority confirms it");
    }

    let begun = Moment::now();
    manager.shutdown(SOON).await;

    assert!(begun.elapsed() < Duration::from_millis(400), "{:?}", begun.elapsed());
}

/// The one way to lose a quorum lock: more servers lose its key within one lease than the quorum
/// tolerates.
#[tokio::test]
async fn a_majority_that_forgets_loses_the_lock_and_tokens_still_rise() {
    let mut fleet = QuorumFleet::start(3).await;
    let (ours, theirs) = (fleet.manager("").await, fleet.manager("").await);
    let first = ours.lock("order:7").renew(false).wait(SOON).acquire().await.expect("the lock is free");
    let (token, until) = (first.fencing_token().await.expect("it is held"), first.deadline());

    for server in &fleet.servers()[..2] {
        server.call(&["FLUSHALL"]);
    }
    let second = theirs.lock("order:7").acquire().await.expect("a majority has lost the first");

    assert!(Instant::now() < until, "the lease expired, so the lock was not lost");
    assert!(second.fencing_token().await.expect("it is held") > token);
}

/// The deadline counts from before the first request, not from when a majority has granted.
#[tokio::test]
async fn slow_majority_does_not_lengthen_a_hold() {
    const SLOW: Duration = Duration::from_millis(150);
    let mut fleet = QuorumFleet::start(3).await;
    let manager = fleet.manager("").await;
    for attempt in 0..10 {
        let lock = manager.lock(format!("slow:{attempt}").as_str());
        fleet.befall(&[0, 1], Fate::Frozen);
        let call = tokio::spawn(async move {
            let begun = Moment::now();
            (begun, lock.acquire().await)
        });
        tokio::time::sleep(SLOW).await;
        fleet.heal(&[0, 1], Fate::Frozen);
        // On a slow machine, the servers may be frozen for longer than the call waits for them.
        let (begun, Ok(held)) = call.await.expect("it does not panic") else { continue };

        let lasts = held.remaining() + begun.elapsed();

        assert!(begun.elapsed() >= SLOW && lasts < LEASE + SLOW / 2, "it lasts {lasts:?}");
        return;
    }
    panic!("no attempt was fast enough on this machine");
}
