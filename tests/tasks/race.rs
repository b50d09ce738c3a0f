//! T12: a release that races the first renewal of its hold.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{Proxy, RedisServer, within};
use tokio::task::JoinSet;

use super::{KEY, LONG, PROMPT, assert_nothing_is_left, manager_of};

/// The first renewal is due after a quarter to a third of the lease.
const LEASE: Duration = Duration::from_millis(600);

#[tokio::test]
async fn a_release_behind_a_renewal_that_is_under_way_leaves_nothing() {
    for is_renewed in [false, true] {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let manager =
            LockManager::connect(&proxy.url_with("?tracking=off")).await.expect("the network is open");
        let guard = manager.lock(KEY).lease(LEASE).acquire().await.expect("it is free");
        let renewal = proxy.on_request(b"dlock:order:7");

        // Hold the renewal on its way to the server, or its reply on the way back.
        if is_renewed {
            proxy.hold_replies();
        } else {
            proxy.hold_requests();
        }
        within(LEASE, "the renewal", renewal).await;
        let released = tokio::spawn(guard.release());
        tokio::time::sleep(Duration::from_millis(20)).await;
        proxy.pass();
        let released = within(PROMPT, "the release", released).await.expect("no panic");

        assert!(released.is_ok(), "renewed: {is_renewed}: {released:?}");
        assert_quiet(&server).await;
    }
}

#[tokio::test]
async fn releases_around_the_first_renewal_leave_nothing() {
    let mut renewed = Vec::new();
    // A stall of one thread may separate the renewals from the releases.
    for _ in 0..10 {
        renewed.push(release_around_the_first_renewal().await);
        if renewed.last().is_some_and(|renewed| (1..400).contains(renewed)) {
            return;
        }
    }
    panic!("no release raced a renewal: {renewed:?} of 400 were renewed before their release");
}

/// Returns how many of 400 holds were renewed before their release.
async fn release_around_the_first_renewal() -> u64 {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let mut holds = JoinSet::new();
    for number in 0..400_u64 {
        let lock = manager.lock(format!("order:{number}")).lease(LEASE);
        holds.spawn(async move {
            let guard = lock.acquire().await.expect("it is free");
            // From before the earliest first renewal to after the last.
            tokio::time::sleep(LEASE / 4 + Duration::from_micros(number * 150)).await;
            let checked = guard.check();
            (checked, guard.release().await)
        });
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = within(LONG, "all releases", holds.join_next()).await {
        outcomes.push(outcome.expect("no panic"));
    }
    let renewed = server.command_count("pexpire");

    assert!(outcomes.iter().all(|outcome| matches!(outcome, (Ok(()), Ok(())))), "{outcomes:?}");
    assert_quiet(&server).await;
    renewed
}

/// Asserts that no key is left, that none is written later, and that no command checks released
/// holds.
async fn assert_quiet(server: &RedisServer) {
    let questions = || ["evalsha", "eval", "getrange"].map(|command| server.command_count(command));
    assert_nothing_is_left(server, PROMPT).await;
    let before = questions();
    tokio::time::sleep(LEASE).await;
    assert_nothing_is_left(server, Duration::ZERO).await;
    assert_eq!(questions(), before, "commands about released holds");
}
