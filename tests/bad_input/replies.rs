//! Malformed, hostile, and slow server replies.

use std::time::{Duration, Instant};

use dlock_runtime::Error;
use dlock_tests::{Answer, HostileServer, Proxy, RedisServer, within};

use super::{LONG, acquire_once, connect};

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
        let manager = connect(&server.url()).await.expect("the handshake succeeds");

        let outcome = acquire_once(&manager, error).await;

        // Only an error that retrying cannot fix is an error of configuration.
        let is_typed = match &outcome {
            Err(Error::Config { .. }) => error.starts_with("NOPERM"),
            Err(Error::Unavailable { .. }) => true,
            _ => false,
        };
        assert!(is_typed, "{error}: {outcome:?}");
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
        let manager = connect(&server.url()).await.expect("the handshake succeeds");

        let outcome = acquire_once(&manager, &format!("garbage {number}")).await;

        // The reply that starts with `+OK` grants the lock. Only the bytes after it are garbage.
        let is_granted = reply.starts_with(b"+OK") && outcome.is_ok();
        let is_typed = matches!(outcome, Err(Error::Unavailable { .. } | Error::Contended { .. }));
        assert!(is_granted || is_typed, "garbage {number}: {outcome:?}");
    }
}

/// Replies that announce 512 MiB or a billion elements: no memory is allocated for missing data.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_server_that_announces_more_than_it_sends_fills_no_memory() {
    use dlock_tests::resident::resident_bytes;

    for announced in ["$536870911\r\n", "*1000000000\r\n", "%500000000\r\n", ">1000000000\r\n"] {
        let reply = [announced.as_bytes(), b"$2\r\nno\r\n"].concat();
        let server = HostileServer::answering(&["SET", "EVAL", "EVALSHA"], &Answer::Raw(reply));
        let manager = connect(&server.url()).await.expect("the handshake succeeds");
        let before = resident_bytes();

        let outcome = acquire_once(&manager, announced).await;

        let grown = resident_bytes().saturating_sub(before) / (1024 * 1024);
        assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{announced}: {outcome:?}");
        assert!(grown < 100, "{announced}: {grown} MiB");
    }
}

#[tokio::test]
async fn a_server_that_vanishes_in_a_command_is_unavailable() {
    for answer in [Answer::Close, Answer::RawThenClose(b"+O".to_vec()), Answer::Silence] {
        let server = HostileServer::answering(&["SET", "EVAL", "EVALSHA"], &answer);
        let manager = connect(&server.url()).await.expect("the handshake succeeds");

        let outcome = acquire_once(&manager, &format!("{answer:?}")).await;

        assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{answer:?}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_hostile_server_is_not_hammered_while_it_is_waited_for() {
    let server = HostileServer::answering(&["SET", "EVAL", "EVALSHA"], &Answer::Error("LOADING not yet"));
    let manager = connect(&server.url()).await.expect("the handshake succeeds");

    let started = Instant::now();
    let outcome = manager.lock("order:7").lease(LONG).wait(Duration::from_secs(1)).acquire().await;

    assert!(outcome.is_err(), "{outcome:?}");
    assert!(started.elapsed() < Duration::from_millis(1_100), "{:?}", started.elapsed());
    let requests = server.count("SET") + server.count("EVALSHA") + server.count("EVAL");
    assert!(requests < 200, "{requests} requests in a second");
}

#[tokio::test]
async fn read_only_server_is_reconnected_with_backoff() {
    let error = Answer::Error("READONLY You can't write against a read only replica.");
    let server = HostileServer::answering(&["SET", "EVAL", "EVALSHA"], &error);
    let proxy = Proxy::start(server.port());
    let manager = connect(&proxy.url()).await.expect("the handshake succeeds");
    let (before, started, wait) = (proxy.stats().connections, Instant::now(), Duration::from_secs(2));

    let outcome = manager.lock("order:7").lease(LONG).wait(wait).acquire().await;
    let connections = proxy.stats().connections - before;

    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    assert!(started.elapsed() >= wait, "it must retry during the whole wait: {:?}", started.elapsed());
    // The delay doubles from 10 ms to 1 s, with 50% jitter: at most nine attempts of two
    // connections each.
    assert!(connections <= 18, "{connections} connections in two seconds");
}

#[tokio::test]
async fn a_server_that_knows_no_scripts_is_sent_their_text() {
    let server = HostileServer::answering(
        &["EVALSHA"],
        &Answer::Error("NOSCRIPT No matching script. Please use EVAL."),
    );
    let manager = connect(&server.url()).await.expect("the handshake succeeds");
    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the server replies OK");

    let released = guard.release().await;

    assert!(released.is_ok(), "{released:?}");
    assert!(server.count("EVAL") >= 1);
}

#[tokio::test]
async fn a_release_that_the_server_refuses_ends_in_bounded_time() {
    for answer in [Answer::Error("OOM"), Answer::Raw(b"?!\r\n".to_vec()), Answer::Close, Answer::Silence] {
        let server = HostileServer::answering(&["EVAL", "EVALSHA", "DEL"], &answer);
        let manager = connect(&server.url()).await.expect("the handshake succeeds");
        let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the server replies OK");

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
    let proxy = Proxy::in_front_of(&server);
    proxy.one_byte_at_a_time();
    let patient = proxy.url_with("?response_timeout=20s&connect_timeout=20s");
    let manager = connect(&patient).await.expect("slow, not broken");

    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let token = guard.fencing_token().await;
    let released = guard.release().await;

    assert!(token.is_ok() && released.is_ok(), "{token:?} {released:?}");
}
