//! The lock manager that a call uses: of its task, installed, or of a name or URL.

use std::sync::LazyLock;
use std::time::Duration;

use dlock_runtime::testing::TestLocks;
use dlock_runtime::{Error, LockManager, distributed_lock, in_current_scope, with_manager};

use crate::{KEY, LONG, order, patient_order};

#[tokio::test(start_paused = true)]
async fn installed_locks_reach_spawned_tasks_until_uninstalled() {
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
async fn locks_of_a_task_precede_installed_ones() {
    let [first, last, task] = [(); 3].map(|()| TestLocks::new());
    let _of_first = first.install();
    let of_last = last.install();

    let mut placed = vec![order(7, Duration::ZERO).await, task.run(order(7, Duration::ZERO)).await];
    drop(of_last);
    placed.push(order(7, Duration::ZERO).await);

    assert!(placed.iter().all(Result::is_ok), "{placed:?}");
    assert_eq!([&first, &last, &task].map(|locks| locks.acquisitions(KEY)), [1; 3]);
}

#[tokio::test(start_paused = true)]
async fn dropping_an_installation_keeps_a_later_one_of_its_store() {
    let locks = TestLocks::new();
    let chosen = || dlock_runtime::manager().expect("one is installed").lock("order:7");

    let of_shop = locks.namespace("shop").install();
    let _of_all = locks.install();
    drop(of_shop);
    let _guard = chosen().acquire().await.expect("it is free");

    assert!(locks.is_held("order:7") && !locks.namespace("shop").is_held("order:7"));
}

#[tokio::test(start_paused = true)]
async fn manager_is_that_of_the_task_then_of_the_runtime() {
    let [runtime, task] = [(); 2].map(|()| TestLocks::new());
    let chosen = || dlock_runtime::manager().map(|locks| locks.id());

    let none = chosen();
    let _installed = runtime.install();
    let of_runtime = chosen();
    let of_task = task.run(async { chosen() }).await;

    assert!(matches!(none, Err(Error::NotInstalled { .. })), "{none:?}");
    assert_eq!(of_runtime.ok(), Some(runtime.manager().id()));
    assert_eq!(of_task.ok(), Some(task.manager().id()));
}

#[tokio::test(start_paused = true)]
async fn spawned_tasks_inherit_the_manager_only_with_in_current_scope() {
    let locks = TestLocks::new();

    let (bare, wrapped) = with_manager(locks.manager(), async {
        let bare = tokio::spawn(order(7, Duration::ZERO));
        let wrapped = tokio::spawn(in_current_scope(order(7, Duration::ZERO)));
        (bare.await.expect("no panic"), wrapped.await.expect("no panic"))
    })
    .await;

    assert!(matches!(bare, Err(Error::NotInstalled { .. })), "{bare:?}");
    assert!(wrapped.is_ok(), "{wrapped:?}");
    assert_eq!(locks.acquisitions(KEY), 1);
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
async fn namespace_applies_to_all_operations_of_its_kit() {
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
async fn two_test_kits_share_no_lock() {
    let (one, other) = (TestLocks::new(), TestLocks::default());

    let _elsewhere = one.hold(KEY).await;
    let placed = other.run(order(7, Duration::ZERO)).await;

    assert!(placed.is_ok(), "{placed:?}");
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
async fn a_named_store_is_shared_by_all_its_managers() {
    let locks = TestLocks::with_url("memory://named-by-the-test-kit");
    let connected =
        LockManager::connect("memory://named-by-the-test-kit").await.expect("the in-memory backend connects");

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
    assert!(text.contains("only `memory://`") && !text.contains("secret"), "{text}");
}

#[test]
fn one_test_kit_serves_successive_runtimes() {
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
