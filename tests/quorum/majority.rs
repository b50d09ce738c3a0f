//! What happens when a majority is away.

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
    let held = manager.lock("held").wait(SOON).acquire().await.expect("nobody holds it");
    let believed = Moment::now();
    fleet.befall(&[0, 1], fate);

    let asked = Moment::now();
    let refused = manager.lock("free").wait(LEASE / 2).acquire().await;
    let took = asked.elapsed();
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(took <= LEASE / 2 + Duration::from_millis(200), "{took:?}");

    within(2 * LEASE, "the loss", held.lost()).await;
    assert!(believed.elapsed() <= LEASE + Duration::from_millis(150), "{:?}", believed.elapsed());
    assert!(manager.ready().await.is_err());

    fleet.heal(&[0, 1], fate);
    let again = manager.lock("free").wait(SOON).acquire().await;
    assert!(again.is_ok(), "{again:?}");
}

#[tokio::test]
async fn without_a_majority_calls_end_in_time_and_holders_are_told_when_servers_are_killed() {
    without_a_majority(Fate::Killed).await;
}

#[tokio::test]
async fn without_a_majority_calls_end_in_time_and_holders_are_told_when_servers_are_frozen() {
    without_a_majority(Fate::Frozen).await;
}

#[tokio::test]
async fn a_server_that_comes_back_empty_gives_nobody_a_second_hold() {
    let mut fleet = QuorumFleet::start(3).await;
    let (ours, theirs) = (fleet.manager("").await, fleet.manager("").await);
    let held = ours.lock("order:7").renew(false).wait(SOON).acquire().await.expect("nobody holds it");
    // Held by a bare majority, of which one forgets it.
    let gone = async {
        while fleet.servers()[2].call(&["DEL", &name("order:7")]) == Reply::Integer(0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(LEASE, "the third", gone).await;
    fleet.befall(&[1], Fate::Restarted);
    let late = fleet.manager("").await;

    while held.check().is_ok() {
        for (who, manager) in [("who knew it before", &theirs), ("who meets it now", &late)] {
            let second = manager.lock("order:7").acquire().await;
            assert!(second.is_err() || held.check().is_err(), "{who} holds as well");
        }
    }
    let next = theirs.lock("order:7").wait(SOON).acquire().await;
    assert!(next.is_ok(), "{next:?}");
}

/// The way to lose a lock of a quorum: more servers than it can spare forget it within one lease.
#[tokio::test]
async fn a_majority_that_forgets_loses_the_lock_and_tokens_still_rise() {
    let mut fleet = QuorumFleet::start(3).await;
    let (ours, theirs) = (fleet.manager("").await, fleet.manager("").await);
    let first = ours.lock("order:7").renew(false).wait(SOON).acquire().await.expect("nobody holds it");
    let (token, until) = (first.fencing_token().await.expect("it is held"), first.deadline());

    for server in &fleet.servers()[..2] {
        server.call(&["FLUSHALL"]);
    }
    let second = theirs.lock("order:7").acquire().await.expect("a majority has forgotten the first");

    assert!(Instant::now() < until, "the lease was over: that is no loss");
    assert!(second.fencing_token().await.expect("it is held") > token);
}

/// The deadline counts from before the first server was asked, and not from when there was a majority.
#[tokio::test]
async fn a_hold_lasts_no_longer_where_a_majority_is_slow_to_grant_it() {
    const SLOW: Duration = Duration::from_millis(150);
    let mut fleet = QuorumFleet::start(3).await;
    let manager = fleet.manager("").await;
    for attempt in 0..10 {
        let lock = manager.lock(format!("slow:{attempt}").as_str());
        fleet.befall(&[0, 1], Fate::Frozen);
        let call = tokio::spawn(async move {
            let asked = Moment::now();
            (asked, lock.acquire().await)
        });
        tokio::time::sleep(SLOW).await;
        fleet.heal(&[0, 1], Fate::Frozen);
        // Where this machine is slow itself, they may have been away for longer than they are waited for.
        let (asked, Ok(held)) = call.await.expect("it does not panic") else { continue };

        let lasts = held.remaining() + asked.elapsed();

        assert!(asked.elapsed() >= SLOW && lasts < LEASE + SLOW / 2, "it lasts {lasts:?}");
        return;
    }
    panic!("this machine is too slow to tell");
}
