//! A manager leaves its process as it was, because a library must not decide for its host.
//!
//! This is a separate program with one test, so that no other test changes the process.

#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dlock_runtime::{Error, LockManager};
use dlock_tests::{RedisServer, thread_within};
use tokio::runtime::Builder;

const LONG: Duration = Duration::from_secs(30);

/// The settings of a process that a library could change.
#[derive(Debug, PartialEq, Eq)]
struct Settings {
    environment: BTreeMap<OsString, OsString>,
    folder: PathBuf,
    /// The mask of new files, and the signals that are blocked, ignored, or caught.
    status: Vec<String>,
    limits: String,
    priority: String,
    log_level: log::LevelFilter,
    has_dispatcher: bool,
    has_crypto_provider: bool,
}

impl Settings {
    fn current() -> Self {
        let read = |file: &str| fs::read_to_string(format!("/proc/self/{file}")).expect("this is Linux");
        let is_setting = |line: &&str| {
            ["Umask:", "SigBlk:", "SigIgn:", "SigCgt:", "NoNewPrivs:"]
                .iter()
                .any(|name| line.starts_with(name))
        };
        Self {
            environment: std::env::vars_os().collect(),
            folder: std::env::current_dir().expect("a folder"),
            status: read("status").lines().filter(is_setting).map(str::to_owned).collect(),
            limits: read("limits"),
            priority: read("oom_score_adj") + &read("timerslack_ns"),
            log_level: log::max_level(),
            has_dispatcher: tracing::dispatcher::has_been_set(),
            has_crypto_provider: rustls::crypto::CryptoProvider::get_default().is_some(),
        }
    }
}

/// Returns the names of the threads of `dlock`.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("this is Linux").filter_map(Result::ok);
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("dlock")).collect()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("this is Linux").count()
}

/// Acquires, waits, renews, loses, and fails over each kind of backend.
async fn use_all(server: &mut RedisServer) {
    let tls = LockManager::connect("rediss://127.0.0.1:1").await;
    assert!(tls.is_err_and(|error| error.is_unavailable()));
    for url in [server.url(), server.url_with("?connect=lazy"), "memory://".to_owned()] {
        let locks = LockManager::connect(&url).await.expect("it runs");
        let lock = locks.lock("order:7").lease(Duration::from_millis(600));
        let held = lock.acquire().await.expect("it is free");
        let refused = lock.clone().wait(Duration::from_millis(300)).acquire().await; // a renewal is due at 200 ms
        assert!(refused.is_err_and(|error| error.is_contended()));
        drop(held);
        let ran = locks.idempotent("charge:7").run(async |_| Ok::<_, Error>(7)).await;
        ran.expect("the store replies");
        if url != "memory://" {
            server.kill();
            assert!(lock.acquire().await.is_err());
            server.restart();
        }
        locks.shutdown(LONG).await;
    }
}

/// Starts three timers: one for each body that waits under a lock in memory.
async fn use_timers(locks: &LockManager) {
    for _ in 0..3 {
        let ran = locks.lock("order:7").run(async |_guard| tokio::task::yield_now().await).await;
        ran.expect("it is free");
    }
}

#[test]
fn a_manager_leaves_its_process_as_it_was() {
    thread_within(LONG, "the test", || {
        let panics = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&panics);
        std::panic::set_hook(Box::new(move |panic| {
            println!("{panic}");
            counted.fetch_add(1, Ordering::SeqCst);
        }));
        let mut server = RedisServer::start();
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let before = (Settings::current(), descriptors());
        assert_eq!(threads(), [""; 0]);

        runtime.block_on(use_all(&mut server));

        assert_eq!(panics.load(Ordering::SeqCst), 0, "a panic was hidden");
        assert!(catch_unwind(|| panic!("of the host")).is_err());
        assert_eq!(panics.load(Ordering::SeqCst), 1, "the hook of the host is called");
        assert_eq!(Settings::current(), before.0);
        let begun = Instant::now();
        while !threads().is_empty() || descriptors() > before.1 {
            assert!(begun.elapsed() < LONG / 2, "{:?}, {} descriptors", threads(), descriptors() - before.1);
            std::thread::sleep(Duration::from_millis(5)); // an event of the kernel, not of this process
        }

        // tokio shows by a panic that a runtime has no timers.
        let limited = Builder::new_current_thread().build().expect("a runtime");
        let locks = runtime.block_on(LockManager::connect("memory://")).expect("it runs");
        limited.block_on(use_timers(&locks));
        assert_eq!(panics.load(Ordering::SeqCst), 2, "it is shown once, not once per timer");
    });
}
