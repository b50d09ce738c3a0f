//! Managers that start before their server.

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::RedisServer;

use super::{LONG, SOON, assert_config, assert_grant_is_received, hold_beyond_the_lease, until_ready};

fn is_unavailable<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Unavailable { .. }))
}

#[tokio::test]
async fn a_manager_starts_before_its_server_and_connects_later() {
    let mut server = RedisServer::start();
    server.kill();
    let locks = LockManager::builder(&server.url()).connect_lazy().await.expect("it waits for no server");

    let tried = locks.lock("order:7").try_acquire().await;
    let ready = locks.ready().await;
    let patient = tokio::spawn(locks.lock("order:7").lease(LONG).wait(SOON).acquire());
    server.restart();
    let waited = patient.await.expect("no panic");

    assert!(is_unavailable(&tried) && is_unavailable(&ready), "{tried:?} {ready:?}");
    waited.expect("the server is up within the wait").release().await.expect("it is held");
    until_ready(&locks).await;
    hold_beyond_the_lease(&locks).await;
    assert_grant_is_received(&LockManager::connect(&server.url()).await.expect("it is up"), locks).await;
}

#[tokio::test]
async fn a_call_right_after_a_lazy_start_waits_for_the_connection() {
    let server = RedisServer::start();

    for attempt in 0..20 {
        let locks = LockManager::connect(&server.url_with("?connect=lazy")).await.expect("it is up");
        let acquired = locks.lock("order:7").acquire().await;
        assert!(acquired.is_ok(), "attempt {attempt}: {acquired:?}");
        acquired.expect("it was acquired").release().await.expect("it is held");
    }
}

#[tokio::test]
async fn a_silent_server_ends_calls_of_a_lazy_manager_in_time() {
    let server = RedisServer::start();
    server.pause();
    let locks =
        LockManager::connect(&server.url_with("?connect=lazy")).await.expect("it waits for no server");

    let begun = std::time::Instant::now();
    let tried = locks.lock("order:7").acquire().await;
    let took = begun.elapsed();
    server.resume();

    assert!(is_unavailable(&tried), "{tried:?}");
    assert!(took < Duration::from_millis(500 + 200), "{took:?}");
    until_ready(&locks).await;
}

#[tokio::test]
async fn a_lazy_manager_reports_a_rejected_user_to_its_calls() {
    let server = RedisServer::builder().password("secret").start();
    let port = server.port();
    let url = format!("redis://:wrong@127.0.0.1:{port}");
    let locks = LockManager::builder(&url).connect_lazy().await.expect("it waits for no server");

    let refused = locks.lock("order:7").acquire().await;

    let Err(Error::Unavailable { reason, .. }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("refused the user or the password"), "{reason}");
}

#[tokio::test]
async fn a_lazy_manager_of_an_invalid_url_is_refused() {
    let refused = LockManager::builder("redis://h?lease=1ms").connect_lazy().await;

    assert_config(refused, "lease", &["100 ms"]);
}

#[tokio::test]
async fn a_lazy_start_checks_all_that_needs_no_server() {
    for (url, part, words) in [
        ("rediss://h?tls_ca=/no/such/file", "tls_ca", "cannot be read"),
        ("rediss://h?tls_cert=/no/such/file&tls_key=/no", "tls_cert", "cannot be read"),
        ("rediss://h?tls_name=no%20name", "tls_name", "neither a host name nor an address"),
        ("redis://h?tls_ca=/no/such/file", "tls", "`rediss://`"),
        ("redis+quorum://a,b", "host", "three"),
        ("redis+quorum://a,b,c?replica_acks=1", "replica_acks", "quorum"),
        ("redis+cluster://h/3", "database", "only database 0"),
        ("redis://h?layout=redisson&namespace=a%7Bb", "namespace", "braces"),
        ("memory://?replica_acks=1", "replica_acks", "memory"),
    ] {
        let refused = LockManager::builder(url).connect_lazy().await;

        assert_config(refused, part, &[words]);
    }
}

#[tokio::test]
async fn a_lazy_manager_shuts_down_without_its_server() {
    let mut server = RedisServer::start();
    server.kill();
    let locks = LockManager::builder(&server.url()).connect_lazy().await.expect("it waits for no server");
    let waiter = tokio::spawn(locks.lock("order:7").wait(LONG).acquire());
    tokio::task::yield_now().await;

    dlock_tests::within(SOON, "the shutdown", locks.shutdown(Duration::ZERO)).await;

    let ended = dlock_tests::within(SOON, "the end of the wait", waiter).await.expect("no panic");
    assert!(matches!(ended, Err(Error::Shutdown { .. })), "{ended:?}");
}

#[tokio::test]
async fn memory_starts_lazily_as_it_does_eagerly() {
    let locks = LockManager::connect("memory://?connect=lazy").await.expect("no server is needed");

    assert!(locks.lock("order:7").acquire().await.is_ok());
}
