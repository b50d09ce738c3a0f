//! The test kit: every promise that its documentation makes to the author of a test.
//!
//! Not here: what locks in memory have in common with a server's (`contract`), and their time (`memory`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use dlock_runtime::testing::TestLocks;
use dlock_runtime::{Error, LockManager, LossCause, distributed_lock};
use dlock_tests::within;
use tokio::time::Instant;

const KEY: &str = "order:7";

/// Longer than any hold that is not renewed.
const LONG: Duration = Duration::from_secs(60);

#[distributed_lock(key = "order:<user>")]
async fn order(user: u64, takes: Duration) -> Result<u64, Error> {
    tokio::time::sleep(takes).await;
    Ok(user)
}

#[distributed_lock(key = "order:<user>", wait = "10m")]
async fn patient_order(user: u64) -> Result<u64, Error> {
    Ok(user)
}

#[distributed_lock(key = "order:<user>", on_contended = skip)]
async fn order_or_skip(user: u64) -> Option<u64> {
    Some(user)
}

#[distributed_lock(key = "order:<user>", on_contended = fallback(order_elsewhere))]
async fn order_or_fall_back(user: u64) -> Result<u64, Error> {
    Ok(user)
}

async fn order_elsewhere(user: u64) -> Result<u64, Error> {
    std::future::ready(Ok(user + 1_000)).await
}

#[distributed_lock(key = "order:<user>", on_lost = finish)]
async fn order_to_the_end(user: u64, takes: Duration) -> Result<u64, Error> {
    tokio::time::sleep(takes).await;
    Ok(user)
}

#[distributed_lock(key = "order:<user>", wait = "10m")]
async fn nested_order(user: u64) -> Result<u64, Error> {
    patient_order(user).await
}

/// Lets every other task go as far as it can: under paused time a sleep ends only then.
async fn all_others_wait() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[track_caller]
fn assert_lost<T: std::fmt::Debug>(outcome: &Result<T, Error>, by: LossCause) {
    assert!(matches!(outcome, Err(Error::Lost { cause, .. }) if *cause == by), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn installed_locks_reach_spawned_tasks_until_they_are_uninstalled() {
    let locks = TestLocks::new();
    let place = || async { tokio::spawn(order(7, Duration::ZERO)).await.expect("no panic") };

    let installed = locks.install();
    let during = place().await;
    drop(installed);
    let after = place().await;

    assert!(during.is_ok(), "{during:?}");
    assert_eq!(locks.acquisitions(KEY), 1);
    assert!(matches!(after, Err(Error::NotInstalled { .. })), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn the_locks_of_a_task_come_before_those_installed_last_and_those_before_others() {
    let [first, last, task] = [(); 3].map(|()| TestLocks::new());
    let _of_first = first.install();
    let of_last = last.install();

    let mut placed = vec![order(7, Duration::ZERO).await, task.run(order(7, Duration::ZERO)).await];
    drop(of_last);
    placed.push(order(7, Duration::ZERO).await);

    assert!(placed.iter().all(Result::is_ok), "{placed:?}");
    assert_eq!([&first, &last, &task].map(|locks| locks.acquisitions(KEY)), [1; 3]);
}

#[test]
fn installed_locks_reach_no_other_runtime() {
    let [one, other] = [(); 2].map(|()| tokio::runtime::Runtime::new().expect("a runtime"));
    let locks = TestLocks::new();

    let _installed = one.block_on(async { locks.install() });
    let here = one.block_on(async { tokio::spawn(patient_order(7)).await.expect("no panic") });
    let there = other.block_on(patient_order(7));

    assert!(here.is_ok(), "{here:?}");
    assert!(matches!(there, Err(Error::NotInstalled { .. })), "{there:?}");
}

#[distributed_lock(key = "order:<user>", namespace = "shop")]
async fn order_of_the_shop(user: u64) -> Result<u64, Error> {
    Ok(user)
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_that_of_all_that_is_done_in_it() {
    let locks = TestLocks::new();
    let shop = locks.namespace("shop");

    let elsewhere = shop.hold("order:7").await;
    let own = locks.run(order_of_the_shop(7)).await;
    let of_the_manager = shop.run(order(7, Duration::ZERO)).await;
    let of_another = shop.another_manager().lock("order:7").try_acquire().await;
    let apart = locks.run(order(7, Duration::ZERO)).await;
    drop(elsewhere);

    assert!(own.is_err_and(|error| error.is_contended()));
    assert!(of_the_manager.is_err_and(|error| error.is_contended()));
    assert!(matches!(of_another, Ok(None)));
    assert!(apart.is_ok(), "{apart:?}");
    assert_eq!((shop.acquisitions("order:7"), locks.acquisitions("order:7")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn two_worlds_do_not_meet() {
    let (one, other) = (TestLocks::new(), TestLocks::default());

    let _elsewhere = one.hold(KEY).await;
    let placed = other.run(order(7, Duration::ZERO)).await;

    assert!(placed.is_ok(), "{placed:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_held_elsewhere_is_contended_until_it_is_released_or_dropped() {
    let locks = TestLocks::new();

    for by_drop in [false, true] {
        let elsewhere = locks.hold(KEY).await;
        tokio::time::sleep(LONG).await;
        let refused = locks.run(order(7, Duration::ZERO)).await;
        if by_drop {
            drop(elsewhere);
        } else {
            elsewhere.release().await.expect("it was held");
        }
        let placed = locks.run(order(7, Duration::ZERO)).await;

        assert!(refused.as_ref().is_err_and(Error::is_contended), "{refused:?}");
        assert!(placed.is_ok(), "{placed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_what_is_held_elsewhere_gets_it_at_the_release() {
    let (locks, begun) = (TestLocks::new(), Instant::now());
    let elsewhere = locks.hold(KEY).await;

    let call = tokio::spawn(locks.run(patient_order(7)));
    tokio::time::sleep(LONG).await;
    drop(elsewhere);
    let placed = call.await.expect("no panic");

    assert!(placed.is_ok(), "{placed:?}");
    assert_eq!(begun.elapsed(), LONG);
}

#[tokio::test(start_paused = true)]
async fn to_hold_what_is_held_panics_and_says_where_and_what() {
    let locks = TestLocks::new();
    let _call = tokio::spawn(locks.run(order(7, LONG)));
    all_others_wait().await;

    let again = locks.clone();
    let line = line!() + 1;
    let held = tokio::spawn(async move { again.hold(KEY).await }).await;

    let panic = held.expect_err("it is held").into_panic();
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(
        text.contains(&format!("testing.rs:{line}:")) && text.contains("`order:7` is held already"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "invalid lock key")]
async fn a_key_that_is_not_valid_panics() {
    let _ = TestLocks::new().is_held("");
}

#[tokio::test(start_paused = true)]
async fn a_function_that_skips_skips_what_is_held_elsewhere() {
    let locks = TestLocks::new();

    let elsewhere = locks.hold(KEY).await;
    let skipped = locks.run(order_or_skip(7)).await;
    drop(elsewhere);
    let made = locks.run(order_or_skip(7)).await;

    assert_eq!((skipped, made), (None, Some(7)));
    assert_eq!(locks.acquisitions(KEY), 1);
}

#[tokio::test(start_paused = true)]
async fn a_function_with_a_fallback_falls_back_under_contention_and_fails_in_an_outage() {
    let locks = TestLocks::new();

    let elsewhere = locks.hold(KEY).await;
    let fallen_back = locks.run(order_or_fall_back(7)).await;
    drop(elsewhere);
    let outage = locks.outage();
    let failed = locks.run(order_or_fall_back(7)).await;
    outage.end();
    let placed = locks.run(order_or_fall_back(7)).await;

    assert_eq!((fallen_back.ok(), placed.ok()), (Some(1_007), Some(7)));
    assert!(failed.as_ref().is_err_and(Error::is_unavailable), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_loss_stops_the_body_at_once() {
    let (locks, begun) = (TestLocks::new(), Instant::now());
    let body = Arc::new(());
    let seen = Arc::clone(&body);
    let lock = locks.manager().lock(KEY);
    let call = tokio::spawn(async move {
        lock.run(async move |_guard| {
            std::future::pending::<()>().await;
            drop(seen);
        })
        .await
    });
    all_others_wait().await;

    let lost = locks.lose(KEY);
    let outcome = call.await.expect("no panic");

    assert!(lost);
    assert_lost(&outcome, LossCause::NotOurs);
    assert_eq!(Arc::strong_count(&body), 1, "the body is kept");
    assert!(begun.elapsed() < Duration::from_millis(10), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_guard_knows_of_a_loss_at_once_wherever_it_is_held() {
    let locks = TestLocks::new();
    let ours = locks.manager().lock("ours").acquire().await.expect("it is free");
    let theirs = locks.hold("theirs").await;

    let lost = (locks.lose("ours"), locks.lose("theirs"));

    assert_eq!(lost, (true, true));
    assert_lost(&ours.check(), LossCause::NotOurs);
    assert_lost(&theirs.check(), LossCause::NotOurs);
}

#[tokio::test(start_paused = true)]
async fn nobody_loses_what_nobody_holds() {
    let locks = TestLocks::new();
    let before = locks.lose(KEY);
    locks.run(order(7, Duration::ZERO)).await.expect("it is free");
    let after = locks.lose(KEY);
    let guard = locks.manager().lock(KEY).renew(false).acquire().await.expect("it is free");
    tokio::time::sleep(LONG).await;
    let expired = locks.lose(KEY);
    drop(guard);

    assert_eq!((before, after, expired), (false, false, false));
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_goes_to_who_waits_for_it() {
    let locks = TestLocks::new();
    let holder = tokio::spawn(locks.run(order(7, LONG)));
    all_others_wait().await;
    let begun = Instant::now();
    let waiter = tokio::spawn(locks.run(patient_order(7)));
    let other = locks.another_manager();
    let waits_elsewhere = tokio::spawn(dlock_runtime::with_manager(other, patient_order(7)));
    all_others_wait().await;

    locks.lose(KEY);
    let (held, ours, theirs) = (holder.await, waiter.await, waits_elsewhere.await);

    assert_lost(&held.expect("no panic"), LossCause::NotOurs);
    assert!(ours.expect("no panic").is_ok());
    assert!(theirs.expect("no panic").is_ok());
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_loss_leaves_a_body_that_finishes_alone() {
    let locks = TestLocks::new();
    let call = tokio::spawn(locks.run(order_to_the_end(7, LONG)));
    all_others_wait().await;

    let lost = locks.lose(KEY);
    let beside = locks.run(order(7, Duration::ZERO)).await;
    let outcome = call.await.expect("no panic");

    assert!(lost);
    assert!(beside.is_ok(), "{beside:?}");
    assert_eq!(outcome.ok(), Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_lost_during_an_outage_too() {
    let locks = TestLocks::new();
    let guard = locks.manager().lock(KEY).acquire().await.expect("it is free");

    let _outage = locks.outage();
    locks.lose(KEY);

    assert_lost(&guard.check(), LossCause::NotOurs);
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_a_call_without_patience_fails_at_once() {
    let (locks, begun) = (TestLocks::new(), Instant::now());

    let outage = locks.outage();
    let failed = locks.run(order(7, Duration::ZERO)).await;
    let took = begun.elapsed();
    drop(outage);
    let placed = locks.run(order(7, Duration::ZERO)).await;

    assert!(failed.as_ref().is_err_and(Error::is_unavailable), "{failed:?}");
    assert_eq!(took, Duration::ZERO);
    assert!(placed.is_ok(), "{placed:?}");
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_a_call_with_patience_waits_for_its_end() {
    let locks = TestLocks::new();
    let outage = locks.outage();
    let begun = Instant::now();
    let call = tokio::spawn(locks.run(patient_order(7)));

    tokio::time::sleep(LONG).await;
    outage.end();
    let placed = call.await.expect("no panic");

    assert!(placed.is_ok(), "{placed:?}");
    assert_eq!(begun.elapsed(), LONG);
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_patience_ends_in_unavailable() {
    let locks = TestLocks::new();
    let lock = locks.manager().lock(KEY);
    let _outage = locks.outage();
    let begun = Instant::now();

    let waited = lock.clone().wait(LONG).acquire().await.err();
    let took = begun.elapsed();
    let retried = lock.retry(3).acquire().await.err();

    assert!(waited.as_ref().is_some_and(Error::is_unavailable), "{waited:?}");
    assert_eq!(took, LONG);
    assert!(retried.as_ref().is_some_and(Error::is_unavailable), "{retried:?}");
}

#[tokio::test(start_paused = true)]
async fn a_holder_outlives_an_outage_that_is_shorter_than_its_lease() {
    let locks = TestLocks::new();
    let call = tokio::spawn(locks.run(order(7, 10 * LONG)));
    tokio::time::sleep(LONG).await;

    let outage = locks.outage();
    tokio::time::sleep(Duration::from_secs(15)).await;
    outage.end();
    let outcome = call.await.expect("no panic");

    assert!(outcome.is_ok(), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_renewed_is_renewed_at_the_end_of_the_outage() {
    let locks = TestLocks::with_url("memory://?lease=30s");
    let guard = locks.manager().lock(KEY).acquire().await.expect("it is free");

    let outage = locks.outage();
    tokio::time::sleep(Duration::from_secs(25)).await;
    let before = guard.remaining();
    outage.end();

    assert!(before < Duration::from_secs(6), "{before:?}");
    assert!(guard.remaining() > Duration::from_secs(29), "{:?}", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn a_holder_loses_its_lock_to_an_outage_that_is_longer_than_its_lease() {
    let locks = TestLocks::new();
    let call = tokio::spawn(locks.run(order(7, 10 * LONG)));
    all_others_wait().await;
    let (outage, begun) = (locks.outage(), Instant::now());

    let outcome = call.await.expect("no panic");
    let lost_after = begun.elapsed();
    tokio::time::sleep(LONG).await;
    let left = (locks.is_held(KEY), locks.lose(KEY));
    outage.end();
    let placed = locks.run(order(7, Duration::ZERO)).await;

    assert_lost(&outcome, LossCause::Expired);
    assert!((29..=30).contains(&lost_after.as_secs()), "{lost_after:?}");
    assert_eq!(left, (false, false));
    assert!(placed.is_ok(), "{placed:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_released_in_an_outage_stays_locked_until_its_end() {
    let locks = TestLocks::new();
    let guard = locks.manager().lock(KEY).acquire().await.expect("it is free");
    let outage = locks.outage();

    let released = guard.release().await;
    let still = locks.is_held(KEY);
    outage.end();

    assert!(released.as_ref().is_err_and(Error::is_unavailable), "{released:?}");
    assert!(still);
    assert!(!locks.is_held(KEY));
}

#[tokio::test(start_paused = true)]
async fn what_is_released_in_an_outage_is_let_go_though_its_manager_is_gone() {
    let locks = TestLocks::new();
    let manager = locks.another_manager();
    let guard = manager.lock(KEY).acquire().await.expect("it is free");

    let outage = locks.outage();
    drop((guard, manager));
    outage.end();

    assert!(!locks.is_held(KEY));
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_for_its_at_least_can_be_lost() {
    let locks = TestLocks::new();
    let job = locks.manager().lock("job").at_least(Duration::from_secs(60));
    job.run(async |_guard| ()).await.expect("it is free");
    assert!(locks.is_held("job"));

    assert!(locks.lose("job"));

    assert!(!locks.is_held("job"));
    assert!(job.run(async |_guard| ()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_for_its_at_least_is_kept_through_an_outage() {
    let locks = TestLocks::new();
    let job = locks.manager().lock("job").at_least(Duration::from_secs(60));
    let guard = job.acquire().await.expect("it is free");

    let outage = locks.outage();
    drop(guard);
    tokio::time::sleep(Duration::from_secs(20)).await;
    outage.end();
    tokio::time::sleep(Duration::from_secs(39)).await;

    assert!(locks.is_held("job"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!locks.is_held("job"));
}

#[tokio::test(start_paused = true)]
async fn an_outage_does_not_reach_what_is_elsewhere() {
    let locks = TestLocks::new();
    let before = locks.hold("before").await;

    let _outage = locks.outage();
    let during = locks.hold("during").await;
    tokio::time::sleep(LONG).await;

    assert!(before.release().await.is_ok());
    assert!(during.release().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_cut_off_is_not_granted_the_lock() {
    let locks = TestLocks::new();
    let elsewhere = locks.hold(KEY).await;
    let call = tokio::spawn(locks.run(patient_order(7)));
    all_others_wait().await;

    let outage = locks.outage();
    elsewhere.release().await.expect("it was held");
    all_others_wait().await;
    let during = (locks.is_held(KEY), call.is_finished());
    outage.end();
    let placed = call.await.expect("no panic");

    assert_eq!(during, (false, false));
    assert!(placed.is_ok(), "{placed:?}");
}

#[tokio::test(start_paused = true)]
async fn of_two_outages_the_last_to_end_counts() {
    let locks = TestLocks::new();
    let (one, other) = (locks.outage(), locks.outage());

    one.end();
    let during = locks.run(order(7, Duration::ZERO)).await;
    other.end();
    let after = locks.run(order(7, Duration::ZERO)).await;

    assert!(during.as_ref().is_err_and(Error::is_unavailable), "{during:?}");
    assert!(after.is_ok(), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn bodies_and_guards_are_counted_and_nothing_else() {
    let locks = TestLocks::new();

    locks.run(nested_order(7)).await.expect("it is free");
    drop(locks.manager().lock(KEY).acquire().await);
    drop(locks.another_manager().lock(KEY).acquire().await);
    let elsewhere = locks.hold(KEY).await;
    let refused = locks.run(order(7, Duration::ZERO)).await;
    drop(elsewhere);
    let both = async { tokio::join!(patient_order(7), patient_order(7)) };
    let (one, other) = locks.run(both).await;

    assert!(refused.is_err() && one.is_ok() && other.is_ok());
    assert_eq!((locks.acquisitions(KEY), locks.acquisitions("order:8")), (5, 0));
}

#[tokio::test(start_paused = true)]
async fn who_holds_and_who_waits_can_be_seen() {
    let locks = TestLocks::new();
    let mut seen = vec![(locks.is_held(KEY), locks.waiting(KEY))];
    let elsewhere = locks.hold(KEY).await;
    seen.push((locks.is_held(KEY), locks.waiting(KEY)));
    let calls = [(); 3].map(|()| tokio::spawn(locks.run(patient_order(7))));
    let other = tokio::spawn(dlock_runtime::with_manager(locks.another_manager(), patient_order(7)));
    all_others_wait().await;
    seen.push((locks.is_held(KEY), locks.waiting(KEY)));

    drop(elsewhere);
    for call in calls.into_iter().chain([other]) {
        call.await.expect("no panic").expect("it is let go");
    }

    seen.push((locks.is_held(KEY), locks.waiting(KEY)));
    assert_eq!(seen, [(false, 0), (true, 0), (true, 4), (false, 0)]);
}

#[tokio::test(start_paused = true)]
async fn the_options_of_a_url_are_those_of_the_locks() {
    let locks = TestLocks::with_url("memory://?namespace=shop&lease=5s");

    let ours = locks.manager().lock("ours").acquire().await.expect("it is free");
    let theirs = locks.hold("theirs").await;

    assert_eq!((ours.key().full_name(), theirs.key().full_name()), ("shop:ours", "shop:theirs"));
    assert!(ours.remaining() < Duration::from_secs(5) && theirs.remaining() < Duration::from_secs(5));
    assert!(locks.lose("ours") && locks.lose(theirs.key()));
    assert_eq!(locks.acquisitions("ours"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_named_world_is_that_of_all_managers_of_its_name() {
    let locks = TestLocks::with_url("memory://named-by-the-test-kit");
    let connected =
        LockManager::connect("memory://named-by-the-test-kit").await.expect("memory is always there");

    let guard = connected.lock(KEY).acquire().await.expect("it is free");
    let lost = locks.lose(KEY);
    let _outage = TestLocks::with_url("memory://named-by-the-test-kit").outage();
    let refused = connected.lock(KEY).acquire().await.err();

    assert!(lost && guard.check().is_err());
    assert_eq!(locks.acquisitions(KEY), 1);
    assert!(refused.as_ref().is_some_and(Error::is_unavailable), "{refused:?}");
}

#[test]
fn a_url_of_a_server_panics_without_its_password() {
    let made = std::panic::catch_unwind(|| TestLocks::with_url("redis://user:secret@127.0.0.1"));

    let panic = made.expect_err("there is no server in memory");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.contains("`memory://` alone") && !text.contains("secret"), "{text}");
}

#[test]
fn one_world_serves_one_runtime_after_the_other() {
    static LOCKS: LazyLock<TestLocks> = LazyLock::new(TestLocks::new);

    for _ in 0..2 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let guard = LOCKS.hold(KEY).await;
            tokio::time::sleep(LONG).await;
            guard.release().await.expect("it was held");
            LOCKS.run(patient_order(7)).await.expect("it is free");
        });
    }

    assert_eq!(LOCKS.acquisitions(KEY), 2);
}

/// Lets tasks of eight managers on several threads want one lock 20 times each while `disturb` happens to it over and over. Returns
/// the most bodies that were inside at a time.
async fn disturbed(locks: &TestLocks, disturb: impl Fn()) -> u64 {
    let (inside, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let lock = locks.another_manager().lock(KEY).wait(LONG);
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        calls.spawn(async move {
            for _ in 0..20 {
                let body = async |_: &_| {
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                };
                let ended = lock.run(body).await;
                assert!(ended.as_ref().map_or_else(Error::is_lost, |()| true), "{ended:?}");
            }
        });
    }
    let all_ended = async {
        while !calls.is_empty() {
            disturb();
            tokio::task::yield_now().await;
            while let Some(ended) = calls.try_join_next() {
                ended.expect("no panic");
            }
        }
    };
    within(LONG, "all calls", all_ended).await;
    most.load(Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn outages_on_many_threads_let_nobody_in_beside_another_and_leave_nobody_waiting() {
    let locks = TestLocks::with_url("memory://?hand_off=1ms&grant_lease=100ms");
    let outages = AtomicU64::new(0);

    let most = disturbed(&locks, || {
        let outage = locks.outage();
        std::thread::yield_now();
        outage.end();
        outages.fetch_add(1, Ordering::SeqCst);
    })
    .await;

    assert!(outages.into_inner() > 0);
    assert_eq!((most, locks.acquisitions(KEY)), (1, 160));
    assert_eq!((locks.is_held(KEY), locks.waiting(KEY)), (false, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn losses_on_many_threads_leave_nobody_waiting() {
    let locks = TestLocks::with_url("memory://?hand_off=1ms&grant_lease=100ms");
    let losses = AtomicU64::new(0);

    disturbed(&locks, || {
        losses.fetch_add(u64::from(locks.lose(KEY)), Ordering::SeqCst);
    })
    .await;

    assert!(losses.into_inner() > 0);
    assert_eq!(locks.acquisitions(KEY), 160);
    assert_eq!((locks.is_held(KEY), locks.waiting(KEY)), (false, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_on_another_thread_is_stopped_under_running_time() {
    let locks = TestLocks::new();
    let call = tokio::spawn(locks.run(order(7, 10 * LONG)));
    within(LONG, "the hold", async {
        while !locks.is_held(KEY) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let lost = locks.lose(KEY);
    let outcome = within(LONG, "the end of the call", call).await.expect("no panic");

    assert!(lost);
    assert_lost(&outcome, LossCause::NotOurs);
}
