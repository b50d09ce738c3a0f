//! The error text quotes the message of the server, once and verbatim.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, LockManager, doctor};
use dlock_tests::{Answer, HostileServer, RedisServer, within};

use super::{CONNECT, LONG, acquire_once, connect};

const PROTECTED: &str = "-DENIED Redis is running in protected mode because protected mode is enabled and no \
                         password is set for the default user.\r\n";

/// Returns the error of connecting, and asserts that the error and `doctor` both contain `words`.
async fn refused(url: &str, words: &str) -> Error {
    let error = connect(url).await.expect_err(words);
    let text = error.to_string();
    assert!(text.contains(words), "{words}: {text}");
    assert!(!text.contains("roken pipe") && !text.contains("Parse error"), "{words}: {text}");

    let report = within(CONNECT, "an examination", doctor(url)).await.expect("the URL can be used");
    let found = report.findings().iter().find(|finding| finding.check() == "connection");
    let found = found.unwrap_or_else(|| panic!("{report}")).found();
    assert!(found.contains(words), "{words}: {found}");
    error
}

#[tokio::test]
async fn the_words_of_a_server_that_hangs_up_are_the_reason() {
    for (sent, words, may_pass) in [
        (PROTECTED, "DENIED Redis is running in protected mode", false),
        ("-ERR max number of clients reached\r\n", "ERR max number of clients reached", true),
        ("-LOADING Redis is loading the dataset in memory\r\n", "LOADING Redis is loading", true),
        ("-NOAUTH Authentication required.\r\n", "NOAUTH Authentication required.; write", false),
        ("-ERR this proxy has no backend for you\r\n", "ERR this proxy has no backend", false),
        ("-BUSY half of a line", "BUSY half of a line", true),
    ] {
        for speaks_first in [true, false] {
            let server = if speaks_first {
                HostileServer::greeting(sent.as_bytes(), true)
            } else {
                let answer = Answer::RawThenClose(sent.as_bytes().to_vec());
                HostileServer::start(move |_| answer.clone())
            };

            let error = refused(&server.url(), words).await;

            assert_eq!(error.is_unavailable(), may_pass, "{error}");
            assert!(!error.to_string().contains("TLS"), "{error}");
        }
    }
}

#[tokio::test]
async fn error_of_a_non_redis_port_quotes_its_first_bytes() {
    let first: [(&[u8], bool, &str); 12] = [
        (b"SSH-2.0-OpenSSH_9.6p1 Ubuntu-3\r\n", false, "it replied `SSH-2.0-OpenSSH_9.6p1 Ubuntu-3`"),
        (b"J\0\0\0\x0a8.0.36\0\x08\0\0\0mysql_native_password\0", false, "8.0.36"),
        (b"220 mail.example ESMTP Postfix\r\n", false, "it replied `220 mail.example ESMTP Postfix`"),
        (b"* OK IMAP4rev1 Service Ready\r\n", false, "it replied `* OK IMAP4rev1 Service Ready`"),
        (b"no route to the backend\n", true, "it replied `no route to the backend`"),
        (b"no line", true, "it replied `no line`"),
        (b"\x1b[31mRED\x1b[0m HTTP\r\n", true, "it replied `[31mRED[0m HTTP`"),
        (b"\xff\xfd\x01\xff\xfd\x1f", true, "bytes that are not text"),
        (b"AMQP\0\0\x09\x01", true, "it replied `AMQP"),
        (b"RFB 003.008\n", false, "it replied `RFB 003.008`"),
        (b"@RSYNCD: 31.0\n", false, "it replied `@RSYNCD: 31.0`"),
        (b"220 (vsFTPd 3.0.5)\r\n", false, "it replied `220 (vsFTPd 3.0.5)`"),
    ];
    for (sent, hangs_up, words) in first {
        let server = HostileServer::greeting(sent, hangs_up);
        let error = refused(&server.url(), words).await.to_string();
        assert!(error.contains("is not a Redis server") && !error.contains("TLS"), "{error}");
    }

    let then: [(&[u8], &str); 6] = [
        (b"HTTP/1.0 503 Service Unavailable\r\n\r\n<html>", "it replied `HTTP/1.0 503 Service Unavailable`"),
        (
            b"E\0\0\0\x40SFATAL\0VFATAL\0C08P01\0Minvalid length of startup packet\0\0",
            "invalid length of startup",
        ),
        (b"CLIENT_ERROR bad command line format\r\n", "it replied `CLIENT_ERROR bad command line format`"),
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "it replied `HTTP/1.1 400 Bad Request`"),
        (b"ERROR\r\nERROR\r\n", "it replied `ERROR`"),
        (b"<html><body>no</body></html>", "it replied `<html><body>no</body></html>`"),
    ];
    for (sent, words) in then {
        let answer = Answer::RawThenClose(sent.to_vec());
        let server = HostileServer::start(move |_| answer.clone());
        let error = refused(&server.url(), words).await.to_string();
        assert!(error.contains("is not a Redis server") && !error.contains("TLS"), "{error}");
    }
}

/// The ways to a server that are not `redis://` to one server have the same reason.
#[tokio::test]
async fn a_foreign_reply_is_the_reason_in_each_topology() {
    let web = || HostileServer::greeting(b"HTTP/1.1 503 Service Unavailable\r\n\r\n", true);
    let protected = || HostileServer::greeting(PROTECTED.as_bytes(), true);
    for (start, words) in [
        (&web as &dyn Fn() -> HostileServer, "replied `HTTP/1.1 503 Service Unavailable`"),
        (&protected, "DENIED Redis is running in protected mode"),
    ] {
        let servers = [start(), start(), start()];
        let [first, second, third] = servers.each_ref().map(HostileServer::port);
        for url in [
            format!("redis+cluster://127.0.0.1:{first}"),
            format!("redis+sentinel://127.0.0.1:{first}/shop"),
            format!("redis+quorum://127.0.0.1:{first},127.0.0.1:{second},127.0.0.1:{third}"),
        ] {
            let error = connect(&url).await.expect_err(words).to_string();
            assert!(error.contains(words) && !error.contains("TLS"), "{url}: {error}");
            let report = within(CONNECT, "an examination", doctor(&url)).await.expect("the URL can be used");
            assert!(report.to_string().contains(words), "{url}: {report}");
        }
        let lazy = connect(&format!("redis://127.0.0.1:{first}?connect=lazy")).await;
        let lazy = lazy.expect("it waits for no server");
        for reported in [acquire_once(&lazy, words).await, lazy.ready().await] {
            assert!(reported.as_ref().is_err_and(|error| error.to_string().contains(words)), "{reported:?}");
        }
    }
}

/// A load balancer answers for a server that is away: its words are in the error of each call.
#[tokio::test]
async fn a_foreign_reply_after_a_good_one_is_the_reason_of_calls() {
    for (sent, words) in [
        (&b"HTTP/1.1 502 Bad Gateway\r\n\r\n"[..], "replied `HTTP/1.1 502 Bad Gateway`"),
        (b"-ERR no backend is up\r\n", "ERR no backend is up"),
    ] {
        let is_away = Arc::new(AtomicBool::new(false));
        let away = Arc::clone(&is_away);
        let server = HostileServer::start(move |_| {
            if away.load(Ordering::SeqCst) { Answer::RawThenClose(sent.to_vec()) } else { Answer::Usual }
        });
        let manager = connect(&server.url()).await.expect("the handshake succeeds");

        is_away.store(true, Ordering::SeqCst);
        let reported = async {
            while acquire_once(&manager, words)
                .await
                .expect_err("it is away")
                .to_string()
                .split(words)
                .count()
                != 2
            {
                tokio::task::yield_now().await;
            }
        };
        within(CONNECT, words, reported).await;
        let error = manager.ready().await.expect_err("it is away");
        assert!(error.is_unavailable() && error.to_string().contains(words), "{error}");
    }
}

#[tokio::test]
async fn tls_is_named_if_the_port_speaks_it_or_nothing_was_received() {
    let alert = HostileServer::greeting(&[0x15, 3, 1, 0, 2, 2, 70], true);
    let silent = HostileServer::start(|_| Answer::Close);

    let speaks_it = refused(&alert.url(), "speaks TLS on this port: write `rediss://`").await;
    let may_speak_it = connect(&silent.url()).await.expect_err("it closes the connection");

    assert!(speaks_it.is_unavailable(), "{speaks_it}");
    assert!(may_speak_it.to_string().contains("if it speaks TLS on this port"), "{may_speak_it}");
}

#[tokio::test]
async fn tls_is_not_suggested_of_a_server_that_has_answered_before() {
    let is_away = Arc::new(AtomicBool::new(false));
    let away = Arc::clone(&is_away);
    let server =
        HostileServer::start(
            move |_| {
                if away.load(Ordering::SeqCst) { Answer::Close } else { Answer::Usual }
            },
        );
    let manager = connect(&server.url()).await.expect("the handshake succeeds");

    is_away.store(true, Ordering::SeqCst);
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        let error = acquire_once(&manager, "away").await.expect_err("it closes the connection");
        assert!(error.is_unavailable() && !error.to_string().contains("TLS"), "{error}");
    }
}

#[tokio::test]
async fn a_handshake_that_is_refused_keeps_the_words_of_the_server() {
    for (access, name, sent, words, may_pass) in [
        (
            ":sesame@",
            "AUTH",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "WRONGPASS",
            false,
        ),
        (":sesame@", "AUTH", "ERR max number of clients reached", "replied: ERR max number", true),
        (":sesame@", "AUTH", "LOADING Redis is loading", "replied: LOADING Redis is loading", true),
        (":sesame@", "AUTH", "DENIED not from there", "replied: DENIED not from there", false),
        ("", "SELECT", "ERR DB index is out of range", "ERR DB index is out of range", false),
        ("", "SELECT", "NOPERM no permissions to run 'select'", "NOPERM no permissions", false),
        ("", "SCRIPT", "ERR the proxy has no scripts", "ERR the proxy has no scripts", false),
    ] {
        let server =
            HostileServer::start(
                move |request| {
                    if request.name() == name { Answer::Error(sent) } else { Answer::Usual }
                },
            );
        let url = format!("redis://{access}127.0.0.1:{}/3", server.port());

        let error = connect(&url).await.expect_err(words);

        assert!(error.to_string().contains(words), "{words}: {error}");
        assert_eq!(error.is_unavailable(), may_pass, "{words}: {error}");
        assert!(!error.to_string().contains("sesame"), "{error}");
    }
}

#[tokio::test]
async fn refused_credentials_and_databases_say_what_to_change() {
    let [open, locked] = [RedisServer::start(), RedisServer::builder().password("sesame").start()];
    let url = |access: &str, server: &RedisServer| format!("redis://{access}127.0.0.1:{}", server.port());

    for (url, remedy) in [
        (url(":hunter2@", &open), "it needs no password: leave out `:password@` before the host"),
        (url(":hunter2@", &locked), "correct `user:password@` or `:password@` before the host"),
        (url("shop:hunter2@", &open), "correct `user:password@` or `:password@` before the host"),
        (url("", &locked), "write `:password@` or `user:password@` before the host"),
        (url("", &open) + "/99", "write a database below its setting `databases`"),
    ] {
        let error = connect(&url).await.expect_err("the server refuses it");

        assert!(matches!(error, Error::Config { .. }), "{url}: {error:?}");
        let text = error.to_string();
        assert!(text.contains(remedy) && !text.contains("hunter2"), "{url}: {text}");
    }
}

#[tokio::test]
async fn a_proxy_that_hangs_up_on_an_optional_command_is_the_reason() {
    let server = HostileServer::start(|request| match request.name() {
        "CLIENT" => Answer::RawThenClose(b"-ERR unknown command 'CLIENT'\r\n".to_vec()),
        _ => Answer::Usual,
    });

    let error = connect(&server.url()).await.expect_err("it closes the connection");

    assert!(error.to_string().contains("ERR unknown command 'CLIENT', and closed"), "{error}");
    assert!(error.is_unavailable() && !error.to_string().contains("TLS"), "{error}");
}

#[tokio::test]
async fn replies_that_trickle_end_at_the_limits() {
    let trickle = || Answer::Trickle([b"$60000\r\n".to_vec(), vec![b'a'; 60_000]].concat());
    let of = |name: &'static str| {
        HostileServer::start(move |request| if request.name() == name { trickle() } else { Answer::Usual })
    };
    let begun = std::time::Instant::now();

    let locking = of("SET");
    let manager = connect(&locking.url()).await.expect("the handshake succeeds");
    let locked = acquire_once(&manager, "a lock").await; // within its response timeout
    assert!(matches!(locked, Err(Error::Unavailable { .. })), "{locked:?}");
    for (scheme, name, path) in [
        ("redis", "CLIENT", ""),
        ("redis", "SCRIPT", ""),
        ("redis+cluster", "CLUSTER", ""),
        ("redis+sentinel", "SENTINEL", "/shop"),
    ] {
        let server = of(name);
        let url = format!("{scheme}://127.0.0.1:{}{path}", server.port());
        let begun = std::time::Instant::now();
        let refused = connect(&url).await;
        assert!(refused.is_err() && begun.elapsed() < Duration::from_secs(3), "{name}: {refused:?}");
    }
    let slow = of("INFO");
    let report = within(CONNECT, "an examination", doctor(&slow.url())).await.expect("the URL can be used");

    assert!(report.to_string().contains("did not reply in time"), "{report}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// Returns the error with its causes, as `{:#}` of `anyhow` prints them.
fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[tokio::test]
async fn a_cause_is_printed_once() {
    let protected = HostileServer::greeting(PROTECTED.as_bytes(), true);
    let web = HostileServer::greeting(b"HTTP/1.1 400 Bad Request\r\n", true);
    let full = HostileServer::greeting(b"-ERR max number of clients reached\r\n", true);
    let locked = RedisServer::builder().password("sesame").start();
    let locked = format!("redis://:wrong@127.0.0.1:{}", locked.port());
    let silent = HostileServer::start(|_| Answer::Silence);
    let url = |server: &HostileServer, scheme: &str| format!("{scheme}://127.0.0.1:{}", server.port());

    for (url, cause) in [
        ("redis://127.0.0.1:1".to_owned(), "Connection refused"),
        ("redis://127.0.0.1:1".to_owned(), "os error"),
        ("rediss://127.0.0.1:1".to_owned(), "Connection refused"),
        ("redis+unix:///no/such/socket".to_owned(), "No such file"),
        ("redis+sentinel://127.0.0.1:1/shop".to_owned(), "Connection refused"),
        ("redis+cluster://127.0.0.1:1".to_owned(), "Connection refused"),
        (url(&protected, "redis"), "Redis is running"),
        (url(&web, "redis"), "400 Bad Request"),
        (url(&full, "redis"), "max number of clients"),
        (url(&silent, "redis"), "did not reply in time"),
        (locked, "WRONGPASS"),
    ] {
        let error = connect(&url).await.expect_err(&url);
        let text = with_causes(&error);
        assert_eq!(text.matches(cause).count(), 1, "{url}: {text}");

        let Ok(report) = doctor(&url).await else { continue };
        for finding in report.findings().iter().filter(|finding| finding.found().contains(cause)) {
            assert_eq!(finding.to_string().matches(cause).count(), 1, "{finding}");
        }
    }
}

#[tokio::test]
async fn a_cause_is_printed_once_while_the_server_is_away() {
    let mut server = RedisServer::start();
    let manager: LockManager = connect(&server.url()).await.expect("it runs");
    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("it is free");
    server.kill();

    for error in [
        manager
            .lock("order:8")
            .lease(LONG)
            .wait(Duration::from_secs(1))
            .acquire()
            .await
            .expect_err("the server is down"),
        manager.ready().await.expect_err("the server is down"),
        guard.release().await.expect_err("the server is down"),
    ] {
        let text = with_causes(&error);
        assert!(text.matches("refused").count() <= 1 && text.matches("os error").count() <= 1, "{text}");
    }
}

#[tokio::test]
async fn plain_reply_to_a_tls_handshake_is_the_reason() {
    for (sent, hangs_up, words, other) in [
        (PROTECTED.as_bytes(), true, "DENIED Redis is running in protected mode", "write `redis://`"),
        (
            b"-ERR max number of clients reached\r\n",
            true,
            "ERR max number of clients reached",
            "replied: ERR",
        ),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            true,
            "it replied `HTTP/1.1 400 Bad Request`",
            "not a Redis server",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n", false, "it replied `SSH-2.0-OpenSSH_9.6`", "not a Redis server"),
        (b"220 mail.example ESMTP\r\n", false, "it replied `220 mail.example ESMTP`", "not a Redis server"),
        (b"ERROR\r\n", true, "it replied `ERROR`", "not a Redis server"),
    ] {
        let server = HostileServer::greeting(sent, hangs_up);
        let url = server.url().replace("redis://", "rediss://");

        let error = refused(&url, words).await.to_string();

        assert!(error.contains(other), "{error}");
    }
}

/// A sentinel and a node of a cluster may name any text as a host.
#[tokio::test]
async fn a_host_that_another_server_names_is_printed_escaped() {
    let host = "h\u{1b}[31m\n12:00 ERROR \u{202e}b";
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let named = format!("*2\r\n{}{}", bulk(host), bulk("6379"));
    let map = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n{}:6379\r\n", bulk(host));
    let server = HostileServer::start(move |request| match (request.name(), &*request.word(1)) {
        ("SENTINEL", _) => Answer::Raw(named.clone().into_bytes()),
        ("CLUSTER", "INFO") => Answer::Raw(b"$16\r\ncluster_state:ok\r\n".to_vec()),
        ("CLUSTER", _) => Answer::Raw(map.clone().into_bytes()),
        _ => Answer::Usual,
    });
    let at = format!("127.0.0.1:{}", server.port());

    let by_sentinel = connect(&format!("redis+sentinel://{at}/main")).await.map(drop);
    let in_a_cluster = match connect(&format!("redis+cluster://{at}")).await {
        Ok(manager) => manager.lock("order:7").retry(0).acquire().await.map(drop),
        Err(error) => Err(error),
    };

    for refused in [by_sentinel, in_a_cluster] {
        let error = refused.expect_err("there is no such host").to_string();
        assert!(error.contains(r"h\u{1b}[31m\n12:00 ERROR \u{202e}b"), "{error:?}");
        assert!(!error.contains(['\u{1b}', '\n', '\u{202e}']), "{error:?}");
    }
}

/// Returns the texts of connecting and of an examination.
async fn texts(url: &str) -> [String; 2] {
    let refused = match connect(url).await {
        Ok(manager) => acquire_once(&manager, url).await.expect_err("it is refused").to_string(),
        Err(error) => error.to_string(),
    };
    let report = within(CONNECT, "an examination", doctor(url)).await.expect("the URL can be used");
    [refused, report.to_string()]
}

#[tokio::test]
async fn tls_is_named_in_each_topology_and_by_doctor() {
    for start in [
        || HostileServer::start(|_| Answer::Close),
        || HostileServer::greeting(&[21, 3, 1, 0, 2, 2, 70], true),
    ] {
        let servers = [start(), start(), start()];
        let [first, second, third] = servers.each_ref().map(HostileServer::port);
        for (scheme, rest) in [
            ("redis", format!("127.0.0.1:{first}")),
            ("redis+cluster", format!("127.0.0.1:{first}")),
            ("redis+sentinel", format!("127.0.0.1:{first}/shop")),
            ("redis+quorum", format!("127.0.0.1:{first},127.0.0.1:{second},127.0.0.1:{third}")),
        ] {
            let tls = format!("write `{}://`", scheme.replacen("redis", "rediss", 1));
            for text in texts(&format!("{scheme}://{rest}")).await {
                assert!(text.contains(&tls), "{scheme}: {text}");
            }
        }
    }
}

#[tokio::test]
async fn a_read_only_primary_of_sentinels_or_a_cluster_is_no_reason_to_name_sentinels() {
    let primary = HostileServer::start(|request| match request.name() {
        "SET" | "EVAL" | "EVALSHA" => Answer::Error("READONLY You can't write against a read only replica."),
        "ROLE" => Answer::Raw(b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_vec()),
        _ => Answer::Usual,
    });
    let port = primary.port().to_string();
    let named = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
    let map = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
    let other = HostileServer::start(move |request| match (request.name(), &*request.word(1)) {
        ("SENTINEL", _) => Answer::Raw(named.clone().into_bytes()),
        ("CLUSTER", "INFO") => Answer::Raw(b"$16\r\ncluster_state:ok\r\n".to_vec()),
        ("CLUSTER", _) => Answer::Raw(map.clone().into_bytes()),
        _ => Answer::Usual,
    });
    for url in [
        format!("redis+sentinel://127.0.0.1:{}/shop", other.port()),
        format!("redis+cluster://127.0.0.1:{}", other.port()),
    ] {
        for text in texts(&url).await {
            assert!(text.contains("READONLY") && !text.contains("redis+sentinel://host"), "{url}: {text}");
            assert!(!text.contains("`+evalsha`"), "{url}: {text}");
        }
    }
}

#[tokio::test]
async fn refused_credentials_name_where_they_were_given() {
    let locked = RedisServer::builder().password("sesame").start();
    let open = RedisServer::start();
    let unix =
        |server: &RedisServer, options: &str| format!("redis+unix://{}{options}", server.socket().display());
    for (url, remedy) in [
        (unix(&locked, ""), "?password="),
        (unix(&locked, "?password=wrong"), "`password`"),
        (unix(&open, "?password=wrong"), "leave out `password`"),
        (
            format!("redis+sentinel://127.0.0.1:{}/shop?sentinel_password=wrong", locked.port()),
            "`sentinel_password`",
        ),
    ] {
        let text = connect(&url).await.expect_err("it is refused").to_string();
        assert!(text.contains(remedy) && !text.contains("before the host"), "{url}: {text}");
    }
    let wrong = || async { Ok(dlock_runtime::Credentials::new("shop", "wrong-one")) };
    let url = format!("redis://127.0.0.1:{}", locked.port());
    let refused = LockManager::builder(&url).credentials(wrong).connect().await;
    let text = refused.expect_err("it is refused").to_string();
    assert!(!text.contains("before the host"), "{text}");
}

#[tokio::test]
async fn the_words_of_a_reply_to_role_are_the_reason() {
    let primary = HostileServer::answering(&["ROLE"], &Answer::Error("LOADING Redis is loading the dataset"));
    let port = primary.port().to_string();
    let named = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
    let sentinel = HostileServer::start(move |request| match request.name() {
        "SENTINEL" => Answer::Raw(named.clone().into_bytes()),
        _ => Answer::Usual,
    });
    let url = format!("redis+sentinel://127.0.0.1:{}/shop", sentinel.port());

    let error = connect(&url).await.expect_err("it is loading").to_string();

    assert!(error.contains("LOADING Redis is loading"), "{error}");
}

#[tokio::test]
async fn doctor_advises_an_acl_rule_only_if_permission_is_denied() {
    use dlock_tests::filter::{FilterProxy, Lack};
    let real = RedisServer::start();
    for command in ["SUBSCRIBE", "MEMORY USAGE", "HSET"] {
        let proxy = FilterProxy::in_front_of(&real, &[(command, Lack::Unknown)]);
        let report = doctor(&proxy.url_with("")).await.expect("the URL can be used").to_string();
        assert!(report.contains("nknown command") && !report.contains("ACL SETUSER"), "{command}: {report}");
    }
    for answer in [Answer::Error("LOADING Redis is loading the dataset in memory"), Answer::Silence] {
        let server = HostileServer::answering(&["SUBSCRIBE"], &answer);
        let report = doctor(&server.url()).await.expect("the URL can be used");
        let channel = report.findings().iter().find(|finding| finding.check() == "channel");
        let channel = channel.expect("it is examined").to_string();
        assert!(!channel.contains("ACL SETUSER"), "{answer:?}: {channel}");
    }
}

#[tokio::test]
async fn doctor_names_the_cause_of_a_server_that_accepts_no_writes() {
    for (reply, advice) in [
        ("READONLY You can't write against a read only replica.", "name the primary"),
        ("MOVED 15123 127.0.0.1:1", "name the cluster with `redis+cluster://`"),
    ] {
        let server = HostileServer::answering(&["SET", "EVAL", "EVALSHA"], &Answer::Error(reply));

        let report = doctor(&server.url()).await.expect("the URL can be used").to_string();

        let code = reply.split(' ').next().expect("it has a code");
        assert!(report.contains(code) && report.contains(advice), "{report}");
        assert!(!report.contains("ACL SETUSER") && !report.contains("`+evalsha`"), "{report}");
    }
}
