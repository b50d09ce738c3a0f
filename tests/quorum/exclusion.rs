//! One holder at a time during any failure of a minority.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_runtime::{LockGuard, LockManager};
use dlock_tests::quorum::{Fate, LEASE};
use dlock_tests::world::name;
use dlock_tests::{Moment, QuorumFleet, within};
use futures_util::future::join_all;

const SOON: Duration = Duration::from_secs(10);

async fn hold(manager: &LockManager, key: &str) -> LockGuard {
    manager.lock(key).wait(SOON).acquire().await.expect("a majority is up and the lock is free")
}

async fn assert_taken(manager: &LockManager, key: &str, when: &str) {
    match manager.lock(key).acquire().await {
        Err(error) => assert!(error.is_contended() || error.is_unavailable(), "{when}: {error:?}"),
        Ok(_) => panic!("{when}: two managers hold {key}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_hold_a_lock_one_at_a_time_and_all_acquire_it() {
    for servers in [3, 5] {
        let fleet = QuorumFleet::start(servers).await;
        let (inside, entered) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let manager = fleet.manager("").await;
            for _ in 0..4 {
                let (manager, inside, entered) = (manager.clone(), Arc::clone(&inside), Arc::clone(&entered));
                tasks.spawn(async move {
                    for _ in 0..5 {
                        let guard = hold(&manager, "hot").await;
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two tasks hold the lock");
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        entered.fetch_add(1, Ordering::SeqCst);
                        guard.release().await.expect("it was held");
                    }
                });
            }
        }

        let begun = Moment::now();
        within(Duration::from_secs(20), "all of them", async {
            while let Some(done) = tasks.join_next().await {
                done.expect("no two tasks held the lock at once");
            }
        })
        .await;

        println!("{servers} servers: 60 holds of three managers in {:?}", begun.elapsed());
        assert_eq!(entered.load(Ordering::SeqCst), 60);
        assert_eq!(fleet.holding("hot"), 0);
    }
}

/// All minorities of three, and some of five. `DLOCK_ALL_MINORITIES` selects all of five.
fn minorities() -> Vec<(usize, Vec<usize>)> {
    let all = std::env::var_os("DLOCK_ALL_MINORITIES").is_some();
    let of_five = QuorumFleet::minorities(5).into_iter().enumerate();
    let of_five = of_five.filter(|(at, few)| all || (few.len() == 2 && at % 5 == 0)).map(|(_, few)| (5, few));
    QuorumFleet::minorities(3).into_iter().map(|few| (3, few)).chain(of_five).collect()
}

/// Runs `what` on new fleets, up to six minorities at a time: each minority of three with every
/// fate, and each of five with one.
async fn each<F: Future<Output = ()>>(what: impl Fn(QuorumFleet, Vec<usize>, Fate) -> F) {
    let mut fates = [Fate::Killed, Fate::Frozen, Fate::Restarted].into_iter().cycle();
    for some in minorities().chunks(6) {
        let lives = some.iter().flat_map(|(servers, few)| {
            let of_three = if *servers == 3 { 3 } else { 1 };
            fates.by_ref().take(of_three).map(|fate| (*servers, few.clone(), fate)).collect::<Vec<_>>()
        });
        let lives = lives.map(|(servers, few, fate)| {
            let what = &what;
            async move { what(QuorumFleet::start(servers).await, few, fate).await }
        });
        join_all(lives).await;
    }
}

/// Breaks or heals servers on a blocking thread. Waiting for a dozen servers on the test's thread
/// would delay its renewals by more than a lease.
async fn meanwhile(
    mut fleet: QuorumFleet,
    what: impl FnOnce(&mut QuorumFleet) + Send + 'static,
) -> QuorumFleet {
    let done = tokio::task::spawn_blocking(move || {
        what(&mut fleet);
        fleet
    });
    done.await.expect("servers stop and start")
}

async fn until_nothing_is_left(fleet: &QuorumFleet, key: &str) {
    let gone = async {
        while fleet.holding(key) > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(SOON, &format!("{key}: nothing is left"), gone).await;
}

/// The failure of a minority changes nothing for the holder or for the next one.
async fn outlive(mut fleet: QuorumFleet, few: Vec<usize>, fate: Fate) {
    let (ours, theirs) = (fleet.manager("").await, fleet.manager("").await);
    let key = format!("{fate:?}:{few:?}");
    let held = hold(&ours, &key).await;

    fleet.befall(&few, fate);
    assert_taken(&theirs, &key, "at once").await;
    tokio::time::sleep(LEASE + LEASE / 4).await;
    assert_taken(&theirs, &key, "after a lease").await;
    assert!(held.check().is_ok(), "{key}: it was lost");
    held.release().await.expect("a majority confirms the release");

    let next = within(Duration::from_secs(1), &format!("{key}: the next"), hold(&theirs, &key)).await;
    next.release().await.expect("a majority confirms the release");
    fleet.heal(&few, fate);
    until_nothing_is_left(&fleet, &key).await;
}

/// A failure during acquires and releases neither admits two holders nor stops the work.
async fn work_on(fleet: QuorumFleet, few: Vec<usize>, fate: Fate) {
    let key = format!("work:{fate:?}:{few:?}");
    let (inside, entered) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let manager = fleet.manager("").await;
        let (key, inside, entered) = (key.clone(), Arc::clone(&inside), Arc::clone(&entered));
        tasks.spawn(async move {
            loop {
                let guard = hold(&manager, &key).await;
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "{key}: two tasks hold the lock");
                tokio::task::yield_now().await;
                if let Err(lost) = guard.check() {
                    panic!("{key}: {lost}");
                }
                inside.fetch_sub(1, Ordering::SeqCst);
                entered.fetch_add(1, Ordering::SeqCst);
                guard.release().await.expect("a majority confirms the release");
            }
        });
    }
    let until_entered = async |more: u32| {
        let from = entered.load(Ordering::SeqCst);
        let goes_on = async {
            while entered.load(Ordering::SeqCst) < from + more {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within(SOON, &format!("{key}: the work continues"), goes_on).await;
    };

    until_entered(5).await;
    let chosen = few.clone();
    let fleet = meanwhile(fleet, move |fleet| fleet.befall(&chosen, fate)).await;
    until_entered(50).await;
    let fleet = meanwhile(fleet, move |fleet| fleet.heal(&few, fate)).await;
    until_entered(50).await;
    let mut guards = Vec::new();
    tasks.abort_all();
    while let Some(ended) = tasks.join_next().await {
        guards.push(ended);
    }

    assert!(
        guards.iter().all(|ended| ended.as_ref().is_err_and(tokio::task::JoinError::is_cancelled)),
        "{guards:?}"
    );
    until_nothing_is_left(&fleet, &key).await;
}

/// Only its `SetTtl` knows a lock that is kept: no renewal writes its key again.
#[tokio::test]
async fn min_hold_outlives_restarts_of_a_majority_one_by_one() {
    const MIN_HOLD: Duration = Duration::from_secs(20);
    let mut fleet = QuorumFleet::start(3).await;
    let (ours, theirs) = (fleet.manager("").await, fleet.manager("").await);
    let held = ours.lock("report").min_hold(MIN_HOLD).wait(SOON).acquire().await.expect("the lock is free");
    held.release().await.expect("a majority confirms it");

    for server in [0, 1] {
        fleet.befall(&[server], Fate::Restarted);
        tokio::time::sleep(LEASE + Duration::from_secs(2)).await;
    }

    assert_taken(&theirs, "report", "after two restarts").await;
    assert_eq!(fleet.holding("report"), 3);
    for server in fleet.servers() {
        let ttl = server.call(&["PTTL", &name("report")]).integer().expect("it is a number");
        let left = Duration::from_millis(ttl.try_into().expect("it has a time to live"));
        assert!(left + LEASE < MIN_HOLD, "{left:?}");
    }
}

/// The restarted server is one of the two that granted the lock.
#[tokio::test]
async fn min_hold_is_written_to_a_server_that_connects_for_the_first_time() {
    let mut fleet = QuorumFleet::start(3).await;
    let theirs = fleet.manager("").await;
    fleet.befall(&[0], Fate::Killed);
    let ours = fleet.manager("").await;
    let lock = ours.lock("report").min_hold(Duration::from_secs(20)).wait(SOON);
    let held = lock.acquire().await.expect("a majority is up and the lock is free");
    held.release().await.expect("a majority confirms it");

    fleet.heal(&[0], Fate::Killed);
    tokio::time::sleep(LEASE + Duration::from_secs(2)).await;
    assert_eq!(fleet.holding("report"), 3);
    fleet.befall(&[1], Fate::Restarted);
    tokio::time::sleep(LEASE + Duration::from_secs(2)).await;

    assert_taken(&theirs, "report", "after a restart").await;
}

#[tokio::test]
async fn a_hold_outlives_any_minority() {
    each(outlive).await;
}

#[tokio::test]
async fn work_continues_when_any_minority_fails_midway() {
    each(work_on).await;
}
