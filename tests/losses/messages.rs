//! Somebody else writes the names, or publishes to the channels of grants (A5).

use dlock_runtime::{Error, LockGuard, LockManager, LossCause};
use dlock_tests::{Proxy, RedisServer, within};

use super::{Holder, KEY, LEASE, NAME, SOON, assert_lost_and_fenced, assert_told};

#[tokio::test]
async fn a_foreign_write_over_the_name_loses_the_lock_and_when_it_is_gone_somebody_else_gets_in() {
    let server = RedisServer::start();
    let first = Holder::of(&server).await;

    server.call(&["SET", NAME, "something else", "PX", "50"]);

    assert_lost_and_fenced(&first, &server.url()).await;
    assert_told(&first).await;
}

/// A server on which one holds the lock and another believes a forged grant, the way of the second to it, and both guards.
async fn two_bodies() -> ((RedisServer, Proxy), Holder, LockGuard) {
    let server = RedisServer::start();
    let first = Holder::of(&server).await;
    let proxy = Proxy::in_front_of(&server);
    // Else the server is asked about what lasts, and so it is told of.
    let url = proxy.url_with("?tracking=off");
    let waiting = LockManager::connect(&url).await.expect("the server takes managers");
    let lock = waiting.lock(KEY).lease(LEASE).wait(LEASE);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let queued = async {
        while waiting.inspect(KEY).await.expect("the server answers").is_none_or(|seen| seen.waiters() == 0) {
            tokio::task::yield_now().await;
        }
    };
    within(SOON, "a waiter in the queue", queued).await;

    let value = server.call(&["GET", NAME]).text().expect("it is held").to_owned();
    let (_, waits) = value.split_at(value.len() / 2);
    let process = &waits[..20];
    proxy.hold_requests(); // else its task may come to its turn when it has been told already that it has none
    server.call(&["PUBLISH", &format!("dlock:grant:{process}"), &format!("{waits}1000|{NAME}")]);
    let second = within(SOON, "the forged grant", waiter).await.expect("no panic").expect("it believes it");
    proxy.pass();
    ((server, proxy), first, second)
}

/// Who can read a lock's value and publish to the channel of a process can start its waiter's body beside the holder's.
#[tokio::test]
async fn a_forged_grant_starts_a_second_body_which_gets_no_fencing_token() {
    let (_servers, first, second) = two_bodies().await;

    let fence = second.fencing_token().await;

    assert!(first.guard.check().is_ok(), "{:?}", first.guard.check());
    assert!(matches!(fence, Err(Error::Lost { .. })), "{fence:?}");
    assert!(first.guard.release().await.is_ok());
}

#[tokio::test]
async fn a_body_that_a_forged_grant_has_started_is_stopped_when_the_server_is_asked_to_confirm_it() {
    let (_servers, first, second) = two_bodies().await;

    let cause = within(SOON, "the loss", second.lost()).await;

    assert_eq!(cause, LossCause::NotOurs, "not that its time was over");
    assert!(first.guard.release().await.is_ok());
}
