//! Failovers while locks are in use.

use dlock_runtime::LockManager;
use dlock_tests::handoff::{NEVER_POLLS, allow_namespaces, assert_handed_off_in_each_namespace};
use dlock_tests::judge::{self, FailOver};
use dlock_tests::resp::Reply;
use dlock_tests::sentinel::{End, Switch, role};
use dlock_tests::work::{WAIT, Work};
use dlock_tests::world::name;
use dlock_tests::{Moment, RedisServer, SentinelFleet};

const MANAGERS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_outlive_fail_overs_and_every_overlap_is_fenced() {
    let count = std::env::var("DLOCK_FAIL_OVERS").map_or(3, |count| count.parse().expect("a number"));
    let mut fleet = SentinelFleet::start().await;
    let mut managers = Vec::new();
    for _ in 0..MANAGERS {
        let manager = LockManager::connect(&fleet.url_with("")).await;
        managers.push(manager.expect("the sentinels name a master that accepts connections"));
    }
    let work = Work::start(&managers, |key| vec![key.to_owned()]);

    let mut fail_overs = Vec::new();
    let mut begun = Moment::now();
    for (number, end) in [End::Kill, End::Pause, End::Order].into_iter().cycle().take(count).enumerate() {
        work.until_entered(Moment::now(), 50).await;
        let broken = fleet.break_master(end);
        let switch = fleet.switched().await;
        work.until_entered(switch.at, 0).await;
        if end == End::Pause {
            fleet.resume(switch.from);
        }
        let judged = end != End::Kill && no_write_goes_to(&mut fleet, switch, &work, &managers, number).await;
        fleet.heal(switch.from);
        let other = fleet.switches().iter().filter(|other| other.at > begun && **other != switch);
        fail_overs.extend(other.map(|other| FailOver { end: None, broken: begun, switched: other.at }));
        fail_overs.push(FailOver { end: Some(end), broken, switched: switch.at });
        begun = Moment::now();
        let down = switch.at.since(broken);
        println!(
            "{end:?}: {down:?} until the switch, {:?} in all, stale master judged: {judged}",
            broken.elapsed()
        );
    }
    let history = work.end().await;

    judge::no_call_takes_longer_than_its_limit(&history);
    judge::every_refusal_has_its_type(&history);
    let ended = judge::no_hold_outlives_its_lease(&history, &fail_overs);
    let overlaps = judge::overlaps_only_across_a_fail_over(&history, &fail_overs);
    judge::tokens_rise(&history);
    let injected = fail_overs.iter().filter(|fail_over| fail_over.end.is_some());
    let after = injected.map(|fail_over| judge::work_goes_on_within_a_second(&history, *fail_over));
    println!(
        "{} failovers, {} holds, {ended} ended with a silent master, {overlaps} overlaps, work resumes after {:?} at most",
        fail_overs.len(),
        history.holds.len(),
        after.max()
    );
}

/// Asserts that a recovered old master receives no writes while work continues. Returns `false` if
/// it did not stay a master or if another switch followed: its writes may then be replicated ones.
async fn no_write_goes_to(
    fleet: &mut SentinelFleet,
    switch: Switch,
    work: &Work,
    managers: &[LockManager],
    number: usize,
) -> bool {
    // When this call returns, the old master has read the requests that arrived during its pause.
    let before = writes(fleet.server(switch.from));
    let key = format!("after:{number}");
    let guard = managers[0].lock(&*key).wait(WAIT).acquire().await.expect("the new master grants locks");
    work.until_entered(Moment::now(), 100).await;

    let stale = fleet.server(switch.from);
    let after = writes(stale);
    let has_key = stale.call(&["EXISTS", &name(&key)]);
    drop(guard);
    if role(stale) != "master" || fleet.switches().last() != Some(&switch) {
        return false;
    }
    assert_eq!((after, has_key), (before, Reply::Integer(0)), "writes to an old master");
    true
}

fn writes(server: &RedisServer) -> u64 {
    ["set", "eval", "evalsha"].map(|command| server.command_count(command)).into_iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_woken_in_each_namespace_after_a_fail_over() {
    let mut fleet = SentinelFleet::start().await;
    allow_namespaces(fleet.master());
    fleet.replicas().for_each(allow_namespaces);
    let (ours, theirs) = (
        LockManager::connect(&fleet.url_with(NEVER_POLLS)).await.expect("it accepts connections"),
        LockManager::connect(&fleet.url_with(NEVER_POLLS)).await.expect("it accepts connections"),
    );
    assert_handed_off_in_each_namespace(&ours, &theirs, "before").await;

    fleet.break_master(End::Kill);
    fleet.switched().await;
    for manager in [&ours, &theirs] {
        while manager.ready().await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    assert_handed_off_in_each_namespace(&ours, &theirs, "after").await;
}
