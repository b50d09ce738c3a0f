//! Each call is dropped at every await point, in three phases, and leaves nothing behind.
//!
//! | phase | network while the call is polled and dropped |
//! |---|---|
//! | answered | open: the call is dropped after each number of polls, from none to completion |
//! | sent | from the n-th request on, for each n, requests execute and replies are held; they arrive *after* the call is dropped |
//! | before it is sent | from the n-th request on, for each n, requests are held; they execute *after* the call is dropped |
//!
//! Nothing is left behind if another process acquires the lock in time, the queue becomes empty,
//! and only fencing counters remain. If the network was open, the bound is 500 ms. Otherwise, it is
//! the lease plus 500 ms.

use std::time::{Duration, Instant};

use dlock_runtime::{LockGuard, LockManager, ReleaseMode};
use dlock_tests::polls::{Polled, poll_times};
use dlock_tests::resp::Reply;
use dlock_tests::world::{ids_in, name};
use dlock_tests::{Proxy, RedisServer, within};

/// The lease of every cancelled call. It bounds the lifetime of a leftover key.
const LEASE: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(30);
/// The bound of a clean-up over an open network.
const PROMPT: Duration = Duration::from_millis(500);
/// A polling call has no last await point, so the number of steps is bounded.
const MOST_STEPS: usize = 32;
/// No call sends more requests than this before it waits for another process.
const MOST_REQUESTS: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    BeforeSent,
    Sent,
    Answered,
}

/// A server, a manager behind a proxy, and the manager of another process with a direct connection.
struct Bench {
    server: RedisServer,
    proxy: Proxy,
    cancelled: LockManager,
    other: LockManager,
}

impl Bench {
    async fn new() -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let cancelled = LockManager::connect(&proxy.url()).await.expect("the network is open");
        let other = LockManager::connect(&server.url()).await.expect("the network is open");
        Self { server, proxy, cancelled, other }
    }

    /// Asserts that the other process acquires `key` in time, and that the key is removed
    /// afterward.
    async fn assert_nothing_is_left(&self, key: &str, phase: Phase) {
        let what = format!("`{key}`");
        let bound = if phase == Phase::Answered { PROMPT } else { LEASE + PROMPT };

        let started = Instant::now();
        let guard = self.other.lock(key).lease(LONG).wait(LONG).acquire().await.expect(&what);
        let took = started.elapsed();
        assert!(took < bound, "{what}: another process acquired it after {took:?}");

        let queue_is_empty = async {
            while self.ids(key) > 1 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within(LEASE + PROMPT, &format!("{what}: the queue is empty"), queue_is_empty).await;
        guard.release().await.expect(&what);
        let key_is_gone = async {
            while self.server.call(&["EXISTS", &name(key)]) != Reply::Integer(0) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within(LEASE + PROMPT, &format!("{what}: the key is gone"), key_is_gone).await;
    }

    fn ids(&self, key: &str) -> usize {
        ids_in(self.server.call(&["GET", &name(key)]).text().unwrap_or_default())
    }
}

/// Drops `call` at each of its await points in each phase. `prepare` runs with an open network. It
/// returns a value to keep until the call has been dropped, and the argument of the call.
async fn drop_everywhere<K, T>(
    prepare: impl AsyncFn(&Bench, &str) -> (K, T),
    call: impl AsyncFn(&Bench, &str, T),
) {
    let bench = Bench::new().await;
    for phase in [Phase::Answered, Phase::Sent, Phase::BeforeSent] {
        for step in 0..=MOST_STEPS {
            let key = format!("{phase:?}/{step}");
            let (kept, taken) = prepare(&bench, &key).await;

            let polls = match phase {
                Phase::Answered => step,
                Phase::Sent | Phase::BeforeSent => MOST_STEPS,
            };
            match phase {
                Phase::Answered => {}
                Phase::Sent => bench.proxy.hold_replies_after(step),
                Phase::BeforeSent => bench.proxy.hold_requests_after(step),
            }
            let polled = poll_times(polls, call(&bench, &key, taken)).await;
            bench.proxy.pass();
            drop(kept);

            bench.assert_nothing_is_left(&key, phase).await;
            let is_done = polled == Polled::Done(());
            // A call that waits for another process stops even with an open network, and sends no
            // more requests.
            let is_last = match phase {
                Phase::Answered => polled == Polled::Stuck,
                Phase::Sent | Phase::BeforeSent => step == MOST_REQUESTS,
            };
            if is_done || is_last {
                break;
            }
        }
    }
}

async fn nothing(_bench: &Bench, _key: &str) -> ((), ()) {
    ((), ())
}

async fn held(bench: &Bench, key: &str) -> ((), LockGuard) {
    ((), bench.cancelled.lock(key).lease(LEASE).acquire().await.expect("the lock is free"))
}

async fn held_by_the_other(bench: &Bench, key: &str) -> (LockGuard, ()) {
    (bench.other.lock(key).lease(LEASE).acquire().await.expect("the lock is free"), ())
}

#[tokio::test]
async fn a_dropped_acquire_leaves_nothing() {
    drop_everywhere(nothing, async |bench, key, ()| {
        let _ = bench.cancelled.lock(key).lease(LEASE).acquire().await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_try_acquire_leaves_nothing() {
    drop_everywhere(nothing, async |bench, key, ()| {
        let _ = bench.cancelled.lock(key).lease(LEASE).try_acquire().await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_acquire_of_a_held_lock_leaves_nothing() {
    drop_everywhere(held_by_the_other, async |bench, key, ()| {
        let _ = bench.cancelled.lock(key).lease(LEASE).wait(LONG).acquire().await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_retry_of_a_held_lock_leaves_nothing() {
    let (first, last) = (Duration::from_millis(2), Duration::from_millis(4));
    drop_everywhere(held_by_the_other, async |bench, key, ()| {
        let _ = bench.cancelled.lock(key).lease(LEASE).retry(3).backoff(first, last).acquire().await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_run_leaves_nothing() {
    drop_everywhere(nothing, async |bench, key, ()| {
        let lock = bench.cancelled.lock(key).lease(LEASE);
        let _ = lock.run(async |_guard| tokio::task::yield_now().await).await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_run_with_background_release_leaves_nothing() {
    drop_everywhere(nothing, async |bench, key, ()| {
        let lock = bench.cancelled.lock(key).lease(LEASE).release_mode(ReleaseMode::Background);
        let _ = lock.run(async |_guard| tokio::task::yield_now().await).await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_nested_run_leaves_nothing() {
    drop_everywhere(nothing, async |bench, key, ()| {
        let lock = bench.cancelled.lock(key).lease(LEASE).wait(LONG);
        let inner = async || lock.run(async |_guard| tokio::task::yield_now().await).await;
        let _ = lock.run(async |_guard| tokio::join!(inner(), inner())).await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_release_still_releases() {
    drop_everywhere(held, async |_bench, _key, guard: LockGuard| {
        let _ = guard.release().await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_request_for_a_fencing_token_leaves_nothing() {
    drop_everywhere(held, async |_bench, _key, guard: LockGuard| {
        let _ = guard.fencing_token().await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_extension_leaves_nothing() {
    drop_everywhere(held, async |_bench, _key, guard: LockGuard| {
        let _ = guard.extend(LEASE).await;
    })
    .await;
}

#[tokio::test]
async fn a_hold_outlives_a_dropped_request_for_its_fencing_token() {
    let bench = Bench::new().await;
    for polls in 0..4 {
        let key = format!("key:{polls}");
        let ((), guard) = held(&bench, &key).await;

        let _ = poll_times(polls, guard.fencing_token()).await;
        let _ = poll_times(polls, guard.extend(LEASE)).await;

        let token = guard.fencing_token().await;
        assert!(guard.check().is_ok() && token.is_ok(), "{polls} polls: {token:?}");
        guard.release().await.expect("it was held");
    }
}

#[tokio::test]
async fn a_dropped_shutdown_can_be_called_again() {
    for polls in 0..3 {
        let bench = Bench::new().await;
        let ((), _guard) = held(&bench, "order:7").await;

        let _ = poll_times(polls, bench.cancelled.shutdown(PROMPT)).await;
        bench.cancelled.shutdown(PROMPT).await;

        bench.assert_nothing_is_left("order:7", Phase::Answered).await;
    }
}

#[tokio::test]
async fn runtime_shutdown_with_holder_and_waiter_leaves_nothing() {
    let bench = Bench::new().await;
    let (manager, other) = (bench.cancelled.clone(), bench.other.clone());
    let _held = other.lock("waited").lease(LONG).acquire().await.expect("the lock is free");

    let ended = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let guard = manager.lock("held").lease(LONG).acquire().await.expect("the lock is free");
            let lock = manager.lock("waited").lease(LONG).wait(LONG);
            tokio::spawn(async move {
                let _guard = guard;
                let _ = lock.acquire().await;
            });
            // Wait until the task is queued.
            tokio::time::sleep(Duration::from_millis(100)).await;
        });
    });
    ended.join().expect("the runtime shuts down without a panic");

    bench.assert_nothing_is_left("held", Phase::Answered).await;
    let queue_is_empty = async {
        while bench.ids("waited") > 1 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(PROMPT, "the waiter leaves the queue", queue_is_empty).await;
    // The manager still works from this runtime.
    assert!(bench.cancelled.lock("again").lease(LEASE).acquire().await.is_ok());
}
