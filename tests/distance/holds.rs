//! One process and a distant server: connecting, renewing, and reconnecting.

use std::time::{Duration, Instant};

use dlock_runtime::{Lock, LockManager, LossCause};
use dlock_tests::within;
use futures_util::future::join_all;

use super::{Far, LONG, millis};

#[tokio::test]
async fn renewals_keep_leases_of_several_round_trips() {
    let all = [(480, 2_400), (300, 2_000), (100, 1_000)].map(|(round_trip, lease)| async move {
        let far = Far::start(millis(round_trip));
        let manager = LockManager::connect(&far.proxy.url_with("?response_timeout=2s")).await;
        let manager = manager.expect("the server accepts connections");
        let keys: Vec<_> = (0..50).map(|key| format!("order:{key}")).collect();
        let locks: Vec<_> = keys.iter().map(|key| manager.lock(&**key).lease(millis(lease))).collect();

        // A loss would show within one lease. The locks are held for three.
        let held = locks.iter().map(|lock| lock.run(async |_| tokio::time::sleep(millis(lease * 3)).await));
        let ended: Vec<_> = within(LONG, "the bodies", join_all(held)).await;

        assert!(ended.iter().all(Result::is_ok), "{round_trip} ms, {lease} ms: {:?}", ended.first());
    });
    join_all(all).await;
}

#[tokio::test]
async fn locks_outlive_a_connection_that_is_cut_far_away() {
    let far = Far::start(millis(400));
    let manager = LockManager::connect(&far.proxy.url_with("?response_timeout=2s"))
        .await
        .expect("the server accepts connections");
    let keys: Vec<_> = (0..50).map(|key| format!("order:{key}")).collect();
    let locks: Vec<_> =
        keys.iter().map(|key| manager.lock(&**key).lease(Duration::from_secs(3)).wait(LONG)).collect();
    let guards = join_all(locks.iter().map(Lock::acquire)).await;

    far.proxy.reset_all();
    let lost = guards.iter().map(|guard| guard.as_ref().expect("it was free").lost());
    // Two leases: each lock must be renewed on the new connection.
    let first_lost =
        tokio::time::timeout(Duration::from_secs(6), futures_util::future::select_all(lost.map(Box::pin)));

    assert!(first_lost.await.is_err(), "none is lost");
}

#[tokio::test]
async fn new_connection_works_at_any_distance_below_the_timeout() {
    for round_trip in [200, 600, 800] {
        let far = Far::start(millis(round_trip));
        let url = far.proxy.url_with("?response_timeout=1200ms&connect_timeout=6s");
        let manager = LockManager::connect(&url).await.expect("the server accepts connections");

        let guard = manager.lock("order:7").acquire().await.expect("the lock is free");
        guard.release().await.expect("it is held");

        manager.ready().await.expect("it replies");
        within(Duration::from_secs(5), "the shutdown", manager.shutdown(millis(100))).await;
    }
}

/// The server has lost its scripts, so the first request takes two round trips, and the search for
/// the owner would end after 4.2 s.
#[tokio::test]
async fn an_inspection_ends_without_the_owner_if_that_is_late() {
    let far = Far::start_near();
    let holder = LockManager::connect(&far.server.url()).await.expect("the server accepts connections");
    let url = far.proxy.url_with("?response_timeout=2s");
    let manager = LockManager::connect(&url).await.expect("the server accepts connections");
    let _guard = holder.lock("order:7").acquire().await.expect("the lock is free");
    far.server.call(&["SCRIPT", "FLUSH"]);
    far.proxy.round_trip(millis(1_400));

    let begun = Instant::now();
    let seen = manager.inspect("order:7").await.expect("it replies").expect("it is held");

    let lasted = begun.elapsed();
    assert!(lasted < millis(4_500), "{lasted:?}, of 4 s");
    assert!(seen.owner().is_none() && seen.remaining().is_some(), "{seen:?}");
}

/// The server stalls after a hand-off, so the grant is not confirmed. The loss names the option to
/// raise.
///
/// A grant that arrives late is confirmed before the body, so the lease of the grant is far above
/// any stall of the machine.
#[tokio::test]
async fn loss_of_an_unconfirmed_grant_names_the_grant_lease() {
    let far = Far::start_near();
    let connect =
        async |url: String| LockManager::connect(&url).await.expect("the server accepts connections");
    let holder = connect(far.server.url_with("?grant_lease=3s")).await;
    let waiter = connect(far.proxy.url_with("?grant_lease=3s")).await;
    let guard = holder.lock("order:7").acquire().await.expect("the lock is free");
    let lock = waiter.lock("order:7").wait(LONG);
    let waiting = tokio::spawn(async move {
        let guard = lock.acquire().await.expect("it is handed off");
        (guard.lost().await, guard.check())
    });
    // Asked on the waiter's connection, so the reply to its request to queue has arrived before.
    let queued = async {
        while waiter.inspect("order:7").await.expect("it replies").is_none_or(|seen| seen.waiters() == 0) {
            tokio::task::yield_now().await;
        }
    };
    within(LONG, "a waiter", queued).await;

    far.proxy.hold_requests(); // no confirmation arrives
    drop(guard);
    let (cause, checked) = within(LONG, "the loss", waiting).await.expect("no panic");

    assert_eq!(cause, LossCause::GrantUnconfirmed);
    let reported = checked.expect_err("it is lost").to_string();
    assert!(
        reported.contains("not confirmed in time") && reported.contains("raise `grant_lease`"),
        "{reported}"
    );
}

/// The confirmation arrives in time, and the server refuses it: a longer lease would not help.
#[tokio::test]
async fn loss_of_a_refused_grant_quotes_the_server() {
    let far = Far::start_near();
    let connect =
        async |url: String| LockManager::connect(&url).await.expect("the server accepts connections");
    let (holder, waiter) = (connect(far.server.url()).await, connect(far.proxy.url()).await);
    let guard = holder.lock("order:7").acquire().await.expect("the lock is free");
    let lock = waiter.lock("order:7").wait(LONG);
    let waiting = tokio::spawn(async move { lock.run(async |guard| guard.lost().await).await });
    let queued = async {
        while waiter.inspect("order:7").await.expect("it replies").is_none_or(|seen| seen.waiters() == 0) {
            tokio::task::yield_now().await;
        }
    };
    within(LONG, "a waiter", queued).await;

    far.proxy.hold_requests(); // until the server refuses writes
    guard.release().await.expect("it is held");
    far.server.call(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    far.proxy.pass();
    let lost =
        within(LONG, "the loss", waiting).await.expect("no panic").expect_err("it is refused").to_string();

    assert!(lost.contains("NOREPLICAS") && !lost.contains("raise `grant_lease`"), "{lost}");
}
