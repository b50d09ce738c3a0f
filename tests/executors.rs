//! Executors other than tokio, and limited tokio runtimes: locks work, or connecting names the
//! missing part.
//!
//! See also `tests/guarantees/runtimes.rs` for runtimes that end or are blocked while locks are
//! held.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use dlock_runtime::scheduled::{Jobs, Schedule};
use dlock_runtime::{Credentials, Error, LockManager, LossCause, distributed_lock, with_manager};
use dlock_tests::{QuorumFleet, RedisServer, thread_within};
use tokio::runtime::{Builder, Runtime};

const LONG: Duration = Duration::from_secs(30);

/// The longest for which the votes of the quorum count.
const LEASE: Duration = dlock_tests::quorum::LEASE;

/// Unparks the thread that polls.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A minimal executor without a reactor and timers.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

/// Runs a test on a separate thread, and fails it after 30 s.
fn test(test: impl FnOnce() + Send + 'static) {
    thread_within(LONG, "the test", test);
}

#[distributed_lock(key = "order:7", wait = "20s")]
async fn annotated(seven: u32) -> Result<u32, Error> {
    Ok(seven)
}

/// Uses every operation of a lock, contended and uncontended. Without a timer, each wait would
/// hang.
fn use_locks(locks: &LockManager) {
    let (lock, key) = (locks.lock("order:7").lease(LEASE), "order:7");
    // The hold is renewed during two contended calls, and its release wakes the waiter.
    let held = block_on(lock.acquire()).expect("it is free");
    let (waiter, (sender, receiver)) = (lock.clone().wait(LONG), mpsc::channel());
    let waiting = thread::spawn(move || {
        let body = waiter.run(async |guard| {
            sender.send(Instant::now()).expect("the receiver is open");
            guard.check()
        });
        block_on(body)
    });
    let refused = block_on(lock.clone().wait(LEASE * 3).acquire());
    assert!(refused.is_err_and(|error| error.is_contended()), "it is held, and renewed");
    assert!(block_on(lock.try_acquire()).expect("the server replies").is_none());
    held.check().expect("it is renewed");
    block_on(held.extend(LEASE)).expect("it is held");
    block_on(held.fencing_token()).expect("it is held");
    drop(held); // outside of any runtime
    receiver.recv_timeout(LONG).expect("the waiter acquires the lock");
    waiting.join().expect("no panic").expect("it is acquired").expect("it is held");
    // A hold without renewal ends at its lease, and a hold with `max_hold` at that limit.
    let expiring = block_on(lock.clone().renew(false).wait(LONG).acquire()).expect("it is free");
    let next = block_on(lock.clone().wait(LONG).acquire()).expect("it is free after a lease");
    assert_eq!(block_on(expiring.lost()), LossCause::Expired);
    block_on(next.release()).expect("it is held");
    let bounded = lock.clone().wait(LONG).max_hold(LEASE);
    let stopped = block_on(bounded.run(async |_| std::future::pending::<()>().await));
    assert!(matches!(stopped, Err(Error::Lost { cause: LossCause::MaxHold, .. })), "{stopped:?}");
    // The remaining operations.
    let lock = lock.wait(LONG);
    let nested = lock.run(async |_| lock.run(async |_| 7).await);
    assert_eq!(block_on(nested).expect("it is free").expect("it joins"), 7);
    assert_eq!(block_on(with_manager(locks.clone(), annotated(7))).expect("it is free"), 7);
    block_on(locks.ready()).expect("it replies");
    block_on(locks.inspect(key)).expect("it replies");
    let _kept = block_on(lock.acquire()).expect("it is free");
    block_on(locks.shutdown(LEASE)); // it waits for its whole timeout
    assert!(matches!(block_on(lock.acquire()), Err(Error::Shutdown { .. })));
}

#[test]
fn memory_works_outside_of_tokio() {
    test(|| use_locks(&block_on(LockManager::connect("memory://")).expect("it needs no runtime")));
}

#[test]
fn a_server_works_outside_of_tokio() {
    test(|| {
        let server = RedisServer::start();
        use_locks(&block_on(LockManager::connect(&server.url())).expect("it runs"));
    });
}

#[test]
fn a_quorum_works_outside_of_tokio() {
    test(|| {
        let fleet = runtime(true, true).block_on(QuorumFleet::start(3));
        use_locks(&block_on(LockManager::connect(&fleet.url_with(""))).expect("they run"));
    });
}

#[test]
fn a_doctor_works_outside_of_tokio() {
    test(|| {
        let server = RedisServer::start();
        let report = block_on(dlock_runtime::doctor(&server.url())).expect("a URL that can be used");
        assert!(report.to_string().contains("127.0.0.1"), "{report}");
    });
}

/// Builds a runtime with timers, I/O, both, or neither.
fn runtime(timers: bool, io: bool) -> Runtime {
    let mut builder = Builder::new_current_thread();
    if timers {
        builder.enable_time();
    }
    if io {
        builder.enable_io();
    }
    builder.build().expect("a runtime")
}

/// Calls everything that is not a lock, and nothing panics: it works, or is refused before a body
/// starts.
fn use_records(url: &str) {
    let locks = &block_on(LockManager::connect(url)).expect("it needs no runtime");
    let call = locks.idempotent("charge:7");
    let (first, duplicate) = (call.clone(), call.clone().wait(LEASE));
    let ((started, starts), (release, released)) = (mpsc::channel(), mpsc::channel());
    let running = thread::spawn(move || {
        block_on(first.run_attached(async |_| {
            started.send(()).expect("the receiver is open");
            released.recv().expect("the sender is open"); // blocks only this thread
            Ok::<_, Error>(7)
        }))
    });
    starts.recv_timeout(LONG).expect("the body starts");
    let waited = block_on(duplicate.run_attached(async |_| Ok::<_, Error>(8)));
    assert!(matches!(waited, Err(Error::InProgress { .. })), "{waited:?}");
    release.send(()).expect("the body waits");
    running.join().expect("no panic").expect("the store replies");
    let replayed = block_on(call.run_attached(async |_| Ok::<_, Error>(8)));
    assert_eq!(replayed.expect("the store replies").into_value(), 7);
    assert_runtime_is_missing(&block_on(call.run(async |_| Ok::<_, Error>(8))));

    let schedule = Schedule::every(Duration::from_secs(3_600)).expect("a valid period");
    block_on(locks.job("report").run(&schedule, async |_| Ok::<_, Error>(()))).expect("it is due or not");
    let jobs = Jobs::new(locks.clone()).add("report", schedule, async |_| Ok::<_, Error>(()));
    assert_runtime_is_missing(&block_on(jobs.run_until(std::future::pending())));

    let leader = locks.leader("mailer").lease(LEASE);
    let (mut watch, mut terms) = (leader.watch(), 0);
    block_on(watch.changed()).expect("the server replies");
    let led = leader.lead(|_term| {
        terms += 1;
        let is_last = terms == 2; // there is a pause between the terms
        async move {
            if is_last {
                locks.shutdown(Duration::ZERO).await;
            }
        }
    });
    block_on(led).expect("it leads until the shutdown");
    assert_eq!(terms, 2);
}

#[track_caller]
fn assert_runtime_is_missing<T: std::fmt::Debug>(outcome: &Result<T, Error>) {
    let Err(Error::Config { part, problem, .. }) = outcome else { panic!("{outcome:?}") };
    assert!(&**part == "runtime" && problem.contains("tokio runtime"), "{part}: {problem}");
}

#[test]
fn records_and_leaders_work_outside_of_tokio_or_are_refused() {
    test(|| {
        let server = RedisServer::start();
        for url in ["memory://", "memory://?connect=lazy&namespace=lazy"] {
            use_records(url);
        }
        for options in ["", "?connect=lazy&namespace=lazy"] {
            use_records(&server.url_with(options));
        }
    });
}

#[test]
fn any_topology_is_refused_outside_of_tokio_as_inside() {
    test(|| {
        for url in [
            "redis://127.0.0.1:1",
            "rediss://127.0.0.1:1",
            "redis://localhost:1",
            "redis+unix:///no/such/socket",
            "redis+cluster://127.0.0.1:1",
            "redis+sentinel://127.0.0.1:1/shop",
            "redis+quorum://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
        ] {
            let refused = block_on(LockManager::connect(url));
            assert!(matches!(refused, Err(Error::Unavailable { .. })), "{url}: {refused:?}");
            let lazy = format!("{url}?connect=lazy&response_timeout=200ms");
            let locks = block_on(LockManager::connect(&lazy)).expect("it waits for no server");
            let refused = block_on(locks.lock("order:7").acquire());
            assert!(matches!(refused, Err(Error::Unavailable { .. })), "{url}: {refused:?}");
        }
        let failing = || async { Err::<Credentials, _>("the vault is sealed".into()) };
        let refused = block_on(LockManager::builder("redis://127.0.0.1:1").credentials(failing).connect());
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    });
}

#[test]
fn jobs_run_on_a_runtime_without_timers() {
    test(|| {
        let server = RedisServer::start();
        runtime(false, false).block_on(async {
            let locks = LockManager::connect(&server.url()).await.expect("it runs");
            let ran = Arc::new(tokio::sync::Notify::new());
            let has_run = Arc::clone(&ran);
            let schedule = Schedule::every(Duration::from_secs(1)).expect("a valid period");
            let jobs = Jobs::new(locks).add("report", schedule, move |_| {
                has_run.notify_one();
                async { Ok::<_, Error>(()) }
            });
            jobs.run_until(async { ran.notified().await }).await.expect("it runs until the job has run");
        });
    });
}

#[test]
fn memory_on_a_runtime_without_timers_is_refused_at_connect() {
    test(|| {
        for (io, url) in [(false, "memory://"), (true, "memory://"), (false, "memory://?connect=lazy")] {
            let refused = runtime(false, io).block_on(LockManager::connect(url));
            let Err(Error::Config { part, problem, .. }) = refused else { panic!("{refused:?}") };
            assert_eq!(&*part, "runtime");
            assert!(problem.contains("enable_time()"), "{problem}");
        }
        runtime(true, false).block_on(LockManager::connect("memory://")).expect("it has timers");
    });
}

#[test]
fn memory_that_has_connected_works_on_a_runtime_without_timers() {
    test(|| {
        let locks = runtime(true, true).block_on(LockManager::connect("memory://")).expect("it has timers");
        runtime(false, false).block_on(async {
            let lock = locks.lock("order:7").lease(LEASE);
            let held = lock.acquire().await.expect("it is free");
            let refused = lock.clone().wait(LEASE * 2).acquire().await;
            assert!(refused.is_err_and(|error| error.is_contended()));
            drop(held);
            locks.shutdown(LEASE).await;
        });
    });
}

#[test]
fn a_server_works_on_a_runtime_without_timers_and_io() {
    test(|| {
        let server = RedisServer::start();
        runtime(false, false).block_on(async {
            let locks = LockManager::connect(&server.url()).await.expect("it runs");
            let lock = locks.lock("order:7").lease(LEASE);
            let held = lock.acquire().await.expect("it is free");
            let refused = lock.clone().wait(LEASE * 2).acquire().await;
            assert!(refused.is_err_and(|error| error.is_contended()));
            held.release().await.expect("it is held");
            locks.shutdown(LEASE).await;
        });
    });
}
