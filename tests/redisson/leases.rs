//! A live holder keeps its lease, and the lock of a dead holder is free when its lease expires.

use std::time::Duration;

use dlock_tests::{Moment, Redisson, Worker};

use crate::{Fleet, LONG, OPTIONS, WATCHDOG, WORKER};

#[tokio::test]
async fn each_watchdog_keeps_its_lock_over_several_leases() {
    let Some(Fleet { ours, mut java, server: _server }) = Fleet::start().await else { return };
    let guard = ours.lock("ours").lease(WATCHDOG).acquire().await.expect("free");
    java.does("t1", "lock javas 0", "acquired").await;
    let started = Moment::now();

    while started.elapsed() < 4 * WATCHDOG {
        java.does("t2", "trylock ours 20 1000", "refused").await;
        let refused = ours.lock("javas").try_acquire().await.expect("the server replies");
        assert!(refused.is_none(), "{refused:?}");
    }

    guard.check().expect("it is still held");
    java.does("t1", "unlock javas", "released").await;
}

#[tokio::test]
async fn a_lease_without_a_watchdog_ends_and_the_other_gets_the_lock() {
    let Some(Fleet { ours, mut java, server: _server }) = Fleet::start().await else { return };
    let asked = Moment::now();
    java.does("t1", "lock k 600", "acquired").await;
    let taken = Moment::now();

    let guard = ours
        .lock("k")
        .lease(Duration::from_millis(600))
        .renew(false)
        .wait(LONG)
        .acquire()
        .await
        .expect("the lease expires");
    let after = taken.elapsed();
    assert!(asked.elapsed() >= Duration::from_millis(600), "before the end of its lease");
    assert!(after < Duration::from_millis(900), "{after:?}");
    let taken = Moment::now();
    let left = guard.remaining(); // from a later moment, so not from before the deadline
    let acquired = java.does("t2", "trylock k 20000 0", "acquired").await;

    let after = acquired.at.since(taken);
    assert!(after >= left && after < Duration::from_millis(900), "{after:?}");
    drop(guard);
    java.does("t2", "unlock k", "released").await;
}

#[tokio::test]
async fn lock_of_a_killed_java_is_ours_after_its_lease() {
    let server = crate::server();
    let Some(mut java) = Redisson::alone(&server.url(), WATCHDOG).await else { return };
    let ours = crate::manager(&server.url_with(OPTIONS)).await;
    java.does("t1", "lock k 0", "acquired").await;

    java.kill();
    let killed = Moment::now();
    let _guard = ours.lock("k").wait(LONG).acquire().await.expect("the lease expires");

    let after = killed.elapsed();
    assert!(after > WATCHDOG / 2 && after < WATCHDOG + Duration::from_millis(300), "{after:?}");
}

#[tokio::test]
async fn lock_of_a_killed_dlock_process_is_javas_after_its_lease() {
    let server = crate::server();
    let Some(mut java) = Redisson::connect(&server.url(), WATCHDOG).await else { return };
    let mut worker = Worker::spawn(WORKER, &[server.url_with(OPTIONS)]).await;
    worker.send("acquire k 1000 0");
    worker.event("acquired", "k").await;
    java.tell("t1", "trylock k 20000 0");

    worker.kill();
    let killed = Moment::now();

    let after = java.says("t1", "acquired").await.at.since(killed);
    assert!(after > WATCHDOG / 2 && after < WATCHDOG + Duration::from_millis(300), "{after:?}");
}

#[tokio::test]
async fn java_frozen_beyond_its_lease_does_not_release_our_lock() {
    let server = crate::server();
    let Some(mut java) = Redisson::alone(&server.url(), WATCHDOG).await else { return };
    let ours = crate::manager(&server.url_with(OPTIONS)).await;
    java.does("t1", "lock k 0", "acquired").await;

    java.pause();
    let guard = ours.lock("k").wait(LONG).acquire().await.expect("the lease expires");
    java.resume();
    let refused = java.does("t1", "unlock k", "failed").await;

    assert!(refused.detail.starts_with("IllegalMonitorStateException"), "{refused:?}");
    guard.check().expect("it is still held");
    guard.release().await.expect("it is still held");
}
