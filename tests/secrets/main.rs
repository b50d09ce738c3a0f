//! No secret is printed: no password and no whole owner ID in an error, its sources, a `Debug`
//! output, or a log at trace level.
//!
//! The log contains everything that the process logs: `tracing` events and spans, `log` records (of
//! the Redis client, TLS, and the runtime), and panic messages. This is a separate program, as it
//! installs that log for the whole process: the engine also logs from its own threads.

mod output;

use std::error::Error as _;
use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::sentinel::{MASTER, start_sentinel};
use dlock_tests::{Answer, HostileServer, RedisServer, within};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Letters and digits, so that no encoding can hide it.
const SECRET: &str = "hunter2swordfish";
const LONG: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(15);

/// The log of this process.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Installs the log at trace level, once for all tests of this program.
    fn of_the_process() -> &'static Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Self::default();
            // `init` would also capture `log` records if a dependency enabled the feature
            // `tracing-log`.
            let subscriber = tracing_subscriber::fmt()
                .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
                .with_span_events(FmtSpan::FULL)
                .with_ansi(false)
                .with_writer(log.clone())
                .finish();
            tracing::subscriber::set_global_default(subscriber).expect("no other subscriber is installed");
            log::set_logger(Box::leak(Box::new(log.clone()))).expect("no other logger is installed");
            log::set_max_level(log::LevelFilter::Trace);
            let of_panics = log.clone();
            std::panic::set_hook(Box::new(move |panic| of_panics.add(&panic.to_string())));
            log
        })
    }

    fn add(&self, line: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(line.as_bytes());
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl log::Log for Log {
    fn enabled(&self, _metadata: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.add(&format!("{} {}\n", record.target(), record.args()));
    }

    fn flush(&self) {}
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Returns everything that a program could print of an error.
fn printed(error: &Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, " {cause} {cause:?}");
        source = cause.source();
    }
    text
}

/// Asserts that `text` contains neither the password nor a whole owner ID.
#[track_caller]
fn assert_clean(text: &str) {
    assert!(!text.contains(SECRET), "the password is in: {text}");
    let ids = text.match_indices("dl2-").map(|(at, _)| text[at + 4..].chars());
    let whole_ids = ids.filter(|rest| rest.clone().take_while(char::is_ascii_hexdigit).count() >= 28).count();
    assert_eq!(whole_ids, 0, "an owner ID is in: {text}");
}

#[tokio::test]
async fn a_whole_life_of_a_lock_prints_no_secret() {
    let log = Log::of_the_process();
    let server = RedisServer::builder().password(SECRET).start();
    let manager = LockManager::connect(&server.url()).await.expect("the password is correct");
    let other = LockManager::connect(&server.url()).await.expect("the password is correct");

    let lock = manager.lock("order:7").lease(Duration::from_millis(600));
    let guard = lock.acquire().await.expect("the lock is free");
    let _ = guard.fencing_token().await;
    let contended = other.lock("order:7").retry(1).acquire().await.expect_err("it is held");
    let shown = format!("{manager:?} {manager:#?} {lock:?} {guard:?}");
    server.call(&["DEL", "dlock:order:7"]);
    within(SOON, "the loss", guard.lost()).await;
    let lost = guard.check().expect_err("it was deleted");
    drop(guard);

    for text in [shown, printed(&contended), printed(&lost), log.text()] {
        assert_clean(&text);
    }
}

#[tokio::test]
async fn a_wrong_password_is_refused_without_being_repeated() {
    let log = Log::of_the_process();
    let server = RedisServer::builder().password("another").start();
    let url = format!("redis://user:{SECRET}@127.0.0.1:{}", server.port());

    let error =
        within(SOON, "the refusal", LockManager::connect(&url)).await.expect_err("the password is wrong");

    assert_clean(&printed(&error));
    assert_clean(&log.text());
}

#[tokio::test]
async fn a_url_that_cannot_be_used_is_refused_without_being_repeated() {
    let log = Log::of_the_process();
    for url in [
        format!("redis://:{SECRET}@127.0.0.1:99999"),
        format!("redis://:{SECRET}@"),
        format!("redis://user:{SECRET}@127.0.0.1:6379/?no-such-setting=1"),
        format!("http://user:{SECRET}@127.0.0.1"),
        format!("redis+sentinel://:{SECRET}@h1,h2"),
        format!(":{SECRET}@127.0.0.1"),
        format!("redis://127.0.0.1:6379/?password={SECRET}"),
        format!("redis://user:12#{SECRET}@127.0.0.1"),
        format!("redis://user:12?{SECRET}@127.0.0.1"),
        format!("redis://user:12/{SECRET}@127.0.0.1"),
        format!("redis+unix:///run/redis.sock?user=shop&passwd={SECRET}"),
        format!("unix:///run/redis.sock?password={SECRET}"),
        format!("redis+unix:user:{SECRET}@/run/redis.sock"),
        format!("redis+unix:/user:{SECRET}@/run/redis.sock"),
        format!("redis+unix://user:{SECRET}@/run/redis.sock"),
        format!("redis+unix:///user:{SECRET}@/run/redis.sock"),
        format!("unix:user:{SECRET}@/run/redis.sock"),
        format!("redis:user:{SECRET}@127.0.0.1"),
        format!("redis:/user:{SECRET}@127.0.0.1"),
        format!("redis//user:{SECRET}@127.0.0.1"),
        format!("valkeys:user:{SECRET}@127.0.0.1"),
        format!("redis-cluster://user:{SECRET}@127.0.0.1"),
        format!("redis+sentinel:user:{SECRET}@h1,h2/m"),
        format!("\"redis://user:{SECRET}@127.0.0.1\""),
        format!("PASSWORD={SECRET} redis://127.0.0.1"),
        format!("{SECRET}://127.0.0.1"),
        format!("redis://127.0.0.1:{SECRET}"),
        format!("redis+quorum://user:{SECRET},h2,h3"),
        format!("memory:{SECRET}@x"),
    ] {
        let error = within(SOON, "the refusal", LockManager::connect(&url)).await.expect_err(&url);

        assert_clean(&printed(&error));
    }
    assert_clean(&log.text());
}

#[tokio::test]
async fn unreachable_server_error_omits_the_password() {
    let log = Log::of_the_process();
    let mut server = RedisServer::builder().password(SECRET).start();
    let manager = LockManager::connect(&server.url()).await.expect("the password is correct");

    server.kill();
    let running = manager.lock("order:7").lease(LONG).acquire().await.expect_err("the server is gone");
    let connecting = LockManager::connect(&server.url()).await.expect_err("the server is gone");

    for text in [printed(&running), printed(&connecting), log.text()] {
        assert_clean(&text);
    }
}

#[tokio::test]
async fn errors_of_a_sentinel_master_omit_the_passwords() {
    let log = Log::of_the_process();
    let mut master = RedisServer::builder().password(SECRET).start();
    let sentinel = start_sentinel(master.port());
    let url = |name: &str| format!("redis+sentinel://:{SECRET}@127.0.0.1:{}/{name}", sentinel.port());
    let manager = LockManager::connect(&url(MASTER)).await.expect("the password is correct");
    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let shown = format!("{manager:?} {guard:?}");

    let unknown = LockManager::connect(&url("unknown")).await.expect_err("there is none");
    let to_sentinel = format!("{}?sentinel_password={SECRET}", url(MASTER));
    let refused = LockManager::connect(&to_sentinel).await.expect_err("the sentinel has no password");
    master.kill();
    let running = manager.lock("order:8").lease(LONG).acquire().await.expect_err("the master is gone");

    for text in [shown, printed(&unknown), printed(&refused), printed(&running), log.text()] {
        assert_clean(&text);
    }
}

#[tokio::test]
async fn server_error_that_echoes_the_command_is_redacted() {
    let log = Log::of_the_process();
    // Like Redis's `ERR unknown command 'X', with args beginning with: ..`.
    let server = HostileServer::start(|request| match request.name() {
        "HELLO" | "AUTH" => Answer::Raw(
            format!("-ERR unknown command, with args beginning with: {request:?}\r\n").into_bytes(),
        ),
        _ => Answer::Usual,
    });
    let in_the_url = LockManager::builder(&server.url().replace("redis://", &format!("redis://:{SECRET}@")));
    let by_a_callback = LockManager::builder(&server.url())
        .credentials(|| async { Ok(dlock_runtime::Credentials::password(SECRET)) });

    for builder in [in_the_url, by_a_callback] {
        let outcome = within(SOON, "the refusal", builder.connect()).await;
        if let Err(error) = outcome {
            assert_clean(&printed(&error));
        }
    }
    assert_clean(&log.text());
}

#[tokio::test]
async fn server_error_that_echoes_the_password_is_redacted() {
    let log = Log::of_the_process();
    let server = HostileServer::start(|request| match request.name() {
        "PING" | "SET" => Answer::Raw(format!("-ERR you said {SECRET}\r\n").into_bytes()),
        _ => Answer::Usual,
    });
    let in_the_url = LockManager::builder(&server.url().replace("redis://", &format!("redis://:{SECRET}@")));
    let by_a_callback = LockManager::builder(&server.url())
        .credentials(|| async { Ok(dlock_runtime::Credentials::password(SECRET)) });

    for builder in [in_the_url, by_a_callback] {
        let manager =
            within(SOON, "the connection", builder.connect()).await.expect("it accepts connections");
        let ready = manager.ready().await.expect_err("the reply is invalid for a ping");
        let acquired = manager.lock("order:7").acquire().await.expect_err("the reply is invalid for a try");
        for error in [ready, acquired] {
            assert!(error.to_string().contains("you said ***"), "{error}");
            assert_clean(&printed(&error));
        }
    }
    assert_clean(&log.text());
}
