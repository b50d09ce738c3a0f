//! Release in the background: the call does not wait for the reply, and the release is still
//! complete.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use dlock_runtime::{Error, LockManager, ReleaseMode, distributed_lock};
use dlock_tests::polls::poll_with;
use dlock_tests::resp::Reply;
use dlock_tests::world::name;
use dlock_tests::{Proxy, ProxyHandle, RedisServer, within};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinSet;

use super::{LONG, manager_of, until_free};

/// The maximum number of unanswered background releases of one manager.
const MOST: usize = 1_024;
const SOON: Duration = Duration::from_secs(10);

/// The proxy holds back the reply to the release and every later reply.
#[distributed_lock(key = "order:<id>", manager = locks, release = background)]
async fn place_order(locks: &LockManager, id: u64, proxy: &ProxyHandle) -> Result<u64, Error> {
    proxy.hold_replies();
    Ok(id)
}

async fn slow() -> (RedisServer, Proxy, LockManager) {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url_with("?response_timeout=20s")).await.expect("it is open");
    (server, proxy, manager)
}

#[tokio::test]
async fn a_call_returns_before_its_release_is_answered() {
    let (server, proxy, manager) = slow().await;

    let placed = within(SOON, "the call", place_order(&manager, 7, &proxy.handle())).await;

    assert_eq!(placed.expect("the lock is free"), 7);
    until_free(&server, "order:7", SOON).await;
}

#[tokio::test]
async fn a_later_call_of_the_same_task_runs_after_the_release() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let lock = manager.lock("order:7").release_mode(ReleaseMode::Background);

    for call in 0..200 {
        let entered = lock.run(async |_guard| ()).await;

        assert!(entered.is_ok(), "call {call} of an uncontended lock: {entered:?}");
    }
}

#[tokio::test]
async fn a_release_beyond_the_bound_is_waited_for() {
    let (_server, proxy, manager) = slow().await;
    let (entered, mut has_entered) = mpsc::unbounded_channel();
    let may_end = Arc::new(Semaphore::new(0));
    let mut calls = JoinSet::new();
    for id in 0..MOST {
        let lock =
            manager.lock(format!("order:{id}").as_str()).lease(LONG).release_mode(ReleaseMode::Background);
        let (entered, may_end) = (entered.clone(), Arc::clone(&may_end));
        calls.spawn(async move {
            lock.run(async |_guard| {
                let _ = entered.send(());
                let _ = may_end.acquire().await;
            })
            .await
        });
    }
    let last_may_end = Notify::new();
    let last = manager.lock("last").lease(LONG).release_mode(ReleaseMode::Background);
    let mut last = pin!(last.run(async |_guard| {
        let _ = entered.send(());
        last_may_end.notified().await;
    }));
    let all_have = async {
        for _ in 0..=MOST {
            let _ = has_entered.recv().await;
        }
    };
    tokio::select! {
        () = within(SOON, "all bodies run", all_have) => {}
        _ = &mut last => panic!("its body waits"),
    }

    proxy.hold_replies();
    may_end.add_permits(MOST);
    let returned = within(SOON, "as many calls as the bound allows return", calls.join_all()).await;
    assert!(returned.iter().all(Result::is_ok));
    last_may_end.notify_one();
    let waits = poll_with(Waker::noop(), last.as_mut());
    assert!(matches!(waits, Poll::Pending), "{waits:?}");
    proxy.pass();
    let waited = within(SOON, "the last call", last).await;

    assert!(waited.is_ok(), "{waited:?}");
    // The other releases have been answered, so another background release is allowed.
    let lock = manager.lock("again").release_mode(ReleaseMode::Background);
    let again = lock.run(async |_guard| proxy.hold_replies());
    assert!(within(SOON, "the call after the replies", again).await.is_ok());
}

#[tokio::test]
async fn a_shutdown_waits_for_background_releases() {
    let (server, proxy, manager) = slow().await;
    proxy.hold_requests_after(1);
    let lock = manager.lock("order:7").lease(LONG).release_mode(ReleaseMode::Background);
    let released = proxy.on_request(b"EVALSHA");
    within(SOON, "the call", lock.run(async |_guard| ())).await.expect("the lock is free");
    within(SOON, "the release is sent", released).await;
    let held = server.call(&["EXISTS", &name("order:7")]);

    let mut shutdown = pin!(manager.shutdown(SOON));
    let waits = poll_with(Waker::noop(), shutdown.as_mut());
    proxy.pass();
    within(SOON, "the shutdown", shutdown).await;

    assert!(matches!(waits, Poll::Pending));
    assert_eq!(held, Reply::Integer(1), "the release was held back");
    assert_eq!(server.call(&["EXISTS", &name("order:7")]), Reply::Integer(0));
}

#[tokio::test]
async fn a_manager_dropped_after_its_last_call_still_releases() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;

    manager
        .lock("order:7")
        .lease(LONG)
        .release_mode(ReleaseMode::Background)
        .run(async |_guard| ())
        .await
        .expect("it is free");
    drop(manager);

    until_free(&server, "order:7", SOON).await;
}
