//! T11: one scenario on every kind of runtime, and one manager on two of them at a time.
//!
//! See also: `tests/cancel` and `tests/guarantees/runtimes` for runtimes that end while locks are
//! held.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{RedisServer, thread_within, until, within};
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use super::{KEY, LONG, PROMPT, assert_nothing_is_left, until_waiting};

const LEASE: Duration = Duration::from_secs(1);

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime starts")
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime starts")
}

/// Renews a hold, hands it off to a waiter, and cancels another waiter. Leaves no key. The future
/// is not `Send`.
async fn scenario(url: String, server: Arc<RedisServer>) {
    let manager = LockManager::connect(&url).await.expect("the server accepts connections");
    let other = LockManager::connect(&url).await.expect("the server accepts connections");
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
        let before = server.command_count("pexpire");
        let renewed = async || server.command_count("pexpire") >= before + 4;
        until("renewals for longer than a lease", renewed).await;
        cut.abort();
        (guard.fencing_token().await, waiter, *Rc::clone(&bound))
    };
    let (token, waiter, seven) = lock.run(body).await.expect("it is renewed");
    let later =
        within(PROMPT, "the waiter's grant", waiter).await.expect("no panic").expect("the lock is granted");

    assert_eq!(seven, 7);
    let (token, later) = (token.expect("it is held"), later.expect("it is held"));
    assert!(later > token, "{later} after {token}");
    assert_nothing_is_left(&server, PROMPT).await;
}

fn run_scenario_on(run: impl Fn(std::pin::Pin<Box<dyn Future<Output = ()>>>) + Copy + Send + 'static) {
    let server = Arc::new(RedisServer::start());
    let url = server.url();
    thread_within(LONG, "the scenario on one runtime", move || run(Box::pin(scenario(url, server))));
}

#[test]
fn on_a_current_thread_runtime() {
    run_scenario_on(|scenario| current_thread().block_on(scenario));
}

#[test]
fn on_a_multi_thread_runtime() {
    run_scenario_on(|scenario| multi_thread().block_on(scenario));
}

#[test]
fn in_a_local_set_of_either() {
    run_scenario_on(|scenario| LocalSet::new().block_on(&current_thread(), scenario));
    run_scenario_on(|scenario| {
        multi_thread().block_on(LocalSet::new().run_until(async {
            tokio::task::spawn_local(scenario).await.expect("no panic");
        }));
    });
}

#[test]
fn tasks_of_two_runtimes_share_one_manager() {
    const HOLDS: u32 = 200;
    let server = RedisServer::start();
    let manager =
        current_thread().block_on(LockManager::connect(&server.url())).expect("it accepts connections");
    let (inside, held) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));

    let threads = [current_thread, multi_thread].map(|made| {
        let (manager, inside, held) = (manager.clone(), Arc::clone(&inside), Arc::clone(&held));
        std::thread::spawn(move || {
            let holds = async {
                for _ in 0..HOLDS {
                    let lock = manager.lock(KEY).lease(LONG).wait(LONG);
                    let call = lock.run(async |_guard| {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two tasks hold the lock");
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        held.fetch_add(1, Ordering::SeqCst);
                    });
                    call.await.expect("the lock is granted");
                }
            };
            made().block_on(within(LONG, "all holds", holds));
        })
    });
    for thread in threads {
        thread.join().expect("one holder at a time, and no task hangs");
    }

    assert_eq!(held.load(Ordering::SeqCst), 2 * HOLDS);
    current_thread().block_on(assert_nothing_is_left(&server, PROMPT));
}
