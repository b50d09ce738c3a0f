//! The contract of every backend: one suite, run in memory under paused time and over a real Redis.
//!
//! The list comes first; each test gets a world with nothing in it. A "manager" stands for a process: two of one world share nothing
//! but the backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager, distributed_lock};
use dlock_tests::contract;
use dlock_tests::world::World;
use tokio::sync::{Barrier, mpsc, oneshot};
use tokio::time::Instant;

contract![
    // Exclusion
    two_managers_exclude_each_other,
    two_tasks_of_one_manager_exclude_each_other,
    different_keys_do_not_exclude_each_other,
    trying_gives_none_while_another_holds,
    a_lock_can_be_taken_again_and_again,
    many_contenders_never_overlap,
    // Waiting
    a_release_wakes_a_waiter_of_another_manager,
    a_dropped_guard_releases,
    waiters_of_several_managers_are_served_in_their_order,
    tasks_of_one_manager_are_served_in_their_order,
    used_up_retries_give_contended_with_every_attempt_counted,
    an_acquire_with_neither_retry_nor_wait_tries_once,
    a_used_up_wait_gives_contended_at_its_end,
    a_dropped_waiter_leaves_no_trace,
    // Lease
    the_lease_of_a_leaked_guard_ends,
    the_watchdog_keeps_a_lease_alive_for_five_leases,
    a_lease_that_is_not_renewed_is_lost_at_its_end,
    an_extended_lease_lasts_longer,
    an_extension_after_the_loss_is_refused,
    the_remaining_time_counts_down,
    // Loss
    a_lost_lease_stops_the_body,
    a_guard_tells_of_its_loss,
    the_release_of_a_stolen_lock_leaves_the_thief_alone,
    a_dropped_guard_of_a_stolen_lock_leaves_the_thief_alone,
    a_second_loss_is_not_healed_by_waiting,
    // Fencing
    fencing_tokens_rise_from_holder_to_holder,
    a_guard_asked_twice_gives_one_fencing_token,
    a_lost_guard_gets_no_fencing_token,
    // Running a body
    the_body_of_run_gives_its_value_and_the_lock_is_free_after_it,
    a_panicking_body_releases,
    a_cancelled_run_releases,
    a_nested_run_of_the_same_key_joins,
    siblings_in_one_hold_exclude_each_other,
    a_spawned_task_does_not_inherit_the_hold,
    acquire_inside_run_on_the_same_key_is_reentrant,
    two_keys_taken_crosswise_are_a_deadlock,
    // Managers
    a_shut_down_manager_refuses_new_work,
    shutting_down_releases_what_is_held,
    a_waiter_is_told_of_the_shutdown,
    an_annotated_function_uses_the_manager_it_runs_with,
];

/// Long enough that no test sees its end by accident.
const LONG: Duration = Duration::from_secs(30);
/// A lease whose end a test waits for.
const LEASE: Duration = Duration::from_millis(600);
/// What a wake-up may take on a busy machine, far below every poll and lease of these tests.
const PROMPT: Duration = Duration::from_millis(500);

/// Holds `key` until the guard is dropped.
async fn hold(manager: &LockManager, key: &str) -> LockGuard {
    manager.lock(key).lease(LONG).acquire().await.expect("the lock is free")
}

/// Returns whether `key` is held by anybody, seen from a process of its own: a manager and a task that inherit nothing.
async fn is_held(world: &World, key: &'static str) -> bool {
    let lock = world.manager().await.lock(key).lease(LONG);
    let stranger = tokio::spawn(async move {
        match lock.try_acquire().await.expect("the backend answers") {
            Some(guard) => {
                guard.release().await.expect("the backend answers");
                false
            }
            None => true,
        }
    });
    stranger.await.expect("the stranger does not panic")
}

/// Waits for `key` with much patience in a task of its own.
fn wait_for(manager: &LockManager, key: &str) -> tokio::task::JoinHandle<Result<LockGuard, Error>> {
    let lock = manager.lock(key).lease(LONG).wait(LONG);
    tokio::spawn(async move { lock.acquire().await })
}

/// Gives a task that has just been spawned its first poll.
async fn let_it_begin() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// Notes when it is dropped.
struct NotesDrop(Arc<AtomicBool>);

impl Drop for NotesDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

// Exclusion

async fn two_managers_exclude_each_other(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let held = hold(&first, "order:7").await;

    let refused = second.lock("order:7").lease(LONG).acquire().await;
    held.release().await.expect("it was held");
    let granted = second.lock("order:7").lease(LONG).acquire().await;

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    assert!(granted.is_ok(), "{granted:?}");
}

async fn two_tasks_of_one_manager_exclude_each_other(world: World) {
    let manager = world.manager().await;
    let _held = hold(&manager, "order:7").await;

    let refused = manager.lock("order:7").lease(LONG).acquire().await;

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
}

async fn different_keys_do_not_exclude_each_other(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let _held = hold(&first, "order:7").await;

    let granted = second.lock("order:77").lease(LONG).acquire().await;

    assert!(granted.is_ok(), "{granted:?}");
}

async fn trying_gives_none_while_another_holds(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let held = hold(&first, "order:7").await;

    let while_held = second.lock("order:7").try_acquire().await.expect("the backend answers");
    held.release().await.expect("it was held");
    let afterwards = second.lock("order:7").try_acquire().await.expect("the backend answers");

    assert!(while_held.is_none());
    assert!(afterwards.is_some());
}

async fn a_lock_can_be_taken_again_and_again(world: World) {
    let manager = world.manager().await;

    for _ in 0..50 {
        hold(&manager, "order:7").await.release().await.expect("it was held");
    }

    assert!(!is_held(&world, "order:7").await);
}

async fn many_contenders_never_overlap(world: World) {
    let inside = Arc::new(AtomicUsize::new(0));
    let turns = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let manager = world.manager().await;
        for _ in 0..6 {
            let (lock, inside, turns) =
                (manager.lock("hot").lease(LONG).wait(LONG), Arc::clone(&inside), Arc::clone(&turns));
            tasks.push(tokio::spawn(async move {
                for _ in 0..5 {
                    let guard = lock.acquire().await.expect("its turn comes");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.expect("it was held");
                    turns.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
    }

    for task in tasks {
        task.await.expect("no contender panics");
    }

    assert_eq!(turns.load(Ordering::SeqCst), 3 * 6 * 5);
}

// Waiting

async fn a_release_wakes_a_waiter_of_another_manager(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let held = hold(&first, "order:7").await;
    let waiter = wait_for(&second, "order:7");
    world.until_waiting("order:7", 1).await;

    let started = Instant::now();
    held.release().await.expect("it was held");
    let granted = waiter.await.expect("the waiter does not panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}

async fn a_dropped_guard_releases(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let held = hold(&first, "order:7").await;
    let waiter = wait_for(&second, "order:7");
    world.until_waiting("order:7", 1).await;

    let started = Instant::now();
    drop(held);
    let granted = waiter.await.expect("the waiter does not panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}

async fn waiters_of_several_managers_are_served_in_their_order(world: World) {
    let first = world.manager().await;
    let held = hold(&first, "order:7").await;
    let (tell, mut told) = mpsc::unbounded_channel();
    for number in 1..=4 {
        let lock = world.manager().await.lock("order:7").lease(LONG).wait(LONG);
        let tell = tell.clone();
        tokio::spawn(async move {
            let guard = lock.acquire().await.expect("its turn comes");
            tell.send(number).expect("the test listens");
            guard.release().await.expect("it was held");
        });
        world.until_waiting("order:7", number).await;
    }

    held.release().await.expect("it was held");
    let mut order = Vec::new();
    for _ in 1..=4 {
        order.push(told.recv().await.expect("every waiter is served"));
    }

    assert_eq!(order, [1, 2, 3, 4]);
}

async fn tasks_of_one_manager_are_served_in_their_order(world: World) {
    let manager = world.manager().await;
    let held = hold(&manager, "order:7").await;
    let (tell, mut told) = mpsc::unbounded_channel();
    for number in 1..=4 {
        let lock = manager.lock("order:7").lease(LONG).wait(LONG);
        let tell = tell.clone();
        tokio::spawn(async move {
            let guard = lock.acquire().await.expect("its turn comes");
            tell.send(number).expect("the test listens");
            guard.release().await.expect("it was held");
        });
        let_it_begin().await;
    }

    held.release().await.expect("it was held");
    let mut order = Vec::new();
    for _ in 1..=4 {
        order.push(told.recv().await.expect("every task is served"));
    }

    assert_eq!(order, [1, 2, 3, 4]);
}

async fn used_up_retries_give_contended_with_every_attempt_counted(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let _held = hold(&first, "order:7").await;
    let (least, most) = (Duration::from_millis(5), Duration::from_millis(20));

    let refused = second.lock("order:7").lease(LONG).retry(3).backoff(least, most).acquire().await;

    match refused {
        Err(Error::Contended { attempts, key, .. }) => {
            assert_eq!(attempts, 4);
            assert_eq!(key.as_str(), "order:7");
        }
        other => panic!("{other:?}"),
    }
}

async fn an_acquire_with_neither_retry_nor_wait_tries_once(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let _held = hold(&first, "order:7").await;

    let started = Instant::now();
    let refused = second.lock("order:7").lease(LONG).acquire().await;

    assert!(matches!(refused, Err(Error::Contended { attempts: 1, .. })), "{refused:?}");
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}

async fn a_used_up_wait_gives_contended_at_its_end(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let _held = hold(&first, "order:7").await;
    let wait = Duration::from_millis(400);

    let started = Instant::now();
    let refused = second.lock("order:7").lease(LONG).wait(wait).acquire().await;
    let took = started.elapsed();

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    assert!(took >= wait && took < wait + Duration::from_millis(100), "{took:?}");
}

async fn a_dropped_waiter_leaves_no_trace(world: World) {
    let (first, second, third) = (world.manager().await, world.manager().await, world.manager().await);
    let held = hold(&first, "order:7").await;
    let dropped = wait_for(&second, "order:7");
    world.until_waiting("order:7", 1).await;

    dropped.abort();
    world.until_nobody_waits("order:7").await;
    let waiter = wait_for(&third, "order:7");
    world.until_waiting("order:7", 1).await;
    let started = Instant::now();
    held.release().await.expect("it was held");
    let granted = waiter.await.expect("the waiter does not panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}

// Lease

async fn the_lease_of_a_leaked_guard_ends(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let leaked = first.lock("order:7").lease(LEASE).renew(false).acquire().await.expect("the lock is free");
    std::mem::forget(leaked);

    let started = Instant::now();
    let granted = second.lock("order:7").lease(LONG).wait(LONG).acquire().await;
    let took = started.elapsed();

    assert!(granted.is_ok(), "{granted:?}");
    assert!(took < LEASE + Duration::from_millis(250), "{took:?}");
}

async fn the_watchdog_keeps_a_lease_alive_for_five_leases(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");

    for _ in 0..10 {
        world.let_pass(LEASE / 2).await;
        assert!(held.check().is_ok(), "{:?}", held.check());
        assert!(is_held(&world, "order:7").await);
    }

    held.release().await.expect("it was held");
    assert!(!is_held(&world, "order:7").await);
}

async fn a_lease_that_is_not_renewed_is_lost_at_its_end(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).renew(false).acquire().await.expect("the lock is free");
    assert!(held.check().is_ok(), "{:?}", held.check());

    world.let_pass(LEASE + Duration::from_millis(20)).await;

    assert!(matches!(held.check(), Err(Error::Lost { .. })), "{:?}", held.check());
    assert_eq!(held.remaining(), Duration::ZERO);
    assert!(!is_held(&world, "order:7").await);
}

async fn an_extended_lease_lasts_longer(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).renew(false).acquire().await.expect("the lock is free");

    held.extend(LEASE * 10).await.expect("it is held");
    world.let_pass(LEASE * 2).await;

    assert!(held.check().is_ok(), "{:?}", held.check());
    assert!(held.remaining() > LEASE * 6, "{:?}", held.remaining());
    assert!(is_held(&world, "order:7").await);
}

async fn an_extension_after_the_loss_is_refused(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).renew(false).acquire().await.expect("the lock is free");
    world.let_pass(LEASE + Duration::from_millis(20)).await;

    let extended = held.extend(LONG).await;

    assert!(matches!(extended, Err(Error::Lost { .. })), "{extended:?}");
    assert!(!is_held(&world, "order:7").await);
}

async fn the_remaining_time_counts_down(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LONG).renew(false).acquire().await.expect("the lock is free");

    let first = held.remaining();
    world.let_pass(LEASE).await;
    let second = held.remaining();

    assert!(first <= LONG && first + Duration::from_secs(2) > LONG, "{first:?}");
    assert!(second + LEASE <= first, "{first:?} -> {second:?}");
}

// Loss

async fn a_lost_lease_stops_the_body(world: World) {
    let lock = world.manager().await.lock("order:7").lease(LEASE);
    let stopped = Arc::new(AtomicBool::new(false));
    let in_body = Arc::clone(&stopped);
    let (entered, has_entered) = oneshot::channel();
    let call = tokio::spawn(async move {
        lock.run(async |_guard| {
            let _notes = NotesDrop(in_body);
            let _ = entered.send(());
            std::future::pending::<()>().await;
        })
        .await
    });
    has_entered.await.expect("the body starts");

    let started = Instant::now();
    world.delete("order:7").await;
    let outcome = call.await.expect("the call does not panic");
    let took = started.elapsed();

    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    assert!(stopped.load(Ordering::SeqCst), "the call returned before its body was gone");
    assert!(took < LEASE, "{took:?}");
}

async fn a_guard_tells_of_its_loss(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");

    let started = Instant::now();
    world.delete("order:7").await;
    held.lost().await;

    assert!(started.elapsed() < LEASE, "{:?}", started.elapsed());
    assert!(matches!(held.check(), Err(Error::Lost { .. })), "{:?}", held.check());
}

async fn the_release_of_a_stolen_lock_leaves_the_thief_alone(world: World) {
    let manager = world.manager().await;
    let held = hold(&manager, "order:7").await;
    let _thief = world.steal("order:7").await;

    // Whether a release after a loss is an error is the guard's affair.
    let _ = held.release().await;

    assert!(is_held(&world, "order:7").await);
}

async fn a_dropped_guard_of_a_stolen_lock_leaves_the_thief_alone(world: World) {
    let manager = world.manager().await;
    let held = hold(&manager, "order:7").await;
    let _thief = world.steal("order:7").await;

    drop(held);
    // Whatever the drop sends goes before this, over the same connection.
    let _other = hold(&manager, "order:8").await;

    assert!(is_held(&world, "order:7").await);
}

async fn a_second_loss_is_not_healed_by_waiting(world: World) {
    let manager = world.manager().await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");
    world.delete("order:7").await;
    held.lost().await;

    world.let_pass(LEASE * 2).await;

    assert!(matches!(held.check(), Err(Error::Lost { .. })), "{:?}", held.check());
    assert!(!is_held(&world, "order:7").await, "the watchdog took the lock again");
}

// Fencing

async fn fencing_tokens_rise_from_holder_to_holder(world: World) {
    let managers = [world.manager().await, world.manager().await, world.manager().await];
    let mut tokens = Vec::new();

    for turn in 0..9 {
        let guard = hold(&managers[turn % 3], "order:7").await;
        tokens.push(guard.fencing_token().await.expect("it is held"));
        guard.release().await.expect("it was held");
    }

    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    assert!(tokens.iter().all(|token| token.get() < 1 << 53), "{tokens:?}");
}

async fn a_guard_asked_twice_gives_one_fencing_token(world: World) {
    let manager = world.manager().await;
    let held = hold(&manager, "order:7").await;

    let first = held.fencing_token().await.expect("it is held");
    let second = held.fencing_token().await.expect("it is held");

    assert_eq!(first, second);
}

async fn a_lost_guard_gets_no_fencing_token(world: World) {
    let manager = world.manager().await;
    let expired =
        manager.lock("expired").lease(LEASE).renew(false).acquire().await.expect("the lock is free");
    let stolen = hold(&manager, "stolen").await;

    world.let_pass(LEASE + Duration::from_millis(20)).await;
    let _thief = world.steal("stolen").await;
    let (of_expired, of_stolen) = (expired.fencing_token().await, stolen.fencing_token().await);

    assert!(matches!(of_expired, Err(Error::Lost { .. })), "{of_expired:?}");
    assert!(matches!(of_stolen, Err(Error::Lost { .. })), "{of_stolen:?}");
}

// Running a body

async fn the_body_of_run_gives_its_value_and_the_lock_is_free_after_it(world: World) {
    let manager = world.manager().await;

    let value = manager
        .lock("order:7")
        .lease(LONG)
        .run(async |guard| {
            guard.check().expect("it is held in the body");
            is_held(&world, "order:7").await
        })
        .await;

    assert!(matches!(value, Ok(true)), "{value:?}");
    assert!(!is_held(&world, "order:7").await);
}

async fn a_panicking_body_releases(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let lock = first.lock("order:7").lease(LONG);

    let call = tokio::spawn(async move { lock.run(async |_guard| panic!("the body's own panic")).await });
    let panicked = call.await;
    let started = Instant::now();
    let granted = second.lock("order:7").lease(LONG).wait(LONG).acquire().await;

    assert!(panicked.is_err_and(|error| error.is_panic()));
    assert!(granted.is_ok(), "{granted:?}");
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}

async fn a_cancelled_run_releases(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let lock = first.lock("order:7").lease(LONG);
    let (entered, has_entered) = oneshot::channel();
    let call = tokio::spawn(async move {
        lock.run(async |_guard| {
            let _ = entered.send(());
            std::future::pending::<()>().await;
        })
        .await
    });
    has_entered.await.expect("the body starts");

    let started = Instant::now();
    call.abort();
    let granted = second.lock("order:7").lease(LONG).wait(LONG).acquire().await;

    assert!(granted.is_ok(), "{granted:?}");
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}

async fn a_nested_run_of_the_same_key_joins(world: World) {
    let manager = world.manager().await;
    let lock = manager.lock("order:7").lease(LONG);

    let value = lock
        .run(async |_outer| {
            let inner = lock.run(async |inner| inner.check().map(|()| 7)).await;
            (inner, is_held(&world, "order:7").await)
        })
        .await;

    let (inner, held_after_the_inner) = value.expect("the lock is free");
    assert!(matches!(inner, Ok(Ok(7))), "{inner:?}");
    assert!(held_after_the_inner, "the inner call released the outer's lock");
    assert!(!is_held(&world, "order:7").await);
}

async fn siblings_in_one_hold_exclude_each_other(world: World) {
    let manager = world.manager().await;
    let lock = manager.lock("order:7").lease(LONG).wait(LONG);
    let inside = AtomicUsize::new(0);
    let sibling = async || {
        lock.run(async |_guard| {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two siblings at once");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
        })
        .await
    };

    let outcomes = lock.run(async |_guard| tokio::join!(sibling(), sibling(), sibling())).await;

    assert!(matches!(outcomes, Ok((Ok(()), Ok(()), Ok(())))), "{outcomes:?}");
}

async fn a_spawned_task_does_not_inherit_the_hold(world: World) {
    let lock = world.manager().await.lock("order:7").lease(LONG);

    let outcome = lock
        .run(async |_guard| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.run(async |_guard| ()).await }).await
        })
        .await;

    let of_the_task = outcome.expect("the lock is free").expect("the task does not panic");
    assert!(matches!(of_the_task, Err(Error::Contended { .. })), "{of_the_task:?}");
}

async fn acquire_inside_run_on_the_same_key_is_reentrant(world: World) {
    let manager = world.manager().await;
    let lock = manager.lock("order:7").lease(LONG).wait(LONG);

    let outcome = lock.run(async |_guard| lock.acquire().await.map(drop)).await;

    let inner = outcome.expect("the lock is free");
    assert!(matches!(inner, Err(Error::Reentrant { .. })), "{inner:?}");
}

async fn two_keys_taken_crosswise_are_a_deadlock(world: World) {
    let manager = world.manager().await;
    let both_hold = Arc::new(Barrier::new(2));
    let chain = |outer: &'static str, inner: &'static str| {
        let (manager, both_hold) = (manager.clone(), Arc::clone(&both_hold));
        tokio::spawn(async move {
            let (outer, inner) =
                (manager.lock(outer).lease(LONG), manager.lock(inner).lease(LONG).wait(LONG));
            let outcome = outer
                .run(async |_guard| {
                    both_hold.wait().await;
                    inner.run(async |_guard| ()).await
                })
                .await;
            outcome.expect("the outer lock is free")
        })
    };

    let started = Instant::now();
    let (left, right) = (chain("left", "right"), chain("right", "left"));
    let outcomes = [left.await.expect("no chain panics"), right.await.expect("no chain panics")];

    let deadlocks = outcomes.iter().filter(|outcome| matches!(outcome, Err(Error::Deadlock { .. }))).count();
    let successes = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert!(deadlocks >= 1 && deadlocks + successes == 2, "{outcomes:?}");
    assert!(started.elapsed() < LONG / 2, "the deadlock was waited out: {:?}", started.elapsed());
}

// Managers

async fn a_shut_down_manager_refuses_new_work(world: World) {
    let manager = world.manager().await;
    manager.shutdown(Duration::from_secs(1)).await;

    let acquired = manager.lock("order:7").lease(LONG).acquire().await;
    let ran = manager.lock("order:7").lease(LONG).wait(LONG).run(async |_guard| ()).await;

    assert!(matches!(acquired, Err(Error::Shutdown { .. })), "{acquired:?}");
    assert!(matches!(ran, Err(Error::Shutdown { .. })), "{ran:?}");
}

async fn shutting_down_releases_what_is_held(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let held = hold(&first, "order:7").await;
    let waiter = wait_for(&second, "order:7");
    world.until_waiting("order:7", 1).await;

    first.shutdown(Duration::from_millis(100)).await;
    let granted = waiter.await.expect("the waiter does not panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!(held.check().is_err());
}

async fn a_waiter_is_told_of_the_shutdown(world: World) {
    let (first, second) = (world.manager().await, world.manager().await);
    let _held = hold(&first, "order:7").await;
    let waiter = wait_for(&second, "order:7");
    world.until_waiting("order:7", 1).await;

    second.shutdown(Duration::from_millis(100)).await;
    let outcome = waiter.await.expect("the waiter does not panic");

    assert!(matches!(outcome, Err(Error::Shutdown { .. })), "{outcome:?}");
    world.until_nobody_waits("order:7").await;
}

async fn an_annotated_function_uses_the_manager_it_runs_with(world: World) {
    #[distributed_lock(key = "isolated:<id>", lease = "30s")]
    async fn annotated(id: u64) -> Result<u64, Error> {
        tokio::task::yield_now().await;
        Ok(id * 2)
    }
    let elsewhere = LockManager::connect("memory://").await.expect("memory is always there");
    let here = world.manager().await;
    let _held = hold(&here, "isolated:7").await;

    let refused = dlock_runtime::with_manager(here, annotated(7)).await;
    let granted = dlock_runtime::with_manager(elsewhere, annotated(7)).await;

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    assert!(matches!(granted, Ok(14)), "{granted:?}");
}
