//! A foreign client writes to lock names, or publishes to grant channels (A5).

use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager, LossCause};
use dlock_tests::handoff::grant_channel;
use dlock_tests::{Proxy, RedisServer, overrun, within};
use tokio::time::Instant;

use super::{Holder, KEY, LEASE, NAME, SOON, assert_loss_is_reported, assert_lost_and_fenced};

#[tokio::test]
async fn a_foreign_write_to_the_key_loses_the_lock() {
    let server = RedisServer::start();
    let first = Holder::of(&server).await;

    server.call(&["SET", NAME, "something else", "PX", "50"]);

    assert_lost_and_fenced(&first, &server.url()).await;
    assert_loss_is_reported(&first).await;
}

/// Waits until a waiter is queued behind the holder.
async fn until_queued(first: &Holder) {
    until_queued_for(&first.manager, KEY).await;
}

async fn until_queued_for(manager: &LockManager, key: &str) {
    let queued = async {
        let inspect = async || manager.inspect(key).await.expect("the server replies");
        while inspect().await.is_none_or(|seen| seen.waiters() == 0) {
            tokio::task::yield_now().await;
        }
    };
    within(SOON, "a waiter in the queue", queued).await;
}

/// Publishes a grant of the lock to the waiter.
fn forge_grant(server: &RedisServer) {
    forge_grant_of(server, NAME, NAME);
}

/// Publishes a grant of the lock `granted` to the waiter for the lock `waited`.
fn forge_grant_of(server: &RedisServer, granted: &str, waited: &str) {
    let value = server.call(&["GET", waited]).text().expect("it is held").to_owned();
    let (_, waits) = value.split_at(value.len() - 32); // the last waiter
    let receivers =
        server.call(&["PUBLISH", &grant_channel(server, "dlock", waits), &format!("{waits}1000|{granted}")]);
    assert_eq!(receivers.integer(), Some(1), "the waiter receives it");
}

/// A server on which one process holds the lock and another has accepted a forged grant.
struct TwoBodies {
    server: RedisServer,
    /// The proxy of the second process, which holds its requests.
    proxy: Proxy,
    first: Holder,
    second: LockGuard,
    /// When the grant was forged.
    since: Instant,
}

async fn two_bodies() -> TwoBodies {
    let server = RedisServer::start();
    let first = Holder::of(&server).await;
    let proxy = Proxy::in_front_of(&server);
    // With tracking, the manager would check a hold that lasts, and detect the forged grant.
    let waiting = LockManager::connect(&proxy.url_with("?tracking=off")).await.expect("it takes managers");
    let lock = waiting.lock(KEY).lease(LEASE).wait(LEASE);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until_queued(&first).await;
    // Its reply follows that to the enqueue: a grant that arrives earlier is confirmed first.
    waiting.ready().await.expect("the server replies");

    proxy.hold_requests(); // no reply denies the grant before its task runs
    let since = Instant::now();
    forge_grant(&server);
    let second =
        within(SOON, "the forged grant", waiter).await.expect("no panic").expect("the grant is accepted");
    TwoBodies { server, proxy, first, second, since }
}

/// A client that can read a lock's value and publish to a process can start a second body.
///
/// The body of the waiter runs while the holder's body runs.
#[tokio::test]
async fn a_forged_grant_starts_a_body_without_fencing_token() {
    let TwoBodies { server: _server, proxy, first, second, .. } = two_bodies().await;
    proxy.pass();

    let fence = second.fencing_token().await;

    assert!(first.guard.check().is_ok(), "{:?}", first.guard.check());
    assert!(matches!(fence, Err(Error::Lost { .. })), "{fence:?}");
    assert!(first.guard.release().await.is_ok());
}

#[tokio::test]
async fn a_body_of_a_forged_grant_is_stopped_by_the_confirmation() {
    let TwoBodies { server: _server, proxy, first, second, .. } = two_bodies().await;
    proxy.pass();

    let cause = within(SOON, "the loss", second.lost()).await;

    assert_eq!(cause, LossCause::NotOwner, "not an expiry");
    assert!(first.guard.release().await.is_ok());
}

/// The server is far away, so that a grant is confirmed before its body starts.
///
/// The waiter keeps waiting, and acquires the lock later.
#[tokio::test]
async fn a_denied_grant_costs_the_waiter_only_time() {
    let server = RedisServer::start();
    let first = Holder::of(&server).await;
    let proxy = Proxy::in_front_of(&server);
    proxy.round_trip(Duration::from_millis(400));
    let waiting =
        LockManager::connect(&proxy.url_with("?tracking=off")).await.expect("the server takes managers");
    let lock = waiting.lock(KEY).lease(LEASE).wait(LEASE);
    let mut waiter = tokio::spawn(async move { lock.acquire().await });
    until_queued(&first).await;

    for _ in 0..3 {
        let denied = proxy.on_reply(b":0"); // the reply to the confirmation
        forge_grant(&server);
        within(SOON, "the denial", denied).await;
    }
    let early = tokio::time::timeout(Duration::from_millis(500), &mut waiter).await;
    assert!(early.is_err(), "the waiter keeps waiting: {early:?}");
    first.guard.release().await.expect("it was held all the time");

    let second = within(LEASE, "the lock", waiter).await.expect("no panic");
    assert!(second.is_ok_and(|guard| guard.check().is_ok()));
}

/// A token is granted the lock that it waits for, and no other.
#[tokio::test]
async fn a_forged_grant_of_another_lock_is_ignored() {
    let server = RedisServer::start();
    let first = Holder::of(&server).await;
    let waiting = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let lock = waiting.lock(KEY).lease(LEASE).wait(LEASE);
    let mut waiter = tokio::spawn(async move { lock.acquire().await });
    until_queued(&first).await;

    for granted in ["dlock:order:8", "order:7", "shop:order:7", "dlock:order:7:1", ""] {
        forge_grant_of(&server, granted, NAME);
    }
    let early = tokio::time::timeout(Duration::from_millis(300), &mut waiter).await;
    assert!(early.is_err(), "the waiter keeps waiting: {early:?}");
    first.guard.release().await.expect("it was held all the time");

    let second = within(SOON, "the lock", waiter).await.expect("no panic");
    assert!(second.is_ok_and(|guard| guard.check().is_ok()));
}

/// A term begins with a fencing token, which a forged grant does not get.
#[tokio::test]
async fn a_forged_grant_starts_no_term() {
    let server = RedisServer::start();
    let connect = async || LockManager::connect(&server.url()).await.expect("the server takes managers");
    let (first, second) = (connect().await, connect().await);
    let held = first.lock("leader:report").lease(LEASE).acquire().await.expect("the lock is free");
    let (send, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let leadership = second.leader("report").lease(LEASE);
    tokio::spawn(async move {
        let body = async |term: dlock_runtime::Term| {
            let _ = send.send(term.number());
            std::future::pending::<()>().await;
        };
        leadership.lead(body).await
    });

    for _ in 0..3 {
        until_queued_for(&first, "leader:report").await;
        forge_grant_of(&server, "dlock:leader:report", "dlock:leader:report");
        let early = tokio::time::timeout(Duration::from_millis(200), terms.recv()).await;
        assert!(early.is_err(), "a term has begun: {early:?}");
    }
    let token = held.fencing_token().await.expect("it is held");
    held.release().await.expect("it was held all the time");

    let number = within(LEASE, "the term", terms.recv()).await.expect("it waits for the term");
    assert!(number > token, "{number} after {token}");
}

/// While the server stalls, no reply can deny a grant.
///
/// The grant lease limits the second body, counted from the waiter's request.
#[tokio::test]
async fn a_body_of_a_forged_grant_ends_within_a_grant_lease() {
    for is_frozen in [true, false] {
        let TwoBodies { server, proxy, first, second, since } = two_bodies().await;
        let until = second.deadline();
        assert!(until <= since + GRANT_LEASE, "longer than a grant lease: {:?}", until - since);

        if is_frozen {
            server.pause();
        } else {
            // No command runs meanwhile, and neither does one that ends the pause.
            server.call(&["CLIENT", "PAUSE", "2000", "ALL"]);
        }
        proxy.pass();
        let left = until.saturating_duration_since(Instant::now());
        let (cause, late) = overrun(left, within(SOON, "the loss", second.lost())).await;
        if is_frozen {
            server.resume();
        }

        assert_eq!(cause, LossCause::GrantUnconfirmed, "frozen: {is_frozen}");
        assert!(late <= Duration::from_millis(50), "{late:?}");
        assert!(first.guard.check().is_ok(), "{:?}", first.guard.check());
    }
}

/// The default. A waiter's grant lasts for at most this time until it is confirmed.
const GRANT_LEASE: Duration = Duration::from_secs(1);
