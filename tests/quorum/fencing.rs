//! Fencing tokens rise from holder to holder, whichever minority fails.

use std::time::Duration;

use dlock_runtime::Error;
use dlock_tests::QuorumFleet;
use dlock_tests::quorum::{Fate, LEASE};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn tokens_rise_with_servers_that_come_and_go() {
    let mut fleet = QuorumFleet::start(3).await;
    let managers = [fleet.manager("").await, fleet.manager("").await];
    let mut last = 0;
    for round in 0..6 {
        let away = round % 3;
        fleet.befall(&[away], Fate::Frozen);
        for manager in &managers {
            let held =
                manager.lock("order:7").wait(SOON).acquire().await.expect("two of three servers are up");

            let token = held.fencing_token().await.expect("it is held").get();

            assert!(token > last, "round {round}: {token} after {last}");
            assert_eq!(held.fencing_token().await.expect("it is held").get(), token);
            last = token;
            held.release().await.expect("it was held");
        }
        fleet.heal(&[away], Fate::Frozen);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_token_is_above_those_of_a_server_whose_clock_is_ahead() {
    let mut fleet = QuorumFleet::start(3).await;
    let manager = fleet.manager("").await;
    let counter = "{dlock:order:7}##token";
    let ahead = 4_000_000_000_000_000_u64;
    fleet.servers()[0].call(&["SET", counter, &ahead.to_string()]);

    let mut tokens = Vec::new();
    for away in [1, 0] {
        // First the server with the higher counter is in the majority, then it is down.
        fleet.befall(&[away], Fate::Killed);
        let held = manager.lock("order:7").wait(SOON).acquire().await.expect("two of three servers are up");
        tokens.push(held.fencing_token().await.expect("it is held").get());
        held.release().await.expect("it was held");
        fleet.heal(&[away], Fate::Killed);
        tokio::time::sleep(LEASE + LEASE / 4).await;
    }

    assert!(tokens[0] > ahead && tokens[1] > tokens[0], "{tokens:?}");
}

#[tokio::test]
async fn lost_lock_gets_no_token() {
    let fleet = QuorumFleet::start(3).await;
    let (ours, theirs) = (fleet.manager("").await, fleet.manager("").await);
    let held = ours.lock("order:7").wait(SOON).acquire().await.expect("the lock is free");
    assert!(theirs.force_release("order:7").await.expect("a majority replies"));

    let refused = held.fencing_token().await;

    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
}
