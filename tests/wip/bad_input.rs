//! Whatever a server answers and whatever a caller asks for: one typed error, in bounded time.

use std::time::{Duration, Instant};

use dlock_runtime::{Error, LockManager, Result};
use dlock_tests::resp::Reply;
use dlock_tests::{Answer, HostileServer, Proxy, RedisServer, within};

const LONG: Duration = Duration::from_secs(30);
/// The response time-out of one try, and what P3 allows beyond a limit.
const ONE_TRY: Duration = Duration::from_millis(500 + 100);
/// How long connecting may take before it gives up.
const CONNECT: Duration = Duration::from_secs(10);

async fn connect(url: &str) -> Result<LockManager> {
    within(CONNECT, &format!("connecting to {url}"), LockManager::connect(url)).await
}

/// Acquires with one try and asserts that the outcome comes in time.
async fn acquire_once(manager: &LockManager, what: &str) -> Result<()> {
    let started = Instant::now();
    let outcome = manager.lock("order:7").lease(LONG).acquire().await.map(drop);
    assert!(started.elapsed() < ONE_TRY, "{what}: {:?}", started.elapsed());
    outcome
}

// Replies

#[tokio::test]
async fn a_server_that_cannot_serve_is_unavailable() {
    for error in [
        "LOADING Redis is loading the dataset in memory",
        "READONLY You can't write against a read only replica.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "BUSY Redis is busy running a script.",
        "MISCONF Redis is configured to save RDB snapshots",
        "NOREPLICAS Not enough good replicas to write.",
        "CLUSTERDOWN The cluster is down",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "NOAUTH Authentication required.",
        "NOPERM this user has no permissions to run the 'set' command",
        "ERR something that no one has seen before",
        "",
    ] {
        let server = HostileServer::answering(&["SET", "EVAL", "EVALSHA"], &Answer::Error(error));
        let manager = connect(&server.url()).await.expect("it greets like a Redis");

        let outcome = acquire_once(&manager, error).await;

        assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{error}: {outcome:?}");
    }
}

#[tokio::test]
async fn garbage_is_unavailable() {
    let replies: [&[u8]; 12] = [
        b"\0\0\0\0",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"$-7\r\n",
        b"$99999999999999999999\r\n",
        b"$536870911\r\nno",
        b"*1000000000\r\n",
        b":not a number\r\n",
        b":42\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n+deep\r\n",
        b"$2\r\n\xff\xfe\r\n",
        b"+OK\r\n+OK\r\n+OK\r\n-ERR more replies than requests\r\n",
        b"\r\n",
    ];
    for (number, reply) in replies.into_iter().enumerate() {
        let server = HostileServer::answering(&["SET", "EVAL", "EVALSHA"], &Answer::Raw(reply.to_vec()));
        let manager = connect(&server.url()).await.expect("it greets like a Redis");

        let outcome = acquire_once(&manager, &format!("garbage {number}")).await;

        // The tenth says OK first: only what comes behind it is garbage.
        let is_granted = reply.starts_with(b"+OK") && outcome.is_ok();
        let is_typed = matches!(outcome, Err(Error::Unavailable { .. } | Error::Contended { .. }));
        assert!(is_granted || is_typed, "garbage {number}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_server_that_vanishes_in_a_command_is_unavailable() {
    for answer in [Answer::Close, Answer::RawThenClose(b"+O".to_vec()), Answer::Silence] {
        let server = HostileServer::answering(&["SET", "EVAL", "EVALSHA"], &answer);
        let manager = connect(&server.url()).await.expect("it greets like a Redis");

        let outcome = acquire_once(&manager, &format!("{answer:?}")).await;

        assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{answer:?}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_hostile_server_is_not_hammered_while_it_is_waited_for() {
    let server = HostileServer::answering(&["SET", "EVAL", "EVALSHA"], &Answer::Error("LOADING not yet"));
    let manager = connect(&server.url()).await.expect("it greets like a Redis");

    let started = Instant::now();
    let outcome = manager.lock("order:7").lease(LONG).wait(Duration::from_secs(1)).acquire().await;

    assert!(outcome.is_err(), "{outcome:?}");
    assert!(started.elapsed() < Duration::from_millis(1_100), "{:?}", started.elapsed());
    let asked = server.count("SET") + server.count("EVALSHA") + server.count("EVAL");
    assert!(asked < 200, "asked {asked} times in a second");
}

#[tokio::test]
async fn a_server_that_knows_no_scripts_is_sent_their_text() {
    let server = HostileServer::answering(
        &["EVALSHA"],
        &Answer::Error("NOSCRIPT No matching script. Please use EVAL."),
    );
    let manager = connect(&server.url()).await.expect("it greets like a Redis");
    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the server says OK");

    let released = guard.release().await;

    assert!(released.is_ok(), "{released:?}");
    assert!(server.count("EVAL") >= 1);
}

#[tokio::test]
async fn a_release_that_the_server_refuses_ends_in_bounded_time() {
    for answer in [Answer::Error("OOM"), Answer::Raw(b"?!\r\n".to_vec()), Answer::Close, Answer::Silence] {
        let server = HostileServer::answering(&["EVAL", "EVALSHA", "DEL"], &answer);
        let manager = connect(&server.url()).await.expect("it greets like a Redis");
        let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the server says OK");

        let released = within(Duration::from_secs(3), &format!("{answer:?}"), guard.release()).await;

        assert!(
            matches!(released, Ok(()) | Err(Error::Unavailable { .. } | Error::Lost { .. })),
            "{released:?}"
        );
    }
}

#[tokio::test]
async fn replies_that_come_byte_by_byte_are_understood() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    proxy.one_byte_at_a_time();
    let manager = connect(&proxy.url()).await.expect("slow, not broken");

    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let token = guard.fencing_token().await;
    let released = guard.release().await;

    assert!(token.is_ok() && released.is_ok(), "{token:?} {released:?}");
}

// What stands there, and who may touch it

#[tokio::test]
async fn a_list_under_the_locks_name_is_the_wrong_kind_and_stays() {
    let server = RedisServer::start();
    server.call(&["RPUSH", "dlock:order:7", "a", "b"]);
    let manager = connect(&server.url()).await.expect("the server takes managers");
    let lock = manager.lock("order:7").lease(LONG);

    let waited = within(LONG, "the wait", lock.clone().wait(Duration::from_secs(1)).acquire()).await;
    let once = lock.acquire().await;

    assert!(matches!(waited, Err(Error::WrongKind { .. })), "{waited:?}");
    // One try is one SET, which says no more than that something stands there.
    assert!(matches!(once, Err(Error::WrongKind { .. } | Error::Contended { .. })), "{once:?}");
    let list = server.call(&["LRANGE", "dlock:order:7", "0", "-1"]);
    assert_eq!(list.texts(), ["a", "b"]);
}

#[tokio::test]
async fn a_hold_that_became_a_list_is_lost() {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server takes managers");
    let guard = manager.lock("order:7").lease(Duration::from_millis(600)).acquire().await.expect("free");

    server.call(&["DEL", "dlock:order:7"]);
    server.call(&["RPUSH", "dlock:order:7", "a"]);
    within(Duration::from_secs(3), "the loss", guard.lost()).await;
    drop(guard);
    manager.lock("order:8").acquire().await.expect("free").release().await.expect("held");

    assert_eq!(server.call(&["LLEN", "dlock:order:7"]), Reply::Integer(1));
}

#[tokio::test]
async fn a_missing_and_a_wrong_password_are_told_from_each_other_by_nobody_but_the_server() {
    let server = RedisServer::builder().password("sesame").start();
    let address = format!("127.0.0.1:{}", server.port());

    for url in [
        format!("redis://{address}"),
        format!("redis://:wrong@{address}"),
        format!("redis://nobody:wrong@{address}"),
    ] {
        let refused = connect(&url).await;
        assert!(
            matches!(refused, Err(Error::Unavailable { .. } | Error::Config { .. })),
            "{url}: {refused:?}"
        );
    }
    assert!(connect(&format!("redis://:sesame@{address}")).await.is_ok());
}

#[tokio::test]
async fn a_user_with_no_more_rights_than_the_locks_need_can_lock() {
    let server = RedisServer::builder()
        .line("user locker on >sesame ~dlock:* &* +@read +@write +@scripting +@pubsub +@connection +time")
        .start();
    let manager =
        connect(&format!("redis://locker:sesame@127.0.0.1:{}", server.port())).await.expect("allowed");

    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let released = guard.release().await;

    assert!(released.is_ok(), "{released:?}");
}

#[tokio::test]
async fn a_password_that_changes_under_a_running_manager_is_one_typed_error() {
    let server = RedisServer::builder().password("sesame").start();
    let manager = connect(&server.url()).await.expect("the password is right");
    server.call(&["CONFIG", "SET", "requirepass", "changed"]);
    // The one command that the old password still allows is what cuts the connection: none. A new one must log in anew.
    let mut admin = dlock_tests::resp::Client::connect(server.port(), ONE_TRY).expect("the server listens");
    admin.call(&["AUTH", "changed"]).expect("the new password is right");
    admin.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).expect("the server answers");

    let refused = manager.lock("order:7").lease(LONG).wait(Duration::from_secs(1)).acquire().await;

    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_server_without_memory_refuses_new_locks_and_keeps_those_it_has() {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server takes managers");
    let held = manager.lock("held").lease(Duration::from_millis(900)).acquire().await.expect("free");
    server.call(&["CONFIG", "SET", "maxmemory", "1"]);

    let refused = acquire_once(&manager, "out of memory").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let kept = held.check();
    let released = held.release().await;

    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(kept.is_ok(), "{kept:?}");
    assert!(released.is_ok(), "{released:?}");
    assert_eq!(server.call(&["EXISTS", "dlock:held"]), Reply::Integer(0));
}

// What callers ask for

#[tokio::test]
async fn durations_at_both_ends_are_taken_or_refused_and_never_delete_a_key() {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server takes managers");
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
    let manager = connect(&server.url()).await.expect("the server takes managers");
    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");

    for duration in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(u64::MAX), Duration::MAX] {
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
        let manager = connect(url).await.expect("the backend takes managers");
        for wait in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            let lock = manager.lock("order:7").lease(LONG).wait(wait).retry(u32::MAX);
            let outcome = within(LONG, &format!("a wait of {wait:?}"), lock.acquire()).await;
            assert!(outcome.is_ok(), "a free lock, {wait:?}: {outcome:?}");
            let again = manager.lock("order:7").lease(LONG).wait(Duration::from_millis(1)).acquire().await;
            assert!(matches!(again, Err(Error::Contended { .. })), "{wait:?}: {again:?}");
            drop(outcome);
        }
    }
}

#[tokio::test]
async fn hostile_keys_are_locked_as_they_are_or_refused() {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server takes managers");
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
    let manager = connect(&server.url()).await.expect("the server takes managers");
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
    let proxy = Proxy::start(server.port());
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
