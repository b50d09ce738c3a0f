//! T11: one story on every kind of runtime, and one manager on two of them at a time.
//!
//! Not here: runtimes that end while locks are held (`tests/cancel`, `tests/promises/runtimes`).

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{RedisServer, thread_within, within};
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use super::{KEY, LONG, PROMPT, assert_nothing_is_left, until_waiting};

const LEASE: Duration = Duration::from_millis(300);

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime starts")
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime starts")
}

/// A hold is renewed, a waiter is handed it, another is cut short, and nothing is left. Its body cannot leave its thread.
async fn story(url: String, server: Arc<RedisServer>) {
    let manager = LockManager::connect(&url).await.expect("the server takes managers");
    let other = LockManager::connect(&url).await.expect("the server takes managers");
    let bound = Rc::new(7);
    let lock = manager.lock(KEY).lease(LEASE).wait(LONG);

    let body = async |guard: &dlock_runtime::LockGuard| {
        let waits = other.lock(KEY).lease(LEASE).wait(LONG);
        let waiter = tokio::spawn(async move { waits.run(async |guard| guard.fencing_token().await).await });
        let cut = tokio::spawn({
            let lock = other.lock(KEY).lease(LEASE).wait(LONG);
            async move { lock.acquire().await.map(drop) }
        });
        until_waiting(&server, KEY, 1).await;
        tokio::time::sleep(LEASE * 3).await;
        cut.abort();
        (guard.fencing_token().await, waiter, *Rc::clone(&bound))
    };
    let (token, waiter, seven) = lock.run(body).await.expect("it is renewed");
    let later = within(PROMPT, "the waiter's turn", waiter).await.expect("no panic").expect("its turn comes");

    assert_eq!(seven, 7);
    let (token, later) = (token.expect("it is held"), later.expect("it is held"));
    assert!(later > token, "{later} after {token}");
    assert_nothing_is_left(&server, PROMPT).await;
}

fn told_on(run: impl Fn(std::pin::Pin<Box<dyn Future<Output = ()>>>) + Copy + Send + 'static) {
    for io in ["", "?io=runtime"] {
        let server = Arc::new(RedisServer::start());
        let url = format!("{}{io}", server.url());
        thread_within(LONG, "the story on one runtime", move || run(Box::pin(story(url, server))));
    }
}

#[test]
fn on_a_current_thread_runtime() {
    told_on(|story| current_thread().block_on(story));
}

#[test]
fn on_a_multi_thread_runtime() {
    told_on(|story| multi_thread().block_on(story));
}

#[test]
fn in_a_local_set_of_either() {
    told_on(|story| LocalSet::new().block_on(&current_thread(), story));
    told_on(|story| {
        multi_thread().block_on(LocalSet::new().run_until(async {
            tokio::task::spawn_local(story).await.expect("no panic");
        }));
    });
}

#[test]
fn tasks_of_two_runtimes_take_turns_by_one_manager() {
    const TURNS: u32 = 200;
    let server = RedisServer::start();
    let manager = current_thread().block_on(LockManager::connect(&server.url())).expect("it takes managers");
    let (inside, had) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));

    let threads = [current_thread, multi_thread].map(|made| {
        let (manager, inside, had) = (manager.clone(), Arc::clone(&inside), Arc::clone(&had));
        std::thread::spawn(move || {
            let turns = async {
                for _ in 0..TURNS {
                    let lock = manager.lock(KEY).lease(LONG).wait(LONG);
                    let turn = lock.run(async |_guard| {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold at once");
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        had.fetch_add(1, Ordering::SeqCst);
                    });
                    turn.await.expect("its turn comes");
                }
            };
            made().block_on(within(LONG, "all turns", turns));
        })
    });
    for thread in threads {
        thread.join().expect("one at a time, and nobody hangs");
    }

    assert_eq!(had.load(Ordering::SeqCst), 2 * TURNS);
    current_thread().block_on(assert_nothing_is_left(&server, PROMPT));
}
