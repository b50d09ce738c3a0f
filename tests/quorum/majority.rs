//! Behavior during the failure of a majority.

use std::time::Duration;

use dlock_runtime::Error;
use dlock_tests::quorum::{Fate, LEASE};
use dlock_tests::resp::Reply;
use dlock_tests::world::name;
use dlock_tests::{Moment, QuorumFleet, overrun, within};
use tokio::time::Instant;

const SOON: Duration = Duration::from_secs(10);

async fn without_a_majority(fate: Fate) {
    let mut fleet = QuorumFleet::start(3).await;
    let manager = fleet.manager("").await;
    let held = manager.lock("held").wait(SOON).acquire().await.expect("the lock is free");
    fleet.befall(&[0, 1], fate);
    let since = Instant::now();

    let refused = manager.lock("free").wait(LEASE / 2).acquire();
    let (refused, late) = overrun(LEASE / 2, refused).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(late <= Duration::from_millis(200), "{late:?}");

    let lost = async {
        held.lost().await;
        Instant::now()
    };
    let expiry = async {
        // The reply to an earlier renewal may still come.
        while held.deadline() > Instant::now() {
            tokio::time::sleep_until(held.deadline()).await;
        }
        Instant::now()
    };
    let (lost, expiry) = within(2 * LEASE, "the loss", async { tokio::join!(lost, expiry) }).await;
    assert!(held.deadline() <= since + LEASE, "renewed without a majority");
    assert!(lost <= expiry + Duration::from_millis(150), "late by {:?}", lost - expiry);
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

/// Deletes the key of `order:7` at a server, once it is there.
async fn delete_at(fleet: &mut QuorumFleet, server: usize) {
    let gone = async {
        while fleet.servers()[server].call(&["DEL", &name("order:7")]) == Reply::Integer(0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(LEASE, "the key", gone).await;
}

/// No manager can tell that the server has lost the key. A renewal writes it to all servers.
#[tokio::test]
async fn a_key_lost_under_a_bare_majority_frees_the_lock_until_a_renewal() {
    for renews in [true, false] {
        let mut fleet = QuorumFleet::start(3).await;
        let (ours, theirs) = (fleet.manager("&tracking=off").await, fleet.manager("&tracking=off").await);
        let lock = ours.lock("order:7").renew(renews).wait(SOON);
        let held = lock.acquire().await.expect("the lock is free");
        delete_at(&mut fleet, 2).await;
        let whole = async {
            while renews && fleet.holding("order:7") < 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(LEASE, "a renewal", whole).await;

        delete_at(&mut fleet, 1).await;
        let second = theirs.lock("order:7").acquire().await;

        assert!(held.check().is_ok(), "it has expired, or was lost");
        assert_eq!(second.is_err(), renews, "{second:?}");
    }
}

#[tokio::test]
async fn empty_restarted_server_grants_no_second_hold() {
    let mut fleet = QuorumFleet::start(3).await;
    let (ours, theirs) = (fleet.manager("").await, fleet.manager("").await);
    let held = ours.lock("order:7").renew(false).wait(SOON).acquire().await.expect("the lock is free");
    delete_at(&mut fleet, 2).await;
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
    fleet.befall(&[2], Fate::Killed);
    let manager = fleet.manager("").await;
    let hold =
        async || manager.lock("order:7").wait(SOON).acquire().await.expect("two of three servers are up");
    for _ in 0..1_000 {
        hold().await.release().await.expect("a majority confirms it");
    }

    let begun = Moment::now();
    manager.shutdown(SOON).await;

    assert!(begun.elapsed() < Duration::from_millis(400), "{:?}", begun.elapsed());
}

/// More servers lose the key within one lease than the quorum tolerates.
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
        let begun = Instant::now();
        let call = tokio::spawn(async move { lock.acquire().await });
        tokio::time::sleep(SLOW).await;
        fleet.heal(&[0, 1], Fate::Frozen);
        // On a slow machine, the servers may be frozen for longer than the call waits for them.
        let Ok(held) = call.await.expect("it does not panic") else { continue };

        let lasts = held.deadline() - begun;

        assert!(begun.elapsed() >= SLOW && lasts < LEASE + SLOW / 2, "it lasts {lasts:?}");
        return;
    }
    panic!("no attempt was fast enough on this machine");
}
