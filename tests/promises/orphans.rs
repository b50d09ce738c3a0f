//! What a command without an answer left behind is cleaned up, also when the connection goes, and when the manager does.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::polls::{Polled, poll_times};
use dlock_tests::resp::Reply;
use dlock_tests::{Answer, HostileServer, Moment, Proxy, RedisServer, within};

use super::{LONG, until_free};

/// Far below the lease of these locks, which is the last bound.
const CLEANED_UP: Duration = Duration::from_millis(2_500);

#[tokio::test]
async fn a_grant_without_an_answer_is_undone_though_the_connection_goes_while_it_is_being_undone() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("the way is open");
    proxy.hold_replies_after(0);
    let lock = manager.lock("order:7").lease(LONG);
    let unanswered = tokio::spawn(async move { lock.acquire().await });
    until_held(&server, "order:7").await;

    proxy.black_hole();
    let undoing = proxy.on_request(b"dlock:order:7");
    // A second command that is sent before the undoing and gets no answer either: the connection is given up in the midst of it.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let second = manager.lock("order:8").lease(LONG).acquire().await;
    let unanswered = unanswered.await.expect("the call does not panic");
    within(LONG, "the undoing", undoing).await;
    proxy.pass();
    proxy.reset_all();

    until_free(&server, "order:7", Duration::from_secs(3)).await;
    assert!(matches!(unanswered, Err(Error::Unavailable { .. })), "{unanswered:?}");
    assert!(matches!(second, Err(Error::Unavailable { .. })), "{second:?}");
}

#[tokio::test]
async fn an_acquire_dropped_before_its_answer_leaves_nothing_though_its_manager_is_dropped_too() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("the way is open");
    let lock = manager.lock("order:7").lease(LONG);
    proxy.hold_replies();

    let polled = poll_times(2, lock.acquire()).await;
    until_held(&server, "order:7").await;
    drop((lock, manager));
    proxy.pass();

    assert!(matches!(polled, Polled::Stuck));
    until_free(&server, "order:7", CLEANED_UP).await;
}

#[tokio::test]
async fn an_acquire_dropped_as_it_is_sent_leaves_nothing_though_its_manager_is_dropped_too() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("the way is open");
    let lock = manager.lock("order:7").lease(LONG);
    let sent = proxy.on_request(b"dlock:order:7");

    let polled = poll_times(1, lock.acquire()).await;
    drop((lock, manager));
    // It may never be sent at all.
    let _ = tokio::time::timeout(Duration::from_millis(200), sent).await;

    assert!(matches!(polled, Polled::Dropped));
    until_free(&server, "order:7", CLEANED_UP).await;
}

#[tokio::test]
async fn a_release_without_an_answer_is_said_again_on_the_next_connection() {
    let (server, proxy, manager) = with_a_release_without_an_answer().await;

    proxy.pass();
    proxy.reset_all();

    until_free(&server, "order:7", CLEANED_UP).await;
    drop(manager);
}

#[tokio::test]
async fn a_release_without_an_answer_is_said_again_though_its_connection_and_then_its_manager_go() {
    let (server, proxy, manager) = with_a_release_without_an_answer().await;

    proxy.pass();
    proxy.reset_all();
    drop(manager);

    until_free(&server, "order:7", CLEANED_UP).await;
}

#[tokio::test]
async fn a_release_without_an_answer_is_said_again_though_its_manager_and_then_its_connection_go() {
    let (server, proxy, manager) = with_a_release_without_an_answer().await;

    drop(manager);
    proxy.pass();
    proxy.reset_all();

    until_free(&server, "order:7", CLEANED_UP).await;
}

/// A command that was given up with its connection may run a while later: a process that ended before would leave a lock taken.
#[tokio::test]
async fn a_shutdown_gives_back_what_arrives_after_its_connection_was_lost() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url_with("?response_timeout=150ms")).await.expect("it is open");
    proxy.delay_requests(Duration::from_millis(800));
    let late = manager.lock("order:7").lease(LONG).acquire().await;
    proxy.pass(); // what has come is late all the same; the next connection is not

    let began = Moment::now();
    within(LONG, "the shutdown", manager.shutdown(Duration::ZERO)).await;

    assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
    assert_eq!(server.command_count("set"), 1, "it came back before what is late had arrived");
    assert_eq!(server.call(&["EXISTS", "dlock:order:7"]), Reply::Integer(0));
    assert!(began.elapsed() < CLEANED_UP, "{:?}", began.elapsed());
}

/// A server, a way to it that swallows everything, and a manager with no guard left, whose release has been swallowed.
async fn with_a_release_without_an_answer() -> (RedisServer, Proxy, LockManager) {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("the way is open");
    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    proxy.black_hole();
    let released = proxy.on_request(b"dlock:order:7");
    drop(guard);
    within(LONG, "the release", released).await;
    (server, proxy, manager)
}

/// A command without an answer may still run: had two tries of a call one token, the late release of the first would free the second.
#[tokio::test]
async fn every_attempt_has_a_token_of_its_own() {
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&tokens);
    let server = HostileServer::start(move |request| {
        if request.name() != "SET" {
            return Answer::Usual;
        }
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(request.word(2));
        Answer::Close
    });
    let manager = LockManager::connect(&server.url()).await.expect("it greets like a Redis");
    // Long enough for another connection to be there.
    let delay = Duration::from_millis(150);
    let lock = manager.lock("order:7").lease(LONG).retry(3).backoff(delay, delay);

    for call in 0..2 {
        let refused = lock.acquire().await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "call {call}: {refused:?}");
    }

    let mut tokens = tokens.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let tries = tokens.len();
    tokens.sort();
    tokens.dedup();
    assert!(tries >= 5, "{tries} tries");
    assert_eq!(tokens.len(), tries, "a token was used again");
}

async fn until_held(server: &RedisServer, key: &str) {
    let held = async {
        while server.call(&["EXISTS", &dlock_tests::world::name(key)]) != Reply::Integer(1) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(LONG, &format!("{key} is held"), held).await;
}
