//! Somebody else writes the names, or publishes to the channels of grants (A5).

use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager, LossCause};
use dlock_tests::handover::grant_channel;
use dlock_tests::{Moment, Proxy, RedisServer, within};

use super::{Holder, KEY, LEASE, NAME, SOON, assert_lost_and_fenced, assert_told};

#[tokio::test]
async fn a_foreign_write_over_the_name_loses_the_lock_and_when_it_is_gone_somebody_else_gets_in() {
    let server = RedisServer::start();
    let first = Holder::of(&server).await;

    server.call(&["SET", NAME, "something else", "PX", "50"]);

    assert_lost_and_fenced(&first, &server.url()).await;
    assert_told(&first).await;
}

/// Returns when somebody waits behind the first.
async fn until_queued(first: &Holder) {
    let queued = async {
        let inspect = async || first.manager.inspect(KEY).await.expect("the server answers");
        while inspect().await.is_none_or(|seen| seen.waiters() == 0) {
            tokio::task::yield_now().await;
        }
    };
    within(SOON, "a waiter in the queue", queued).await;
}

/// Says to the one who waits that the lock is granted to it.
fn forge_grant(server: &RedisServer) {
    let value = server.call(&["GET", NAME]).text().expect("it is held").to_owned();
    let (_, waits) = value.split_at(value.len() / 2);
    server.call(&["PUBLISH", &grant_channel(server, "dlock", waits), &format!("{waits}1000|{NAME}")]);
}

/// A server on which one holds the lock and another believes a forged grant.
struct TwoBodies {
    server: RedisServer,
    /// The way of the second to the server, on which its requests are held.
    proxy: Proxy,
    first: Holder,
    second: LockGuard,
    /// When the grant was forged.
    since: Moment,
}

async fn two_bodies() -> TwoBodies {
    let server = RedisServer::start();
    let first = Holder::of(&server).await;
    let proxy = Proxy::in_front_of(&server);
    // Else the server is asked about what lasts, and so it is told of.
    let waiting = LockManager::connect(&proxy.url_with("?tracking=off")).await.expect("it takes managers");
    let lock = waiting.lock(KEY).lease(LEASE).wait(LEASE);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until_queued(&first).await;

    proxy.hold_requests(); // nothing denies the grant before its task has come to its turn
    let since = Moment::now();
    forge_grant(&server);
    let second = within(SOON, "the forged grant", waiter).await.expect("no panic").expect("it believes it");
    TwoBodies { server, proxy, first, second, since }
}

/// Who can read a lock's value and publish to the channel of a process can start its waiter's body beside the holder's.
#[tokio::test]
async fn a_forged_grant_starts_a_second_body_which_gets_no_fencing_token() {
    let TwoBodies { server: _server, proxy, first, second, .. } = two_bodies().await;
    proxy.pass();

    let fence = second.fencing_token().await;

    assert!(first.guard.check().is_ok(), "{:?}", first.guard.check());
    assert!(matches!(fence, Err(Error::Lost { .. })), "{fence:?}");
    assert!(first.guard.release().await.is_ok());
}

#[tokio::test]
async fn a_body_that_a_forged_grant_has_started_is_stopped_when_the_server_is_asked_to_confirm_it() {
    let TwoBodies { server: _server, proxy, first, second, .. } = two_bodies().await;
    proxy.pass();

    let cause = within(SOON, "the loss", second.lost()).await;

    assert_eq!(cause, LossCause::NotOwner, "not that its time was over");
    assert!(first.guard.release().await.is_ok());
}

/// The server is far away, so that a grant is confirmed before its body starts: the waiter goes on waiting, and has the lock later.
#[tokio::test]
async fn denied_grant_costs_a_waiter_time_and_nothing_else() {
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
        let denied = proxy.on_reply(b":0"); // to what asks whether the lock is ours
        forge_grant(&server);
        within(SOON, "the denial", denied).await;
    }
    let early = tokio::time::timeout(Duration::from_millis(500), &mut waiter).await;
    assert!(early.is_err(), "it goes on waiting: {early:?}");
    first.guard.release().await.expect("it was held all the time");

    let second = within(LEASE, "the lock", waiter).await.expect("no panic");
    assert!(second.is_ok_and(|guard| guard.check().is_ok()));
}

/// While the server stalls nobody can deny a grant: what bounds the second body is the grant lease, counted from when the waiter asked.
#[tokio::test]
async fn body_that_a_forged_grant_has_started_ends_within_a_grant_lease_though_the_server_stalls() {
    for is_frozen in [true, false] {
        let TwoBodies { server, proxy, first, second, since } = two_bodies().await;

        if is_frozen {
            server.pause();
        } else {
            server.call(&["CLIENT", "PAUSE", "2000", "ALL"]); // no command is done meanwhile, an end to it neither
        }
        proxy.pass();
        let cause = within(SOON, "the loss", second.lost()).await;
        let took = since.elapsed();
        if is_frozen {
            server.resume();
        }

        assert_eq!(cause, LossCause::GrantUnconfirmed, "frozen: {is_frozen}");
        assert!(took <= Duration::from_millis(1_050), "longer than a grant lease: {took:?}");
        assert!(first.guard.check().is_ok(), "{:?}", first.guard.check());
    }
}
