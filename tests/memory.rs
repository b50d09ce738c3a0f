//! The in-memory backend: it uses tokio's clock, paused or not, of one runtime after another.
//!
//! See also: `contract` for the behavior of all backends.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager};
use dlock_tests::polls::poll_with;
use tokio::time::Instant;

async fn in_memory() -> LockManager {
    LockManager::connect("memory://").await.expect("the in-memory backend connects")
}

#[tokio::test(start_paused = true)]
async fn default_lease_is_renewed_during_forty_seconds_of_sleep() {
    let guard = in_memory().await.lock("order:7").acquire().await.expect("the lock is free");

    tokio::time::sleep(Duration::from_secs(40)).await;
    let checked = guard.check();
    let released = guard.release().await;

    assert!(checked.is_ok(), "{checked:?}");
    assert!(released.is_ok(), "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_advanced_by_two_leases_at_once_is_no_loss() {
    let lock = in_memory().await.lock("order:7");
    let call = tokio::spawn(async move {
        lock.run(async |_guard| tokio::time::sleep(Duration::from_secs(60)).await).await
    });
    tokio::time::sleep(Duration::from_millis(1)).await;

    tokio::time::advance(Duration::from_secs(60)).await;
    let outcome = call.await.expect("the call does not panic");

    assert!(outcome.is_ok(), "{outcome:?}");
}

/// Counts wake-ups.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn release_wakes_the_next_waiter_and_not_the_caller() {
    let lock = in_memory().await.lock("order:7").wait(Duration::from_secs(60));
    let (own, next) = (Arc::<Count>::default(), Arc::<Count>::default());
    let mut body_is_over = false;
    let body = async |_: &LockGuard| {
        poll_fn(|_| if std::mem::replace(&mut body_is_over, true) { Poll::Ready(()) } else { Poll::Pending })
            .await;
    };
    let (mut call, mut waits) = (pin!(lock.run(body)), pin!(lock.acquire()));
    assert!(poll_with(&Waker::from(Arc::clone(&own)), call.as_mut()).is_pending());
    assert!(poll_with(&Waker::from(Arc::clone(&next)), waits.as_mut()).is_pending());

    assert!(poll_with(&Waker::from(Arc::clone(&own)), call.as_mut()).is_ready());

    assert_eq!([own, next].map(|count| count.0.load(Ordering::SeqCst)), [0, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_hold_stays_invalid_under_load() {
    let manager = in_memory().await;
    let lease = Duration::from_millis(100);
    let mut renewed = Vec::new();
    for number in 0..1_000 {
        let lock = manager.lock(format!("renewed:{number}").as_str()).lease(lease);
        renewed.push(lock.acquire().await.expect("the lock is free"));
    }

    for round in 0..3 {
        let lock = manager.lock("order:7").lease(lease).renew(false);
        let expired = lock.acquire().await.expect("the lock is free");
        // The in-memory store is not updated during the sleep, so the next operation processes many
        // renewals.
        std::thread::sleep(lease * 2);
        assert!(matches!(expired.check(), Err(Error::Lost { .. })), "{:?}", expired.check());

        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let looks = std::thread::spawn(move || {
            let mut longest = None;
            while !stopped.load(Ordering::SeqCst) {
                if expired.check().is_ok() {
                    longest = longest.max(Some(expired.remaining()));
                }
            }
            longest
        });
        let worked = Instant::now();
        let mut workers = tokio::task::JoinSet::new();
        for worker in 0..2 {
            let lock = manager.lock(format!("worked:{worker}").as_str());
            workers.spawn(async move {
                while worked.elapsed() < lease {
                    lock.acquire().await.expect("the lock is free").release().await.expect("it was held");
                    tokio::task::yield_now().await;
                }
            });
        }
        workers.join_all().await;
        stop.store(true, Ordering::SeqCst);
        let checked = looks.join().expect("the checking thread does not panic");

        assert_eq!(checked, None, "round {round}: considered valid again");
    }
}

#[test]
fn a_manager_keeps_time_on_one_paused_runtime_after_another() {
    let paused = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().expect("a runtime")
    };
    let manager = paused().block_on(async {
        let manager = in_memory().await;
        drop(manager.lock("order:7").acquire().await.expect("the lock is free"));
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        drop(manager.lock("order:7").acquire().await.expect("the lock is free"));
        manager
    });

    paused().block_on(async {
        let second = Duration::from_secs(1);
        let _held = manager.lock("order:7").acquire().await.expect("the lock is free");
        let started = Instant::now();
        let wait = manager.lock("order:7").wait(second);
        let waited = tokio::time::timeout(second * 60, wait.acquire()).await;
        let took = started.elapsed();
        let fixed = manager.lock("order:8").lease(second).renew(false).acquire().await.expect("free");
        tokio::time::sleep(second * 2).await;

        assert!(matches!(waited, Ok(Err(Error::Contended { .. }))), "{waited:?}");
        assert!(took >= second && took < second + Duration::from_millis(100), "{took:?}");
        assert!(matches!(fixed.check(), Err(Error::Lost { .. })), "{:?}", fixed.check());
    });
}

#[test]
fn short_lived_managers_do_not_deadlock_their_store() {
    let hammer = || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        runtime.block_on(async {
            for round in 0..400_u32 {
                let manager = LockManager::connect("memory://come-and-go")
                    .await
                    .expect("the in-memory backend connects");
                let lock = manager.lock(format!("k{}", round % 3));
                drop(lock.try_acquire().await.expect("the in-memory backend connects"));
            }
        });
    };
    let (sender, ended) = std::sync::mpsc::channel();
    for _ in 0..4 {
        let sender = sender.clone();
        std::thread::spawn(move || {
            hammer();
            sender.send(()).expect("the receiver is open");
        });
    }

    for _ in 0..4 {
        assert!(ended.recv_timeout(Duration::from_secs(30)).is_ok(), "a thread hangs");
    }
}

#[test]
fn hold_expires_on_a_runtime_with_an_older_clock() {
    let slow = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    let fast = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let manager = slow.block_on(LockManager::connect("memory://")).expect("the in-memory backend connects");

    fast.expect("a runtime starts").block_on(async {
        drop(manager.lock("seen").acquire().await.expect("the lock is free"));
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        drop(manager.lock("seen").acquire().await.expect("the lock is free"));
    });
    slow.block_on(async {
        let lock = manager.lock("short").lease(Duration::from_millis(100)).renew(false);
        let guard = lock.acquire().await.expect("the lock is free");
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(guard.check().is_err(), "{guard:?}");
    });
}
