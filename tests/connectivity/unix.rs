//! A server on the same machine, over its Unix socket.

use dlock_runtime::{Error, LockManager};
use dlock_tests::RedisServer;
use dlock_tests::resp::Reply;

use super::{LONG, assert_config, assert_grant_is_received, hold_beyond_the_lease, until_ready};

#[tokio::test]
async fn hold_over_a_unix_socket_is_renewed_and_waiters_granted() {
    let server = RedisServer::start();
    let url = format!("redis+unix://{}", server.socket().display());
    let manager = LockManager::connect(&url).await.expect("the server listens on the socket");
    let other = LockManager::connect(&url).await.expect("the server listens on the socket");

    hold_beyond_the_lease(&manager).await;
    assert_grant_is_received(&manager, other).await;
}

#[tokio::test]
async fn database_user_and_password_are_options() {
    let server = RedisServer::builder().line("user shop on >a+b&c ~* &* +@all").start();
    let url = format!("redis+unix://{}?db=3&user=shop&password=a+b%26c", server.socket().display());
    let wrong = url.replace("a+b", "ab");

    let manager = LockManager::connect(&url).await.expect("user and password are correct");
    let _guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let refused = LockManager::connect(&wrong).await;

    let swapped = server.call(&["SWAPDB", "0", "3"]);
    assert_eq!(swapped, Reply::Status("OK".to_owned()));
    assert_eq!(server.call(&["EXISTS", "dlock:order:7"]), Reply::Integer(1));
    assert_config(refused, "server", &["refused the user or the password", "redis.sock"]);
}

#[tokio::test]
async fn missing_socket_is_unavailable_until_the_server_returns() {
    let mut server = RedisServer::start();
    let url = format!("redis+unix://{}", server.socket().display());
    let manager = LockManager::connect(&url).await.expect("the server listens on the socket");

    server.kill();
    let gone = manager.lock("order:7").lease(LONG).acquire().await;
    let closed = LockManager::connect("redis+unix:///nowhere/redis.sock").await;
    server.restart();
    until_ready(&manager).await;

    assert!(matches!(gone, Err(Error::Unavailable { .. })), "{gone:?}");
    let text = closed.expect_err("the socket does not exist").to_string();
    assert!(text.contains("/nowhere/redis.sock"), "{text}");
}

/// No such socket can exist, so a lazy start would be refused by each call only.
#[tokio::test]
async fn a_path_that_is_too_long_for_a_socket_is_a_config_error() {
    for options in ["", "?connect=lazy"] {
        let url = format!("redis+unix:///{}{options}", "x".repeat(200));
        assert_config(LockManager::connect(&url).await, "path", &["107"]);
    }
}
