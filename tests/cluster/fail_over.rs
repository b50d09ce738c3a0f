//! Failovers while locks are in use.

use std::time::Duration;

use dlock_runtime::{LockManager, LossCause};
use dlock_tests::judge::{self, FailOver};
use dlock_tests::sentinel::End;
use dlock_tests::work::Work;
use dlock_tests::{ClusterFleet, Moment, within};

const MANAGERS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_outlive_fail_overs_and_every_overlap_is_fenced() {
    let count = std::env::var("DLOCK_FAIL_OVERS").map_or(3, |count| count.parse().expect("a number"));
    let mut fleet = ClusterFleet::start();
    let mut managers = Vec::new();
    for _ in 0..MANAGERS {
        let manager = LockManager::connect(&fleet.url_with("")).await;
        managers.push(manager.expect("the cluster accepts connections"));
    }
    let work = Work::start(&managers, |prefix| fleet.keys_on_each(prefix));

    let mut fail_overs = Vec::new();
    let mut begun = Moment::now();
    let ends = [End::Kill, End::Pause, End::Order].into_iter().cycle();
    for (number, end) in ends.take(count).enumerate() {
        let part = number % fleet.masters().len();
        work.until_entered(Moment::now(), 50).await;
        let known = fleet.masters().to_vec();
        let broken = fleet.break_master(part, end);
        for other in
            (0..known.len()).filter(|other| known[*other] != fleet.masters()[*other] && *other != part)
        {
            println!("part {other} has another master without an injected fault");
            fail_overs.push((other, FailOver { end: None, broken: begun, switched: Moment::now() }));
        }
        let switch = fleet.switched().await;
        work.until_entered(switch.at, 0).await;
        let resumed = Moment::now();
        fleet.heal(switch.from);
        work.until_entered(Moment::now(), 50).await;
        fail_overs.push((part, FailOver { end: Some(end), broken, switched: switch.at }));
        println!(
            "{end:?}: {:?} until the election, {:?} until all work resumes, {:?} in all",
            switch.at.since(broken),
            resumed.since(switch.at),
            broken.elapsed()
        );
        begun = Moment::now();
    }
    let history = work.end().await;

    judge::no_call_takes_longer_than_its_limit(&history);
    judge::every_refusal_has_its_type(&history);
    judge::tokens_rise(&history);
    let (mut ended, mut overlaps, mut longest) = (0, 0, Duration::ZERO);
    for part in 0..fleet.masters().len() {
        let history = history.of(|key| fleet.part(key) == part);
        let of_part: Vec<_> = fail_overs.iter().filter(|(of, _)| *of == part).map(|(_, one)| *one).collect();
        ended += judge::no_hold_outlives_its_lease(&history, &of_part);
        overlaps += judge::overlaps_only_across_a_fail_over(&history, &of_part);
    }
    for (_, fail_over) in fail_overs.iter().filter(|(_, fail_over)| fail_over.end.is_some()) {
        longest = longest.max(judge::work_goes_on_within_a_second(&history, *fail_over));
    }
    println!(
        "{} failovers, {} holds, {ended} ended with a silent master, {overlaps} overlaps, work resumes after {longest:?} at most",
        fail_overs.len(),
        history.holds.len(),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_of_the_only_master_in_use_is_followed() {
    for end in [End::Kill, End::Pause] {
        let mut fleet = ClusterFleet::start();
        let manager =
            LockManager::connect(&fleet.url_with("")).await.expect("the cluster accepts connections");
        let key = fleet.key_in(1, "order");
        drop(manager.lock(&*key).acquire().await.expect("it is free"));

        fleet.break_master(1, end);
        fleet.switched().await;
        let lock = manager.lock(&*key).wait(Duration::from_secs(20));
        let acquired = within(Duration::from_secs(10), "the lock at the new master", lock.acquire()).await;

        assert!(acquired.is_ok(), "{end:?}: {acquired:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_missing_on_the_new_master_is_lost_before_renewal() {
    let mut fleet = ClusterFleet::start();
    let manager = LockManager::connect(&fleet.url_with("")).await.expect("the cluster accepts connections");
    let [lost, kept] = [0, 1].map(|part| fleet.key_in(part, "order"));
    let kept = manager.lock(&*kept).lease(LONG).acquire().await.expect("the lock is free");

    let lock = manager.lock(&*lost).lease(LONG);
    let held = fleet.kill_before_replication(0, lock.acquire()).await.expect("the lock is free");
    let switch = fleet.switched().await;
    let cause = within(LONG / 6, "the loss", held.lost()).await;

    assert_eq!(cause, LossCause::NotOwner);
    assert!(switch.at.elapsed() < Duration::from_secs(1), "{:?}", switch.at.elapsed());
    kept.release().await.expect("its master is the same");
}

const LONG: Duration = Duration::from_secs(30);
