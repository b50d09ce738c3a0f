//! Services and proxies without some commands: locks require few, and replace all others.

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::filter::{FilterProxy, Lack};
use dlock_tests::{RedisServer, acl, within};

const LONG: Duration = Duration::from_secs(30);

/// Commands that only make locks cheaper or faster.
const OPTIONAL: [&str; 7] =
    ["SCRIPT LOAD", "EVALSHA", "CLIENT SETINFO", "CLIENT SETNAME", "SUBSCRIBE", "CLIENT TRACKING", "HELLO"];

/// Uses every lock operation that sends a request.
async fn use_locks(url: &str) {
    let first = LockManager::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    let second = LockManager::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    let lease = Duration::from_secs(3);

    let held = first.lock("order:7").lease(lease).acquire().await.expect("the lock is free");
    let contended = second.lock("order:7").acquire().await;
    assert!(matches!(contended, Err(Error::Contended { .. })), "{contended:?}");
    assert!(held.fencing_token().await.is_ok());
    assert!(second.inspect("order:7").await.is_ok_and(|seen| seen.is_some()));
    assert!(held.check().is_ok() && first.ready().await.is_ok());

    let lock = second.lock("order:7").lease(lease).wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(Duration::from_millis(150)).await; // the waiter may or may not be queued by then
    held.release().await.expect("it was held");
    let next = within(LONG, "the lock", waiter).await.expect("no panic").expect("the lock is granted");
    assert!(next.extend(lease * 2).await.is_ok() && next.check().is_ok());
    next.release().await.expect("it was held");
    assert!(first.force_release("order:7").await.is_ok_and(|held| !held));
    first.shutdown(LONG).await;
}

async fn lacks(command: &'static str) {
    let server = RedisServer::start();
    for lack in Lack::ALL {
        // A proxy that closes the connection on each `EVALSHA` is indistinguishable from one that
        // is down.
        if (command, lack) == ("EVALSHA", Lack::Closes) {
            continue;
        }
        let proxy = FilterProxy::in_front_of(&server, &[(command, lack)]);
        use_locks(&proxy.url_with("?poll_interval=20ms")).await;
    }
}

/// Checks that connections omit an optional command once it was refused.
async fn is_tried_until_it_is_refused(command: &'static str) {
    let server = RedisServer::start();
    for lack in Lack::ALL {
        let proxy = FilterProxy::in_front_of(&server, &[(command, lack)]);
        is_tried_until_refused_at(&proxy.url_with("?tracking=off"), &server, &proxy, (command, lack)).await;
    }
}

/// The same for a primary that a sentinel reports. Its own connections do not send `command`.
async fn is_tried_until_refused_behind_a_sentinel(command: &'static str) {
    let server = RedisServer::builder().also_allow(acl::BEHIND_SENTINELS).start();
    for lack in Lack::ALL {
        let proxy = FilterProxy::in_front_of(&server, &[(command, lack)]);
        let monitor = format!("sentinel monitor mymaster 127.0.0.1 {} 1", proxy.port());
        let sentinel = RedisServer::builder().sentinel().line(&monitor).start();
        let (access, port) = (server.access(), sentinel.port());
        let url = format!("redis+sentinel://{access}127.0.0.1:{port}/mymaster?tracking=off");
        is_tried_until_refused_at(&url, &server, &proxy, (command, lack)).await;
    }
}

async fn is_tried_until_refused_at(
    url: &str,
    server: &RedisServer,
    proxy: &FilterProxy,
    (command, lack): (&str, Lack),
) {
    // Without `EVALSHA`, a proxy that closes the connection is indistinguishable from one that is
    // down.
    if (command, lack) == ("EVALSHA", Lack::Closes) {
        return;
    }
    let manager = LockManager::connect(url).await.expect("the command is optional");
    let use_a_lock = async || {
        let guard = manager.lock("order:7").acquire().await;
        let guard = guard.unwrap_or_else(|error| panic!("{url}, {lack:?}: {error}"));
        guard.release().await.expect("it was held");
    };
    let reconnect = async || {
        server.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        use_a_lock().await;
    };
    use_a_lock().await;
    if lack == Lack::Closes {
        reconnect().await; // a second try, as a broken network looks the same
    }
    let tried = proxy.count(command);

    reconnect().await;

    assert!(tried > 0, "{lack:?}");
    assert_eq!(proxy.count(command), tried, "{url}, {lack:?}");
}

#[tokio::test]
async fn locks_need_no_script_load() {
    lacks("SCRIPT LOAD").await;
}

#[tokio::test]
async fn locks_need_no_evalsha() {
    lacks("EVALSHA").await;
}

#[tokio::test]
async fn locks_need_no_client_setinfo() {
    lacks("CLIENT SETINFO").await;
}

#[tokio::test]
async fn locks_need_no_client_setname() {
    lacks("CLIENT SETNAME").await;
}

#[tokio::test]
async fn client_setname_is_tried_until_it_is_refused() {
    is_tried_until_it_is_refused("CLIENT SETNAME").await;
}

#[tokio::test]
async fn client_setinfo_is_tried_until_it_is_refused() {
    is_tried_until_it_is_refused("CLIENT SETINFO").await;
}

#[tokio::test]
async fn evalsha_is_tried_until_it_is_refused() {
    is_tried_until_it_is_refused("EVALSHA").await;
}

#[tokio::test]
async fn commands_are_tried_until_refused_behind_a_sentinel() {
    for command in ["CLIENT SETINFO", "SCRIPT LOAD", "EVALSHA"] {
        is_tried_until_refused_behind_a_sentinel(command).await;
    }
}

#[tokio::test]
async fn locks_need_no_subscribe() {
    lacks("SUBSCRIBE").await;
}

#[tokio::test]
async fn locks_need_no_client_tracking() {
    lacks("CLIENT TRACKING").await;
    lacks("HELLO").await;
}

#[tokio::test]
async fn locks_need_no_optional_command_at_all() {
    let server = RedisServer::start();
    for lack in [Lack::Unknown, Lack::Forbidden] {
        let proxy = FilterProxy::in_front_of(&server, &OPTIONAL.map(|command| (command, lack)));
        use_locks(&proxy.url_with("?poll_interval=20ms")).await;
    }
    let closing: Vec<_> =
        OPTIONAL.into_iter().filter(|of| *of != "EVALSHA").map(|of| (of, Lack::Closes)).collect();
    use_locks(&FilterProxy::in_front_of(&server, &closing).url_with("?poll_interval=20ms")).await;
}

#[tokio::test]
async fn script_load_is_tried_once() {
    is_tried_until_it_is_refused("SCRIPT LOAD").await;
}

#[tokio::test]
async fn error_of_a_service_without_wait_names_no_sentinel() {
    let server = RedisServer::start();
    for lack in Lack::ALL {
        let proxy = FilterProxy::in_front_of(&server, &[("WAIT", lack)]);
        let refused =
            LockManager::connect(&proxy.url_with("?replica_acks=1")).await.expect_err("`WAIT` is missing");
        let text = refused.to_string();
        assert!(text.contains("leave out `replica_acks`") && !text.contains("sentinel"), "{lack:?}: {text}");
    }
}

#[tokio::test]
async fn error_of_a_service_without_scripts_names_the_command() {
    let server = RedisServer::start();
    let without = |lack| FilterProxy::in_front_of(&server, &[("SCRIPT LOAD", lack), ("EVAL", lack)]);
    for (lack, said) in [
        (Lack::Unknown, "no `EVAL`, which locks need"),
        (Lack::Forbidden, "`dlock doctor` says what to allow"),
        (Lack::Closes, "closed the connection on `EVAL`"),
    ] {
        let refused =
            LockManager::connect(&without(lack).url_with("")).await.expect_err("scripts are missing");
        let text = refused.to_string();
        assert!(
            text.contains(said) && !text.contains("sentinel") && !text.contains("TLS"),
            "{lack:?}: {text}"
        );
    }
}

/// A server closes the connection late. Without time for another connection, the error names the
/// option to raise.
#[tokio::test]
async fn an_attempt_has_no_time_for_another_connection_after_the_timeout() {
    let server = RedisServer::start();
    for command in ["CLIENT SETNAME", "SCRIPT LOAD"] {
        let late = Lack::ClosesAfter(Duration::from_millis(2_100));
        let proxy = FilterProxy::in_front_of(&server, &[(command, late)]);
        let url = |timeout| {
            proxy.url_with(&format!("?tracking=off&response_timeout=20s&connect_timeout={timeout}"))
        };

        let refused =
            LockManager::connect(&url("2s")).await.expect_err("it has no time for another connection");
        let tried = proxy.count(command);
        let connected = LockManager::connect(&url("30s")).await;

        assert!(refused.to_string().contains("raise `connect_timeout`"), "{command}: {refused}");
        assert_eq!(tried, 1, "{command}");
        assert!(connected.is_ok(), "{command}: {connected:?}");
    }
}
