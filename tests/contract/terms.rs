//! `max_hold` and `min_hold`: the first ends a hold, the second keeps the lock after its call has
//! ended.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_runtime::testing::errors;
use dlock_runtime::{Error, Lock, LockGuard, LossCause, MinHoldOn, OnLost};
use dlock_tests::contract;
use dlock_tests::world::World;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{LEASE, LONG, PROMPT, is_held, wait_for};

contract![
    max_hold_stops_the_body_and_frees_the_lock,
    a_body_with_on_lost_finish_continues_after_max_hold,
    neither_a_renewal_nor_an_extension_outlasts_max_hold,
    a_leaked_lock_is_free_a_lease_after_its_max_hold,
    no_body_begins_before_a_stopped_body_has_ended,
    force_release_ends_min_hold_for_all_processes,
    a_call_cancelled_before_its_body_has_no_min_hold,
    no_body_begins_after_its_hold_is_lost,
    no_guard_is_returned_after_its_hold_is_lost,
    min_hold_applies_if_the_body_outlives_its_lease,
    an_unreached_max_hold_has_no_effect,
    min_hold_ends_with_a_grant_to_the_waiters,
    a_single_try_returns_the_rest_of_min_hold,
    an_elapsed_min_hold_has_no_effect,
    min_hold_applies_after_error_panic_and_cancellation,
    min_hold_on_ok_applies_only_after_success,
    min_hold_applies_after_max_hold,
    min_hold_on_ok_applies_after_max_hold_only_if_the_body_succeeds,
    min_hold_on_ok_does_not_apply_to_a_body_that_outlasts_a_shutdown,
    min_hold_does_not_affect_the_holder_of_a_stolen_lock,
    min_hold_applies_after_a_shutdown,
    min_hold_applies_after_its_manager_is_dropped,
    a_min_hold_below_the_lease_shortens_the_lease,
    contradicting_options_are_rejected,
];

const MAX: Duration = Duration::from_millis(900);

async fn never(lock: &Lock) -> Result<(), Error> {
    lock.run(async |_guard| std::future::pending().await).await
}

async fn max_hold_stops_the_body_and_frees_the_lock(world: World) {
    let manager = world.manager().await;
    let waiting = world.manager().await;

    let begun = Instant::now();
    let lock = manager.lock("order:7").lease(LEASE).max_hold(MAX);
    let next = async {
        world.let_pass(LEASE / 2).await;
        wait_for(&waiting, "order:7").await.expect("no panic").map(|_guard| begun.elapsed())
    };
    let (stopped, next) = tokio::join!(never(&lock), next);

    let Err(Error::Lost { cause: LossCause::MaxHold, held, .. }) = stopped else { panic!("{stopped:?}") };
    assert!(held >= MAX && held < MAX + PROMPT, "{held:?}");
    assert!(next.as_ref().is_ok_and(|next| (MAX..MAX + PROMPT).contains(next)), "{next:?}");
}

async fn a_body_with_on_lost_finish_continues_after_max_hold(world: World) {
    let manager = world.manager().await;

    let lock = manager.lock("order:7").lease(LEASE).max_hold(LEASE).on_lost(OnLost::Finish);
    let seen = lock
        .run(async |guard| {
            world.let_pass(LEASE + Duration::from_millis(50)).await;
            let still_held = is_held(&world, "order:7").await;
            world.let_pass(LEASE * 2).await;
            (guard.check(), still_held, is_held(&world, "order:7").await)
        })
        .await;

    // The lock stays held until the lease expires, and is free after that.
    assert!(
        matches!(seen, Ok((Err(Error::Lost { cause: LossCause::MaxHold, .. }), true, false))),
        "{seen:?}"
    );
}

async fn neither_a_renewal_nor_an_extension_outlasts_max_hold(world: World) {
    let manager = world.manager().await;
    let guard = manager.lock("order:7").lease(LEASE).max_hold(MAX).acquire().await.expect("it is free");

    guard.extend(LONG).await.expect("it is held");
    assert!(guard.remaining() <= MAX, "{:?}", guard.remaining());
    let cause = guard.lost().await;

    assert_eq!(cause, LossCause::MaxHold);
    assert!(is_held(&world, "order:7").await, "the owner of the guard may still use what it protects");
    drop(guard);
    world.until_free("order:7").await;
    assert!(!is_held(&world, "order:7").await);
}

async fn a_leaked_lock_is_free_a_lease_after_its_max_hold(world: World) {
    let manager = world.manager().await;
    let lock = manager.lock("order:7").lease(LEASE / 2).max_hold(LEASE);
    std::mem::forget(lock.acquire().await.expect("it is free"));

    let begun = Instant::now();
    let granted = wait_for(&world.manager().await, "order:7").await.expect("no panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!(begun.elapsed() < LEASE * 3 / 2 + PROMPT, "{:?}", begun.elapsed());
}

/// Counts the bodies that are alive.
struct Alive<'a>(&'a AtomicUsize);

impl<'a> Alive<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "a body begins while another is alive");
        Self(count)
    }
}

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn no_body_begins_before_a_stopped_body_has_ended(world: World) {
    let manager = world.manager().await;
    let alive = AtomicUsize::new(0);
    let (entered, has_entered) = oneshot::channel();
    let holder = manager.lock("order:7").lease(LEASE).max_hold(LEASE);
    let holder = holder.run(async |_guard| {
        let _alive = Alive::begin(&alive);
        let _ = entered.send(());
        std::future::pending::<()>().await;
    });
    let waiter = async {
        has_entered.await.expect("the body starts");
        manager.lock("order:7").wait(LONG).run(async |_guard| drop(Alive::begin(&alive))).await
    };

    // The waiter is polled first when both are woken.
    let (begun, stopped) = tokio::join!(biased; waiter, holder);

    assert!(begun.is_ok(), "{begun:?}");
    assert!(matches!(stopped, Err(Error::Lost { cause: LossCause::MaxHold, .. })), "{stopped:?}");
}

async fn force_release_ends_min_hold_for_all_processes(world: World) {
    let (manager, other) = (world.manager().await, world.manager().await);
    let job = manager.lock("job").min_hold(LONG);
    job.run(async |_guard| ()).await.expect("it is free");

    assert!(matches!(other.force_release("job").await, Ok(true)));

    let again = job.try_acquire().await;
    assert!(matches!(&again, Ok(Some(_))), "{again:?}");
}

async fn a_call_cancelled_before_its_body_has_no_min_hold(world: World) {
    let (manager, other) = (world.manager().await, world.manager().await);
    let held = other.lock("job").acquire().await.expect("it is free");
    let lock = manager.lock("job").min_hold(LONG).wait(LONG);

    // Polled until it waits, granted without another poll, and then dropped.
    let mut waiting = Box::pin(lock.acquire());
    let first = std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx).is_ready())).await;
    world.until_waiting("job", 1).await;
    held.release().await.expect("it is held");
    world.let_pass(LEASE / 2).await;
    drop(waiting);
    world.until_free("job").await;

    assert!(!first);
    assert!(!is_held(&world, "job").await);
}

async fn no_body_begins_after_its_hold_is_lost(world: World) {
    let lock =
        world.manager().await.lock("job").lease(LEASE).max_hold(LEASE).on_lost(OnLost::Finish).wait(LONG);

    let late =
        granted_long_ago(&world, lock.run(async |_guard| panic!("a body begins without its lock"))).await;

    let late: Result<(), Error> = late;
    assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
}

async fn no_guard_is_returned_after_its_hold_is_lost(world: World) {
    let lock = world.manager().await.lock("job").lease(LEASE).max_hold(LEASE).wait(LONG);

    let late = granted_long_ago(&world, lock.acquire()).await;

    assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
}

/// Returns the result of a call for "job" that is granted the lock, and polled only after its hold
/// ends.
async fn granted_long_ago<T>(world: &World, call: impl Future<Output = T>) -> T {
    let held = world.manager().await.lock("job").acquire().await.expect("it is free");
    let mut call = std::pin::pin!(call);
    let first = std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
    world.until_waiting("job", 1).await;
    held.release().await.expect("it is held");
    world.let_pass(LEASE * 3).await;
    assert!(!first);
    call.await
}

async fn min_hold_applies_if_the_body_outlives_its_lease(world: World) {
    let (manager, other) = (world.manager().await, world.manager().await);
    let begun = Instant::now();
    let lock =
        manager.lock("job").lease(LEASE * 2).max_hold(LEASE * 2).min_hold(MAX * 3).on_lost(OnLost::Finish);

    let body = lock.run(async |_guard| world.let_pass(LEASE * 4).await);
    let next = async {
        world.let_pass(LEASE / 4).await;
        wait_for(&other, "job").await.expect("no panic").map(|_guard| begun.elapsed())
    };
    let (ended, next) = tokio::join!(body, next);

    assert!(ended.is_ok(), "{ended:?}");
    assert!(next.as_ref().is_ok_and(|next| (MAX * 3..MAX * 3 + PROMPT).contains(next)), "{next:?}");
}

async fn an_unreached_max_hold_has_no_effect(world: World) {
    let manager = world.manager().await;

    let value = manager.lock("order:7").lease(LEASE).max_hold(LONG).run(async |_guard| 7).await;

    assert!(matches!(value, Ok(7)), "{value:?}");
    assert!(!is_held(&world, "order:7").await);
}

async fn min_hold_ends_with_a_grant_to_the_waiters(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let begun = Instant::now();

    let value = first.lock("job").min_hold(MAX).run(async |_guard| 7).await;
    let returned = begun.elapsed();
    let granted = async |manager| {
        let guard: LockGuard = wait_for(manager, "job").await.expect("no panic").expect("it is handed off");
        let granted = begun.elapsed();
        guard.release().await.map(|()| granted)
    };
    let (here, there) = tokio::join!(granted(&first), granted(&second));

    assert!(matches!(value, Ok(7)), "{value:?}");
    assert!(returned < PROMPT, "{returned:?}");
    for handed in [here, there] {
        assert!(handed.as_ref().is_ok_and(|handed| (MAX..MAX + PROMPT).contains(handed)), "{handed:?}");
    }
}

async fn a_single_try_returns_the_rest_of_min_hold(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    first.lock("job").min_hold(LONG).run(async |_guard| ()).await.expect("it is free");

    world.let_pass(LEASE).await;
    for manager in [first, second] {
        let refused = manager.lock("job").acquire().await;

        let Err(Error::Contended { remaining: Some(after), .. }) = refused else { panic!("{refused:?}") };
        assert!(after + LEASE + PROMPT > LONG && after < LONG, "{after:?}");
    }
}

async fn an_elapsed_min_hold_has_no_effect(world: World) {
    let manager = world.manager().await;

    let lock = manager.lock("job").lease(LONG).min_hold(Duration::from_millis(30));
    lock.run(async |_guard| world.let_pass(Duration::from_millis(40)).await).await.expect("it is free");

    assert!(!is_held(&world, "job").await);
}

async fn min_hold_applies_after_error_panic_and_cancellation(world: World) {
    let manager = world.manager().await;
    let of = |key| manager.lock(key).lease(LEASE).min_hold(LONG);

    let failed = of("failed").run(async |_guard| Err::<(), _>("the body's own error")).await;
    let panics = of("panicked");
    let panicked =
        tokio::spawn(async move { panics.run(async |_guard| panic!("the body's own panic")).await });
    let panicked = panicked.await;
    let cancelled = tokio::time::timeout(LEASE / 2, never(&of("cancelled"))).await;
    drop(of("dropped").acquire().await);
    // Longer than the lease: only the rest of `min_hold` keeps these locks.
    world.let_pass(LEASE * 2).await;

    assert!(matches!(failed, Ok(Err(_))) && panicked.is_err() && cancelled.is_err());
    for key in ["failed", "panicked", "cancelled", "dropped"] {
        assert!(is_held(&world, key).await, "{key}");
    }
}

async fn min_hold_on_ok_applies_only_after_success(world: World) {
    let manager = world.manager().await;
    let of = |key| manager.lock(key).lease(LEASE).min_hold(LONG).min_hold_on(MinHoldOn::Ok);

    let failed = of("failed").try_run(async |_guard| Err::<(), Error>(not_placed())).await;
    let panics = of("panicked");
    let panicked =
        tokio::spawn(async move { panics.run(async |_guard| panic!("the body's own panic")).await });
    let panicked = panicked.await;
    let cancelled = tokio::time::timeout(LEASE / 2, never(&of("cancelled"))).await;
    drop(of("dropped").acquire().await);
    let succeeded = of("succeeded").try_run(async |_guard| Ok::<(), Error>(())).await;
    let completed = of("completed").run(async |_guard| Err::<(), Error>(not_placed())).await;
    let released = of("released").acquire().await.expect("it is free").release().await;
    // Longer than the lease: only the rest of `min_hold` keeps a lock.
    world.let_pass(LEASE * 2).await;

    assert!(failed.is_err() && panicked.is_err() && cancelled.is_err());
    assert!(succeeded.is_ok() && completed.is_ok() && released.is_ok());
    for key in ["failed", "panicked", "cancelled", "dropped"] {
        assert!(!is_held(&world, key).await, "{key}");
    }
    for key in ["succeeded", "completed", "released"] {
        assert!(is_held(&world, key).await, "{key}");
    }
}

/// An error of a body.
fn not_placed() -> Error {
    errors::config("order", "it is not placed")
}

async fn min_hold_applies_after_max_hold(world: World) {
    let manager = world.manager().await;

    let stopped = never(&manager.lock("job").max_hold(LEASE).min_hold(LONG)).await;

    assert!(matches!(stopped, Err(Error::Lost { cause: LossCause::MaxHold, .. })), "{stopped:?}");
    assert!(is_held(&world, "job").await);
}

async fn min_hold_on_ok_applies_after_max_hold_only_if_the_body_succeeds(world: World) {
    let manager = world.manager().await;
    let max = Duration::from_millis(1_500);
    let of = |key| manager.lock(key).lease(max).max_hold(max).min_hold(LONG).min_hold_on(MinHoldOn::Ok);
    // The key lives on for most of a lease.
    let beyond = max + max / 20;

    let stopped = never(&of("stopped")).await;
    let run_beyond = async |key, result: Result<(), Error>| {
        let lock = of(key).on_lost(OnLost::Finish);
        lock.try_run(async |_guard| {
            world.let_pass(beyond).await;
            result
        })
        .await
    };
    let finished = run_beyond("finished", Ok(())).await;
    let failed = run_beyond("failed", Err(not_placed())).await;

    assert!(matches!(stopped, Err(Error::Lost { cause: LossCause::MaxHold, .. })), "{stopped:?}");
    assert!(finished.is_ok() && failed.is_err(), "{finished:?} {failed:?}");
    assert!(!is_held(&world, "stopped").await && !is_held(&world, "failed").await);
    assert!(is_held(&world, "finished").await);
}

async fn min_hold_on_ok_does_not_apply_to_a_body_that_outlasts_a_shutdown(world: World) {
    let manager = world.manager().await;
    let lock = manager.lock("job").lease(LONG).min_hold(LONG * 2).min_hold_on(MinHoldOn::Ok);
    let guard = lock.on_lost(OnLost::Finish).acquire().await.expect("it is free");

    manager.shutdown(Duration::ZERO).await;

    assert!(guard.check().is_err());
    assert!(!is_held(&world, "job").await, "no work has succeeded under it");
}

async fn min_hold_does_not_affect_the_holder_of_a_stolen_lock(world: World) {
    let manager = world.manager().await;
    let lock = manager.lock("job").lease(LONG).min_hold(LEASE);
    let guard = lock.acquire().await.expect("it is free");
    let _thief = world.steal("job").await;

    drop(guard);
    world.let_pass(LEASE * 2).await;

    assert!(is_held(&world, "job").await, "the thief's lease was shortened");
}

async fn min_hold_applies_after_a_shutdown(world: World) {
    let (manager, other) = (world.manager().await, world.manager().await);
    let begun = Instant::now();
    manager.lock("ended").lease(LEASE).min_hold(MAX).run(async |_guard| ()).await.expect("it is free");
    let lock = manager.lock("stopped").lease(LEASE).min_hold(MAX);
    let (entered, has_entered) = oneshot::channel();
    let stopped = tokio::spawn(async move {
        lock.run(async |_guard| {
            let _ = entered.send(());
            std::future::pending::<()>().await;
        })
        .await
    });
    has_entered.await.expect("the body starts");

    manager.shutdown(Duration::ZERO).await;
    let stopped = stopped.await.expect("no panic");
    drop(manager);
    let kept = is_held(&world, "ended").await && is_held(&world, "stopped").await;
    let freed = tokio::try_join!(wait_for(&other, "ended"), wait_for(&other, "stopped"));

    assert!(stopped.is_err(), "{stopped:?}");
    assert!(kept, "{:?}", begun.elapsed());
    assert!(matches!(freed, Ok((Ok(_), Ok(_)))), "{freed:?}");
    assert!((MAX..MAX + PROMPT * 2).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

async fn min_hold_applies_after_its_manager_is_dropped(world: World) {
    let (manager, other) = (world.manager().await, world.manager().await);
    let begun = Instant::now();
    let guard = manager.lock("job").lease(LONG).min_hold(MAX).acquire().await.expect("it is free");

    drop(manager);
    drop(guard);
    let granted = wait_for(&other, "job").await.expect("no panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!((MAX..MAX + PROMPT).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

async fn a_min_hold_below_the_lease_shortens_the_lease(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let begun = Instant::now();
    first.lock("job").lease(LONG).min_hold(MAX).run(async |_guard| ()).await.expect("it is free");
    drop(first);

    let granted = wait_for(&second, "job").await.expect("no panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!((MAX..MAX + PROMPT).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

async fn contradicting_options_are_rejected(world: World) {
    let manager = world.manager().await;
    let lock = || manager.lock("order:7").lease(LONG);

    let cases = [
        ("lease", lock().max_hold(LEASE)),
        ("min_hold", lock().renew(false).min_hold(LONG * 2)),
        ("min_hold", manager.lock("order:7").renew(false).min_hold(LONG * 2)),
        ("max_hold", manager.lock("order:7").max_hold(Duration::from_millis(1))),
        ("min_hold", lock().min_hold(LONG * 3_000_000)),
    ];

    for (wanted, lock) in cases {
        let refused = lock.acquire().await;
        assert!(matches!(&refused, Err(Error::Config { part, .. }) if **part == *wanted), "{refused:?}");
    }
    assert!(!is_held(&world, "order:7").await);
}
