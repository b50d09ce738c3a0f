//! The server is away when a call begins or completes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_runtime::idempotent::{OnCrash, OnUnavailable};
use dlock_runtime::{Error, LockManager};
use dlock_tests::{Proxy, until, within};

use super::{LEASE, LONG, PausedBody, Runs, server};

#[tokio::test]
async fn a_completion_lands_after_an_outage_longer_than_the_lease() {
    let server = server();
    let proxy = Proxy::in_front_of(&server);
    let cut = LockManager::connect(&proxy.url_with("?response_timeout=200ms")).await.expect("it connects");
    let (other, runs) =
        (LockManager::connect(&server.url_with("")).await.expect("it connects"), Runs::default());
    let paused = PausedBody::default();
    let call = cut.idempotent("k").lease(LEASE);
    let first = call.run_attached(async |_| paused.run().await);
    let outage = async {
        paused.begun().await;
        proxy.black_hole();
        tokio::time::sleep(2 * LEASE).await;
        paused.end();
    };
    let (first, ()) = within(LONG, "the call", async { tokio::join!(first, outage) }).await;
    assert_eq!(first.expect("the caller gets its value").into_value(), 7);
    assert_eq!((cut.pending_results(), other.pending_results()), (1, 0));

    let unknown = runs.run(&other.idempotent("k")).await;
    assert!(matches!(unknown, Err(Error::OutcomeUnknown { .. })), "{unknown:?}");
    proxy.pass();
    until("the late completion", async || runs.run(&other.idempotent("k")).await.is_ok()).await;

    assert_eq!(runs.run(&other.idempotent("k")).await.expect("it is replayed"), (7, true));
    assert_eq!(runs.count(), 0, "no second run");
    let confirmed = async {
        while cut.pending_results() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(LONG, "the reply to the completion", confirmed).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_pending_completions() {
    let server = server();
    let proxy = Proxy::in_front_of(&server);
    let cut = LockManager::connect(&proxy.url_with("?response_timeout=200ms")).await.expect("it connects");
    let call = cut.idempotent("k");
    let ran = call.run_attached(async |_| {
        proxy.black_hole();
        Ok::<_, Error>(7)
    });
    ran.await.expect("the caller gets its value");

    let thaw = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.pass();
    };
    tokio::join!(cut.shutdown(LONG), thaw);

    let other = LockManager::connect(&server.url_with("")).await.expect("it connects");
    assert_eq!(Runs::default().run(&other.idempotent("k")).await.expect("it is stored"), (7, true));
}

#[tokio::test]
async fn a_start_without_a_reply_leaves_no_record() {
    let server = server();
    let proxy = Proxy::in_front_of(&server);
    let cut = LockManager::connect(&proxy.url_with("?response_timeout=200ms")).await.expect("it connects");
    let (other, runs) =
        (LockManager::connect(&server.url_with("")).await.expect("it connects"), Runs::default());
    proxy.swallow_replies();
    let call = cut.idempotent("k");

    let unavailable = runs.run(&call).await;
    assert!(matches!(unavailable, Err(Error::Unavailable { .. })), "{unavailable:?}");
    proxy.pass();

    until("the start is undone", async || runs.run(&other.idempotent("k")).await.is_ok()).await;
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_lost_start_is_undone_after_an_outage_longer_than_its_lease() {
    let server = server();
    let proxy = Proxy::in_front_of(&server);
    let cut = LockManager::connect(&proxy.url_with("?response_timeout=200ms")).await.expect("it connects");
    let other = LockManager::connect(&server.url_with("")).await.expect("it connects").idempotent("k");
    proxy.swallow_replies();
    let (call, runs) = (cut.idempotent("k").lease(LEASE), Runs::default());
    let landed = async {
        until("the start", async || other.status().await.expect("the server is there").is_some()).await;
        proxy.black_hole(); // before the start is undone
    };

    let (unavailable, ()) = tokio::join!(runs.run(&call), landed);
    assert!(matches!(unavailable, Err(Error::Unavailable { .. })), "{unavailable:?}");
    tokio::time::sleep(8 * LEASE).await;
    proxy.pass();

    until("the start is undone", async || other.status().await.expect("the server is there").is_none()).await;
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn an_outage_at_the_start_runs_the_body_only_on_demand() {
    let mut server = server();
    let (manager, runs) =
        (LockManager::connect(&server.url_with("")).await.expect("it connects"), Runs::default());
    server.kill();

    let refused = runs.run(&manager.idempotent("k")).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    let call = manager.idempotent("k").on_unavailable(OnUnavailable::Run);
    let stored = call.run(async |record| Ok::<_, Error>(record.is_stored())).await.expect("it runs");
    assert!(!stored.into_value());
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn a_lost_lease_stops_a_body_that_may_rerun() {
    let server = server();
    for (key, on_crash) in [("rerun", OnCrash::Rerun), ("resume", OnCrash::Resume)] {
        let proxy = Proxy::in_front_of(&server);
        let cut = LockManager::connect(&proxy.url_with("?response_timeout=200ms")).await;
        let call = cut.expect("it connects").idempotent(key).lease(LEASE).on_crash(on_crash);
        let lost = call.run_attached(async |record| {
            proxy.black_hole();
            tokio::time::sleep(4 * LEASE).await;
            record.step("late", async || Ok::<_, Error>(1)).await
        });
        let lost = within(LONG, "the loss", lost).await;
        proxy.pass();

        assert!(matches!(lost, Err(Error::Lost { completed: false, .. })), "{lost:?}");
    }
}

/// The body is not pending between the loss and the step, so the step itself must check the lease.
#[tokio::test]
async fn a_step_does_not_start_after_the_lease() {
    let server = server();
    let proxy = Proxy::in_front_of(&server);
    let cut = LockManager::connect(&proxy.url_with("?response_timeout=200ms")).await.expect("it connects");
    let (call, steps) = (cut.idempotent("k").lease(LEASE).on_crash(OnCrash::Resume), Runs::default());

    let lost = call.run_attached(async |record| {
        record.step("in time", async || Ok::<_, Error>(0)).await?;
        proxy.black_hole();
        std::thread::sleep(2 * LEASE);
        record.step("late", async || Ok::<_, Error>(steps.0.fetch_add(1, Ordering::SeqCst))).await
    });
    let lost = within(LONG, "the loss", lost).await;
    proxy.pass();

    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    assert_eq!(steps.count(), 0);
}

#[tokio::test]
async fn a_lease_is_renewed_while_the_runtime_is_blocked() {
    let server = server();
    let (manager, other) = (
        LockManager::connect(&server.url_with("")).await.expect("it connects"),
        LockManager::connect(&server.url_with("")).await.expect("it connects"),
    );
    let call = manager.idempotent("k").lease(LEASE).on_crash(OnCrash::Rerun);

    let ran = call.run_attached(async |_| {
        std::thread::sleep(3 * LEASE);
        tokio::task::yield_now().await;
        Ok::<_, Error>(7)
    });

    assert_eq!(ran.await.expect("its lease was renewed").into_value(), 7);
    assert_eq!(Runs::default().run(&other.idempotent("k")).await.expect("it is stored"), (7, true));
}
