//! Locks while the runtime of the callers, which reads replies, is blocked, and after it has ended.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use dlock_runtime::{Error, LockManager, ReleaseMode};
use dlock_tests::{ClusterFleet, Proxy, QuorumFleet, RedisServer, SentinelFleet, acl, thread_within, within};
use tokio::runtime::Runtime;

use super::{LONG, time_to_live, until_free, until_waiting};

const LEASE: Duration = Duration::from_millis(600);
/// Long enough to acquire 1,000 locks on a busy machine.
const BLOCKED_LEASE: Duration = Duration::from_secs(3);

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
    LockManager::connect(url).await.expect("the server takes managers")
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

/// No time passes between the end of the runtime and the request: the manager's thread has not
/// taken over.
#[test]
fn a_release_just_after_the_end_of_the_runtime_is_sent() {
    for made in MADE {
        for end in ENDS {
            thread_within(LONG * 2, "the releases", move || {
                let (server, second) = (RedisServer::start(), MADE[0]());
                for _ in 0..10 {
                    let first = made();
                    let manager = first.block_on(connect(&server.url()));
                    let guard = first.block_on(manager.lock("order:7").lease(LONG).acquire());

                    end(first);
                    let released = second.block_on(guard.expect("the lock is free").release());

                    assert!(released.is_ok(), "{released:?}");
                }
            });
        }
    }
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
            held.release().await.expect("the server replies");
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

/// Blocks every thread of a runtime for two leases while it holds 1,000 locks.
#[test]
fn a_blocked_runtime_loses_no_hold() {
    const HOLDS: usize = 1_000;
    for (made, threads) in MADE.into_iter().zip([1, 2]) {
        thread_within(LONG * 2, "the holds of one runtime", move || {
            let (server, runtime) = (RedisServer::start(), made());
            let guards = runtime.block_on(async {
                let manager = connect(&server.url()).await;
                let mut guards = Vec::new();
                for number in 0..HOLDS {
                    let lock = manager.lock(format!("order:{number}")).lease(BLOCKED_LEASE);
                    guards.push(lock.acquire().await.expect("the lock is free"));
                }
                guards
            });

            runtime.block_on(async {
                let block = || async { std::thread::sleep(BLOCKED_LEASE * 2) };
                let blocked: Vec<_> = (0..threads).map(|_| tokio::spawn(block())).collect();
                for blocked in blocked {
                    blocked.await.expect("it only sleeps");
                }
            });

            let lost = guards.iter().filter(|guard| guard.check().is_err()).count();
            assert_eq!(lost, 0, "of {HOLDS}, on {threads} threads");
            runtime.block_on(async {
                for guard in guards {
                    guard.release().await.expect("the lock is held");
                }
            });
        });
    }
}

/// Nothing is in flight at the end of the call, so only its release shows that the runtime is
/// blocked.
#[test]
fn a_background_release_leaves_although_its_runtime_is_blocked() {
    let (server, runtime, other) = (RedisServer::start(), MADE[0](), MADE[1]());
    // Otherwise, the check of the hold or the time limit of the acquisition would wake the driver.
    let manager = runtime.block_on(connect(&server.url_with("?tracking=off&response_timeout=20s")));
    let lock = manager.lock("order:7").lease(LONG).release_mode(ReleaseMode::Background);
    let body = async |_: &_| tokio::time::sleep(Duration::from_millis(100)).await;

    runtime.block_on(lock.run(body)).expect("the lock is free"); // no thread drives it from here on

    other.block_on(until_free(&server, "order:7", LONG / 6)); // the renewal would be due at a third
}

/// A synchronous program drives its runtime only while it waits for one of our futures. Every
/// second, the manager checks the role of a server of a cluster.
#[test]
fn an_idle_connection_outlives_a_runtime_that_stands_still() {
    let (fleet, runtime) = (ClusterFleet::start(), MADE[0]());
    let key = fleet.key_in(0, "order");
    let manager = runtime.block_on(connect(&fleet.url_with("?response_timeout=200ms&tracking=off")));
    let guard = runtime.block_on(manager.lock(&key).wait(LONG).acquire()).expect("the lock is free");
    runtime.block_on(guard.release()).expect("it is held");
    let server = fleet.server(fleet.masters()[0]);
    let connections = || {
        let list = server.call(&["CLIENT", "LIST"]);
        let others = list.text().unwrap_or_default().lines().filter(|line| !line.contains("cmd=client|list"));
        others.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = connections();

    std::thread::sleep(Duration::from_secs(4)); // two late checks end a connection

    assert!(!before.is_empty());
    assert_eq!(connections(), before);
}

/// A call on another runtime, while the one that reads replies is blocked.
#[test]
fn a_blocked_runtime_does_not_block_calls_of_others() {
    let (server, first, second) = (RedisServer::start(), MADE[1](), MADE[0]());
    let manager = first.block_on(connect(&server.url()));
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(std::sync::Mutex::new(blocked));
    for _ in 0..2 {
        let blocked = Arc::clone(&blocked);
        first.spawn(async move {
            let _ = blocked.lock().map(|blocked| blocked.recv());
        });
    }

    second.block_on(async {
        for number in 0..100 {
            let lock = manager.lock(format!("order:{number}")).lease(LONG);
            let call = async { lock.acquire().await.expect("the lock is free").release().await };
            within(Duration::from_secs(2), "a call of another runtime", call).await.expect("it is held");
        }
    });

    drop(unblock);
}

/// Tasks of a runtime hold and wait for locks when it is dropped. Nothing may be left after one
/// lease.
#[test]
fn a_dropped_runtime_leaves_nothing_after_one_lease() {
    on_each(|first, end| {
        let (server, second) = (RedisServer::start(), MADE[0]());
        let manager = first.block_on(connect(&server.url()));
        let (entered, has_entered) = std::sync::mpsc::channel();
        for number in 0..20 {
            // Four tasks per key: one holds the lock, and three wait for it.
            let lock = manager.lock(format!("order:{}", number % 5)).lease(LEASE).wait(LONG);
            let entered = entered.clone();
            first.spawn(async move {
                let _guard = lock.acquire().await.expect("the lock is granted");
                entered.send(()).expect("the test waits");
                std::future::pending::<()>().await;
            });
        }
        first.block_on(async {
            let wait = tokio::task::spawn_blocking(move || {
                (0..5).for_each(|_| has_entered.recv_timeout(LONG).expect("each key is held"));
            });
            wait.await.expect("the locks are free");
        });

        drop(manager);
        end(first);

        second.block_on(async {
            tokio::time::sleep(LEASE).await;
            let keys = server.call(&["KEYS", "*order:*"]);
            for number in 0..5 {
                let left = time_to_live(&server, &format!("order:{number}"));
                assert_eq!(left, Duration::ZERO, "order:{number}: {keys:?}");
            }
        });
    });
}

/// The task that would report the loss runs on the blocked thread and has not run. Only the check
/// of the clock can stop the body.
#[tokio::test]
async fn a_blocking_body_that_is_polled_next_is_stopped() {
    let server = RedisServer::start();
    let lock = connect(&server.url()).await.lock("order:7").lease(LEASE).renew(false);
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

/// tokio reports with a panic that a runtime has no I/O. The manager's own thread then reads the
/// replies.
#[test]
fn a_runtime_without_timers_or_io_is_served_by_the_managers_thread() {
    let server = RedisServer::start();
    let url = server.url();

    thread_within(LONG, "the runtime without i/o", move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
        runtime.block_on(async {
            let manager = connect(&url).await;
            let guard = manager.lock("order:7").acquire().await.expect("the lock is free");
            guard.release().await.expect("it is held");
        });
    });
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
