//! Wakers that do what those of an application may do: panic, or release another lock.
//!
//! A failure here blocks a thread. Therefore each test has a thread with a runtime whose clock is
//! not paused.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use dlock_runtime::LockGuard;
use dlock_tests::polls::{Panics, poll_with};
use dlock_tests::world::World;
use dlock_tests::{contract, thread_within, within};

use super::{LONG, PROMPT, hold};

contract![a_waker_that_panics_does_not_hang_the_next_acquire, a_waker_that_drops_a_guard_does_not_hang];

async fn a_waker_that_panics_does_not_hang_the_next_acquire(world: World) {
    on_a_thread(world, async |world| {
        let (first, second) = (world.manager().await, world.manager().await);
        for (waiting, behind_it) in [(&first, 0), (&second, 1)] {
            let held = hold(&first, "order:7").await;
            let lock = waiting.lock("order:7").lease(LONG).wait(LONG);
            let mut waiter = Box::pin(lock.acquire());
            let panics = Arc::new(Panics::default());
            assert!(poll_with(&Waker::from(Arc::clone(&panics)), waiter.as_mut()).is_pending());
            world.until_waiting("order:7", behind_it).await;

            // It does not matter where the panic surfaces.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(held)));
            within(LIMIT, "the waker's panic", panics.until_it_has()).await;
            drop(waiter);

            for manager in [&first, &second] {
                for key in ["order:8", "order:7"] {
                    let acquire = async { manager.lock(key).lease(LONG).wait(PROMPT).acquire().await };
                    let granted = within(LIMIT, &format!("the acquire of {key}"), acquire).await;
                    // Released, not dropped: the next manager tries only once.
                    let granted = granted.unwrap_or_else(|error| panic!("{key}: {error:?}"));
                    within(LIMIT, "the release", granted.release()).await.expect("it is held");
                }
            }
        }
    });
}

async fn a_waker_that_drops_a_guard_does_not_hang(world: World) {
    on_a_thread(world, async |world| {
        let manager = world.manager().await;
        let _held = hold(&manager, "order:7").await;
        let dropped = hold(&manager, "order:8").await;
        let lock = manager.lock("order:7").lease(LONG).wait(Duration::from_millis(10));
        let mut waiter = pin!(lock.acquire());
        let drops = Arc::new(Drops(Mutex::new(Some(dropped))));
        assert!(poll_with(&Waker::from(drops), waiter.as_mut()).is_pending());

        // The wait ends while the runtime is blocked, so that in memory the next call finds it
        // ended.
        std::thread::sleep(Duration::from_millis(50));
        let next = manager.lock("order:9").lease(LONG).acquire().await;
        let freed = manager.lock("order:8").lease(LONG).wait(PROMPT).acquire().await;

        assert!(next.is_ok(), "{next:?}");
        assert!(freed.is_ok(), "{freed:?}");
    });
}

/// Drops a guard when it is woken.
struct Drops(Mutex<Option<LockGuard>>);

impl Wake for Drops {
    fn wake(self: Arc<Self>) {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(guard);
    }
}

fn on_a_thread(world: World, test: impl AsyncFnOnce(World) + Send + 'static) {
    thread_within(LIMIT * 4, "the test", move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be made").block_on(test(world));
    });
}

const LIMIT: Duration = Duration::from_secs(5);
