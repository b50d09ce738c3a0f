//! What a call asks of its hold beside the lease: `max_hold` ends it, `min_hold` keeps it from others after its turn.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, Lock, LockGuard, LossCause, OnLost};
use dlock_tests::contract;
use dlock_tests::world::World;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{LEASE, LONG, PROMPT, is_held, wait_for};

contract![
    a_body_is_stopped_when_its_max_hold_is_over_and_the_lock_is_free,
    a_body_that_finishes_runs_on_after_its_max_hold,
    neither_a_renewal_nor_an_extension_outlasts_max_hold,
    a_lock_whose_guard_is_leaked_is_free_a_lease_after_its_max_hold,
    no_body_begins_beside_one_that_is_stopped,
    a_lock_that_is_taken_from_its_job_by_force_is_free_for_everybody,
    a_call_that_is_cancelled_before_its_body_begins_keeps_nothing,
    no_body_begins_after_its_hold_is_lost,
    no_guard_is_given_after_its_hold_is_lost,
    a_lock_is_kept_though_its_body_outlives_its_lease,
    a_max_hold_that_is_not_reached_changes_nothing,
    a_lock_is_kept_until_its_at_least_is_over_and_handed_over_then,
    who_does_not_wait_is_told_how_long_a_lock_is_kept,
    an_at_least_that_is_over_changes_nothing,
    a_lock_is_kept_after_an_error_a_panic_and_a_cancellation,
    a_lock_is_kept_after_its_max_hold,
    a_lock_that_was_stolen_is_left_to_the_thief,
    a_lock_is_kept_though_its_manager_is_shut_down,
    a_lock_is_kept_though_its_manager_goes_with_its_guard,
    an_at_least_shorter_than_the_lease_ends_the_lease,
    terms_that_contradict_each_other_are_refused,
];

const MAX: Duration = Duration::from_millis(900);

async fn never(lock: &Lock) -> Result<(), Error> {
    lock.run(async |_guard| std::future::pending().await).await
}

async fn a_body_is_stopped_when_its_max_hold_is_over_and_the_lock_is_free(world: World) {
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

async fn a_body_that_finishes_runs_on_after_its_max_hold(world: World) {
    let manager = world.manager().await;

    let lock = manager.lock("order:7").lease(LEASE).max_hold(LEASE).on_lost(OnLost::Finish);
    let seen = lock
        .run(async |guard| {
            world.let_pass(LEASE + Duration::from_millis(50)).await;
            let ours = is_held(&world, "order:7").await;
            world.let_pass(LEASE * 2).await;
            (guard.check(), ours, is_held(&world, "order:7").await)
        })
        .await;

    // Nobody is let in beside it before the lease is over, and everybody is after that.
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
    assert!(is_held(&world, "order:7").await, "whoever has the guard may still use what it guards");
    drop(guard);
    world.until_free("order:7").await;
    assert!(!is_held(&world, "order:7").await);
}

async fn a_lock_whose_guard_is_leaked_is_free_a_lease_after_its_max_hold(world: World) {
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
        assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "a body begins beside one that is alive");
        Self(count)
    }
}

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn no_body_begins_beside_one_that_is_stopped(world: World) {
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

async fn a_lock_that_is_taken_from_its_job_by_force_is_free_for_everybody(world: World) {
    let (manager, other) = (world.manager().await, world.manager().await);
    let job = manager.lock("job").min_hold(LONG);
    job.run(async |_guard| ()).await.expect("it is free");

    assert!(matches!(other.force_release("job").await, Ok(true)));

    let again = job.try_acquire().await;
    assert!(matches!(&again, Ok(Some(_))), "{again:?}");
}

async fn a_call_that_is_cancelled_before_its_body_begins_keeps_nothing(world: World) {
    let (manager, other) = (world.manager().await, world.manager().await);
    let held = other.lock("job").acquire().await.expect("it is free");
    let lock = manager.lock("job").min_hold(LONG).wait(LONG);

    // Polled until it waits, granted without being polled again, and dropped then.
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

async fn no_guard_is_given_after_its_hold_is_lost(world: World) {
    let lock = world.manager().await.lock("job").lease(LEASE).max_hold(LEASE).wait(LONG);

    let late = granted_long_ago(&world, lock.acquire()).await;

    assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
}

/// What a call for "job" says that is polled until it waits, granted, and polled again only after its turn is over.
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

async fn a_lock_is_kept_though_its_body_outlives_its_lease(world: World) {
    let (manager, other) = (world.manager().await, world.manager().await);
    let begun = Instant::now();
    let lock = manager.lock("job").lease(LEASE / 2).max_hold(LEASE).min_hold(MAX * 2).on_lost(OnLost::Finish);

    let body = lock.run(async |_guard| world.let_pass(MAX + LEASE).await);
    let next = async {
        world.let_pass(LEASE / 4).await;
        wait_for(&other, "job").await.expect("no panic").map(|_guard| begun.elapsed())
    };
    let (ended, next) = tokio::join!(body, next);

    assert!(ended.is_ok(), "{ended:?}");
    assert!(next.as_ref().is_ok_and(|next| (MAX * 2..MAX * 2 + PROMPT).contains(next)), "{next:?}");
}

async fn a_max_hold_that_is_not_reached_changes_nothing(world: World) {
    let manager = world.manager().await;

    let value = manager.lock("order:7").lease(LEASE).max_hold(LONG).run(async |_guard| 7).await;

    assert!(matches!(value, Ok(7)), "{value:?}");
    assert!(!is_held(&world, "order:7").await);
}

async fn a_lock_is_kept_until_its_at_least_is_over_and_handed_over_then(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let begun = Instant::now();

    let value = first.lock("job").min_hold(MAX).run(async |_guard| 7).await;
    let returned = begun.elapsed();
    let granted = async |manager| {
        let guard: LockGuard = wait_for(manager, "job").await.expect("no panic").expect("it is handed over");
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

async fn who_does_not_wait_is_told_how_long_a_lock_is_kept(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    first.lock("job").min_hold(LONG).run(async |_guard| ()).await.expect("it is free");

    world.let_pass(LEASE).await;
    for manager in [first, second] {
        let refused = manager.lock("job").acquire().await;

        let Err(Error::Contended { retry_after: Some(after), .. }) = refused else { panic!("{refused:?}") };
        assert!(after + LEASE + PROMPT > LONG && after < LONG, "{after:?}");
    }
}

async fn an_at_least_that_is_over_changes_nothing(world: World) {
    let manager = world.manager().await;

    let lock = manager.lock("job").lease(LONG).min_hold(Duration::from_millis(30));
    lock.run(async |_guard| world.let_pass(Duration::from_millis(40)).await).await.expect("it is free");

    assert!(!is_held(&world, "job").await);
}

async fn a_lock_is_kept_after_an_error_a_panic_and_a_cancellation(world: World) {
    let manager = world.manager().await;
    let of = |key| manager.lock(key).lease(LEASE).min_hold(LONG);

    let failed = of("failed").run(async |_guard| Err::<(), _>("the body's own error")).await;
    let panics = of("panicked");
    let panicked =
        tokio::spawn(async move { panics.run(async |_guard| panic!("the body's own panic")).await });
    let panicked = panicked.await;
    let cancelled = tokio::time::timeout(LEASE / 2, never(&of("cancelled"))).await;
    drop(of("dropped").acquire().await);
    // Longer than the lease: it is the rest of `min_hold` that keeps them.
    world.let_pass(LEASE * 2).await;

    assert!(matches!(failed, Ok(Err(_))) && panicked.is_err() && cancelled.is_err());
    for key in ["failed", "panicked", "cancelled", "dropped"] {
        assert!(is_held(&world, key).await, "{key}");
    }
}

async fn a_lock_is_kept_after_its_max_hold(world: World) {
    let manager = world.manager().await;

    let stopped = never(&manager.lock("job").max_hold(LEASE).min_hold(LONG)).await;

    assert!(matches!(stopped, Err(Error::Lost { cause: LossCause::MaxHold, .. })), "{stopped:?}");
    assert!(is_held(&world, "job").await);
}

async fn a_lock_that_was_stolen_is_left_to_the_thief(world: World) {
    let manager = world.manager().await;
    let lock = manager.lock("job").lease(LONG).min_hold(LEASE);
    let guard = lock.acquire().await.expect("it is free");
    let _thief = world.steal("job").await;

    drop(guard);
    world.let_pass(LEASE * 2).await;

    assert!(is_held(&world, "job").await, "the thief's time was cut");
}

async fn a_lock_is_kept_though_its_manager_is_shut_down(world: World) {
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

async fn a_lock_is_kept_though_its_manager_goes_with_its_guard(world: World) {
    let (manager, other) = (world.manager().await, world.manager().await);
    let begun = Instant::now();
    let guard = manager.lock("job").lease(LONG).min_hold(MAX).acquire().await.expect("it is free");

    drop(manager);
    drop(guard);
    let granted = wait_for(&other, "job").await.expect("no panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!((MAX..MAX + PROMPT).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

async fn an_at_least_shorter_than_the_lease_ends_the_lease(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let begun = Instant::now();
    first.lock("job").lease(LONG).min_hold(MAX).run(async |_guard| ()).await.expect("it is free");
    drop(first);

    let granted = wait_for(&second, "job").await.expect("no panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!((MAX..MAX + PROMPT).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

async fn terms_that_contradict_each_other_are_refused(world: World) {
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
