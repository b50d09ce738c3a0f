//! Extreme, invalid, and hostile input from callers.

use std::time::Duration;

use dlock_runtime::Error;
use dlock_tests::resp::Reply;
use dlock_tests::{Answer, HostileServer, Proxy, RedisServer, within};

use super::{LONG, connect};

#[tokio::test]
async fn extreme_leases_are_rejected_or_never_delete_a_key() {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server accepts connections");
    let millis = Duration::from_millis;
    let leases = [
        Duration::ZERO,
        Duration::from_nanos(1),
        millis(1),
        millis(u64::MAX),
        Duration::MAX,
        millis(1 << 62),
    ];

    for lease in leases {
        let outcome = manager.lock("order:7").lease(lease).acquire().await;
        match outcome {
            Ok(guard) => {
                let ttl = server.call(&["PTTL", "dlock:order:7"]).integer();
                assert!(ttl.is_some_and(|ttl| ttl > 0), "lease {lease:?}: TTL {ttl:?}");
                guard.release().await.expect("it was held");
            }
            Err(error) => assert!(matches!(error, Error::Config { .. }), "lease {lease:?}: {error:?}"),
        }
    }
}

#[tokio::test]
async fn an_extension_by_any_duration_never_deletes_or_shortens() {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server accepts connections");
    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");

    let second = Duration::from_secs(1);
    for duration in
        [Duration::ZERO, Duration::from_nanos(1), second, Duration::from_secs(u64::MAX), Duration::MAX]
    {
        let extended = guard.extend(duration).await;
        let ttl = server.call(&["PTTL", "dlock:order:7"]).integer();

        assert!(matches!(extended, Ok(()) | Err(Error::Config { .. })), "{duration:?}: {extended:?}");
        assert!(ttl.is_some_and(|ttl| ttl > 25_000), "{duration:?}: TTL {ttl:?}");
        assert!(guard.check().is_ok(), "{duration:?}");
    }
}

#[tokio::test]
async fn waits_and_retries_at_both_ends_do_not_overflow() {
    let server = RedisServer::start();
    for url in ["memory://", &server.url()] {
        let manager = connect(url).await.expect("the backend is available");
        for wait in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            let lock = manager.lock("order:7").lease(LONG).wait(wait).retry(u32::MAX);
            let outcome = within(LONG, &format!("a wait of {wait:?}"), lock.acquire()).await;
            let guard = outcome.unwrap_or_else(|error| panic!("a free lock, {wait:?}: {error:?}"));
            let again = manager.lock("order:7").lease(LONG).wait(Duration::from_millis(1)).acquire().await;
            assert!(matches!(again, Err(Error::Contended { .. })), "{wait:?}: {again:?}");
            guard.release().await.expect("it was held");
        }
    }
}

#[tokio::test]
async fn hostile_keys_are_locked_as_they_are_or_refused() {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server accepts connections");
    let long = "x".repeat(100_000);
    let keys =
        [" ", "a b", "a\r\nb", "\0", "\u{1b}[31m", "{}", "}{", "{a", "*", "ключ", "\u{202e}txt", &long];

    for key in keys {
        match manager.lock(key).lease(LONG).acquire().await {
            Ok(guard) => {
                assert!(!format!("{guard:?}").contains(['\n', '\r', '\0', '\u{1b}']), "{key:?}");
                assert_eq!(server.call(&["DBSIZE"]), Reply::Integer(1), "{key:?}");
                guard.release().await.expect("it was held");
            }
            Err(error) => {
                assert!(matches!(error, Error::InvalidKey { .. }), "{key:?}: {error:?}");
                assert!(!error.to_string().contains(['\n', '\r', '\0', '\u{1b}']), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn an_empty_key_is_invalid_before_the_server_is_asked() {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server accepts connections");
    let before = server.command_count("set");

    let acquired = manager.lock("").lease(LONG).acquire().await;
    let ran = manager.lock("").lease(LONG).run(async |_guard| ()).await;

    assert!(matches!(acquired, Err(Error::InvalidKey { .. })), "{acquired:?}");
    assert!(matches!(ran, Err(Error::InvalidKey { .. })), "{ran:?}");
    assert_eq!(server.command_count("set"), before);
}

#[tokio::test]
async fn urls_that_cannot_be_used_are_config_errors() {
    for url in
        ["", "redis", "redis://", "http://127.0.0.1", "redis://127.0.0.1:notaport", "redis://h:1?lease=soon"]
    {
        let refused = connect(url).await;
        assert!(matches!(refused, Err(Error::Config { .. })), "{url:?}: {refused:?}");
    }
}

#[tokio::test]
async fn a_refused_connection_is_unavailable() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    proxy.refuse();

    let refused = connect(&proxy.url()).await;

    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_server_that_never_greets_is_unavailable() {
    let server = HostileServer::start(|_| Answer::Silence);

    let refused = connect(&server.url()).await;

    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
}
