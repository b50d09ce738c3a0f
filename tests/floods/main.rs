//! Servers that send without end: each connection has a limit, and reaching it is reported.
//!
//! This is a separate program, as it measures the memory of the whole process, one flood at a time,
//! and reads the whole log.

#![cfg(target_os = "linux")]

mod commands;
mod messages;
mod records;
mod topology;

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use dlock_runtime::{LockManager, Result};
use dlock_tests::resident::resident_bytes;
use dlock_tests::{Answer, HostileServer, Request, within};
use tokio::sync::Notify;

const LONG: Duration = Duration::from_secs(30);
/// The bound of additional memory during a flood, in bytes.
const MOST: usize = 64 << 20;
/// How long the memory of a working client is measured during a flood.
const WATCHED: Duration = Duration::from_secs(1);

/// The first bytes of a flood, its repeated bytes, and the expected reason of the disconnect.
const FLOODS: [(&str, &str, &str); 5] = [
    ("$536870911\r\n", "a", "a reply of more than 64 KiB"),
    ("+", "a", "a reply of more than 64 KiB"),
    ("", "*1\r\n", "nested lists"),
    ("*1000000000\r\n", ":1\r\n", "a reply of more than 1024 values"),
    (
        "*1000\r\n",
        "$64\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
        "a reply of more than 64 KiB",
    ),
];

/// Runs one flood at a time.
async fn alone() -> tokio::sync::MutexGuard<'static, ()> {
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    install_log();
    ALONE.lock().await
}

/// Runs `what`, and asserts that the process uses at most 64 MiB more meanwhile.
async fn assert_bounded<T>(flood: &str, what: impl Future<Output = T>) -> T {
    let before = resident_bytes();
    let mut most = before;
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    tokio::pin!(what);
    let done = loop {
        tokio::select! {
            done = &mut what => break done,
            _ = ticks.tick() => most = most.max(resident_bytes()),
        }
    };
    let grown = most.max(resident_bytes()).saturating_sub(before);
    assert!(grown < MOST, "{flood}: {} MiB", grown >> 20);
    done
}

async fn connect(url: &str) -> Result<LockManager> {
    within(Duration::from_secs(20), &format!("connecting to {url}"), LockManager::connect(url)).await
}

/// Starts a server that stores the values of `SET`. `script` overrides some replies.
fn server(script: impl Fn(&Request) -> Option<Answer> + Send + Sync + 'static) -> HostileServer {
    let kept = Mutex::new(HashMap::new());
    HostileServer::start(move |request| {
        if let Some(answer) = script(request) {
            return answer;
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        match request.name() {
            "SET" => {
                kept.insert(request.word(1), request.word(2));
                Answer::Usual
            }
            "GET" | "GETRANGE" => match kept.get(&request.word(1)) {
                Some(value) => Answer::Raw(format!("${}\r\n{value}\r\n", value.len()).into_bytes()),
                None => Answer::Usual,
            },
            _ => Answer::Usual,
        }
    })
}

/// All log lines of this process at level `info` and above.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Notified of each line.
static LOGGED: Notify = Notify::const_new();

struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        LOGGED.notify_waiters();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn install_log() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
            .with_ansi(false)
            .with_writer(|| Log)
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("no other subscriber is installed");
    });
}

/// Waits until an event `event` that contains `words` has been logged for the server at `port`.
async fn reported(port: u16, event: &str, words: &str) {
    let address = format!("127.0.0.1:{port}");
    let is_reported = || {
        let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
        let log = String::from_utf8_lossy(&log);
        log.lines().any(|line| [&*address, event, words].iter().all(|part| line.contains(part)))
    };
    let wait = async {
        loop {
            let logged = LOGGED.notified();
            tokio::pin!(logged);
            logged.as_mut().enable();
            if is_reported() {
                return;
            }
            logged.await;
        }
    };
    within(LONG, &format!("{event} with {words}"), wait).await;
}
