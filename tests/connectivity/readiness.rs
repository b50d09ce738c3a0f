//! Readiness of a manager.

use std::time::{Duration, Instant};

use dlock_runtime::testing::TestLocks;
use dlock_runtime::{Error, LockManager};
use dlock_tests::{Answer, HostileServer, RedisServer};

use super::until_ready;

#[tokio::test]
async fn a_server_that_answers_is_ready_for_one_ping() {
    let server = RedisServer::start();
    let manager = LockManager::connect(&server.url()).await.expect("the server accepts connections");
    let (pings, all) = (server.command_count("ping"), server.command_total());

    let ready = manager.ready().await;

    assert!(ready.is_ok(), "{ready:?}");
    assert_eq!((server.command_count("ping") - pings, server.command_total() - all), (1, 1));
}

#[tokio::test]
async fn silent_or_stopped_server_is_not_ready_in_bounded_time() {
    let mut server = RedisServer::start();
    let manager = LockManager::connect(&server.url()).await.expect("the server accepts connections");

    server.pause();
    let begun = Instant::now();
    let silent = manager.ready().await;
    let took = begun.elapsed();
    server.kill();
    let gone = manager.ready().await;
    server.restart();

    for outcome in [silent, gone] {
        assert!(matches!(outcome, Err(Error::Unavailable { key: None, .. })), "{outcome:?}");
    }
    assert!(took < Duration::from_millis(500 + 100), "{took:?}");
    until_ready(&manager).await;
}

#[tokio::test]
async fn a_server_that_is_loading_is_not_ready() {
    let server = HostileServer::start(|request| match request.name() {
        "PING" => Answer::Raw(b"-LOADING Redis is loading the dataset in memory\r\n".to_vec()),
        _ => Answer::Usual,
    });
    let manager = LockManager::connect(&server.url()).await.expect("it accepts connections");

    let loading = manager.ready().await;

    assert!(
        matches!(&loading, Err(Error::Unavailable { reason, .. }) if reason.contains("LOADING")),
        "{loading:?}"
    );
}

#[tokio::test]
async fn memory_is_always_ready() {
    let manager = LockManager::connect("memory://").await.expect("no server is required");

    assert!(manager.ready().await.is_ok());
}

#[tokio::test]
async fn simulated_outage_is_not_ready() {
    let locks = TestLocks::new();

    let outage = locks.outage();
    let cut_off = locks.manager().ready().await;
    outage.end();

    assert!(matches!(cut_off, Err(Error::Unavailable { key: None, .. })), "{cut_off:?}");
    assert!(locks.manager().ready().await.is_ok());
}

#[tokio::test]
async fn a_manager_that_was_shut_down_is_not_ready() {
    let server = RedisServer::start();
    for url in ["memory://", &server.url()] {
        let manager = LockManager::connect(url).await.expect("it accepts connections");

        manager.shutdown(Duration::ZERO).await;
        let ready = manager.ready().await.expect_err("the manager is shut down");

        assert!(matches!(ready, Error::Shutdown { key: None, .. }), "{ready:?}");
        assert_eq!(
            (ready.http_status(), ready.to_string().as_str()),
            (503, "the lock manager has been shut down")
        );
    }
}
