//! `io=runtime`: connections driven by the connecting runtime, and locks after that runtime has
//! ended.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use dlock_runtime::{Error, Io, LockManager};
use dlock_tests::{ClusterFleet, Proxy, QuorumFleet, RedisServer, SentinelFleet, acl, thread_within, within};
use tokio::runtime::Runtime;

use super::{LONG, time_to_live, until_free, until_waiting};

const LEASE: Duration = Duration::from_millis(600);

/// The runtimes on which a manager is created.
const MADE: [fn() -> Runtime; 2] = [
    || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made"),
    || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all().build().expect("a runtime can be made")
    },
];
/// The ways in which these runtimes end.
const ENDS: [fn(Runtime); 2] = [drop, Runtime::shutdown_background];

async fn connect(url: &str) -> LockManager {
    LockManager::builder(url).io(Io::Runtime).connect().await.expect("the server takes managers")
}

/// Runs a test with each runtime and each way in which it ends.
fn on_each(test: impl Fn(Runtime, fn(Runtime)) + Copy + Send + 'static) {
    for made in MADE {
        for end in ENDS {
            thread_within(LONG * 2, "the test on one runtime", move || test(made(), end));
        }
    }
}

#[test]
fn a_hold_outlives_the_runtime_of_its_manager() {
    on_each(|first, end| {
        let (server, second) = (RedisServer::start(), MADE[0]());
        let manager = first.block_on(connect(&server.url()));
        let guard = first.block_on(manager.lock("order:7").lease(LEASE).acquire()).expect("the lock is free");

        end(first);
        let released = second.block_on(async {
            tokio::time::sleep(LEASE * 3).await;
            guard.check().expect("it was renewed");
            guard.release().await
        });

        assert!(released.is_ok(), "{released:?}");
        assert_eq!(time_to_live(&server, "order:7"), Duration::ZERO);
    });
}

#[test]
fn a_waiter_outlives_the_runtime_of_its_manager() {
    on_each(|first, end| {
        let (server, second) = (RedisServer::start(), MADE[1]());
        let manager = first.block_on(connect(&server.url()));
        second.block_on(async {
            let other = LockManager::connect(&server.url()).await.expect("the server takes managers");
            let held = other.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
            let lock = manager.lock("order:7").lease(LEASE).wait(LONG);
            // If nothing blocks on a current-thread runtime, it makes no progress.
            let (has_asked, asked) = tokio::sync::oneshot::channel();
            let driven = tokio::task::spawn_blocking(move || {
                first.block_on(asked).expect("the test goes on");
                first
            });
            let waiter = tokio::spawn(async move { lock.acquire().await });
            until_waiting(&server, "order:7", 1).await;
            has_asked.send(()).expect("it is driven");
            let first = driven.await.expect("it only waits");

            tokio::task::spawn_blocking(move || end(first)).await.expect("a runtime ends");
            held.release().await.expect("the server answers");
            let guard = waiter.await.expect("the waiter does not panic").expect("the lock is granted");

            assert!(guard.release().await.is_ok());
        });
    });
}

#[test]
fn a_lock_of_a_task_that_ends_with_its_runtime_is_released() {
    on_each(|first, end| {
        let (server, second) = (RedisServer::start(), MADE[0]());
        let manager = first.block_on(connect(&server.url()));
        let lock = manager.lock("order:7").lease(LONG);
        let (entered, has_entered) = tokio::sync::oneshot::channel();
        first.spawn(async move {
            let _guard = lock.acquire().await.expect("the lock is free");
            entered.send(()).expect("the test waits");
            std::future::pending::<()>().await;
        });
        first.block_on(has_entered).expect("the task gets its lock");

        drop(manager);
        end(first);

        second.block_on(until_free(&server, "order:7", Duration::from_secs(5)));
    });
}

#[test]
fn a_manager_shuts_down_after_its_runtime_has_ended() {
    on_each(|first, end| {
        let (server, second) = (RedisServer::start(), MADE[0]());
        let manager = first.block_on(connect(&server.url()));
        let guard = first.block_on(manager.lock("order:7").lease(LONG).acquire()).expect("the lock is free");

        end(first);
        second.block_on(manager.shutdown(Duration::from_millis(100)));

        assert!(guard.check().is_err());
        assert_eq!(time_to_live(&server, "order:7"), Duration::ZERO);
    });
}

/// Acquires a lock, ends the runtime of its manager, and releases the lock on another runtime.
fn moves(url: &str) {
    for made in MADE {
        let (first, second, url) = (made(), MADE[0](), url.to_owned());
        thread_within(LONG * 2, "locks over several servers", move || {
            let manager = first.block_on(connect(&url));
            let lock = manager.lock("order:7").lease(Duration::from_secs(10)).wait(LONG);
            let guard = first.block_on(lock.acquire()).expect("the lock is free");
            drop(first);

            second.block_on(async {
                drop(guard); // the release is sent once the manager has reconnected
                let again = lock.acquire().await.expect("the lock is free again");
                assert!(again.release().await.is_ok());
            });
        });
    }
}

#[test]
fn a_cluster_is_driven_on_a_runtime_and_outlives_it() {
    let fleet = ClusterFleet::start();
    moves(&fleet.url_with(""));
}

#[test]
fn a_quorum_is_driven_on_a_runtime_and_outlives_it() {
    let fleet = MADE[0]().block_on(QuorumFleet::start(3));
    moves(&fleet.url_with(""));
}

#[test]
fn a_sentinel_primary_is_driven_on_a_runtime_and_outlives_it() {
    let fleet = MADE[0]().block_on(SentinelFleet::start());
    moves(&fleet.url_with(""));
}

#[tokio::test]
async fn a_body_that_blocks_the_runtime_is_stopped_by_its_deadline() {
    let server = RedisServer::start();
    let lock = connect(&server.url()).await.lock("order:7").lease(LEASE);
    let went_on = Arc::new(AtomicBool::new(false));
    let of_body = Arc::clone(&went_on);

    let outcome = lock
        .run(async |_guard| {
            std::thread::sleep(LEASE * 2);
            tokio::task::yield_now().await;
            of_body.store(true, Ordering::SeqCst);
        })
        .await;

    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    assert!(!went_on.load(Ordering::SeqCst));
}

/// The task that would report the loss runs on the blocked thread and has not run. Only the check
/// of the clock can stop the body.
#[tokio::test]
async fn a_blocking_body_that_is_polled_next_is_stopped() {
    let server = RedisServer::start();
    let lock = connect(&server.url()).await.lock("order:7").lease(LEASE);
    let went_on = Arc::new(AtomicBool::new(false));
    let of_body = Arc::clone(&went_on);

    let outcome = lock
        .run(async |_guard| {
            tokio::time::sleep(LEASE / 10).await; // tasks woken by the acquisition have run
            std::thread::sleep(LEASE * 2);
            let mut is_woken = false;
            poll_fn(|cx| {
                if std::mem::replace(&mut is_woken, true) {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
            of_body.store(true, Ordering::SeqCst);
        })
        .await;

    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    assert!(!went_on.load(Ordering::SeqCst));
}

#[test]
fn a_runtime_without_timers_is_rejected_immediately() {
    let server = RedisServer::start();
    let url = server.url();

    let connected = thread_within(Duration::from_secs(5), "the runtime without timers", move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
        runtime.block_on(LockManager::builder(&url).io(Io::Runtime).connect())
    });

    let Err(Error::Config { part, problem, .. }) = connected else { panic!("{connected:?}") };
    assert_eq!(&*part, "io");
    assert!(problem.contains("enable_all"), "{problem}");
}

#[test]
fn a_runtime_without_io_is_rejected_without_further_panics() {
    const NAME: &str = "runtime without i/o";
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() == Some(NAME) {
            PANICS.fetch_add(1, Ordering::SeqCst);
        } else {
            before(panic);
        }
    }));
    let server = RedisServer::start();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime =
        builder.worker_threads(1).thread_name(NAME).enable_time().build().expect("a runtime can be made");

    let connecting = LockManager::builder(&server.url()).io(Io::Runtime).connect();
    let connected = runtime.block_on(runtime.spawn(connecting)).expect("no panic reaches the caller");
    let Err(Error::Config { part, .. }) = connected else { panic!("{connected:?}") };
    assert_eq!(&*part, "io");

    // A retry would happen within 100 ms.
    let panics = || PANICS.load(Ordering::SeqCst);
    runtime.block_on(async { tokio::time::sleep(Duration::from_millis(300)).await });
    let soon = panics();
    runtime.block_on(async { tokio::time::sleep(Duration::from_millis(700)).await });
    assert_eq!(panics(), soon, "the panic repeats");
}

/// Returns the number of connections of a server, except the one that asks.
fn connections(server: &RedisServer) -> usize {
    server.call(&["CLIENT", "LIST"]).text().unwrap_or_default().lines().count() - 1
}

async fn until_alone(server: &RedisServer) {
    let alone = async {
        while connections(server) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(Duration::from_secs(10), "all connections are closed", alone).await;
}

#[tokio::test]
async fn a_manager_with_replica_acks_leaves_no_connection() {
    let server = RedisServer::builder().also_allow(acl::WITH_ACKS).start();
    let manager = connect(&server.url_with("?replica_acks=1")).await;
    assert!(connections(&server) > 0);

    drop(manager);

    until_alone(&server).await;
}

#[tokio::test]
async fn a_manager_with_an_unanswered_release_leaves_no_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    // Longer than the wait after the first timeout: the cleanup command that follows is in flight
    // when the manager stops waiting.
    let manager = connect(&proxy.url_with("?tracking=off&response_timeout=3s")).await;
    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    assert!(connections(&server) > 0);

    proxy.swallow_replies();
    drop(guard);
    drop(manager);

    until_alone(&server).await;
}
